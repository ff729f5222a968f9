"""What was read of a topic's partitions and not handed on, and the one order of several of them: by time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from borealis.connectors.records import joined
from borealis.tuples import FIRST_TIME, Int64s

PARTITION_BYTES = 64 << 20  # read ahead of the others; then the partition waits


@dataclass(frozen=True)
class BadRecord:
    partition: int
    offset: int
    value: bytes
    reason: str


@dataclass
class PartitionChunk:
    """Rows of one partition that were read together."""

    rows: pa.RecordBatch
    offset: Int64s
    time: Int64s
    watermark: Int64s  # the largest time of the partition up to and including each row

    def part(self, start: int, stop: int) -> PartitionChunk:
        arrays = (array[start:stop] for array in (self.offset, self.time, self.watermark))
        return PartitionChunk(self.rows.slice(start, stop - start), *arrays)


@dataclass
class Partition:
    """One partition: where it stands, and what was read of it and not handed on."""

    number: int
    next: int  # the first record that was not handed on
    stop: int  # behind the last record read
    end: int | None = None  # read no further than this
    wanted: int = 0  # it does not wait for the others before it is read up to here
    chunks: deque[PartitionChunk] = field(default_factory=deque)
    bad: deque[BadRecord] = field(default_factory=deque)
    watermark: int = FIRST_TIME
    rows: int = 0
    size: int = 0
    at_end: bool = False
    paused: bool = False
    given_up: bool = False  # it did not deliver: until it does, others do not wait for it

    def done(self) -> bool:
        return self.end is not None and self.stop >= self.end

    def read_to(self, offset: int) -> None:
        """All before this offset was read. What is behind the end is not ours, though it came along."""
        self.stop = max(self.stop, offset if self.end is None else min(offset, self.end))

    @property
    def is_behind(self) -> bool:
        """Whether others wait for it: more is to come, as far as is known."""
        return not (self.at_end or self.given_up or self.done())

    def may_pause(self) -> bool:
        """Whether enough was read ahead of the others."""
        is_full = self.size > PARTITION_BYTES and self.stop >= self.wanted
        return is_full and not self.paused and not self.done()

    def add(self, chunk: PartitionChunk) -> None:
        if len(chunk.offset):
            self.watermark = int(chunk.watermark[-1])
            self.chunks.append(chunk)
            self.rows += len(chunk.offset)
            self.size += chunk.rows.nbytes

    def up_to(self, time: int | None) -> int:
        """How many rows do not go beyond a time; all of them if there is none."""
        if time is None:
            return self.rows
        count = 0
        for chunk in self.chunks:
            fit = int(np.searchsorted(chunk.watermark, time, "right"))
            count += fit
            if fit < len(chunk.watermark):
                break
        return count

    def before(self, offset: int) -> int:
        """How many rows are of records before an offset."""
        return sum(int(np.searchsorted(chunk.offset, offset)) for chunk in self.chunks)

    def take(self, count: int) -> list[PartitionChunk]:
        """The next rows; whole records only, so it may be some more."""
        taken: list[PartitionChunk] = []
        while count > 0 and self.chunks:
            chunk = self.chunks.popleft()
            if count < len(chunk.offset):
                stop = int(np.searchsorted(chunk.offset, chunk.offset[count - 1], "right"))
                if stop < len(chunk.offset):
                    self.chunks.appendleft(chunk.part(stop, len(chunk.offset)))
                    chunk = chunk.part(0, stop)
            taken.append(chunk)
            count -= len(chunk.offset)
            self.rows -= len(chunk.offset)
            self.size = max(0, self.size - chunk.rows.nbytes) if self.chunks else 0
        return taken

    def first_waiting(self) -> int:
        """The offset of the first row that is left, or behind all that was read."""
        return int(self.chunks[0].offset[0]) if self.chunks else self.stop


def cut(partitions: Mapping[int, Partition], counts: Mapping[int, int], most_rows: int) -> dict[int, int]:
    """So many rows of each partition that all are `most_rows`, as they come in the order of their times."""
    owners, keys = [], []
    for number, count in counts.items():
        time = _joined_times(partitions[number].chunks, count)
        owners.append(np.full(count, number))
        keys.append(np.maximum.accumulate(time) if count else time)
    first = np.argsort(np.concatenate(keys), kind="stable")[:most_rows]
    owner = np.concatenate(owners)[first]
    return {number: int((owner == number).sum()) for number in counts}


def merged(chunks: Sequence[Sequence[PartitionChunk]], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of some partitions in one order, which depends on nothing but these rows: by the largest time so far."""
    flat = [chunk for some in chunks for chunk in some if len(chunk.offset)]
    rows = joined([chunk.rows for chunk in flat], schema)
    times = [np.concatenate([c.time for c in some]) for some in chunks if some]
    times = [np.maximum.accumulate(time) for time in times if len(time)]
    if len(times) > 1:
        rows = rows.take(pa.array(np.argsort(np.concatenate(times), kind="stable")))
    return rows


def _joined_times(chunks: Iterable[PartitionChunk], count: int) -> Int64s:
    found: list[Int64s] = []
    for chunk in chunks:
        if count <= 0:
            break
        found.append(chunk.time[:count])
        count -= len(chunk.time)
    return np.concatenate(found) if found else np.empty(0, np.int64)
