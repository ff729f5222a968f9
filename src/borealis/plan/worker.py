"""What runs in Spark's Python workers: one level of a unit's program over one bucket of a train."""

from __future__ import annotations

import gc
import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from borealis.errors import WireError
from borealis.kernels.aside import BOX, ERRORS, EXPRESSION, TUPLE
from borealis.kernels.aside import table as errors_table
from borealis.kernels.flow import Bounds, Flow, empty_flow, merge_bounds
from borealis.kernels.program import (
    ERRORS_TAG,
    TRAIN_TAG,
    Parcel,
    Port,
    Program,
    all_bounds,
    flow_from_parcels,
    flow_of,
    flow_table,
    run_level,
)
from borealis.kernels.step import Kernel, schema_of
from borealis.plan.location import is_there, meet, read
from borealis.plan.notice import Notice
from borealis.state.cache import Cache
from borealis.state.delta import from_stream, to_stream
from borealis.tuples import CAUSE, SUB, TIME

_CACHE: Cache[Kernel] = Cache(read, is_there)

# columns of what passes between levels; behind them one struct column per flow that goes through Catalyst
TAG, BUCKET, PAYLOAD, FILE = "__tag", "__bucket", "__payload", "__file"
FILE_BYTES_LEAST = 32 << 10  # from here on a payload goes by way of a file: the JVM copies bytes many times over
PIECE_BYTES_MOST = 4 << 20  # of a payload that no file can take, in one row: an executor's heap may be small
PIECE = "piece"  # `piece <number> <of how many> <of which payload>` stands in the place of a file's name
HIDDEN = {TIME: "__time", CAUSE: "__cause", SUB: "__sub"}
FAILED = "__failed"  # of a row that failed in Catalyst: where, and the row, as JSON
FAILED_TAG = -4  # of such rows


def rows_column(tag: int) -> str:
    """The struct column that carries a flow's rows through Catalyst."""
    return f"__f{tag}"


@lru_cache(64)
def program_at(location: str) -> Program:
    """The unit's program; it never changes while the unit runs."""
    return Program.from_json(json.loads(read(location).to_pybytes()))


def program_of(train: dict[str, Any]) -> Program:
    """The program that a train is for."""
    meet(train)
    return program_at(train["program"])


@cache
def settle() -> None:
    """Once per worker: what is loaded by now stays, so take it out of the garbage collector's rounds.

    Spark's daemon collects garbage after every task; with all our modules in sight that took ten times as long as a
    small train's kernels.
    """
    gc.collect()
    gc.freeze()


def train_bounds(program: Program, train: dict[str, Any]) -> dict[str, Bounds]:
    """The boundaries of every flow, from the train's header."""
    inputs = {}
    for name, one in train["inputs"].items():
        inputs[name] = Bounds(one["standing"], np.array(one["cause"], np.int64), np.array(one["bound"], np.int64))
        # late tuples come with no promise at all, until the input ends
        ended = inputs[name].time == np.iinfo(np.int64).max
        standing = one["standing"] if one["standing"] == np.iinfo(np.int64).max else np.iinfo(np.int64).min
        inputs[f"{name}.late"] = Bounds(standing, inputs[name].cause[ended], inputs[name].time[ended])
    late = [inputs[f"{name}.late"] for name in train["inputs"]]
    return all_bounds(program, inputs) | {ERRORS: merge_bounds(late)}


