"""From a unit of a diagram to a program of kernels and the Spark plan around it.

Each box becomes one to three physical steps (an aggregate: arguments, windows, results). A stateless step with an
exact Arrow twin runs among the kernels; any other is left to Catalyst, and what follows it waits for the next level.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from borealis.diagram import sides as side_names
from borealis.diagram.boxes.aggregate import Aggregate
from borealis.diagram.boxes.base import Box
from borealis.diagram.boxes.join import Join
from borealis.diagram.cut import Piece
from borealis.diagram.spec import LATE, Spec
from borealis.kernels.aggregate import AggregateKernel
from borealis.kernels.expr import to_json
from borealis.kernels.join import JoinKernel
from borealis.kernels.program import Level, Port, Program, Step, schema_text
from borealis.plan.analyze import analyze, empty, nullable
from borealis.plan.expressions import translate_all
from borealis.plan.worker import BUCKET, FILE, HIDDEN, PAYLOAD, TAG, level_runner, rows_column
from borealis.state.delta import TableSpec
from borealis.tuples import CAUSE, SUB, TIME

INTEGERS = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True)
class CatalystStep:
    """A stateless step that Spark runs: a filter (`predicate`) or a map (`exprs`)."""

    predicate: str | None = None
    exprs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Channel:
    """A flow that comes out of Catalyst: where it started, and what Catalyst does to it on the way."""

    origin: str
    steps: tuple[CatalystStep, ...]


@dataclass(frozen=True)
class Outlet:
    """Where the commit finds an output: the tag of its parcels or rows."""

    tag: int
    flow: str
    schema: pa.Schema


@dataclass(frozen=True)
class Compiled:
    """A unit ready to run."""

    program: Program
    outlets: dict[str, Outlet]  # outputs, and `<input>.late` for each input
    inputs: dict[str, pa.Schema]
    schemas: dict[str, StructType]  # of every arrow
    tables: dict[str, tuple[TableSpec, ...]]  # of every stateful box
    catalyst: dict[int, tuple[tuple[CatalystStep, ...], StructType]]  # by tag: steps, and the schema they start from
    where: dict[str, str]  # box to where it runs, for explain
    headers: bool = False  # outputs know their times

    @property
    def first_schema(self) -> StructType:
        """The schema of the Spark source."""
        return self._between(0)

    def frame(self, source: DataFrame) -> DataFrame:
        """The streaming plan from the source's rows to what the commit collects."""
        frame = source
        for number, level in enumerate(self.program.levels):
            if number:
                if self.program.buckets > 1:
                    frame = frame.repartitionById(self.program.buckets, F.col(BUCKET))
                schema = self._between(number)
                runner = level_runner(number, to_arrow_schema(schema, timezone="UTC"))
                frame = frame.mapInArrow(runner, schema)
            for port in level.leave:
                if port.as_rows:
                    frame = _apply(frame, port.tag, self.catalyst[port.tag][0])
        return frame

    def _between(self, number: int) -> StructType:
        """What leaves a level, before Catalyst has touched it."""
        schema = StructType().add(TAG, IntegerType()).add(BUCKET, IntegerType())
        schema = schema.add(PAYLOAD, BinaryType()).add(FILE, StringType())
        rows = [p for p in self.program.levels[number].leave if p.as_rows]
        if rows:
            for name in HIDDEN.values():
                schema = schema.add(name, LongType())
        for port in rows:
            schema = schema.add(rows_column(port.tag), nullable(self.catalyst[port.tag][1]))
        return schema


