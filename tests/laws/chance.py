"""Random tables and random diagrams, each a function of one generator: a seed replays it."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
from harness import Story, tell, times

from borealis.diagram.durations import CountWindow, Window, count_window, window
from borealis.diagram.model import Diagram, Stream
from borealis.diagram.spec import Spec

# -- tables

SECOND = 1_000_000
INF, NAN = math.inf, math.nan
# floats are multiples of a quarter, so that sums of them are exact in any order
VALUES: dict[str, list[Any]] = {
    "TINYINT": [0, 1, -1, 2, 127, -128],
    "SMALLINT": [0, 1, -1, 5, 32767],
    "INT": [0, 1, 2, 3, -1, 2],
    "BIGINT": [0, 1, -7, 5, 1000, 2**40],
    "FLOAT": [0.0, -0.0, 0.25, 1.5, -3.0, NAN, INF],
    "DOUBLE": [0.0, -0.0, 0.25, 1.5, 2.0, -3.75, 1e6, 0.5, 1.0, 4.0, -INF, INF, NAN],
    "DECIMAL(10,2)": [Decimal(x) for x in ("0.00", "1.50", "-1.50", "0.01", "99999999.99", "7.25")],
    "DECIMAL(38,0)": [Decimal(0), Decimal(10**18 + 1), Decimal(-(10**30)), Decimal(7)],
    "STRING": ["", "a", "A", "ab", "Ελένη", "名前", "نام", "😀", "a\0b", "ﬀ"],
    "BINARY": [b"", b"\0", b"a", b"\xff\x00"],
    "BOOLEAN": [True, False],
    "DATE": [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1600, 3, 1)],
    "TIMESTAMP": [
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC),
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        dt.datetime(1900, 1, 1, tzinfo=dt.UTC),
    ],
}
ARROW: dict[str, pa.DataType] = {
    "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64(), "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(), "DECIMAL(10,2)": pa.decimal128(10, 2), "DECIMAL(38,0)": pa.decimal128(38, 0),
    "STRING": pa.string(), "BINARY": pa.binary(), "BOOLEAN": pa.bool_(), "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
}  # fmt: skip


STARTS = [0, -5 * SECOND, 1_700_000_000 * SECOND, -3_000_000_000 * SECOND, -1]
STEPS = [[0, 1, SECOND // 4], [0, 0, SECOND], [SECOND // 10, 3 * SECOND], [0, 1, SECOND, 20 * SECOND], [SECOND // 4]]


def random_times(
    rng: Random, rows: int, slack_us: int, start: int = 0, *, distinct: bool = False, tardy: float = 0.0
) -> list[int]:
    """Times that rise on the whole, out of order within the slack; some (`tardy`) far beyond it."""
    steps = rng.choice(STEPS)
    now, out = start + rng.randrange(SECOND), []
    taken = set()
    for _ in range(rows):
        now += rng.choice(steps)
        time = now - (rng.randrange(slack_us + 1) if rng.random() < 0.5 else 0)
        if rng.random() < tardy:
            time = now - rng.randrange(30 * SECOND)
        while distinct and time in taken:
            now += 1
            time += 1
        taken.add(time)
        out.append(time)
    return out


def random_table(rng: Random, columns: dict[str, str], stamps: list[int], nulls: float = 0.15) -> pa.Table:
    """One row per time; each column from few values, so that rows meet."""
    out: dict[str, pa.Array] = {"ts": times(stamps)}
    plain = rng.random() < 0.7  # no NaN and no infinity
    for name, kind in columns.items():
        values = VALUES[kind]
        if plain and kind in ("FLOAT", "DOUBLE"):
            values = [v for v in values if math.isfinite(v)]
        values = values[: rng.choice([2, 3, 100])]
        out[name] = pa.array([None if rng.random() < nulls else rng.choice(values) for _ in stamps], ARROW[kind])
    return pa.table(out)


def random_story(
    rng: Random,
    spec: Spec,
    columns: dict[str, dict[str, str]],
    rows: int,
    *,
    distinct: bool = False,
    tardy: float = 0.0,
) -> Story:
    """Data for every input, in a random merge order, now and then with a boundary that idleness wrote."""
    tables, start = {}, rng.choice(STARTS)
    for one in spec.inputs:
        n = rng.choice([rows, rows, rows, rows // 2, 0]) if len(spec.inputs) > 1 else rows
        stamps = random_times(rng, n, one.slack_us, start, distinct=distinct, tardy=tardy)
        tables[one.name] = random_table(rng, columns[one.name], stamps)
    turns = [name for name, table in tables.items() for _ in range(table.num_rows)]
    if rng.random() < 0.5:
        rng.shuffle(turns)
    else:  # about as their times go
        stamps = {name: table["ts"].cast(pa.int64()).to_pylist() for name, table in tables.items()}
        turns = [name for _, name in sorted((t, name) for name, ts in stamps.items() for t in ts)]
    idle = None
    if tardy and turns and rng.random() < 0.3:
        near = rng.choice([t for table in tables.values() for t in table["ts"].cast(pa.int64()).to_pylist()])
        idle = {rng.randrange(len(turns)): near + rng.randrange(5 * SECOND)}
    return tell(spec, tables, turns, idle)


# -- diagrams

COLUMNS = {"k": "INT", "s": "STRING", "v": "DOUBLE", "n": "BIGINT", "m": "DECIMAL(10,2)", "b": "BOOLEAN", "d": "DATE"}
DDL = "ts TIMESTAMP, " + ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
BOTH = {"a": COLUMNS, "b": COLUMNS}
FAMILY = {"INT": "int", "BIGINT": "int", "DOUBLE": "float", "DECIMAL(10,2)": "decimal", "STRING": "text"}
FAMILY |= {"BOOLEAN": "bool", "DATE": "date", "TIMESTAMP": "time"}
WINDOWS = [(4000, 2000), (2000, 2000), (1000, 3000), (3000, 2000), (5000, 1000), (500, 700), (20000, 20000)]
NEAR = ["1 second", "3 seconds", "250 ms"]
ROWS_MAX = 1500  # that may flow along an arrow, roughly

PREDICATES = {
    "int": ["{0} > 0", "{0} % 2 = 0", "{0} IS NULL OR {0} < 3", "{0} IN (0, 1, 5)"],
    "float": ["{0} > 0.5", "{0} <= 1.5", "{0} IS NOT NULL", "{0} + 1 > 2 OR {0} < 0"],
    "decimal": ["{0} > 0.50", "{0} IS NOT NULL", "{0} * 2 > 1.5"],
    "text": ["{0} > 'a'", "{0} IS NOT NULL", "{0} <> 'ab'", "{0} = 'a' OR {0} = 'A'"],
    "bool": ["{0}", "NOT {0}"],
    "date": ["{0} >= DATE'1970-01-01'"],
    "time": ["{0} > TIMESTAMP'1969-01-01 00:00:00'"],
    "loose": ["{0} IS NOT NULL"],
}
CATALYST = {
    "text": ["initcap({0}) = 'A'", "length({0}) > 1", "{0} LIKE '%a%'"],
    "decimal": ["try_multiply({0}, 2) > 1.5"],
    "int": ["pmod({0}, 3) = 1"],
    "time": ["date_trunc('DECADE', {0}) = {0} OR true"],
}
EXPRESSIONS = {
    "int": ["{0} + 1", "CASE WHEN {0} > 1 THEN {0} END", "-{0}"],
    "float": ["{0} * 2", "coalesce({0}, 0.5D)"],
    "decimal": ["{0}", "-{0}", "abs({0})"],
    "text": ["{0}", "coalesce({0}, 'none')"],
    "bool": ["NOT {0}"],
    "date": ["{0}"],
    "time": ["{0}"],
    "loose": ["{0}"],
}
CATALYST_EXPRESSIONS = {
    "text": ["initcap({0})", "concat({0}, 'é')"],
    "decimal": ["try_add({0}, 1.25)"],
    "int": ["{0} * 3"],
}


@dataclass
class Arrow:
    """A stream of the diagram in the making."""

    stream: Stream
    kinds: dict[str, str]  # column to family
    rows: int
    distinct: bool  # no two tuples have the same time


class Draughtsman:
    """Draws a diagram of a few boxes over the inputs `a` and `b`."""

    def __init__(self, rng: Random, *, rows: int, catalyst: bool = False, distinct: bool = False, late: bool = False):
        self.rng, self.catalyst, self.late = rng, catalyst, late
        self.diagram = Diagram("random")
        kinds = {"ts": "time"} | {name: FAMILY[kind] for name, kind in COLUMNS.items()}
        self.arrows = []
        for name in BOTH:
            slack = rng.choice(["0 seconds", "1 second", "3 seconds"])
            every = rng.choice([None, None, None, "7 seconds", "300 ms"])
            stream = self.diagram.input(name, DDL, slack=slack, every=every)
            self.arrows.append(Arrow(stream, kinds, rows, distinct))
            if late and rng.random() < 0.4:
                self.arrows.append(Arrow(stream.late, kinds, rows, distinct))

    def draw(self, boxes: int) -> Spec:
        """The finished diagram; each arrow that nobody reads is an output."""
        for _ in range(boxes):
            steps = [
                self.filter,
                self.route,
                self.map,
                self.union,
                self.aggregate,
                self.aggregate,
                self.join,
                self.join,
                self.drop,
                self.resample,
            ]
            self.rng.choice(steps)()
        read = {s for box in self.diagram.spec.boxes for s in box.sources}
        for i, arrow in enumerate(self.arrows):
            if arrow.stream.source not in read or self.rng.random() < 0.1:
                arrow.stream.output(f"out{i}")
        return self.diagram.validate()

    def _pick(self) -> Arrow:
        new = self.arrows[-2:] if self.rng.random() < 0.6 else self.arrows
        return self.rng.choice(new)

    def _predicate(self, arrow: Arrow) -> str:
        name, kind = self.rng.choice(list(arrow.kinds.items()))
        texts = PREDICATES[kind]
        if self.catalyst and self.rng.random() < 0.5:
            texts = CATALYST.get(kind, texts)
        return self.rng.choice(texts).format(f"`{name}`")

    def _exprs(self, arrow: Arrow, names: list[str], like: list[str]) -> tuple[dict[str, str], dict[str, str]]:
        exprs, kinds = {}, {}
        for name, column in zip(names, like, strict=True):
            kind = arrow.kinds[column]
            texts = EXPRESSIONS[kind]
            if self.catalyst and self.rng.random() < 0.4:
                texts = CATALYST_EXPRESSIONS.get(kind, texts)
            exprs[name] = self.rng.choice([*texts, "{0}", "{0}"]).format(f"`{column}`")
            kinds[name] = kind
        return exprs, kinds

    def _add(self, stream: Stream, kinds: dict[str, str], rows: int, distinct: bool) -> Arrow:
        self.arrows.append(Arrow(stream, kinds, rows, distinct))
        return self.arrows[-1]

    def filter(self) -> None:
        arrow = self._pick()
        self._add(arrow.stream.filter(self._predicate(arrow)), arrow.kinds, arrow.rows, arrow.distinct)

    def route(self) -> None:
        arrow = self._pick()
        branches = {f"way{i}": self._predicate(arrow) for i in range(self.rng.randint(1, 3))}
        for stream in arrow.stream.route(branches, otherwise=self.rng.choice([None, "rest"])):
            self._add(stream, arrow.kinds, arrow.rows, arrow.distinct)

    def drop(self) -> None:
        arrow = self._pick()
        exact = [name for name, kind in arrow.kinds.items() if kind not in ("loose", "float")]
        key = self.rng.sample(exact, min(len(exact), self.rng.randint(1, 2)))
        stream = arrow.stream.drop(0.4, seed=self.rng.randrange(9), key=key) if key else arrow.stream.drop(where="true")
        self._add(stream, arrow.kinds, arrow.rows, arrow.distinct)

    def resample(self) -> None:
        left, right, rng = self._pick(), self._pick(), self.rng
        values = [name for name, kind in right.kinds.items() if kind == "int" and f"{name}_right" not in left.kinds]
        if not values:
            return
        value = rng.choice(values)
        how = rng.choice(["previous", "nearest", "linear"])
        stream = left.stream.resample(right.stream.map({value: f"`{value}`"}), value, how, window=rng.choice(NEAR))
        name = next(column for column in stream.columns if column not in left.kinds)
        self._add(stream, left.kinds | {name: "loose" if how == "linear" else "int"}, left.rows, False)

    def map(self) -> None:
        arrow = self._pick()
        some = self.rng.sample(list(arrow.kinds), min(len(arrow.kinds), self.rng.randint(1, 5)))
        exprs, kinds = self._exprs(arrow, [f"c{i}" for i in range(len(some))], some)
        self._add(arrow.stream.map(exprs), kinds, arrow.rows, arrow.distinct)

    def union(self) -> None:
        arrow = self._pick()
        twins = [o for o in self.arrows if o is not arrow and o.kinds == arrow.kinds]
        if twins and self.rng.random() < 0.5:
            branches = [arrow, self.rng.choice(twins)]
        else:
            branches = [
                Arrow(arrow.stream.filter(self._predicate(arrow)), arrow.kinds, arrow.rows, False)
                for _ in range(self.rng.randint(2, 3))
            ]
        total = sum(b.rows for b in branches)
        if total <= ROWS_MAX:
            stream = branches[0].stream.union(*(b.stream for b in branches[1:]))
            self._add(stream, arrow.kinds, total, False)
        else:
            self.arrows += [b for b in branches if b not in self.arrows]

    def aggregate(self) -> None:
        arrow, rng = self._pick(), self.rng
        size, slide = rng.choice(WINDOWS)
        own = ("window_start", "window_end", "timed_out")
        groupable = [n for n, kind in arrow.kinds.items() if kind not in ("loose",) and n not in own]
        by = rng.sample(groupable, min(len(groupable), rng.choice([0, 1, 1, 2])))
        exprs, kinds = {}, {name: arrow.kinds[name] for name in by} | {"window_start": "time", "window_end": "time"}
        for i in range(rng.randint(1, 4)):
            text, kind = self._call(arrow)
            exprs[f"g{len(self.arrows)}_{i}"], kinds[f"g{len(self.arrows)}_{i}"] = text, kind
        rows = arrow.rows * max(1, -(-size // slide))
        if rows > ROWS_MAX:
            return
        over = self._window(arrow, size, slide)
        if over.timeout_us is not None:
            kinds["timed_out"] = "bool"
        self._add(arrow.stream.aggregate(by=by, over=over, exprs=exprs), kinds, rows, False)

    def _window(self, arrow: Arrow, size: int, slide: int) -> Window | CountWindow:
        rng = self.rng
        timeout = rng.choice([None, None, None, "1 us", "700 ms", "2 seconds"])
        # which tuples are in a count window depends on all values: those that differ by rounding could swap places
        if "loose" in arrow.kinds.values() or rng.random() < 0.6:
            return window(f"{size} ms", f"{slide} ms", timeout=timeout)
        return count_window(*rng.choice([(1, 1), (2, 2), (4, 1), (5, 2), (2, 3)]), timeout=timeout)

    def _call(self, arrow: Arrow) -> tuple[str, str]:
        rng = self.rng
        name, kind = rng.choice(list(arrow.kinds.items()))
        column = f"`{name}`"
        choices = [("count(*)", "int"), (f"count({column})", "int")]
        if kind != "loose":
            choices += [(f"count(DISTINCT {column})", "int"), (f"mode({column})", kind)]
            choices += [(f"size(collect_set({column}))", "int"), (f"size(collect_list({column}))", "int")]
        if kind == "bool":
            choices += [(f"bool_and({column})", "bool"), (f"any({column})", "bool")]
        if kind in ("int", "float"):
            choices += [(f"sum({column})", kind), (f"avg({column})", "loose"), (f"stddev({column})", "loose")]
            choices += [(f"sum({column}) / count(*)", "loose"), (f"median({column})", "loose")]
            choices += [(f"var_pop({column})", "loose"), (f"covar_pop({column}, {column} + 1)", "loose")]
        if kind == "int":
            choices += [(f"max({column}) - min({column})", "int"), (f"sum({column} + 1)", "int")]
        if kind == "decimal":
            choices += [(f"sum({column})", "opaque"), (f"avg({column})", "opaque")]
        choices += [(f"min({column})", kind), (f"max({column})", kind)]
        if arrow.distinct:
            choices += [(f"first({column})", kind), (f"last({column})", kind)]
            other = rng.choice([n for n, k in arrow.kinds.items() if k != "loose"] or [name])
            choices += [(f"max_by({column}, `{other}`)", kind), (f"min_by({column}, `{other}`)", kind)]
        text, result = rng.choice(choices)
        return text, "loose" if result == "opaque" else result

    def join(self) -> None:
        left, right, rng = self._pick(), self._pick(), self.rng
        keys = [
            (x, y)
            for x, a in left.kinds.items()
            for y, b in right.kinds.items()
            if a == b and a in ("int", "text", "bool", "float", "decimal", "date")
        ]
        if left.rows * right.rows // 2 > ROWS_MAX:
            return
        sides, names = [], []
        chosen = rng.sample(keys, min(len(keys), rng.choice([0, 1, 1, 1, 2])))
        for side, arrow in enumerate((left, right)):
            more = rng.sample(list(arrow.kinds), min(len(arrow.kinds), 2))
            like = list(dict.fromkeys([k[side] for k in chosen] + more))
            letter = rng.choice(["p", "pq"[side]])
            names.append({column: f"{letter}{i}" for i, column in enumerate(like)})
            exprs, kinds = self._exprs(arrow, list(names[side].values()), like)
            plain = {names[side][k[side]]: f"`{k[side]}`" for k in chosen}
            sides.append((arrow.stream.map(exprs | plain), kinds))
        on = [f"left.{names[0][x]} = right.{names[1][y]}" for x, y in chosen]
        rest = [
            (x, y) for x, a in sides[0][1].items() for y, b in sides[1][1].items() if a == b and a in ("int", "text")
        ]
        if rest and (not on or rng.random() < 0.3):
            x, y = rng.choice(rest)
            on.append(f"left.{x} <= right.{y}")
        within = rng.choice(["1 second", "3 seconds", "3 seconds", "10 seconds", "250 ms", "1 microsecond"])
        stream = sides[0][0].join(sides[1][0], on=" AND ".join(on) or "true", within=within)
        kinds = dict(sides[0][1])
        for name, kind in sides[1][1].items():
            kinds[f"{name}_right" if name in sides[0][1] else name] = kind
        self._add(stream, kinds, left.rows * right.rows // 3, False)


def random_diagram(rng: Random, rows: int, **options: Any) -> Spec:
    """A sound diagram of one to five boxes."""
    return Draughtsman(rng, rows=rows, **options).draw(rng.randint(1, 5))
