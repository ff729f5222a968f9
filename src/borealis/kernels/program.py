"""A unit's program: which kernels run over a train, level by level, and what passes between the levels.

A level is one Python hop of a micro-batch. Most units have a single one, inside the Spark source's own read. A further
level begins where a box must be left to Catalyst, or where rows must change buckets for a key of their own.

A flow is *whole* (every bucket has all its rows, as read from the source) or *parted* (each bucket has its own).
"""

from __future__ import annotations

import importlib
import pkgutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from borealis import kernels
from borealis.errors import BorealisError, TrainError
from borealis.kernels import aside
from borealis.kernels.columns import normal_floats, whole
from borealis.kernels.expr import Expr, column, mask
from borealis.kernels.flow import Bounds, Flow, empty_flow, merge_bounds, rank_within
from borealis.kernels.kinds import mended
from borealis.kernels.step import Kernel, Step, schema_of
from borealis.kernels.xxhash import Words, can_hash, xxhash64
from borealis.state.delta import BoxDelta, Delta, Unwritten, from_stream, to_stream, unwritten
from borealis.tuples import CAUSE, KIND, SUB, TIME, Int64s

PIECE_BYTES_MOST = 32 << 20  # a row that crosses the JVM stays well below its 2 GB limit

# tags of rows that are no flow
TRAIN_TAG = -1  # payload: the plan of the train, so that later levels know it
DELTA_TAG = -2  # payload: a delta, which says of which box
ERRORS_TAG = -3  # payload: tuples that failed in a box, as `aside` has them
APART = 1 << 40  # rows of one cause in a bucket are fewer
STEPS_MOST = 1_000  # of a level, when failed tuples are put in order


@dataclass(frozen=True)
class Port:
    """A flow that leaves a level, as bytes or as rows for Catalyst: for the commit or a later level."""

    tag: int
    flow: str
    as_rows: bool = False
    slice_: bool = False  # a whole flow of which each bucket sends its share
    key: Sequence[str] | None = None  # send each row to the bucket of this key
    hidden: Sequence[str] = (TIME, CAUSE, SUB)  # what travels along; with one bucket the order needs no proof


@dataclass(frozen=True)
class Level:
    """Flows that arrive, kernels that run, flows that leave."""

    arrive: list[tuple[int, str, str]] = field(default_factory=list)  # tag, flow, schema
    steps: list[Step] = field(default_factory=list)
    leave: list[Port] = field(default_factory=list)


@dataclass(frozen=True)
class Program:
    """All levels of a unit, and how boundaries pass through its boxes."""

    buckets: int
    shared: bool  # no keyed box: each bucket takes its share of the input's rows
    inputs: dict[str, str]  # input (or input.late) to schema
    bounds: Sequence[tuple[str, Sequence[str]]]  # flow, the flows whose boundaries it takes, in order
    levels: Sequence[Level]
    aside: bool = False  # tuples that a box cannot take are set aside; otherwise they fail their train
    behind: dict[str, int] = field(default_factory=dict)  # flows whose boundary stays so many microseconds behind

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Program:
        levels = [
            Level(one["arrive"], [Step(**step) for step in one["steps"]], [Port(**port) for port in one["leave"]])
            for one in data["levels"]
        ]
        return Program(**data | {"levels": levels})


@dataclass(frozen=True)
class Packet:
    """A row that leaves a level as bytes: which flow, for which bucket; in which file they lie already, if in any."""

    tag: int
    bucket: int
    payload: bytes | pa.Buffer | Unwritten
    file: str | None = None

    def written(self) -> Packet:
        """The same with bytes."""
        return replace(self, payload=self.payload.buffer()) if isinstance(self.payload, Unwritten) else self


Keep = Callable[[str, Callable[[], Kernel]], Kernel]  # gives a box's kernel, with its state as of the train before


def all_bounds(program: Program, inputs: dict[str, Bounds]) -> dict[str, Bounds]:
    """The boundaries of every flow of the unit during a train."""
    bounds = dict(inputs)
    for flow, sources in program.bounds:
        bounds[flow] = merge_bounds([bounds[s] for s in sources])
        if behind := program.behind.get(flow):
            bounds[flow] = bounds[flow].behind(behind)
    return bounds