def _apply(frame: DataFrame, tag: int, steps: tuple[CatalystStep, ...]) -> DataFrame:
    """Run stateless steps over the rows of one tag; all others pass untouched."""
    column = rows_column(tag)
    others = [c for c in frame.columns if c != column]
    mine = F.col(TAG) == tag
    for step in steps:
        wide = frame.select(*others, f"{column}.*")
        names = wide.columns[len(others) :]
        if step.predicate is not None:
            wide = wide.where(~mine | F.expr(step.predicate))
            fields: list[Column] = [F.col(f"`{n}`") for n in names]
        else:
            fields = [F.expr(text).alias(name) for name, text in step.exprs]
        frame = wide.select(*others, F.when(mine, F.struct(*fields)).alias(column))
    return frame


def compile_unit(spec: Spec, spark: SparkSession, buckets: int = 1, *, headers: bool = False) -> Compiled:
    """The program of a unit whose diagram has been checked. `headers`: its outputs will be asked for their times."""
    inputs = [name for one in spec.inputs for name in (one.name, one.name + LATE)]
    outputs = {o.name: o.source for o in spec.outputs}
    outputs |= {one.name + LATE: one.name + LATE for one in spec.inputs}
    hidden = (TIME, CAUSE, SUB) if buckets > 1 else (TIME,) if headers else ()
    return _Compiler(spec, spark, buckets, hidden).run(inputs, [b.name for b in spec.boxes], outputs)


def compile_piece(
    spec: Spec, piece: Piece, spark: SparkSession, buckets: int = 1, schemas: dict[str, StructType] | None = None
) -> Compiled:
    """The program of one piece of a diagram: streams in, streams out, each known by its arrow.

    Outputs carry times and causes, so that boundaries can be put among them. `schemas`: as `analyze` found them.
    """
    hidden = (TIME, CAUSE, SUB) if buckets > 1 else (TIME, CAUSE)
    compiler = _Compiler(spec, spark, buckets, hidden, schemas)
    return compiler.run(piece.reads, piece.boxes, {arrow: arrow for arrow in piece.gives})


@dataclass
class _Flow:
    schema: StructType
    level: int
    parted: bool
    channel: Channel | None = None


