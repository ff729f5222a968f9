"""Runs a unit without micro-batches but with all the real code: trains, programs, workers, state log, commit.

A *story* is what happened at the inputs: rows and boundaries in one order. The laws cut it into trains at any places,
give each train to any of several workers, let some fail on the way, and look at what came out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import settings
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from borealis.compile.analyze import analyze
from borealis.compile.batch import batch
from borealis.compile.unit import Compiled, compile_unit
from borealis.connectors.python.sink import TableSink
from borealis.diagram.spec import LATE, Spec
from borealis.entry.admission import Cursor, EntryPoint
from borealis.spark import worker
from borealis.spark.lane import AHEAD, ATTEMPT, BUCKET, LEASE, MORE, NUMBER, OVER, PACKETS, TRAIN, TrainResults
from borealis.spark.lanes import Dress, Lanes, LaneTimings
from borealis.spark.plan import frame_of, level_schema
from borealis.state import log as state_log
from borealis.state.cache import Cache
from borealis.state.delta import to_stream
from borealis.trains.header import PAYLOADS, rows_together
from borealis.trains.intake import Admission
from borealis.trains.message import decode, encode
from borealis.trains.train import Train
from borealis.trains.unit import UnitOptions, UnitRun
from borealis.tuples import CAUSE, FIRST_TIME, LAST_TIME

ASIDE = "u.errors"  # where tuples are put that fail in a box
USUAL = 25  # examples of a law that does not say how many it needs


def examples(n: int) -> settings:
    """So many examples where a usual law has 25, and in each profile as many times more or fewer as it says."""
    return settings(max_examples=max(1, n * settings.default.max_examples // USUAL))


# -- a story: what happened at the inputs


@dataclass(frozen=True)
class Event:
    """A row of an input (on time or late), or a boundary on it."""

    name: str
    row: int | None = None
    bound: int | None = None
    late: bool = False


@dataclass(frozen=True)
class Story:
    """Tables, one per input, and the one order in which their rows and boundaries happened."""

    spec: Spec
    tables: dict[str, pa.Table]
    events: tuple[Event, ...]

    def late_rows(self, name: str, late: bool = True) -> pa.Table:
        """The rows of an input that were late, or those that were not."""
        rows = [e.row for e in self.events if e.name == name and e.row is not None and e.late is late]
        return self.tables[name].take(pa.array(rows, pa.int64()))


def tell(
    spec: Spec, tables: Mapping[str, pa.Table], turns: Sequence[str] = (), idle: Mapping[int, int] | None = None
) -> Story:
    """A story: `turns` says whose row comes next while it lasts; `idle` writes a boundary before the n-th row."""
    entries = {i.name: EntryPoint(i, spec.paces()[i.name], Cursor()) for i in spec.inputs}
    order = [n for n in turns if n in tables]
    left = {name: table.num_rows - order.count(name) for name, table in tables.items()}
    order += [name for name, n in left.items() for _ in range(n)]
    at = dict.fromkeys(tables, 0)
    events: list[Event] = []
    for n, name in enumerate(order):
        if at[name] >= tables[name].num_rows:
            continue
        for other in entries if idle and n in idle else ():
            bound = entries[other].idle(idle[n]) if idle else None
            if bound is not None:
                events.append(Event(other, bound=bound))
        one = entries[name].admit(tables[name].slice(at[name], 1))
        if len(one.bound):
            events.append(Event(name, bound=int(one.bound[0])))
        events.append(Event(name, row=at[name], late=bool(one.late[0])))
        at[name] += 1
        if at[name] == tables[name].num_rows:
            events.append(Event(name, bound=LAST_TIME))
    events += [Event(name, bound=LAST_TIME) for name, table in tables.items() if not table.num_rows]
    return Story(spec, dict(tables), tuple(events))


class Cuts:
    """Stands in for the input manager: a story cut into trains before the events at `places`."""

    def __init__(self, story: Story, places: Sequence[int], depot: Path) -> None:
        self.story, self.depot, self.failure = story, depot, None
        depot.mkdir(parents=True, exist_ok=True)
        inner = sorted({p for p in places if 0 < p < len(story.events)})
        self.spans = list(zip([0, *inner], [*inner, len(story.events)], strict=True))

    def next_train(self, after: int, _: float, *, forks: bool = False) -> int | None:
        return after + 1 if after < len(self.spans) else None

    def train(self, number: int) -> Train:
        start, stop = self.spans[number - 1]
        rows = sum(e.row is not None for e in self.story.events[start:stop])
        return Train(number, dict.fromkeys(self.story.tables, Cursor()), stop, rows, number == len(self.spans))

    def header(self, number: int, *, files: bool = False) -> dict[str, Any]:
        start, stop = self.spans[number - 1]
        inputs = {name: self._input(name, start, stop) for name in self.story.tables}
        for name, one in inputs.items():
            for which in PAYLOADS:
                if files and one[which] is not None:
                    path = self.depot / f"{number}.{name}.{which}.arrow"
                    path.write_bytes(memoryview(one[which]))
                    one[which] = str(path)
        return {"train": number, "inputs": inputs}

    def _input(self, name: str, start: int, stop: int) -> dict[str, Any]:
        mine = [(at, e) for at, e in enumerate(self.story.events) if e.name == name]
        standing = max((e.bound for at, e in mine if at < start and e.bound is not None), default=FIRST_TIME)
        here = [(at, e) for at, e in mine if start <= at < stop]
        bounds = [(at, e.bound) for at, e in here if e.bound is not None]
        rows = {
            late: self._rows(name, [(at, e.row) for at, e in here if e.row is not None and e.late is late])
            for late in (False, True)
        }
        return {
            "time": self.story.spec.input(name).time,
            "standing": standing,
            "cause": [at for at, _ in bounds],
            "bound": [bound for _, bound in bounds],
            "rows": rows[False],
            "late": rows[True],
        }

    def _rows(self, name: str, rows: list[tuple[int, int]]) -> pa.Buffer | None:
        if not rows:
            return None
        table = self.story.tables[name].take(pa.array([row for _, row in rows]))
        return to_stream(table.append_column(CAUSE, pa.array([at for at, _ in rows], pa.int64())))

    def release(self, number: int) -> None:
        for path in self.depot.glob(f"{number}.*"):
            path.unlink(missing_ok=True)

    def settle(self) -> None: ...

    def waiting(self) -> int:
        return 0

    def nudge(self) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


# -- running it

LANES = 0.6  # of the runs that can be in lanes, so many are
AHEADS = 0.3  # how often a lane begins a train before it says what came of the last


@dataclass
class Luck:
    """What befalls the workers. Each task goes to one of `workers` caches; chances are per task."""

    rng: Random = field(default_factory=lambda: Random(0))
    workers: int = 1
    forget: float = 0.0  # the worker was started anew
    retry: float = 0.0  # the task ran to its end, then ran again elsewhere
    abandon: float = 0.0  # the task was killed half-way, then ran again
    stretches: int = state_log.STRETCHES_MOST  # the log merges what is more
    caches: list[Cache[Any]] = field(default_factory=list)

    def worker(self) -> Cache[Any]:
        """Somebody to run the next task."""
        while not self.caches or len(self.caches) < self.workers:
            self.caches.append(Cache())
        which = self.rng.randrange(self.workers)
        if self.rng.random() < self.forget:
            self.caches[which] = Cache()
        return self.caches[which]

    def task(self, work: Callable[[], Iterator[pa.RecordBatch]]) -> list[pa.RecordBatch]:
        """Run one task of a train as often as it takes."""
        while True:
            worker._CACHE = self.worker()
            if self.rng.random() < self.abandon:
                with closing(work()) as batches:
                    for _ in range(self.rng.randrange(3)):
                        next(batches, None)
                continue
            out = list(work())
            if self.rng.random() < self.retry:
                continue
            return out


@cache
def compiled(yaml: str, spark: SparkSession, buckets: int) -> Compiled:
    """A diagram of one unit, compiled once."""
    spec = Spec.from_yaml(yaml)
    errors = ASIDE if spec.errors == "aside" else None
    return compile_unit(spec, spark, buckets, headers=True, schemas=analyzed(yaml, spark), errors=errors)


@cache
def analyzed(yaml: str, spark: SparkSession) -> dict[str, StructType]:
    """The types of a diagram's arrows, which take Spark longest, once for any number of buckets."""
    return analyze(Spec.from_yaml(yaml), spark)


