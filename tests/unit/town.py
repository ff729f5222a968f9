"""A cluster as far as a client sees one: real Flight servers with real queues, and a real, tiny coordinator.

The coordinator only knows where streams are. Entry points take numbered batches, and can be told to fail.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pyarrow as pa

from borealis.errors import ClusterError, InputError, StreamError
from borealis.retrying import Retries
from borealis.streams.queue import AwayError, OutputQueue
from borealis.streams.section import boundary_only, section
from borealis.tuples import LAST_TIME
from borealis.wire.auth import Security
from borealis.wire.calls import EntryHost
from borealis.wire.messages import BatchHead, Problem, Receipt, SchemaIs, SchemaOf
from borealis.wire.server import WireServer
from borealis.wire.status import StreamList, StreamView

STREAM = "traffic/packets"
SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])
NONE = np.empty(0, np.int64)
SOON = Retries(first_s=0.01, most_s=0.05, give_up_s=10.0)
WAIT_S = 15.0  # for what must happen; a test that waits so long has failed


def rows(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([f"w{i}" for i in numbers])], schema=SCHEMA)


def add(queue: OutputQueue, count: int) -> None:
    """So many tuples whose `n` is their id."""
    first = queue.next_id
    queue.append(section(first, rows(first, count), np.arange(first, first + count), NONE, NONE, queue.boundary))


def finish(queue: OutputQueue) -> None:
    queue.append(boundary_only(queue.next_id, queue.schema, np.array([LAST_TIME]), queue.boundary))


def eventually(happens: Callable[[], bool]) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + WAIT_S
    while not happens():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


class Counter:
    """An entry point in the form the wire wants: takes batches by their numbers, each once."""

    def __init__(self, queue: OutputQueue, known: dict[str, int] | None = None) -> None:
        self.queue, self.schema = queue, queue.schema
        self.last = {} if known is None else known
        self.marks: dict[str, str | None] = {}
        self.heads: list[BatchHead] = []
        self.open = threading.Event()
        self.open.set()
        self.before: Callable[[BatchHead], None] = lambda head: None
        self.after: Callable[[BatchHead], None] = lambda head: None
        self._lock = threading.Lock()

    def known(self, publisher: str) -> Receipt:
        number, mark = self.last.get(publisher, -1), self.marks.get(publisher)
        return Receipt(number=number, next_id=self.queue.next_id, mark=mark)

    def take(self, publisher: str, head: BatchHead, batch: pa.RecordBatch) -> Receipt:
        self.open.wait(WAIT_S)
        with self._lock:
            self.before(head)
            last = self.last.get(publisher, -1)
            if head.number <= last:
                return self.known(publisher)
            if head.first > last + 1:
                raise InputError(f"batch {head.first} after {last}")
            first, batch = self.queue.next_id, batch.slice(head.rows_until(last))
            if batch.num_rows:
                time_of = np.arange(first, first + batch.num_rows)
                self.queue.append(section(first, batch, time_of, NONE, NONE, self.queue.boundary))
            if head.end:
                finish(self.queue)
            self.last[publisher] = head.number
            self.marks[publisher] = head.mark
            self.heads.append(head)
            self.after(head)
            return self.known(publisher)


class Place:
    """A node as far as a client sees one: queues, entry points, and what their columns are."""

    def __init__(self, security: Security | None = None) -> None:
        self.queues: dict[str, OutputQueue] = {}
        self.entries: dict[str, Counter] = {}
        self.server = WireServer(self, security=security).start()
        self.address = self.server.address

    def queue(self, stream: str) -> OutputQueue:
        if stream not in self.queues:
            raise AwayError(f"no stream {stream} here")
        return self.queues[stream]

    def entry(self, stream: str) -> EntryHost:
        if stream not in self.entries:
            raise StreamError(f"no entry {stream} here")
        return self.entries[stream]

    def act(self, action: str, body: bytes) -> bytes:
        if action == "stream":
            return self.queue(SchemaOf.decode(body).stream).status().encode()
        if action != "schema":
            raise ClusterError(f"no order '{action}'")
        schema = self.queue(SchemaOf.decode(body).stream).schema
        return SchemaIs(arrow=base64.b64encode(schema.serialize().to_pybytes()).decode()).encode()

    def export(self, what: str, body: bytes) -> Iterator[bytes]:
        raise ClusterError("nothing to export")

    def again(self, elsewhere: bool = False) -> None:
        """Cut all connections and serve the same again, at the same address or another."""
        self.server.close()
        self.back(elsewhere)

    def back(self, elsewhere: bool = False) -> None:
        """Serve again after the server was closed."""
        self.server = WireServer(self, "grpc://127.0.0.1:0" if elsewhere else self.address).start()
        self.address = self.server.address

    def close(self) -> None:
        for entry in self.entries.values():
            entry.open.set()
        for queue in self.queues.values():
            queue.close()
        self.server.close()


def _view(stream: str, place: Place, entry: bool) -> StreamView:
    diagram, _, arrow = stream.partition("/")
    where = {"node": "node1", "alive": True, "address": place.address, "backup": None, "entry": entry}
    names = {"diagram": diagram, "arrow": arrow, "outputs": [], "columns": ""}
    return StreamView(**dict(place.queues[stream].status()) | where | names)


class Town:
    """A real HTTP server that answers `/v1/locate` and `/v1/streams`, and nothing else."""

    def __init__(self) -> None:
        self.places: dict[str, tuple[Place, bool]] = {}
        self.busy = 0  # so many answers say that it will be better soon
        self.asked = 0
        self.port = 0
        self.start()

    def start(self) -> None:
        town = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = town.answer(self.path)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        ThreadingHTTPServer.allow_reuse_address = True
        self.http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self.http.server_address[1]
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def answer(self, path: str) -> tuple[int, bytes]:
        if path == "/v1/streams":
            places = [(s, place, entry) for s, (place, entry) in self.places.items() if s in place.queues]
            return 200, StreamList(streams=[_view(*one) for one in places]).encode()
        self.asked += 1
        name = parse_qs(urlsplit(path).query).get("stream", [""])[0]
        full = name if "/" in name else f"traffic/{name}"
        if self.busy:
            self.busy -= 1
            return 503, Problem(kind="StreamError", message=f"nobody serves {full} now").encode()
        if full not in self.places:
            return 404, Problem(kind="StreamError", message=f"no stream '{name}'", hint="look again").encode()
        place, entry = self.places[full]
        return 200, json.dumps({"v": 1, "stream": full, "address": place.address, "entry": entry}).encode()
