"""What runs in Spark's Python workers: one level of a unit's program over one bucket of a train."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from borealis.kernels.columns import whole
from borealis.kernels.flow import Bounds, Flow, empty_flow, rank_within
from borealis.kernels.program import TRAIN_TAG, Packet, Port, Program, run_level
from borealis.kernels.step import Kernel, schema_of
from borealis.machine import HERE
from borealis.state.cache import Cache
from borealis.state.delta import Unwritten, from_stream
from borealis.trains.header import Payload, TrainHeader
from borealis.trains.location import check_version, is_there, read
from borealis.trains.notices import NoticeFile
from borealis.trains.results import BUCKET, FILE, HIDDEN, PAYLOAD, TAG, Arrived, rows_column, train_bounds
from borealis.tuples import CAUSE, KIND, SUB, TIME

_CACHE: Cache[Kernel] = Cache(read, is_there)

FILE_BYTES_LEAST = 32 << 10  # from here on a payload goes by way of a file: the JVM copies bytes many times over
PIECE_BYTES_MOST = 4 << 20  # of a payload that no file can take, in one row: an executor's heap may be small
PIECE = "piece"  # `piece <number> <of how many> <of which payload>` stands in the place of a file's name


@lru_cache(64)
def program_at(location: str) -> Program:
    """The unit's program; it never changes while the unit runs."""
    return Program.from_json(json.loads(read(location).to_pybytes()))


def program_of(train: TrainHeader) -> Program:
    check_version(train)
    return program_at(train["program"])


@cache
def settle() -> None:
    """Once per worker: what is loaded by now stays, so take it out of the garbage collector's rounds.

    Spark's daemon collects garbage after every task; with all our modules in sight that took ten times as long as a
    small train's kernels.
    """
    gc.collect()
    gc.freeze()


def forget() -> None:
    """All kernels that this worker holds: no unit is left that they are of."""
    _CACHE.forget()


