"""What runs in Spark's Python workers: one level of a unit's program over one bucket of a train."""

from __future__ import annotations

import gc
import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from borealis.kernels.flow import Bounds, Flow, empty_flow
from borealis.kernels.program import (
    TRAIN_TAG,
    Kernel,
    Parcel,
    Port,
    Program,
    all_bounds,
    flow_from_parcels,
    flow_of,
    run_level,
    schema_of,
)
from borealis.state.cache import Cache
from borealis.tuples import CAUSE, SUB, TIME

_CACHE: Cache[Kernel] = Cache()

# columns of what passes between levels; behind them one struct column per flow that goes through Catalyst
TAG, BUCKET, PAYLOAD, FILE = "__tag", "__bucket", "__payload", "__file"
FILE_BYTES_LEAST = 32 << 10  # from here on a payload goes by way of a file: the JVM copies bytes many times over
HIDDEN = {TIME: "__time", CAUSE: "__cause", SUB: "__sub"}


def rows_column(tag: int) -> str:
    """The struct column that carries a flow's rows through Catalyst."""
    return f"__f{tag}"


@cache
def program_at(path: str) -> Program:
    """The unit's program; it never changes while the unit runs."""
    return Program.from_json(json.loads(Path(path).read_text()))


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
    return all_bounds(program, inputs)