def run_level(
    program: Program, number: int, bucket: int, flows: dict[str, Flow], keep: Keep
) -> Iterator[Packet | tuple[Port, Flow]]:
    """Run one level in one bucket: yields packets, and (port, flow) pairs whose rows go to Catalyst."""
    level = program.levels[number]
    flows = dict(flows)
    parted = {f for _, f, _ in level.arrive} | {s.out for s in level.steps if s.parted}
    if program.shared:
        parted |= program.inputs.keys()  # each bucket was given its share when it read them
    for place, step in enumerate(level.steps):
        sources = [flows[s] for s in step.sources]
        if step.parted and program.buckets > 1:
            sources = _own_rows(program, step, sources, [s in parted for s in step.sources], bucket)
        failed = None
        try:
            out, delta = _run(step, sources, keep)
        except Exception as error:
            if not program.aside or step.op not in ("filter", "map"):
                raise at_fault(step, error) from error
            out, failed = _sifted(step, sources[0], keep, number * STEPS_MOST + place)
            if failed is not None and not step.parted:  # every bucket has all rows, and finds the same
                failed = failed.filter(pa.array(failed[CAUSE].to_numpy() % program.buckets == bucket))
            delta = {}
        if step.options.get("revised"):
            out = mended(out)
        if failed is not None and len(failed) and not step.options.get("again"):
            yield Packet(ERRORS_TAG, bucket, to_stream(failed))
        if step.parted and program.buckets > 1 and step.op not in ("filter", "map"):
            out = Flow(out.rows, out.time, out.cause, _among_buckets(out, bucket, program.buckets), out.bounds)
        flows[step.out] = out
        if delta:
            yield Packet(DELTA_TAG, bucket, BoxDelta(step.box, delta))
    for port in level.leave:
        flow = flows[port.flow]
        if port.slice_ and program.buckets > 1:
            flow = flow.take(np.flatnonzero(flow.cause % program.buckets == bucket))
        if port.as_rows:
            yield port, flow
        elif port.key is not None:
            owner = bucket_of(flow, port.key, program.buckets)
            for target in range(program.buckets):
                yield from _packets(port, target, flow.take(np.flatnonzero(owner == target)))
        else:
            yield from _packets(port, bucket, flow)


def _own_rows(program: Program, step: Step, sources: list[Flow], parted: list[bool], bucket: int) -> list[Flow]:
    """Of whole flows, the rows that are this bucket's business; parted ones are its own already."""
    keys = step.options.get("buckets_by")

    def own(i: int, flow: Flow) -> Flow:
        owner = flow.cause % program.buckets if keys is None else bucket_of(flow, keys[i], program.buckets)
        return flow.take(np.flatnonzero(owner == bucket))

    return [flow if parted[i] else own(i, flow) for i, flow in enumerate(sources)]


def _run(step: Step, sources: list[Flow], keep: Keep) -> tuple[Flow, Delta]:
    match step.op:
        case "filter":
            return run_filter(sources[0], step.predicate), {}
        case "map":
            return run_map(sources[0], step.exprs, schema_of(step.schema)), {}
        case "union":
            return run_union(sources), {}
        case _:
            kernel = keep(step.box, lambda: MAKERS[step.op](step))
            return kernel.step(*sources)


def run_filter(flow: Flow, predicate: Expr) -> Flow:
    """The rows for which the predicate is true; null is not true."""
    if not len(flow):
        return flow
    keep = whole(mask(predicate, flow.rows))
    many = keep.true_count
    if many == len(flow):
        return flow
    if not many:
        return empty_flow(flow.rows.schema, flow.bounds)
    return flow.at(np.flatnonzero(keep.to_numpy(zero_copy_only=False)), flow.rows.filter(keep))


def run_map(flow: Flow, exprs: list[tuple[str, Expr]], schema: pa.Schema) -> Flow:
    if not len(flow):
        return empty_flow(schema, flow.bounds)
    columns = [column(expr, flow.rows, schema.field(name).type) for name, expr in exprs]
    return flow.with_rows(pa.table(columns, schema=schema) if columns else flow.rows.select([]))


def _among_buckets(out: Flow, bucket: int, buckets: int) -> Int64s:
    """Places among the rows of a cause that no other bucket gives; the halves of a pair stay side by side."""
    return out.sub + bucket * APART if KIND in out.rows.column_names else out.sub * buckets + bucket


def run_union(flows: list[Flow]) -> Flow:
    """All rows, by cause; of one cause, the first input's before the second's."""
    bounds = merge_bounds([f.bounds for f in flows])
    schema = flows[0].rows.schema
    cause = np.concatenate([f.cause for f in flows])
    which = np.repeat(np.arange(len(flows)), [len(f) for f in flows])
    sub = np.concatenate([f.sub for f in flows])
    order = np.lexsort((sub, which, cause))
    rows = pa.concat_tables([f.rows.cast(schema) for f in flows])
    time = np.concatenate([f.time for f in flows])
    cause = cause[order]
    return Flow(rows.take(pa.array(order)), time[order], cause, rank_within(cause), bounds)


