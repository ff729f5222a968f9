"""Packets as the recovery and overhead benchmarks send them: the trace where it is, else made in its shape."""

from __future__ import annotations

import gzip
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

TRACE = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "lbl-tcp-3-600s.txt.gz"
TICK_S = 0.025  # rows go out so often
SOURCES = 400  # of made packets; a few of them send most
MEAN_PER_S = 247  # as in the trace
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("src", pa.int32()), ("bytes", pa.int32())])

Key = tuple[int, int]  # a source, and the end of a window in microseconds
Counts = dict[Key, int]


@dataclass(frozen=True)
class Packets:
    """Packets in the order of time, and after the last the first again."""

    at_us: np.ndarray  # since the first, rising
    src: np.ndarray
    size: np.ndarray
    span_us: int
    where_from: str

    def between(self, first_us: int, until_us: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Times, sources and sizes of the packets in [first, until), counted from the beginning."""
        parts = []
        for turn in range(first_us // self.span_us, -(-until_us // self.span_us)):
            at = self.at_us + turn * self.span_us
            low, high = np.searchsorted(at, (first_us, until_us), "left")
            parts.append((at[low:high], self.src[low:high], self.size[low:high]))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return columns[0], columns[1], columns[2]

    def faster(self, rows_per_s: float) -> Packets:
        """The same packets at another mean rate."""
        scale = len(self.at_us) / (self.span_us / 1e6) / rows_per_s
        at = (self.at_us * scale).astype(np.int64)
        return Packets(at, self.src, self.size, int(self.span_us * scale), self.where_from)


def packets(path: Path = TRACE) -> Packets:
    """The trace, or what looks like it."""
    return _read(path) if path.exists() else made(60.0)


def _read(path: Path) -> Packets:
    with gzip.open(path, "rt") as file:
        columns = np.loadtxt(file, usecols=(0, 1, 5))
    at = (columns[:, 0] * 1e6).astype(np.int64)
    order = np.argsort(at, kind="stable")
    src, size = columns[order, 1].astype(np.int32), columns[order, 2].astype(np.int32)
    return Packets(at[order], src, size, int(at.max()) + 1, "LBL-TCP-3")


def made(seconds: float, seed: int = 7) -> Packets:
    """Synthetic: the mean rate of the trace, few sources with many packets, a third of the packets empty."""
    chance = np.random.default_rng(seed)
    count = int(seconds * MEAN_PER_S)
    at = np.sort(chance.integers(0, int(seconds * 1e6), count))
    src = np.minimum(chance.zipf(1.3, count), SOURCES).astype(np.int32)
    size = (chance.integers(1, 1500, count) * (chance.random(count) > 1 / 3)).astype(np.int32)
    return Packets(at, src, size, int(seconds * 1e6), "synthetic")


def batch(times_us: np.ndarray, src: np.ndarray, size: np.ndarray) -> pa.RecordBatch:
    """Rows of the input."""
    columns = [pa.array(times_us).view(SCHEMA.field("ts").type), pa.array(src, pa.int32()), pa.array(size, pa.int32())]
    return pa.record_batch(columns, SCHEMA)


def stream_bytes(rows: pa.RecordBatch) -> int:
    """What rows are on a stream: their columns, and a time for each."""
    return int(rows.nbytes) + 8 * int(rows.num_rows)


def counted(times_us: np.ndarray, src: np.ndarray, size: np.ndarray, size_us: int, slide_us: int) -> Counts:
    """What the query must give: packets that are not empty, by source, in every window that has one.

    >>> times = np.array([10, 60, 60])
    >>> counted(times, np.array([1, 1, 2]), np.array([5, 5, 0]), 100, 50)
    {(1, 50): 1, (1, 100): 2, (1, 150): 1}
    """
    kept = size > 0
    found: Counter[Key] = Counter()
    for at, source in zip(times_us[kept].tolist(), src[kept].tolist(), strict=True):
        end = at // slide_us * slide_us + slide_us
        for last in range(end, at + size_us + 1, slide_us):
            found[source, last] += 1
    return dict(sorted(found.items()))


@dataclass
class Feed:
    """Packets in real time, to one or several takers, each packet to one of them; remembers all it gave.

    A taker is given the rows of a tick, or none and the time before which none follows.
    """

    packets: Packets
    takers: Sequence[Callable[[pa.RecordBatch | None, int], None]]
    tick_s: float = TICK_S
    ahead_s: float = 0.0  # so much comes with the first tick, as if it had begun earlier
    start_us: int = field(default_factory=lambda: int(time.time()) * 1_000_000)
    rows: int = 0
    bytes: int = 0
    behind_s: float = 0.0  # the most
    error: BaseException | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _given_us: int = 0

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._give_all, name="feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End behind a whole tick."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(60)
        if self.error is not None:
            raise self.error

    def abandon(self) -> None:
        """End, whatever went wrong; nothing is given any more afterwards, unless a taker hangs."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)

    def given(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All packets so far, with the times they were sent under."""
        at, src, size = self.packets.between(0, self._given_us)
        return at + self.start_us, src, size

    def _give_all(self) -> None:
        try:
            for until in self._ticks():
                self._give(until)
        except BaseException as error:
            self.error = error

    def _ticks(self) -> Iterator[int]:
        began, tick = time.monotonic(), 0
        while not self._stop.is_set():
            tick += 1
            late = time.monotonic() - began - tick * self.tick_s
            self.behind_s = max(self.behind_s, late)
            self._stop.wait(max(0.0, -late))
            yield int((self.ahead_s + tick * self.tick_s) * 1e6)

    def _give(self, until_us: int) -> None:
        at, src, size = self.packets.between(self._given_us, until_us)
        for i, taker in enumerate(self.takers):
            mine = np.arange(i, len(at), len(self.takers))
            rows = batch(at[mine] + self.start_us, src[mine], size[mine]) if len(mine) else None
            if rows is not None:
                self.rows, self.bytes = self.rows + rows.num_rows, self.bytes + stream_bytes(rows)
            taker(rows, self.start_us + until_us)
        self._given_us = until_us