def read_train(train: dict[str, Any], bucket: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Level 0, inside the Spark source: read the train's tuples and run the first kernels over them."""
    settle()
    program = program_at(train["program"])
    bounds = train_bounds(program, train)
    share = program.shared and program.buckets > 1
    flows = {}
    for name, one in train["inputs"].items():
        for flow, file in ((name, one["rows"]), (f"{name}.late", one["late"])):
            if flow in program.inputs:
                rows = _read_input(file, one["time"], schema_of(program.inputs[flow]), bounds[flow])
                flows[flow] = rows.take(_share(len(rows), bucket, program.buckets)) if share else rows
    yield from _parcel_batches([Parcel(TRAIN_TAG, bucket, json.dumps(train).encode())], train, schema)
    yield from _run(program, 0, train, bucket, flows, bounds, schema)


def level_runner(number: int, schema: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A later level, for `mapInArrow`: takes what the level before sent to this bucket."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        arrived = Arrived(batches)
        if arrived.train is None:
            return
        program = program_at(arrived.train["program"])
        bounds = train_bounds(program, arrived.train)
        flows = {flow: arrived.flow(tag, schema_of(s), bounds[flow]) for tag, flow, s in program.levels[number].arrive}
        mine = {tag for tag, _, _ in program.levels[number].arrive}
        yield from _parcel_batches((p for p in arrived.parcels if p.tag not in mine), arrived.train, schema)
        yield from _run(program, number, arrived.train, arrived.bucket, flows, bounds, schema)

    return run


class Arrived:
    """What came out of a level: parcels, and rows by their tag."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self.parcels: list[Parcel] = []
        self._rows: dict[int, list[pa.RecordBatch]] = {}
        self.train: dict[str, Any] | None = None
        self.bucket = -1
        for batch in batches:
            self._add(batch)

    def _add(self, batch: pa.RecordBatch) -> None:
        tags, packed = batch.column(TAG).to_numpy(), _packed(batch)
        for i in np.flatnonzero(packed).tolist():
            file = batch.column(FILE)[i].as_py()
            payload = batch.column(PAYLOAD)[i].as_buffer() if file is None else _mapped(file)
            parcel = Parcel(int(tags[i]), batch.column(BUCKET)[i].as_py(), payload, file)
            if parcel.tag == TRAIN_TAG and self.train is None:
                self.train, self.bucket = json.loads(payload.to_pybytes()), parcel.bucket
            self.parcels.append(parcel)
        for tag in np.unique(tags[~packed]).tolist():
            mine = (tags == tag) & ~packed
            self._rows.setdefault(tag, []).append(batch if mine.all() else batch.filter(pa.array(mine)))

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


def _run(
    program: Program,
    number: int,
    train: dict[str, Any],
    bucket: int,
    flows: dict[str, Flow],
    bounds: dict[str, Bounds],
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    root = Path(train["state"])
    taken: list[tuple[str, Kernel]] = []

    def keep(box: str, make: Callable[[], Kernel]) -> Kernel:
        manifest = train["manifest"].get(f"{box}.{bucket}", [])
        kernel = _CACHE.take(root, (box, bucket), train["train"] - 1, manifest, make)
        taken.append((box, kernel))
        return kernel

    parcels: list[Parcel] = []
    for one in run_level(program, number, bucket, flows, bounds, keep):
        if isinstance(one, Parcel):
            parcels.append(one)
        else:
            yield from _row_batches(*one, bucket, schema)
    for box, kernel in taken:
        _CACHE.give(root, (box, bucket), train["train"], kernel)
    yield from _parcel_batches(parcels, train, schema)


def _read_input(file: str | None, time: str, schema: pa.Schema, bounds: Bounds) -> Flow:
    if file is None:
        return empty_flow(schema, bounds)
    with pa.memory_map(file) as source, pa.ipc.open_file(source) as reader:
        table = reader.read_all()
    cause = table[CAUSE].to_numpy()
    rows = table.drop_columns([CAUSE])
    times = rows[time].combine_chunks().view(pa.int64()).to_numpy()
    return Flow(rows, times, cause, np.zeros(len(cause), np.int64), bounds)


def _share(rows: int, bucket: int, buckets: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.arange(rows * bucket // buckets, rows * (bucket + 1) // buckets)


def _packed(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows are parcels."""
    packed: np.ndarray[Any, np.dtype[np.bool_]] = pc.or_(
        batch.column(PAYLOAD).is_valid(), batch.column(FILE).is_valid()
    ).to_numpy(zero_copy_only=False)
    return packed


def _mapped(path: str) -> pa.Buffer:
    with pa.memory_map(path) as file:
        return file.read_buffer()


def _parcel_batches(parcels: Iterable[Parcel], train: dict[str, Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """One row per parcel, in a batch of its own: its bytes are not copied, and large ones do not pass the JVM.

    A file belongs to the attempt that wrote it; only what a successful task names is ever read, and all of a train's
    files are removed with it.
    """
    for parcel in parcels:
        payload, file = pa.py_buffer(parcel.payload), parcel.file
        if file is None and payload.size >= FILE_BYTES_LEAST:
            directory = Path(train["results"])
            directory.mkdir(parents=True, exist_ok=True)
            file = str(directory / uuid.uuid4().hex)
            Path(file).write_bytes(memoryview(payload))
        ends = pa.py_buffer(np.array([0, payload.size], np.int32))
        known = {
            TAG: pa.array([parcel.tag], pa.int32()),
            BUCKET: pa.array([parcel.bucket], pa.int32()),
            PAYLOAD: pa.Array.from_buffers(pa.binary(), 1, [None, ends, payload]),
            FILE: pa.array([file], pa.string()),
        }
        if file is not None:
            known[PAYLOAD] = pa.nulls(1, pa.binary())
        columns = [known[f.name] if f.name in known else pa.nulls(1, f.type) for f in schema]
        yield pa.record_batch(columns, schema=schema)


def _row_batches(port: Port, flow: Flow, bucket: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    mine = rows_column(port.tag)
    for batch in flow.rows.combine_chunks().to_batches():
        n = len(batch)
        known: dict[str, Any] = {
            TAG: pa.array(np.full(n, port.tag, np.int32)),
            BUCKET: pa.array(np.full(n, bucket, np.int32)),
            HIDDEN[TIME]: pa.array(flow.time),
            HIDDEN[CAUSE]: pa.array(flow.cause),
            HIDDEN[SUB]: pa.array(flow.sub),
        }
        kind = schema.field(mine).type
        known[mine] = pa.StructArray.from_arrays(batch.columns, fields=list(kind))
        columns = [known[f.name] if f.name in known else pa.nulls(n, f.type) for f in schema]
        yield pa.record_batch(columns, schema=schema)