@dataclass
class _Draft:
    arrive: list[tuple[int, str, str]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    leave: list[Port] = field(default_factory=list)


class _Compiler:
    def __init__(
        self,
        spec: Spec,
        spark: SparkSession,
        buckets: int,
        hidden: tuple[str, ...],
        schemas: dict[str, StructType] | None = None,
    ) -> None:
        self.spec, self.spark, self.buckets = spec, spark, buckets
        # what an output's parcels carry beside the rows: one bucket's are in order as they come
        self.output_hidden = hidden
        self.schemas = analyze(spec, spark) if schemas is None else schemas
        self.flows: dict[str, _Flow] = {}
        self.drafts: list[_Draft] = [_Draft()]
        self.bounds: list[tuple[str, tuple[str, ...]]] = []
        self.catalyst: dict[int, tuple[tuple[CatalystStep, ...], StructType]] = {}
        self.tables: dict[str, tuple[TableSpec, ...]] = {}
        self.where: dict[str, str] = {}
        self.tags = 0
        self._arrived: dict[tuple[str, int, tuple[str, ...] | None], str] = {}
        # without a keyed box each bucket takes its share of the rows; with one, each reads all and keeps its keys
        self.shared = False

    def run(self, inputs: Sequence[str], boxes: Collection[str], outputs: dict[str, str]) -> Compiled:
        mine = [box for box in self.spec.topological() if box.name in boxes]
        self.shared = not any(box.stateful for box in mine)
        for name in inputs:
            self.flows[name] = _Flow(nullable(self.schemas[name]), 0, self.shared)
        for box in mine:
            match box:
                case Aggregate():
                    self._aggregate(box)
                case Join():
                    self._join(box)
                case _ if box.kind == "union":
                    self._union(box)
                case _ if box.kind == "filter":
                    self._stateless(box, box.sources[0], box.name, CatalystStep(predicate=box.predicate))  # type: ignore[attr-defined]
                case _:
                    exprs = tuple(box.exprs.items())  # type: ignore[attr-defined]
                    self._stateless(box, box.sources[0], box.name, CatalystStep(exprs=exprs))
        outlets = self._outlets(outputs)
        schemas = {name: _arrow(self.flows[name].schema) for name in inputs}
        program = Program(
            self.buckets,
            self.shared,
            {name: schema_text(schema) for name, schema in schemas.items()},
            tuple(self.bounds),
            tuple(Level(tuple(d.arrive), tuple(d.steps), tuple(d.leave)) for d in self.drafts),
        )
        headers = TIME in self.output_hidden
        return Compiled(program, outlets, schemas, self.schemas, self.tables, self.catalyst, self.where, headers)

    # -- boxes

    def _stateless(self, box: Box, source: str, out: str, step: CatalystStep) -> None:
        flow = self.flows[source]
        frame = empty(self.spark, flow.schema)
        texts = {"": step.predicate} if step.predicate is not None else dict(step.exprs)
        schema = flow.schema
        if step.predicate is None:
            schema = nullable(frame.select(*(F.expr(text).alias(name) for name, text in step.exprs)).schema)
        self.bounds.append((out, (source,)))
        if flow.channel is not None:
            channel = Channel(flow.channel.origin, (*flow.channel.steps, step))
            self.flows[out] = _Flow(schema, flow.level, True, channel)
            self._note(box, "Catalyst")
            return
        exprs = translate_all(frame, texts)
        if any(e is None for e in exprs.values()):
            self.flows[out] = _Flow(schema, flow.level + 1, True, Channel(source, (step,)))
            self._note(box, "Catalyst")
            return
        twins = {name: to_json(e) for name, e in exprs.items() if e is not None}
        op, options = (
            ("filter", {"predicate": twins[""]})
            if step.predicate is not None
            else ("map", {"exprs": list(twins.items())})
        )
        self._step(op, box, out, (source,), schema, flow.level, flow.parted, options)

    def _union(self, box: Box) -> None:
        level = max(self.flows[s].level for s in box.sources)
        parted = any(self.flows[s].parted for s in box.sources)
        sources = tuple(self._at(s, level, None) for s in box.sources)
        self.bounds.append((box.name, tuple(box.sources)))
        self._step("union", box, box.name, sources, self.flows[box.sources[0]].schema, level, parted, {})

    def _aggregate(self, box: Aggregate) -> None:
        source = box.sources[0]
        frame = empty(self.spark, self.flows[source].schema)
        columns: list[str | None] = []
        arguments: dict[str, str] = {}
        for i, (_, argument) in enumerate(box.calls):
            plain = _plain_column(argument, frame.columns)
            if argument != "*" and plain is None:
                arguments[f"__x{i}"] = argument
            columns.append(None if argument == "*" else plain or f"__x{i}")
        if arguments:
            used = dict.fromkeys([*box.by, *(c for c in columns if c is not None and c not in arguments)])
            keep = {name: f"`{name}`" for name in used}
            self._stateless(box, source, f"{box.name}~arguments", CatalystStep(exprs=tuple((keep | arguments).items())))
            source = f"{box.name}~arguments"
        rows = empty(self.spark, self.flows[source].schema)
        calls = [(f, c) for (f, _), c in zip(box.calls, columns, strict=True)]
        texts = [f"{f}({'*' if c is None else f'`{c}`'})" for f, c in calls]
        grouped = rows.groupBy(*(F.col(f"`{n}`") for n in box.by)).agg(
            F.first(F.lit(None).cast("timestamp")).alias("window_start"),
            F.first(F.lit(None).cast("timestamp")).alias("window_end"),
            *(F.expr(text).alias(f"__a{i}") for i, text in enumerate(texts)),
        )
        schema = nullable(grouped.schema)
        options = {
            "schema": schema_text(_arrow(self.flows[source].schema)),
            "by": list(box.by),
            "size": box.size_us,
            "slide": box.slide_us,
            "calls": calls,
        }
        windows = f"{box.name}~windows"
        self._stateful("aggregate", box, windows, [source], [list(box.by)], schema, options)
        self.tables[box.name] = AggregateKernel.tables
        finals = {name: f"`{name}`" for name in (*box.by, "window_start", "window_end")} | box.finals
        self._stateless(box, windows, box.name, CatalystStep(exprs=tuple(finals.items())))

    def _join(self, box: Join) -> None:
        sides, keys, residual = list(box.sources), [], [] if box.residual is None else [box.residual]
        frames = [empty(self.spark, self.flows[s].schema) for s in sides]
        pair = frames[0].alias("left").crossJoin(frames[1].alias("right"))
        added: list[dict[str, str]] = [{}, {}]
        for i, texts in enumerate(box.keys):
            kinds = [pair.select(F.expr(t).alias("x")).schema["x"].dataType.simpleString() for t in texts]
            bare = [side_names.without_side(t) for t in texts]
            plain = [_plain_column(b, f.columns) for b, f in zip(bare, frames, strict=True)]
            if kinds[0] == kinds[1] and kinds[0].split("<")[0] not in ("array", "map", "struct"):
                names = [p or f"__k{i}" for p in plain]
            elif all(k in INTEGERS for k in kinds):
                bare, names = [f"CAST({b} AS BIGINT)" for b in bare], [f"__k{i}"] * 2
            else:  # Spark would convert one side: leave it to Spark's own equality
                residual.append(f"{texts[0]} = {texts[1]}")
                continue
            for side, (name, text) in enumerate(zip(names, bare, strict=True)):
                if name.startswith("__"):
                    added[side][name] = text
            keys.append((names[0], names[1]))
        for side in (0, 1):
            if added[side]:
                exprs = {c: f"`{c}`" for c in frames[side].columns} | added[side]
                out = f"{box.name}~{('left', 'right')[side]}"
                self._stateless(box, sides[side], out, CatalystStep(exprs=tuple(exprs.items())))
                sides[side] = out
        columns = [("left", c, f"__l_{c}") for c in frames[0].columns]
        columns += [("right", c, f"__r_{c}") for c in frames[1].columns]
        schema = StructType()
        for which, column, out in columns:
            schema = schema.add(out, frames[which == "right"].schema[column].dataType)
        left, right = (_arrow(self.flows[s].schema) for s in sides)
        options = {
            "left": schema_text(left),
            "right": schema_text(right),
            "keys": keys,
            "within": box.within_us,
            "columns": columns,
        }
        by = [[k[0] for k in keys], [k[1] for k in keys]]
        pairs = f"{box.name}~pairs"
        self._stateful("join", box, pairs, sides, by, schema, options)
        self.tables[box.name] = JoinKernel.tables
        if residual:
            condition = side_names.with_prefix(
                " AND ".join(f"({r})" for r in residual), frames[0].columns, frames[1].columns
            )
            self._stateless(box, pairs, f"{box.name}~matches", CatalystStep(predicate=condition))
            pairs = f"{box.name}~matches"
        outputs = box.output_names(frames[0].columns, frames[1].columns)
        renamed = tuple((out, f"`__{which[0]}_{column}`") for which, column, out in outputs)
        self._stateless(box, pairs, box.name, CatalystStep(exprs=renamed))

    # -- steps and levels

    def _stateful(
        self,
        op: str,
        box: Box,
        out: str,
        sources: list[str],
        by: list[list[str]],
        schema: StructType,
        options: dict[str, Any],
    ) -> None:
        """A keyed step: rows that are already parted by something else must first go to the bucket of their key."""
        many = self.buckets > 1
        level = max(self.flows[s].level + (many and self.flows[s].parted) for s in sources)
        moves = [many and (self.flows[s].parted or self.flows[s].level < level) for s in sources]
        local = tuple(
            self._at(s, level, tuple(key) if move else None) for s, key, move in zip(sources, by, moves, strict=True)
        )
        self.bounds.append((out, tuple(sources)))
        self._step(op, box, out, local, schema, level, True, options | {"buckets_by": by})

    def _step(
        self,
        op: str,
        box: Box,
        out: str,
        sources: tuple[str, ...],
        schema: StructType,
        level: int,
        parted: bool,
        options: dict[str, Any],
    ) -> None:
        step = Step(op, out, sources, box.name, parted, schema_text(_arrow(schema)), options)
        self._draft(level).steps.append(step)
        self.flows[out] = _Flow(schema, level, parted)
        self._note(box, "kernel in the source" if level == 0 else f"kernel in level {level}")

    def _at(self, name: str, level: int, key: tuple[str, ...] | None) -> str:
        """The flow's name at a level, making it arrive there if it does not start there."""
        flow = self.flows[name]
        if flow.channel is not None and (name, flow.level, None) not in self._arrived:
            self._send_rows(name, flow.channel, flow.level)
            self._draft(flow.level).arrive.append((self.tags, name, schema_text(_arrow(flow.schema))))
            self._arrived[name, flow.level, None] = name
        if level == flow.level and key is None:
            return name
        if (name, level, key) not in self._arrived:
            alias = name if key is None else f"{name}@{level}/{','.join(key)}"
            self.tags += 1
            text = schema_text(_arrow(flow.schema))
            # a whole flow is sent by every bucket: each sends its share, and it arrives parted
            share = not flow.parted and self.buckets > 1
            self._draft(flow.level).leave.append(Port(self.tags, name, text, level, slice_=share, key=key))
            self._draft(level).arrive.append((self.tags, alias, text))
            if alias != name:
                self.bounds.append((alias, (name,)))
            self._arrived[name, level, key] = alias
        return self._arrived[name, level, key]

    def _send_rows(self, name: str, channel: Channel, level: int) -> None:
        self.tags += 1
        origin = self.flows[channel.origin]
        whole = not origin.parted and self.buckets > 1
        text = schema_text(_arrow(origin.schema))
        port = Port(self.tags, channel.origin, text, level, as_rows=True, slice_=whole)
        self._draft(level - 1).leave.append(port)
        self.catalyst[self.tags] = (channel.steps, origin.schema)

    def _outlets(self, outputs: dict[str, str]) -> dict[str, Outlet]:
        last = max((i for i, d in enumerate(self.drafts) if d.steps or d.arrive), default=0)
        made: dict[str, int] = {}
        outlets = {}
        for output, name in outputs.items():
            flow = self.flows[name]
            if name not in made:
                if flow.channel is not None and flow.level > last and (name, flow.level, None) not in self._arrived:
                    self._send_rows(name, flow.channel, flow.level)  # straight from Catalyst to the commit
                else:
                    self._at(name, flow.level, None)
                    self.tags += 1
                    whole = not flow.parted and self.buckets > 1
                    text = schema_text(_arrow(flow.schema))
                    port = Port(self.tags, name, text, slice_=whole, hidden=self.output_hidden)
                    self._draft(flow.level).leave.append(port)
                made[name] = self.tags
            outlets[output] = Outlet(made[name], name, _arrow(flow.schema))
        return outlets

    def _draft(self, level: int) -> _Draft:
        while len(self.drafts) <= level:
            self.drafts.append(_Draft())
        return self.drafts[level]

    def _note(self, box: Box, where: str) -> None:
        known = self.where.get(box.name)
        self.where[box.name] = where if known in (None, where) else f"{known}, {where}"


def _arrow(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def _plain_column(text: str, columns: list[str]) -> str | None:
    """The column that an expression merely names, if it does no more."""
    name = text.strip()
    bare = name[1:-1] if len(name) > 2 and name[0] == name[-1] == "`" else name
    return next((c for c in columns if c.lower() == bare.lower()), None)
