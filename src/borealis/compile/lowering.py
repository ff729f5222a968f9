"""What boxes are lowered to: flows, kernel steps and Catalyst steps, on as few levels as they can do with.

A stateless step with an exact Arrow twin runs among the kernels; any other is left to Catalyst, and what follows it
waits for the next level. Files in `compile/boxes` say for each box which steps it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ByteType, StructType

from borealis.compile.expressions import Names, translate_all
from borealis.compile.per_tuple import require_per_tuple
from borealis.compile.types import blaming, empty, nullable, require_nullable
from borealis.diagram.boxes.base import Box, flat
from borealis.kernels.expr import to_json
from borealis.kernels.program import Level, Port, Program
from borealis.kernels.replaying_history import CAME, REPLACED
from borealis.kernels.step import Step, schema_text
from borealis.state.delta import TableSpec
from borealis.tuples import KIND, Kind


@dataclass(frozen=True)
class CatalystStep:
    """A stateless step that Spark runs: a filter (`predicate`) or a map (`exprs`)."""

    box: str
    schema: StructType  # of what it reads
    predicate: str | None = None
    exprs: tuple[tuple[str, str], ...] = ()
    as_json: bool = True  # Spark can write what it reads as JSON

    @property
    def texts(self) -> tuple[str, ...]:
        """Its expressions, as the user wrote them."""
        return tuple(text for _, text in self.exprs) if self.predicate is None else (self.predicate,)


@dataclass(frozen=True)
class Stateless:
    """What Spark says of a stateless step: its result, whether what it reads can be JSON, and its exact Arrow twins."""

    schema: StructType
    as_json: bool
    twins: Mapping[str, Any]


Answers = dict[tuple[Any, ...], Stateless]  # of one session, by what was asked


@dataclass(frozen=True)
class Arrows:
    """What is known of all arrows of a diagram."""

    drawn: Callable[[str], list[str]]  # the columns that they could have
    schemas: Mapping[str, StructType]  # those that are on them
    telling: Mapping[str, Names]  # those that tell rows apart which may be taken back


@dataclass(frozen=True)
class Channel:
    """A flow that comes out of Catalyst: where it started, and what Catalyst does to it on the way."""

    origin: str
    steps: tuple[CatalystStep, ...]


@dataclass(frozen=True)
class Outlet:
    """Where the commit finds an output: the tag of its packets or rows."""

    tag: int
    flow: str
    schema: pa.Schema


@dataclass
class _Flow:
    schema: StructType
    level: int
    parted: bool
    channel: Channel | None = None


class Lowering:
    """The program of a unit while its boxes are added to it, upstream first.

    Without a keyed box (`shared`) each bucket takes its share of the rows; with one, each reads all and keeps its keys.
    """

    def __init__(
        self,
        spark: SparkSession,
        buckets: int,
        *,
        shared: bool,
        aside: bool,
        histories: Mapping[str, int] | None = None,
        answers: Answers | None = None,
        arrows: Arrows,
    ) -> None:
        self.spark, self.buckets, self.shared, self.aside = spark, buckets, shared, aside
        self._histories = histories or {}  # of arrows that carry revisions: how far back these go
        self._answers = {} if answers is None else answers
        self._arrows = arrows
        self.catalyst: dict[int, tuple[tuple[CatalystStep, ...], StructType]] = {}
        self.tables: dict[str, tuple[TableSpec, ...]] = {}
        self.where: dict[str, str] = {}
        self.hinders: str | None = None  # what keeps the unit from a lane: the first thing that takes a second level
        self.inputs: dict[str, pa.Schema] = {}
        self._flows: dict[str, _Flow] = {}
        self._levels = [Level()]
        self._bounds: list[tuple[str, tuple[str, ...]]] = []
        self._behind: dict[str, int] = {}
        self._tags = 0
        self._arrived: dict[tuple[str, int, tuple[str, ...] | None], str] = {}

    def add_input(self, name: str, schema: StructType) -> None:
        self._flows[name] = _Flow(nullable(schema), 0, self.shared)
        self.inputs[name] = self.arrow(name)

    # -- for boxes

    def schema(self, flow: str) -> StructType:
        return self._flows[flow].schema

    def arrow(self, flow: str) -> pa.Schema:
        return to_arrow(self._flows[flow].schema)

    def empty(self, flow: str) -> DataFrame:
        """A frame with a flow's columns and no rows, to ask Spark about expressions."""
        return empty(self.spark, self.columns(flow))

    def columns(self, flow: str) -> StructType:
        """The columns of a flow that users know of."""
        carried = self._carried(flow)
        return StructType([field for field in self._flows[flow].schema.fields if field.name not in carried])

    def carried(self, arrow: str) -> list[str]:
        """Those columns of an arrow that something behind it reads."""
        return [name for name in self._arrows.schemas[arrow].names if name != KIND]

    def drawn(self, arrow: str) -> list[str]:
        """All columns that an arrow could have: what users know of it."""
        return self._arrows.drawn(arrow)

    def telling(self, arrow: str) -> Names:
        """Those that tell its rows apart, where some are taken back."""
        return self._arrows.telling[arrow]

    def only(self, box: Box, source: str, names: list[str]) -> str:
        """A flow with these of its columns."""
        if self.columns(source).names == names:
            return source
        self.map(box, source, out := f"{box.name}~{source}", unchanged(names))
        return out

    def _carried(self, flow: str) -> list[str]:
        """What maps carry along: kinds, and when a row came that is given again."""
        schema = self._flows[flow].schema
        return [
            name for name in (KIND, CAME, REPLACED) if name in schema.names and (name != KIND or is_revised(schema))
        ]

    def revised(self, flow: str) -> bool:
        """Whether a flow carries rows that correct earlier ones."""
        return is_revised(self._flows[flow].schema)

    def history(self, box: Box) -> int:
        """How far behind the boundary a row that comes to a box can still be corrected, in microseconds."""
        return max((self._histories[source] for source in box.sources if source in self._histories), default=0)

    def filter(self, box: Box, source: str, out: str, predicate: str) -> None:
        self._stateless(box, source, out, CatalystStep(box.name, self.schema(source), predicate=predicate))

    def map(self, box: Box, source: str, out: str, exprs: Mapping[str, str]) -> None:
        """These columns, and behind them the kinds of the rows, if they have any, and when they came."""
        carried = self._carried(source)
        exprs = {name: text for name, text in exprs.items() if name not in carried} | unchanged(carried)
        self._stateless(box, source, out, CatalystStep(box.name, self.schema(source), exprs=tuple(exprs.items())))

    def union(self, box: Box, sources: Sequence[str], out: str) -> None:
        """All rows of flows that have the same columns."""
        if any(map(self.revised, sources)):
            sources = [self._signed(box, source) for source in sources]
        flows = [self._flows[s] for s in sources]
        level, parted = max(f.level for f in flows), any(f.parted for f in flows)
        self._step("union", box, out, sources, flows[0].schema, level, parted, {})

    def _signed(self, box: Box, source: str) -> str:
        """A flow with kinds: of one that has none, all rows are insertions."""
        if self.revised(source):
            return source
        signed = f"{box.name}~{source}"
        insertion = f"CAST({int(Kind.INSERTION)} AS TINYINT)"
        self.map(box, source, signed, unchanged(self.schema(source).names) | {KIND: insertion})
        return signed

    def stateful(
        self,
        op: str,
        box: Box,
        sources: Sequence[str],
        out: str,
        schema: StructType,
        *,
        options: dict[str, Any],
        by: Sequence[Sequence[str]] | None = None,
        tables: tuple[TableSpec, ...] = (),
        behind_us: int = 0,
    ) -> None:
        """A step of the kernel `op`, keyed by the columns `by` of each source: rows go to the bucket of their key.

        Without keys, it looks at each row alone, and any bucket may have any row. Its boundary stays `behind_us` behind
        those of its sources.
        """
        flows = [self._flows[s] for s in sources]
        many = self.buckets > 1 and by is not None
        level = max(f.level + (many and f.parted) for f in flows)
        if level and not any(f.level for f in flows):
            self.hinders = self.hinders or f"box '{box.name}' needs its rows by another key, so they change buckets"
        keys: list[tuple[str, ...] | None] = [None] * len(flows)
        if by is not None:
            options = options | {"buckets_by": [list(key) for key in by]}
            moves = [many and (f.parted or f.level < level) for f in flows]
            keys = [tuple(key) if move else None for key, move in zip(by, moves, strict=True)]
        self._step(op, box, out, sources, nullable(schema), level, True, options, keys)
        self.tables[box.name] = tables
        if behind_us:
            self._behind[out] = behind_us

    # -- the whole

    def program(self) -> Program:
        return Program(
            self.buckets,
            self.shared,
            {name: schema_text(schema) for name, schema in self.inputs.items()},
            self._bounds,
            self._levels,
            self.aside,
            self._behind,
        )

    def add_outlets(self, outputs: dict[str, str], hidden: tuple[str, ...]) -> dict[str, Outlet]:
        """Where each output, given with its flow, will be found; `hidden` is what its packets carry beside the rows."""
        last = max((i for i, one in enumerate(self._levels) if one.steps or one.arrive), default=0)
        made: dict[str, int] = {}
        outlets = {}
        for output, name in outputs.items():
            flow = self._flows[name]
            if name not in made:
                if flow.channel is not None and flow.level > last and (name, flow.level, None) not in self._arrived:
                    made[name] = self._send_rows(flow.channel)  # straight from Catalyst to the commit
                else:
                    self._at(name, flow.level, None)
                    made[name] = self._leave(name, hidden=hidden)
            outlets[output] = Outlet(made[name], name, to_arrow(flow.schema))
        return outlets

    # -- steps and levels

    def _stateless(self, box: Box, source: str, out: str, step: CatalystStep) -> None:
        flow = self._flows[source]
        texts = {"": step.predicate} if step.predicate is not None else dict(step.exprs)
        asked = (flow.schema.json(), flow.channel is None, self.aside, step.predicate, step.exprs)
        if (said := self._answers.get(asked)) is None:
            said = self._answers[asked] = self._ask(box, flow, step, texts)
        schema, twins = said.schema, said.twins
        step = replace(step, as_json=said.as_json)
        if flow.channel is not None or len(twins) < len(texts):
            require_nullable(box, flow.schema)
            require_nullable(box, schema)
            channel, level = flow.channel, flow.level
            if channel is None:
                first = next(text for name, text in texts.items() if name not in twins)
                self.hinders = self.hinders or f"box '{box.name}' leaves `{flat(first)}` to Catalyst"
                channel, level = Channel(source, ()), level + 1
            self._bounds.append((out, (source,)))
            self._flows[out] = _Flow(schema, level, True, Channel(channel.origin, (*channel.steps, step)))
            self._note(box, "Catalyst")
            return
        options: dict[str, Any] = {"texts": texts}  # as the user wrote them, for errors
        if step.predicate is not None:
            op, options["predicate"] = "filter", twins[""]
        else:
            op, options["exprs"] = "map", list(twins.items())
        if is_revised(schema) and not _all_as_they_are(flow.schema, twins):
            options["revised"] = True
        if CAME in schema.names:
            options["again"] = True  # what fails here failed when it first came
        self._step(op, box, out, (source,), schema, flow.level, flow.parted, options)

    def _ask(self, box: Box, flow: _Flow, step: CatalystStep, texts: Mapping[str, str]) -> Stateless:
        frame, schema = empty(self.spark, flow.schema), flow.schema
        if step.predicate is None:
            with blaming(box, frame.columns):
                made = frame.select(*(F.expr(text).alias(name) for name, text in step.exprs))
            require_per_tuple(box, made)
            schema = nullable(made.schema)
        exprs = {} if flow.channel is not None else translate_all(frame, texts)
        twins = {name: to_json(e) for name, e in exprs.items() if e is not None}
        return Stateless(schema, self._is_json(frame), twins)

    def _is_json(self, frame: DataFrame) -> bool:
        """Whether Spark can write a frame's rows as JSON, for those that fail."""
        try:
            return not self.aside or bool(frame.select(F.to_json(F.struct("*"))).columns)
        except AnalysisException:
            return False

    def _step(
        self,
        op: str,
        box: Box,
        out: str,
        sources: Sequence[str],
        schema: StructType,
        level: int,
        parted: bool,
        options: dict[str, Any],
        keys: Sequence[tuple[str, ...] | None] | None = None,  # of sources whose rows change buckets for it
    ) -> None:
        local = tuple(self._at(s, level, key) for s, key in zip(sources, keys or [None] * len(sources), strict=True))
        self._bounds.append((out, tuple(sources)))
        step = Step(op, out, local, box.name, parted, schema_text(to_arrow(schema)), options)
        self._level(level).steps.append(step)
        self._flows[out] = _Flow(schema, level, parted)
        self._note(box, "kernel in the source" if level == 0 else f"kernel in level {level}")

    def _at(self, name: str, level: int, key: tuple[str, ...] | None) -> str:
        """The flow's name at a level, making it arrive there if it does not start there."""
        flow = self._flows[name]
        if flow.channel is not None and (name, flow.level, None) not in self._arrived:
            tag = self._send_rows(flow.channel)
            self._level(flow.level).arrive.append((tag, name, schema_text(to_arrow(flow.schema))))
            self._arrived[name, flow.level, None] = name
        if level == flow.level and key is None:
            return name
        if (name, level, key) not in self._arrived:
            alias = name if key is None else f"{name}@{level}/{','.join(key)}"
            tag = self._leave(name, key=key)
            self._level(level).arrive.append((tag, alias, schema_text(to_arrow(flow.schema))))
            if alias != name:
                self._bounds.append((alias, (name,)))
            self._arrived[name, level, key] = alias
        return self._arrived[name, level, key]

    def _send_rows(self, channel: Channel) -> int:
        tag = self._leave(channel.origin, as_rows=True)
        self.catalyst[tag] = (channel.steps, self._flows[channel.origin].schema)
        return tag

    def _leave(self, name: str, **form: Any) -> int:
        """Let a flow leave its level; a whole one is sent by every bucket, each its share, and arrives parted."""
        flow = self._flows[name]
        self._tags += 1
        share = not flow.parted and self.buckets > 1
        self._level(flow.level).leave.append(Port(self._tags, name, slice_=share, **form))
        return self._tags

    def _level(self, number: int) -> Level:
        while len(self._levels) <= number:
            self._levels.append(Level())
        return self._levels[number]

    def _note(self, box: Box, where: str) -> None:
        known = self.where.get(box.name)
        self.where[box.name] = where if known in (None, where) else f"{known}, {where}"


def _all_as_they_are(schema: StructType, twins: Mapping[str, Any]) -> bool:
    """Whether all columns are given on, so that two rows that differed still do."""
    return set(schema.names) <= {twin[1] for name, twin in twins.items() if name and twin[0] == "column"}


def is_revised(schema: StructType) -> bool:
    """Whether there is a column for the kinds of rows; an input's, as users write them, are text."""
    return KIND in schema.names and isinstance(schema[KIND].dataType, ByteType)


def unchanged(names: Iterable[str]) -> dict[str, str]:
    """Columns that a map lets through, and their expressions."""
    return {name: f"`{name}`" for name in names}


def to_arrow(schema: StructType) -> pa.Schema:
    """The columns as Arrow has them; times are in UTC."""
    return to_arrow_schema(schema, timezone="UTC")