def run_story(
    story: Story,
    unit: Compiled,
    places: Sequence[int] = (),
    luck: Luck | None = None,
    spark: SparkSession | None = None,
    watch: Callable[[UnitRun], None] | None = None,
) -> dict[str, pa.Table]:
    """Every output, and every `<input>.late`, with header columns. `watch` looks at the unit after each train."""
    sinks = {name: TableSink() for name in unit.outlets}
    run = UnitRun("u", story.spec, unit, _no_sources(story), sinks, UnitOptions(headers=True))
    run.manager = Cuts(story, places, run.scratch / "trains")  # type: ignore[assignment]
    return _drive(run, sinks, luck or Luck(), spark, watch)


def run_sources(
    spec: Spec, unit: Compiled, sources: Mapping[str, Any], admission: Admission, luck: Luck | None = None
) -> dict[str, pa.Table]:
    """The same with the real input manager."""
    sinks = {name: TableSink() for name in unit.outlets}
    options = UnitOptions(admission=admission, headers=True)
    run = UnitRun("u", spec, unit, dict(sources), sinks, options)
    return _drive(run, sinks, luck or Luck(), None, None)


def _no_sources(story: Story) -> dict[str, Any]:
    return {name: Pieces([table]) for name, table in story.tables.items()}


def _drive(
    run: UnitRun,
    sinks: dict[str, TableSink],
    luck: Luck,
    spark: SparkSession | None,
    watch: Callable[[UnitRun], None] | None,
) -> dict[str, pa.Table]:
    before, most = worker._CACHE, state_log.STRETCHES_MOST
    schema = to_arrow_schema(level_schema(run.compiled, 0), timezone="UTC")
    try:
        state_log.STRETCHES_MOST = luck.stretches
        run.start()
        if run.compiled.one_level and luck.rng.random() < LANES:
            _drive_lanes(run, luck, watch)
        while not run.done.is_set():
            number = run.next_train(run.committed(), 5.0)
            if number is None:
                raise run.manager.failure or TimeoutError("no train came")
            while True:
                plan = json.loads(json.dumps(run.plan(number)))
                parts = [
                    luck.task(lambda plan=plan, b=b: worker.read_train(plan, b, schema))  # type: ignore[misc]
                    for b in range(run.compiled.program.buckets)
                ]
                if len(parts) > 1:
                    luck.rng.shuffle(parts)  # with several partitions Spark keeps no order
                table = _later_levels(run.compiled, pa.Table.from_batches([b for p in parts for b in p]), luck, spark)
                if luck.rng.random() >= luck.retry:  # otherwise the whole train failed, and is run again
                    break
            run.commit(table)
            if watch is not None:
                watch(run)
    finally:
        run.close(True)
        worker._CACHE, state_log.STRETCHES_MOST = before, most
    return {name: sink.table() for name, sink in sinks.items()}


