"""One end of a measured wire, in a process of its own: `python wire_jobs.py '{"do": "read", "core": 1, ...}'`.

Servers print their address first. The last line of everybody is a JSON object with what they measured.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any

BYTES = 100  # of a tuple on the wire: 92 of the user's columns, 8 of `_time`
TEXT = "x" * 64
MB = 1_000_000
MOST = 1 << 20  # of one send to a plain socket


def on_core(core: int | None) -> None:
    """Before anything has threads of its own, so that all of them stay there."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def cpu_s() -> float:
    """Processor time of this process."""
    return time.process_time()


def rows(count: int) -> Any:
    """A batch of tuples of 92 bytes: three numbers, and a text of 64 bytes with its offset."""
    import numpy as np
    import pyarrow as pa

    columns = [
        pa.array(np.arange(count), pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array(np.arange(count)),
        pa.array(np.random.default_rng(1).random(count)),
        pa.array([TEXT] * count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["ts", "k", "v", "s"])


def stamped(batch: Any, first: int) -> Any:
    """The same tuples, with times that go on, and the moment in `k`."""
    import numpy as np
    import pyarrow as pa

    n = batch.num_rows
    ts = pa.array(np.arange(first, first + n) * 100).cast(pa.timestamp("us", "UTC"))
    k = pa.array(np.full(n, time.monotonic_ns()))
    return pa.RecordBatch.from_arrays([ts, k, *batch.columns[2:]], schema=batch.schema)


class Pace:
    """So many turns per second, and never two of them at once to catch up."""

    def __init__(self, per_s: float) -> None:
        self._gap, self._next = (1 / per_s if per_s else 0.0), time.monotonic()

    def wait(self) -> None:
        """Until it is time."""
        self._next += self._gap
        if (left := self._next - time.monotonic()) > 0:
            time.sleep(left)


# -- our wire


class Host:
    """What a server needs: one queue, or the entry point of one."""

    def __init__(self, queue: Any, entry: Any = None) -> None:
        self._queue, self._entry = queue, entry

    def queue(self, stream: str) -> Any:
        return self._queue

    def entry(self, stream: str) -> Any:
        return self._entry

    def act(self, action: str, body: bytes) -> bytes:
        return body

    def export(self, what: str, body: bytes) -> Any:
        return iter(())


def write(total: int, count: int, per_s: float) -> dict[str, Any]:
    """Serve a stream, and append sections as soon as somebody reads: as fast as it goes, or so many tuples a second."""
    import numpy as np

    from borealis.streams.queue import OutputQueue
    from borealis.streams.section import NOTHING, Section, boundary_only
    from borealis.tuples import LAST_TIME
    from borealis.wire.server import WireServer

    batch = rows(count)
    queue = OutputQueue("bench/rows", batch.schema)
    with WireServer(Host(queue)) as server:
        print(server.address, flush=True)
        while not queue.status().readers:
            time.sleep(0.001)
        before, pace = cpu_s(), Pace(per_s / count)
        while queue.next_id < total:
            first = queue.next_id
            if per_s:
                pace.wait()
            times = np.arange(first, first + count)
            data = stamped(batch, first) if per_s else batch
            queue.append(Section(first, data, times, NOTHING, NOTHING, queue.boundary))
        queue.append(boundary_only(queue.next_id, batch.schema, np.array([LAST_TIME]), queue.boundary))
        while queue.status().readers:
            time.sleep(0.001)
        return {"cpu_s": cpu_s() - before}


def node(total: int) -> dict[str, Any]:
    """Serve an entry point of the node, until its stream has ended and its reader is gone."""
    from borealis.diagram.spec import Input
    from borealis.entry.point import Entry, StreamConfig
    from borealis.wire.server import WireServer

    spec = Input(name="rows", columns="ts TIMESTAMP, k BIGINT, v DOUBLE, s STRING", time="ts")
    entry = Entry(spec, 1_000_000, StreamConfig("bench/rows", rows(1).schema))
    with WireServer(Host(entry.queue, entry)) as server:
        print(server.address, flush=True)
        while not entry.queue.status().readers:
            time.sleep(0.001)
        before = cpu_s()
        while not entry.queue.ended or entry.queue.status().readers:
            time.sleep(0.01)
        return {"cpu_s": cpu_s() - before, "rows": entry.queue.next_id}


def publish(address: str, total: int, count: int, per_s: float) -> dict[str, Any]:
    """Publish as fast as it goes with a few batches under way, or so many tuples per second."""
    from borealis.wire.client import Peer
    from borealis.wire.messages import BatchHead, Publish

    batch, under_way = rows(count), 8
    with Peer(address) as peer:
        publication = peer.publish(Publish(stream="bench/rows", publisher="bench"), batch.schema)
        before, pace = cpu_s(), Pace(per_s / count)
        numbers = total // count
        for number in range(numbers):
            if per_s:
                pace.wait()
            publication.send(stamped(batch, number * count), BatchHead(number=number, end=number == numbers - 1))
            if number >= under_way:
                publication.wait(number - under_way)
        publication.close()
        return {"cpu_s": cpu_s() - before}


def read(address: str, total: int, timed: bool) -> dict[str, Any]:
    """Subscribe and take everything; the first tenth warms up. With `timed`, how old each tuple is on arrival."""
    import numpy as np

    from borealis.wire.client import Peer
    from borealis.wire.messages import Subscribe

    with Peer(address) as peer, peer.subscribe(Subscribe(stream="bench/rows")) as subscription:
        print("ready", flush=True)
        seen, sections, since, warm, before, ages = 0, 0, 0.0, 0, 0.0, []
        for section in subscription:
            now = time.monotonic_ns()
            seen += len(section)
            sections += 1
            if not warm and seen >= total // 10:
                since, warm, before = time.monotonic(), seen, cpu_s()
            if timed and warm and len(section):
                stamps = section.rows.column("k")
                ages.append(now - np.frombuffer(stamps.buffers()[1], np.int64, len(stamps), 8 * stamps.offset))
        seconds = time.monotonic() - since
        assert (seen, subscription.lost) == (total, 0)
        found: dict[str, Any] = {
            "rows": seen - warm,
            "seconds": seconds,
            "cpu_s": cpu_s() - before,
            "rows_per_section": seen / sections,
        }
        if timed:
            p50, p99, worst = np.percentile(np.concatenate(ages), [50, 99, 100]) / 1e6
            found |= {"p50_ms": float(p50), "p99_ms": float(p99), "max_ms": float(worst)}
        return found


# -- yardsticks


def copy(total: int) -> dict[str, Any]:
    """Copy memory."""
    import numpy as np

    source = np.ones(64 << 20, np.uint8)
    target = np.empty_like(source)
    np.copyto(target, source)
    started, done = time.monotonic(), 0
    while done < total * BYTES:
        np.copyto(target, source)
        done += len(source)
    return {"bytes": done, "seconds": time.monotonic() - started}


def pour(total: int) -> dict[str, Any]:
    """Send bytes to whoever connects."""
    data = memoryview(bytes(MOST))
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        one, _ = server.accept()
        with one:
            before = cpu_s()
            for _ in range(total * BYTES // MOST):
                one.sendall(data)
        return {"cpu_s": cpu_s() - before}


def drink(address: str) -> dict[str, Any]:
    """Receive bytes until there are no more."""
    with socket.create_connection(("127.0.0.1", int(address))) as one:
        target, got, started, before = memoryview(bytearray(MOST)), 0, time.monotonic(), cpu_s()
        while n := one.recv_into(target):
            got += n
        return {"bytes": got, "seconds": time.monotonic() - started, "cpu_s": cpu_s() - before}


JOBS = {f.__name__: f for f in (write, node, publish, read, copy, pour, drink)}


def main() -> None:
    """Run a job by its name."""
    given = json.loads(sys.argv[1])
    on_core(given.pop("core"))
    print(json.dumps(JOBS[given.pop("do")](**given)), flush=True)


if __name__ == "__main__":
    main()