def read_train(train: TrainHeader, bucket: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Level 0, inside the Spark source: read the train's tuples and run the first kernels over them."""
    settle()
    program = program_of(train)
    out = LevelOutput(train, 0, bucket, schema)
    yield from out.packets([Packet(TRAIN_TAG, bucket, json.dumps(train).encode())])
    yield from _run(program, out, _inputs(program, train, bucket))


def run_train(train: TrainHeader, bucket: int) -> Iterator[Packet]:
    """All of a train whose program has one level, in one bucket: what comes of a box comes when that is done."""
    program = program_of(train)
    if train.get("alone"):
        _CACHE.keep_only(train["state"])
    found = _level(program, 0, train, bucket, _inputs(program, train, bucket))
    return (one for one in found if isinstance(one, Packet))


def _inputs(program: Program, train: TrainHeader, bucket: int) -> dict[str, Flow]:
    shared, bounds = program.shared and program.buckets > 1, train_bounds(program, train)
    flows = {}
    for name, one in train["inputs"].items():
        for flow, file in ((name, one["rows"]), (f"{name}.late", one["late"])):
            if flow in program.inputs:
                rows = _read_input(file, one["time"], schema_of(program.inputs[flow]), bounds[flow])
                share = len(rows) * bucket // program.buckets, len(rows) * (bucket + 1) // program.buckets
                flows[flow] = rows.take(np.arange(*share)) if shared else rows
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
        out = LevelOutput(arrived.train, number, arrived.bucket, schema)
        flows = {flow: arrived.flow(tag, schema_of(s), bounds[flow]) for tag, flow, s in program.levels[number].arrive}
        mine = {tag for tag, _, _ in program.levels[number].arrive}
        yield from out.packets(p for p in arrived.packets if p.tag not in mine)
        yield from _run(program, out, flows)

    return run


def _run(program: Program, out: LevelOutput, flows: dict[str, Flow]) -> Iterator[pa.RecordBatch]:
    packets: list[Packet] = []
    for one in _level(program, out.level, out.train, out.bucket, flows):
        if isinstance(one, Packet):
            packets.append(one)
        else:
            yield from out.rows(*one)
    yield from out.packets(packets)


def _level(
    program: Program, level: int, train: TrainHeader, bucket: int, flows: dict[str, Flow]
) -> Iterator[Packet | tuple[Port, Flow]]:
    """One level, with the kernels that this worker holds; they stand behind the train when all was taken."""
    root = train["state"]
    taken: list[tuple[str, Kernel]] = []
    _CACHE.forget_forks(root, train.get("forks", ()))

    def keep(box: str, make: Callable[[], Kernel]) -> Kernel:
        manifest = None if train["manifest"] is None else train["manifest"].get(f"{box}.{bucket}", [])
        kernel = _CACHE.take(root, (box, bucket), train["train"] - 1, manifest, make)
        taken.append((box, kernel))
        begin = getattr(kernel, "begin", None)
        if begin is not None:
            task = TaskContext.get()
            attempt = 0 if task is None else task.attemptNumber()  # how often Spark has tried this task before
            begin(train, bucket, NoticeFile(f"{train['troubles']}/{box}.{bucket}", attempt))
        return kernel

    yield from run_level(program, level, bucket, flows, keep)
    stands = train["train"] - 1 if "rehearsal" in train else train["train"]
    for box, kernel in taken:
        _CACHE.give(root, (box, bucket), stands, kernel)


def _read_input(file: Payload, time: str, schema: pa.Schema, bounds: Bounds) -> Flow:
    if file is None:
        return empty_flow(schema, bounds)
    table = from_stream(read(file))
    cause = table[CAUSE].to_numpy()
    rows = table.drop_columns([CAUSE])
    times = whole(rows[time]).view(pa.int64()).to_numpy()
    rows = rows.select(schema.names)  # times that are no column of the user's stay behind, and kinds of late tuples
    sub = rank_within(cause) if KIND in rows.column_names else np.zeros(len(cause), np.int64)  # a pair is one cause
    return Flow(rows, times, cause, sub, bounds)


class LevelOutput:
    """What one level in one bucket sends on, as batches of the schema that Spark knows."""

    def __init__(self, train: TrainHeader, level: int, bucket: int, schema: pa.Schema) -> None:
        self.train, self.level, self.bucket, self.schema = train, level, bucket, schema
        self._numbers = count()

    def packets(self, packets: Iterable[Packet]) -> Iterator[pa.RecordBatch]:
        """One row per packet, in a batch of its own: its bytes are not copied, and large ones do not pass the JVM.

        A file belongs to the attempt that wrote it; only what a successful task names is ever read, and all of a
        train's files are removed with it. Where node and worker share no files, large ones pass in pieces, called the
        same by every attempt.
        """
        for packet in packets:
            payload, file = carried(packet, self.train["results"], FILE_BYTES_LEAST)
            if payload is None:
                yield self._packet(packet, None, file)
            elif payload.size <= PIECE_BYTES_MOST:
                yield self._packet(packet, payload, None)
            else:
                whose = f"{self.level}.{self.bucket}.{next(self._numbers)}"
                starts = range(0, payload.size, PIECE_BYTES_MOST)
                for number, start in enumerate(starts):
                    name = f"{PIECE} {number} {len(starts)} {whose}"
                    yield self._packet(packet, payload.slice(start, min(PIECE_BYTES_MOST, payload.size - start)), name)

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
            known[mine] = pa.StructArray.from_arrays(batch.columns, fields=list(self.schema.field(mine).type))
            yield self._batch(known, n)

    def _packet(self, packet: Packet, payload: pa.Buffer | None, file: str | None) -> pa.RecordBatch:
        known = {
            TAG: pa.array([packet.tag], pa.int32()),
            BUCKET: pa.array([packet.bucket], pa.int32()),
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


def size_of(packet: Packet) -> int:
    """How many bytes its payload has."""
    return packet.payload.size if isinstance(packet.payload, Unwritten) else len(packet.payload)


def carried(packet: Packet, results: str | None, least: int) -> tuple[pa.Buffer | None, str | None]:
    """A packet's payload, or the file that it is in: one of its own, if it is large and there may be files.

    That belongs to the attempt that wrote it.
    """
    payload = packet.payload
    if packet.file is not None:
        return None, packet.file
    if results is None or size_of(packet) < least:
        return payload.buffer() if isinstance(payload, Unwritten) else pa.py_buffer(payload), None
    directory = Path(results)
    directory.mkdir(parents=True, exist_ok=True)
    file = str(directory / HERE.chance.token(32))
    with pa.OSFile(file, "wb") as sink:
        if isinstance(payload, Unwritten):
            payload.write(sink)
        else:
            sink.write(payload)
    return None, file