def _drive_lanes(run: UnitRun, luck: Luck, watch: Callable[[UnitRun], None] | None) -> None:
    """The same in lanes: tasks die half-way, come again, say what they have said before, and leases end."""
    lanes = Lanes(run.compiled.program.buckets, timings=LaneTimings(turn_s=0.0))
    lanes.dress(Dress(run, run.commit))
    said: dict[int, tuple[dict[str, Any], list[Any]]] = {}  # by bucket: what its task says next
    keepers: dict[int, tuple[int, Cache[Any]]] = {}  # by bucket: the attempt that keeps its lane, and in which worker
    lease = 0
    before = run.committed()

    def turn(head: dict[str, Any], buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
        told = lanes.turn(*decode(encode(head, buffers)))
        if luck.rng.random() < 0.5:  # otherwise who comes next finds that it is still to be
            lanes.bring_in()
        return decode(encode(*told))

    while not run.done.is_set():
        if not said or luck.rng.random() < luck.forget:
            lease = lanes.lease(lease) or 0
            said = {b: ({LEASE: lease, BUCKET: b}, []) for b in range(run.compiled.program.buckets)}
        bucket = luck.rng.choice(list(said))
        told, buffers = turn(*said[bucket])
        if lanes.failure is not None:
            raise lanes.failure
        if run.manager.failure is not None and not run.manager.waiting():
            raise run.manager.failure
        if watch is not None and run.committed() > before:
            watch(run)
        before = run.committed()
        if OVER in told:
            said.pop(bucket)
            continue
        again = {LEASE: lease, BUCKET: bucket}, []
        said[bucket] = {**again[0], ATTEMPT: told[ATTEMPT]}, []
        if TRAIN not in told:
            continue
        if keepers.get(bucket, (0,))[0] != told[ATTEMPT]:
            keepers[bucket] = told[ATTEMPT], luck.worker()
        worker._CACHE = keepers[bucket][1]
        me, results = said[bucket][0], _result(told, buffers, bucket)
        while luck.rng.random() < AHEADS:  # it begins the next train before it says what came of this one
            ahead, buffers = turn(me | {NUMBER: told[NUMBER], AHEAD: True}, [])
            if TRAIN not in ahead:
                break
            then = _result(ahead, buffers, bucket)
            if luck.rng.random() < luck.abandon:  # with two trains under way
                said[bucket] = again
                break
            index, payloads = results.packed()
            assert turn(me | {NUMBER: told[NUMBER], PACKETS: index, MORE: True}, payloads) == ({}, [])
            told, results = ahead, then
        if said[bucket] is again:
            continue
        packets, payloads = results.packed()
        answer = me | {NUMBER: told[NUMBER], PACKETS: packets}, payloads
        if luck.rng.random() < luck.abandon:  # it dies before it can say what it has
            said[bucket] = again
        elif luck.rng.random() < luck.retry:  # what is said by one that was thought dead counts no more
            told, _ = turn(*again)
            turn(*answer)
            said[bucket] = again if ATTEMPT not in told else ({**again[0], ATTEMPT: told[ATTEMPT]}, [])
        else:
            said[bucket] = answer


def _result(told: dict[str, Any], buffers: list[Any], bucket: int) -> TrainResults:
    """What comes of a train that a task was told to run."""
    train = told[TRAIN]
    rows_together(train["inputs"], buffers)
    return TrainResults(worker.run_train(train, bucket), None)


def _later_levels(unit: Compiled, table: pa.Table, luck: Luck, spark: SparkSession | None) -> pa.Table:
    """What Spark does behind the source. Without Catalyst steps a shuffle by bucket is all, and is done here."""
    levels = unit.program.levels
    if any(p.as_rows for level in levels for p in level.leave):
        assert spark is not None
        frame = spark.createDataFrame(table)
        return frame_of(unit, frame.coalesce(1) if unit.program.buckets == 1 else frame).toArrow()
    for number in range(1, len(levels)):
        schema = to_arrow_schema(level_schema(unit, number), timezone="UTC")
        buckets = table[worker.BUCKET].to_numpy()
        out = []
        for bucket in range(unit.program.buckets):
            mine = table.filter(pa.array(buckets == bucket)).to_batches(max_chunksize=1)
            if unit.program.buckets > 1:
                luck.rng.shuffle(mine)
            out += luck.task(lambda n=number, s=schema, m=mine: worker.level_runner(n, s)(iter(m)))  # type: ignore[misc]
        table = pa.Table.from_batches(out, schema)
    return table


class Pieces:
    """A source that gives its rows in batches of chosen sizes."""

    def __init__(self, tables: Sequence[pa.Table], ordered: bool = True) -> None:
        self.tables, self.finite_and_ordered = list(tables), ordered

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        for table in self.tables:
            table = table.cast(schema)
            drop = min(skip, table.num_rows)
            skip -= drop
            yield from table.slice(drop).combine_chunks().to_batches(max_chunksize=max(1, most_rows))


def pieces_of(table: pa.Table, rng: Random, ordered: bool = True) -> Pieces:
    """The table in batches of random sizes."""
    places = sorted({0, table.num_rows, *(rng.randrange(table.num_rows + 1) for _ in range(rng.randrange(6)))})
    return Pieces([table.slice(a, b - a) for a, b in pairwise(places)], ordered)


def random_places(rng: Random, n: int) -> list[int]:
    """Where to cut n events: nowhere, everywhere, every few, or anywhere."""
    match rng.randrange(5):
        case 0:
            return []
        case 1:
            return list(range(n))
        case 2:
            return list(range(0, n, 2))
        case 3:
            return list(range(0, n, 7))
        case _:
            return [rng.randrange(n + 1) for _ in range(rng.randrange(1, 12))]


# -- the truth


def truth(story: Story, spark: SparkSession) -> dict[str, pa.Table]:
    """The batch oracle over the rows that were on time; late streams are inputs of their own there."""
    spec = story.spec
    used = {s for box in spec.boxes for s in box.sources if s.endswith(LATE)} | {
        o.source for o in spec.outputs if o.source.endswith(LATE)
    }
    inputs = list(spec.inputs)
    tables = {i.name: story.late_rows(i.name, late=False) for i in spec.inputs}
    for source in sorted(used):
        name = source.removesuffix(LATE)
        inputs.append(spec.input(name).model_copy(update={"name": f"{name}_late"}))
        tables[f"{name}_late"] = story.late_rows(name)

    def away(source: str) -> str:
        return source.removesuffix(LATE) + "_late" if source.endswith(LATE) else source

    boxes = [b.model_copy(update={"sources": tuple(away(s) for s in b.sources)}) for b in spec.boxes]
    outputs = [o.model_copy(update={"source": away(o.source)}) for o in spec.outputs]
    plain = Spec(name=spec.name, inputs=tuple(inputs), boxes=tuple(boxes), outputs=tuple(outputs))
    frames = batch(plain, spark, {name: spark.createDataFrame(table) for name, table in tables.items()})
    return {name: frame.toArrow() for name, frame in frames.items()}


# -- comparing


def exactly(tables: Mapping[str, pa.Table]) -> dict[str, list[str]]:
    """Rows as text, in order: equal texts are equal bits (but for the payload of a NaN)."""
    return {name: [repr(tuple(row.values())) for row in table.to_pylist()] for name, table in tables.items()}


def without_header(table: pa.Table) -> pa.Table:
    """The user's columns."""
    return table.drop_columns([c for c in ("_id", "_time", "_kind", "_stable") if c in table.column_names])


def bag(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows as a sorted list, in which rows that differ by a rounding error stand at the same place."""
    rows = [tuple(row.values()) for row in without_header(table).to_pylist()]
    return sorted(rows, key=lambda row: [_rank(v) for v in row])


def _rank(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    if isinstance(value, float):
        if math.isnan(value):
            return (2, 0)
        return (1, float(f"{value:.7g}") + 0.0)
    if isinstance(value, bool | int | Decimal):
        return (1, value)
    if isinstance(value, list | dict):
        return (1, [_rank(v) for v in (value.values() if isinstance(value, dict) else value)])
    return (1, str(value))


def same_value(a: Any, b: Any) -> bool:
    """Equal; floats within 1e-9."""
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(map(same_value, a.values(), b.values()))
    return type(a) is type(b) and a == b


def differences(mine: pa.Table, theirs: pa.Table) -> list[str]:
    """What tells two results apart as multisets; nothing if they are the same."""
    ours, truths = bag(mine), bag(theirs)
    if without_header(mine).schema.names != theirs.schema.names:
        return [f"columns {without_header(mine).schema.names} but {theirs.schema.names}"]
    if len(ours) == len(truths) and all(
        same_value(a, b) for x, y in zip(ours, truths, strict=True) for a, b in zip(x, y, strict=True)
    ):
        return []
    only_ours = [r for r in map(repr, ours) if r not in set(map(repr, truths))]
    only_truth = [r for r in map(repr, truths) if r not in set(map(repr, ours))]
    return [f"{len(ours)} rows for {len(truths)}", *("engine " + r for r in only_ours[:8])] + [
        "oracle " + r for r in only_truth[:8]
    ]


def check_truth(story: Story, outputs: Mapping[str, pa.Table], spark: SparkSession) -> None:
    """The engine's outputs are the oracle's, as multisets, and no tuple is lost."""
    for name in story.tables:
        assert outputs[name + LATE].num_rows == story.late_rows(name).num_rows
        assert differences(outputs[name + LATE], story.late_rows(name)) == []
    for name, table in truth(story, spark).items():
        found = differences(outputs[name], table)
        assert not found, f"output {name} of\n{story.spec.to_yaml()}\n" + "\n".join(found)


def times(values: Sequence[int]) -> pa.Array:
    """Microseconds as a TIMESTAMP column."""
    return pa.array(np.array(values, np.int64)).view(pa.timestamp("us", "UTC"))