def _sifted(step: Step, flow: Flow, keep: Keep, rank: int) -> tuple[Flow, pa.Table | None]:
    """A step that looks at each row alone, over those it can take; and the others, for the errors' flow."""

    def texts_failing(row: Flow) -> str:
        if step.op == "filter":
            return str(step.options["texts"][""])
        for name, expr in step.exprs:
            kind = pa.schema([schema_of(step.schema).field(name)])
            try:
                run_map(row, [(name, expr)], kind)
            except Exception:
                return str(step.options["texts"][name])
        return ""

    try:
        out, failed = aside.sift(flow, lambda rows: _run(step, [rows], keep)[0])
    except Exception as error:
        raise at_fault(step, error) from error
    return out, aside.records(flow, failed, rank, step.box, texts_failing)


def at_fault(step: Step, error: Exception) -> BorealisError:
    """The error of a box, which it names; of the same kind, where that says what to do about it."""
    kind = type(error) if isinstance(error, TrainError) else TrainError
    hint = error.hint if isinstance(error, BorealisError) else "everything before this train is committed"
    where, why = f"box '{step.box}': ", aside.reason_of(error)
    return kind(why if why.startswith(where) else where + why, hint=hint)


def _makers() -> dict[str, Callable[[Step], Kernel]]:
    names = [
        m.name for m in pkgutil.iter_modules(kernels.__path__) if m.name not in ("program", "loops")
    ]  # the latter only where it is compiled
    modules = {name: importlib.import_module(f"{kernels.__name__}.{name}") for name in names}
    return {name: module.make for name, module in modules.items() if hasattr(module, "make")}


MAKERS = _makers()  # for each stateful op how its kernel is made, with nothing in it


def bucket_of(flow: Flow, key: Sequence[str], buckets: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The bucket of each row's key: the same on any machine, in any process, with any library version."""
    mixed = np.zeros(len(flow), np.uint64)
    for name in key:
        mixed = (mixed * np.uint64(1_000_003)) ^ _hashes(whole(flow.rows[name]))
    return (mixed % np.uint64(buckets)).astype(np.int64)


def _hashes(column: pa.Array) -> Words:
    """Of each value; integers of any size, and floats of either, have one if they are equal."""
    if pa.types.is_integer(column.type):
        return _xxhashes(column.cast(pa.int64()))
    if pa.types.is_floating(column.type):
        column = column.cast(pa.float64())
    encoded = normal_floats(column).dictionary_encode(null_encoding="encode")
    values, index = encoded.dictionary, encoded.indices.to_numpy()
    hashes: Words = (
        _xxhashes(values)
        if can_hash(values.type)
        else np.array([zlib.crc32(repr(v).encode()) for v in values.to_pylist()], np.uint64)
    )
    found: Words = hashes[index]
    return found


def _xxhashes(column: pa.Array) -> Words:
    found: Words = xxhash64([column], len(column)).to_numpy().view(np.uint64)
    return found


# -- flows as bytes


def _packets(port: Port, bucket: int, flow: Flow) -> Iterator[Packet]:
    if not len(flow):
        return
    table = flow_table(flow, port.hidden)
    pieces = max(1, -(-table.nbytes // PIECE_BYTES_MOST))
    step = -(-len(flow) // pieces)
    for start in range(0, len(flow), step):
        yield Packet(port.tag, bucket, unwritten(table.slice(start, step)))


def flow_table(flow: Flow, hidden: Sequence[str] = (TIME, CAUSE, SUB)) -> pa.Table:
    """A flow's rows with hidden columns behind."""
    table = flow.rows
    values = {TIME: flow.time, CAUSE: flow.cause, SUB: flow.sub}
    for name in hidden:
        table = table.append_column(name, pa.array(values[name]))
    return table


def flow_of(tables: list[pa.Table], schema: pa.Schema, bounds: Bounds) -> Flow:
    """A flow from the tables of all its packets, put in order unless they came without proof of it."""
    if not tables:
        return empty_flow(schema, bounds)
    table = pa.concat_tables(tables)
    rows = table.select(schema.names)
    nothing = np.zeros(len(table), np.int64)
    time, cause, sub = (table[n].to_numpy() if n in table.column_names else nothing for n in (TIME, CAUSE, SUB))
    flow = Flow(rows, time, cause, sub, bounds)
    later = cause[1:] > cause[:-1]
    if SUB not in table.column_names or np.all(later | ((cause[1:] == cause[:-1]) & (sub[1:] > sub[:-1]))):
        return flow
    return flow.take(np.lexsort((sub, cause)))


def flow_from_packets(payloads: list[bytes | pa.Buffer], schema: pa.Schema, bounds: Bounds) -> Flow:
    """The flow that `run_level` sent as packets."""
    return flow_of([from_stream(p) for p in payloads], schema, bounds)
