"""A small real host for the wire's tests: output queues, and an entry point that appends to one.

As a program (`python hosting.py '{"d/a": {}}'`) it serves streams in a process of its own, prints its address, and ends
when its standard input does. It takes orders over the wire: see `Orders`.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.errors import StreamError, WireError, did_you_mean
from borealis.message import Message
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.streams.section import Section
from borealis.streams.status import QueueStatus
from borealis.tuples import LAST_TIME
from borealis.wire.auth import Security
from borealis.wire.messages import BatchHead, Pong, Receipt
from borealis.wire.server import WireServer

SCHEMA = pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("s", pa.string())])


class Order(Message):
    """What a test asks of the host."""

    stream: str = "d/a"
    rows: int = 0
    width: int = 1
    bound: int | None = None
    times: int = 1
    moved_to: str | None = None


class Facts(Message):
    """How the host is."""

    rss_bytes: int = 0
    threads: int = 0
    queues: tuple[QueueStatus, ...] = ()


def rows(first: int, count: int, width: int = 1) -> pa.RecordBatch:
    """Rows that know their ids; `width` bytes of text each."""
    numbers = np.arange(first, first + count)
    texts = pa.array([f"{n % 10}" * width for n in numbers.tolist()], pa.string())
    return pa.RecordBatch.from_arrays([pa.array(numbers), texts], schema=SCHEMA)


def next_section(queue: OutputQueue, count: int, bound: int | None = None, width: int = 1) -> Section:
    """What can follow in a queue: so many rows whose times are their ids, and a boundary behind them."""
    first = queue.next_id
    bounds = np.array([] if bound is None or bound <= queue.boundary else [bound], np.int64)
    at = np.full(len(bounds), first + count, np.int64)
    return Section(first, rows(first, count, width), np.arange(first, first + count), at, bounds, queue.boundary)


class TinyEntry:
    """An entry point without any of the finesse: ids in order of arrival, times are ids."""

    def __init__(self, queue: OutputQueue) -> None:
        self.queue, self.schema = queue, queue.schema
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}

    def known(self, publisher: str) -> Receipt:
        with self._lock:
            return self._receipt(publisher)

    def take(self, publisher: str, head: BatchHead, batch: pa.RecordBatch) -> Receipt:
        with self._lock:
            last = self._numbers.get(publisher, -1)
            if head.number > last + 1:
                raise StreamError(f"batch {head.number} of {publisher} after {last}", hint=f"send {last + 1}")
            if head.number == last + 1:
                first, n = self.queue.next_id, batch.num_rows
                bound = LAST_TIME if head.end else head.heartbeat
                bounds = np.array([] if bound is None or bound <= self.queue.boundary else [bound], np.int64)
                at = np.full(len(bounds), first + n, np.int64)
                times = np.arange(first, first + n)
                self.queue.append(Section(first, batch, times, at, bounds, self.queue.boundary))
                self._numbers[publisher] = head.number
            return self._receipt(publisher)

    def _receipt(self, publisher: str) -> Receipt:
        return Receipt(number=self._numbers.get(publisher, -1), next_id=self.queue.next_id)


class TinyHost:
    """Queues by name, and an entry point for each of them that is asked for as one."""

    def __init__(self, *queues: OutputQueue) -> None:
        self.queues = {q.stream: q for q in queues}
        self.entries = {q.stream: TinyEntry(q) for q in queues}
        self.fail = False
        self.heard: list[tuple[str, int]] = []  # later incarnations

    def queue(self, stream: str) -> OutputQueue:
        if stream not in self.queues:
            raise StreamError(f"no stream '{stream}' here", hint=did_you_mean(stream, self.queues))
        return self.queues[stream]

    def entry(self, stream: str) -> TinyEntry:
        if stream not in self.entries:
            raise StreamError(f"no entry point '{stream}' here", hint=did_you_mean(stream, self.entries))
        return self.entries[stream]

    def act(self, action: str, body: bytes) -> bytes:
        match action:
            case "ping":
                return Pong(node="tiny", incarnation="1", version="0").encode()
            case "echo":
                return body
            case "crash":
                raise ZeroDivisionError("a mistake of the host")
            case "append":
                order = Order.decode(body)
                queue = self.queue(order.stream)
                for _ in range(order.times):
                    queue.append(next_section(queue, order.rows, order.bound, order.width))
                return Facts().encode()
            case "close":
                order = Order.decode(body)
                self.queue(order.stream).close(order.moved_to)
                return Facts().encode()
            case "facts":
                return self.facts().encode()
        raise WireError(f"no action '{action}'", hint="ping, echo, append, close, facts")

    def export(self, what: str, body: bytes) -> Iterator[bytes]:
        if what == "nothing":
            return
        if what != "bytes":
            raise StreamError(f"nothing to export as '{what}'")
        try:
            sizes: list[int] = [int(n) for n in json.loads(body)]
        except (ValueError, TypeError, RecursionError):
            raise WireError(f"no sizes: {body[:80]!r}") from None
        for i, size in enumerate(sizes):
            if size < 0:
                raise StreamError("the export broke in the middle")
            yield bytes([i % 256]) * size

    def deposed(self, stream: str, incarnation: int) -> None:
        self.heard.append((stream, incarnation))

    def facts(self) -> Facts:
        status = Path("/proc/self/status").read_text()
        found = dict(line.split(":", 1) for line in status.splitlines())
        return Facts(
            rss_bytes=int(found["VmRSS"].split()[0]) << 10,
            threads=int(found["Threads"]),
            queues=tuple(q.status() for q in self.queues.values()),
        )

    def close(self) -> None:
        for queue in self.queues.values():
            queue.close()


def main(streams: dict[str, dict[str, Any]], location: str, token: str | None) -> None:
    host = TinyHost(*(OutputQueue(name, SCHEMA, QueueLimits(**limits)) for name, limits in streams.items()))
    server = WireServer(host, location, Security(token=token)).start()
    print(server.address, flush=True)
    sys.stdin.read()
    host.close()
    server.close()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    main(given["streams"], given.get("location", "grpc://127.0.0.1:0"), given.get("token"))