def read_train(train: dict[str, Any], bucket: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Level 0, inside the Spark source: read the train's tuples and run the first kernels over them."""
    settle()
    program = program_of(train)
    bounds = train_bounds(program, train)
    out = Sending(train, 0, bucket, schema)
    yield from out.parcels([Parcel(TRAIN_TAG, bucket, json.dumps(train).encode())])
    yield from _run(program, out, _inputs(program, train, bucket, bounds), bounds)


def run_train(train: dict[str, Any], bucket: int) -> list[Parcel]:
    """All of a train whose program has one level, in one bucket."""
    program = program_of(train)
    bounds = train_bounds(program, train)
    found = _level(program, 0, train, bucket, _inputs(program, train, bucket, bounds), bounds)
    return [one for one in found if isinstance(one, Parcel)]


def _inputs(program: Program, train: dict[str, Any], bucket: int, bounds: dict[str, Bounds]) -> dict[str, Flow]:
    """What a bucket reads of a train."""
    share = program.shared and program.buckets > 1
    flows = {}
    for name, one in train["inputs"].items():
        for flow, file in ((name, one["rows"]), (f"{name}.late", one["late"])):
            if flow in program.inputs:
                rows = _read_input(file, one["time"], schema_of(program.inputs[flow]), bounds[flow])
                flows[flow] = rows.take(_share(len(rows), bucket, program.buckets)) if share else rows
    return flows


def level_runner(number: int, schema: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A later level, for `mapInArrow`: takes what the level before sent to this bucket."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        arrived = Arrived(batches)
        if arrived.train is None:
            return
        program = program_of(arrived.train)
        bounds = train_bounds(program, arrived.train)
        out = Sending(arrived.train, number, arrived.bucket, schema)
        flows = {flow: arrived.flow(tag, schema_of(s), bounds[flow]) for tag, flow, s in program.levels[number].arrive}
        mine = {tag for tag, _, _ in program.levels[number].arrive}
        yield from out.parcels(p for p in arrived.parcels if p.tag not in mine)
        yield from _run(program, out, flows, bounds)

    return run


class Arrived:
    """What came out of a level: parcels, and rows by their tag."""

    def __init__(
        self,
        batches: Iterable[pa.RecordBatch] = (),
        train: dict[str, Any] | None = None,
        parcels: Iterable[Parcel] = (),
    ) -> None:
        """Out of what Spark gives, or what lanes gave of this train."""
        self.parcels: list[Parcel] = list(parcels)
        self._rows: dict[int, list[pa.RecordBatch]] = {}
        self._pieces: dict[str, dict[int, pa.Buffer]] = {}
        self.train = train
        self.bucket = -1
        for batch in batches:
            self._add(batch)
        self.parcels += [_errors(batch) for batch in self._rows.pop(FAILED_TAG, [])]
        if self._pieces:
            raise WireError(f"of {len(self._pieces)} results of a train only pieces came")

    def _add(self, batch: pa.RecordBatch) -> None:
        tags, packed = batch.column(TAG).to_numpy(), _packed(batch)
        for i in np.flatnonzero(packed).tolist():
            file, payload = batch.column(FILE)[i].as_py(), batch.column(PAYLOAD)[i].as_buffer()
            if file is not None and payload is not None:
                payload, file = self._whole(file, payload), None
                if payload is None:
                    continue
            elif file is not None:
                payload = read(file)
            parcel = Parcel(int(tags[i]), batch.column(BUCKET)[i].as_py(), payload, file)
            if parcel.tag == TRAIN_TAG and self.train is None:
                self.train, self.bucket = json.loads(payload.to_pybytes()), parcel.bucket
            self.parcels.append(parcel)
        for tag in np.unique(tags[~packed]).tolist():
            mine = (tags == tag) & ~packed
            self._rows.setdefault(tag, []).append(batch if mine.all() else batch.filter(pa.array(mine)))

    def _whole(self, name: str, piece: pa.Buffer) -> pa.Buffer | None:
        """The payload that this piece was the last one missing of."""
        _, number, count, whose = name.split(" ")
        pieces = self._pieces.setdefault(whose, {})
        pieces[int(number)] = piece
        if len(pieces) < int(count):
            return None
        del self._pieces[whose]
        return _joined([pieces[n] for n in range(len(pieces))])

    def put_errors(self, flow: Flow) -> None:
        """These are the tuples that failed, in order."""
        self.parcels = [p for p in self.parcels if p.tag != ERRORS_TAG]
        self.parcels.append(Parcel(ERRORS_TAG, -1, to_stream(flow_table(flow))))

    def flow(self, tag: int, schema: pa.Schema, bounds: Bounds) -> Flow:
        """The flow that was sent under a tag, in order."""
        if tag in self._rows:
            tables = []
            for batch in self._rows[tag]:
                struct = batch.column(rows_column(tag))
                columns = dict(zip(schema.names, struct.flatten(), strict=True))
                table = pa.table(columns, schema=schema) if columns else batch.select([])
                for name, hidden in HIDDEN.items():
                    table = table.append_column(name, batch.column(hidden))
                tables.append(table)
            return flow_of(tables, schema, bounds)
        return flow_from_parcels([p.payload for p in self.parcels if p.tag == tag], schema, bounds)


def _errors(batch: pa.RecordBatch) -> Parcel:
    """Rows that failed in Catalyst, as rows of the errors' flow; why they failed is asked when they are committed."""
    found = [json.loads(text) for text in batch.column(FAILED).to_pylist()]
    hidden = [batch.column(HIDDEN[name]) for name in (TIME, CAUSE, SUB)]
    texts = [[one[BOX], one[EXPRESSION], "", one[TUPLE]] for one in found]
    return Parcel(ERRORS_TAG, -1, to_stream(errors_table(*hidden, *zip(*texts, strict=True))))


def _run(program: Program, out: Sending, flows: dict[str, Flow], bounds: dict[str, Bounds]) -> Iterator[pa.RecordBatch]:
    parcels: list[Parcel] = []
    for one in _level(program, out.level, out.train, out.bucket, flows, bounds):
        if isinstance(one, Parcel):
            parcels.append(one)
        else:
            yield from out.rows(*one)
    yield from out.parcels(parcels)


def _level(
    program: Program, level: int, train: dict[str, Any], bucket: int, flows: dict[str, Flow], bounds: dict[str, Bounds]
) -> Iterator[Parcel | tuple[Port, Flow]]:
    """One level, with the kernels that this worker holds; they stand behind the train when all was taken."""
    root = train["state"]
    taken: list[tuple[str, Kernel]] = []

    def keep(box: str, make: Callable[[], Kernel]) -> Kernel:
        manifest = None if train["manifest"] is None else train["manifest"].get(f"{box}.{bucket}", [])
        kernel = _CACHE.take(root, (box, bucket), train["train"] - 1, manifest, make)
        taken.append((box, kernel))
        begin = getattr(kernel, "begin", None)
        if begin is not None:
            begin(train, bucket, Notice(f"{train['troubles']}/{box}.{bucket}", _attempt()))
        return kernel

    yield from run_level(program, level, bucket, flows, bounds, keep)
    stands = train["train"] - 1 if "rehearsal" in train else train["train"]
    for box, kernel in taken:
        _CACHE.give(root, (box, bucket), stands, kernel)


def _attempt() -> int:
    """How often Spark has tried this task before."""
    task = TaskContext.get()
    return 0 if task is None else task.attemptNumber()


def _read_input(file: str | pa.Buffer | None, time: str, schema: pa.Schema, bounds: Bounds) -> Flow:
    if file is None:
        return empty_flow(schema, bounds)
    table = from_stream(read(file))
    cause = table[CAUSE].to_numpy()
    rows = table.drop_columns([CAUSE])
    times = rows[time].combine_chunks().view(pa.int64()).to_numpy()
    if time == TIME:  # a stream from another unit: its times are no column of the user's
        rows = rows.drop_columns([TIME])
    return Flow(rows, times, cause, np.zeros(len(cause), np.int64), bounds)


def _share(rows: int, bucket: int, buckets: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.arange(rows * bucket // buckets, rows * (bucket + 1) // buckets)


def _packed(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows are parcels."""
    packed: np.ndarray[Any, np.dtype[np.bool_]] = pc.or_(
        batch.column(PAYLOAD).is_valid(), batch.column(FILE).is_valid()
    ).to_numpy(zero_copy_only=False)
    return packed


def _joined(pieces: list[pa.Buffer]) -> pa.Buffer:
    whole = pa.allocate_buffer(sum(p.size for p in pieces))
    view, at = memoryview(whole).cast("B"), 0
    for piece in pieces:
        view[at : at + piece.size] = memoryview(piece).cast("B")
        at += piece.size
    return whole


class Sending:
    """What one level in one bucket sends on, as batches of the schema that Spark was told."""

    def __init__(self, train: dict[str, Any], level: int, bucket: int, schema: pa.Schema) -> None:
        self.train, self.level, self.bucket, self.schema = train, level, bucket, schema
        self._numbers = count()

    def parcels(self, parcels: Iterable[Parcel]) -> Iterator[pa.RecordBatch]:
        """One row per parcel, in a batch of its own: its bytes are not copied, and large ones do not pass the JVM.

        A file belongs to the attempt that wrote it; only what a successful task names is ever read, and all of a
        train's files are removed with it. Where node and worker share no files, large ones pass in pieces, called the
        same by every attempt.
        """
        for parcel in parcels:
            payload, file = pa.py_buffer(parcel.payload), parcel.file
            if file is None and payload.size >= FILE_BYTES_LEAST and self.train["results"] is not None:
                file = written(self.train["results"], payload)
            if file is not None:
                yield self._parcel(parcel, None, file)
            elif payload.size <= PIECE_BYTES_MOST:
                yield self._parcel(parcel, payload, None)
            else:
                whose = f"{self.level}.{self.bucket}.{next(self._numbers)}"
                starts = range(0, payload.size, PIECE_BYTES_MOST)
                for number, start in enumerate(starts):
                    name = f"{PIECE} {number} {len(starts)} {whose}"
                    yield self._parcel(parcel, payload.slice(start, min(PIECE_BYTES_MOST, payload.size - start)), name)

    def rows(self, port: Port, flow: Flow) -> Iterator[pa.RecordBatch]:
        """A flow's rows for Catalyst."""
        mine = rows_column(port.tag)
        for batch in flow.rows.combine_chunks().to_batches():
            n = len(batch)
            known: dict[str, Any] = {
                TAG: pa.array(np.full(n, port.tag, np.int32)),
                BUCKET: pa.array(np.full(n, self.bucket, np.int32)),
                HIDDEN[TIME]: pa.array(flow.time),
                HIDDEN[CAUSE]: pa.array(flow.cause),
                HIDDEN[SUB]: pa.array(flow.sub),
            }
            kind = self.schema.field(mine).type
            known[mine] = pa.StructArray.from_arrays(batch.columns, fields=list(kind))
            yield self._batch(known, n)

    def _parcel(self, parcel: Parcel, payload: pa.Buffer | None, file: str | None) -> pa.RecordBatch:
        known = {
            TAG: pa.array([parcel.tag], pa.int32()),
            BUCKET: pa.array([parcel.bucket], pa.int32()),
            PAYLOAD: pa.nulls(1, pa.binary()),
            FILE: pa.array([file], pa.string()),
        }
        if payload is not None:
            ends = pa.py_buffer(np.array([0, payload.size], np.int32))
            known[PAYLOAD] = pa.Array.from_buffers(pa.binary(), 1, [None, ends, payload])
        return self._batch(known, 1)

    def _batch(self, known: dict[str, Any], rows: int) -> pa.RecordBatch:
        columns = [known[f.name] if f.name in known else pa.nulls(rows, f.type) for f in self.schema]
        return pa.record_batch(columns, schema=self.schema)


def written(results: str, payload: pa.Buffer) -> str:
    """A payload in a file of its own; it belongs to the attempt that wrote it."""
    directory = Path(results)
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / uuid.uuid4().hex
    file.write_bytes(memoryview(payload))
    return str(file)
