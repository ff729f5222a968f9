"""The wire between real processes: killed, frozen and slow ones too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "wire"))

from hosting import SCHEMA, Facts, Order, rows

from borealis.errors import BorealisError, GoneError, WireError
from borealis.streams.status import QueueStatus
from borealis.tuples import LAST_TIME
from borealis.wire.client import Peer
from borealis.wire.messages import BatchHead, Publish, Subscribe
from borealis.wire.waiting import PeerTimings

HOST = Path(__file__).parents[1] / "unit" / "wire" / "hosting.py"
READER = Path(__file__).with_name("wire_reader.py")
MB = 1 << 20
SMALL = {"bytes_most": 4 * MB, "keep_bytes": 0}
STREAMS = {"d/a": {}, "d/small": SMALL, "d/lossy": SMALL | {"full": "drop"}}
WIRE_BYTES_MOST = 24 * MB  # what gRPC may hold on one side for a reader that does not read


class Process:
    """A program, and what it says line by line."""

    def __init__(self, *command: str) -> None:
        pipe = subprocess.PIPE
        self.popen = subprocess.Popen([sys.executable, *command], stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def line(self) -> str:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, self.end()
        return line.strip()

    def facts(self) -> dict[str, int]:
        return dict(json.loads(self.line()))

    def go_on(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def signal(self, number: int) -> None:
        os.kill(self.popen.pid, number)

    def end(self, seconds: float = 15.0) -> str:
        """Close its standard input, and wait; returns what it had to complain of."""
        _, said = self.popen.communicate(timeout=seconds)
        return said

    def remove(self) -> None:
        if self.popen.poll() is None:
            with suppress(ProcessLookupError):
                self.popen.kill()
        with suppress(ValueError):
            self.popen.communicate()


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def one(*command: Any) -> Process:
        started.append(Process(*map(str, command)))
        return started[-1]

    yield one
    for process in started:
        process.remove()


@pytest.fixture
def host(start: Callable[..., Process]) -> Process:
    return start(HOST, json.dumps({"streams": STREAMS}))


@pytest.fixture
def peer(host: Process) -> Iterator[Peer]:
    with Peer(host.line()) as peer:
        yield peer


def append(peer: Peer, stream: str = "d/a", **more: Any) -> None:
    peer.act("append", Order(stream=stream, **more), Facts)


def facts(peer: Peer) -> Facts:
    return peer.act("facts", Order(), Facts)


def queue(peer: Peer, stream: str) -> QueueStatus:
    return next(q for q in facts(peer).queues if q.stream == stream)


def soon(what: Callable[[], object], seconds: float = 5.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.01)


def test_a_stream_crosses_from_publisher_to_subscriber(peer: Peer, host: Process) -> None:
    batches = 300

    def publish() -> None:
        with (
            Peer(peer.address) as mine,
            mine.publish(Publish(stream="d/a", publisher="me"), SCHEMA) as publication,
        ):
            for number in range(batches):
                head = BatchHead(number=number, heartbeat=10 * number, end=number == batches - 1)
                publication.send(rows(7 * number, 7, width=50), head)

    publishing = threading.Thread(target=publish)
    with peer.subscribe(Subscribe(stream="d/a")) as subscription:
        publishing.start()
        seen, bounds = [], []
        for section in subscription:
            seen += section.rows.column("x").to_pylist()
            bounds += section.bound.tolist()
    publishing.join()
    assert seen == list(range(7 * batches))
    assert bounds == [*range(0, 10 * batches - 10, 10), LAST_TIME]
    assert host.end() == ""
    assert host.popen.returncode == 0


def test_a_publisher_killed_in_the_middle_goes_on_where_it_was(peer: Peer, start: Callable[..., Process]) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(HOST.parent)!r})
from hosting import SCHEMA, rows
from borealis.wire.client import Peer
from borealis.wire.messages import BatchHead, Publish
publication = Peer(sys.argv[1]).publish(Publish(stream="d/a", publisher="me"), SCHEMA)
for number in range(publication.known.number + 1, int(sys.argv[2])):
    publication.send(rows(5 * number, 5), BatchHead(number=number))
    if number == publication.known.number + 1:
        print(number, flush=True)
publication.close()
"""
    for _ in range(2):
        process = start("-c", code, peer.address, 10**9)
        process.line()
        before = queue(peer, "d/a").next_id
        soon(lambda before=before: queue(peer, "d/a").next_id > before)
        process.signal(signal.SIGKILL)
        process.popen.wait()
    sent = queue(peer, "d/a").next_id // 5
    last = start("-c", code, peer.address, sent + 100)
    last.line()
    assert last.end() == ""
    total = queue(peer, "d/a").next_id
    assert total == 5 * (sent + 100)
    seen = 0
    with peer.subscribe(Subscribe(stream="d/a", start=queue(peer, "d/a").first_id, stop=total)) as subscription:
        for section in subscription:
            assert section.rows.column("x").to_pylist() == list(range(section.first, section.stop))
            seen += len(section)
    assert seen == total


def test_a_killed_node_is_noticed_and_its_successor_found(start: Callable[..., Process]) -> None:
    first = start(HOST, json.dumps({"streams": STREAMS}))
    address = first.line()
    with Peer(address) as peer:
        append(peer, rows=5)
        subscription = peer.subscribe(Subscribe(stream="d/a", reader="r"))
        sections = iter(subscription)
        assert len(next(sections)) == 5
        publication = peer.publish(Publish(stream="d/a", publisher="me"), SCHEMA)
        first.signal(signal.SIGKILL)
        with pytest.raises(WireError, match="cannot be reached, or broke off"):
            next(sections)
        with pytest.raises(WireError, match="broke off"):
            publication.close()
        with pytest.raises(WireError, match="cannot be reached"):
            peer.ping()
        second = start(HOST, json.dumps({"streams": STREAMS, "location": address}))
        assert second.line() == address
        again = Subscribe(stream="d/a", start=5, epoch=subscription.epoch, reader="r")
        with pytest.raises(GoneError, match="epoch"):
            soon(lambda: _tried(peer, again))
        append(peer, rows=3)
        with peer.subscribe(Subscribe(stream="d/a", reader="r")) as anew:
            assert len(next(iter(anew))) == 3


def _tried(peer: Peer, wanted: Subscribe) -> bool:
    try:
        peer.subscribe(wanted)
    except WireError:
        return False
    return True


def test_a_frozen_node_is_silent_not_waited_for(host: Process) -> None:
    with Peer(host.line(), timings=PeerTimings(connect_s=1, answer_s=1, silence_s=1.5)) as peer:
        append(peer, rows=5)
        sections = iter(peer.subscribe(Subscribe(stream="d/a")))
        assert len(next(sections)) == 5
        publication = peer.publish(Publish(stream="d/a", publisher="me"), SCHEMA)
        host.signal(signal.SIGSTOP)
        try:
            with pytest.raises(WireError, match="silent for"):
                next(sections)
            publication.send(rows(0, 1), BatchHead(number=0))
            with pytest.raises(WireError, match="did not answer in time"):
                publication.wait(0)
            with pytest.raises(WireError, match="did not answer in time"):
                peer.subscribe(Subscribe(stream="d/a"))
        finally:
            host.signal(signal.SIGCONT)
        soon(lambda: queue(peer, "d/a").next_id == 6)  # it comes back, and with it what was under way


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_subscriber_is_forgotten_and_its_writer_goes_on(
    peer: Peer, start: Callable[..., Process], end: int
) -> None:
    reader = start(READER, peer.address, "d/small", 1)
    soon(lambda: queue(peer, "d/small").readers, seconds=20)
    writing = threading.Thread(
        target=append, args=(peer, "d/small"), kwargs={"rows": 100, "width": 1000, "times": 400}, daemon=True
    )
    writing.start()
    reader.line()  # it has read something, and reads no more
    with Peer(peer.address) as other:
        soon(lambda: (n := queue(other, "d/small").next_id, time.sleep(0.3), n == queue(other, "d/small").next_id)[2])
        assert writing.is_alive()
        assert queue(other, "d/small").next_id < 40_000
        reader.signal(end)
        soon(lambda: queue(other, "d/small").readers == {}, seconds=20)
        writing.join(60)
        assert not writing.is_alive()
        assert queue(other, "d/small").next_id == 40_000


def test_a_slow_reader_fills_no_memory_on_either_side(peer: Peer, start: Callable[..., Process]) -> None:
    total = 200_000  # of about a kilobyte
    append(peer, "d/a", rows=1000, width=1000, times=20)  # the host has been at work before it is measured
    reader = start(READER, peer.address, "d/lossy", 1000)
    soon(lambda: queue(peer, "d/lossy").readers, seconds=20)
    append(peer, "d/lossy", rows=1000, width=1000)
    had, before = reader.facts(), facts(peer).rss_bytes
    append(peer, "d/lossy", rows=1000, width=1000, times=total // 1000 - 2)
    append(peer, "d/lossy", rows=1000, width=1000, bound=LAST_TIME)
    after = facts(peer).rss_bytes
    reader.go_on()
    still = reader.facts()
    assert still["rows"] == had["rows"]
    assert still["rss_bytes"] - had["rss_bytes"] < WIRE_BYTES_MOST
    assert after - before < WIRE_BYTES_MOST + 2 * SMALL["bytes_most"]
    last = reader.facts()
    assert last["lost"] > 0
    assert last["rows"] + last["lost"] == total
    assert not last["pandas"]  # loading it would hold up a subscriber's first section for long
    assert reader.end() == ""


def test_what_was_pushed_before_a_close_still_arrives(start: Callable[..., Process]) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(HOST.parent)!r})
import time
import numpy as np
from hosting import SCHEMA, TinyHost, next_section
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.streams.section import boundary_only
from borealis.wire.server import WireServer
queue = OutputQueue("d/a", SCHEMA, QueueLimits(keep_bytes=64 << 20))
while queue.next_id < 40_000:
    queue.append(next_section(queue, 1000, width=1000))
queue.append(boundary_only(queue.next_id, SCHEMA, np.array([{LAST_TIME}]), queue.boundary))
for _ in range(12):
    with WireServer(TinyHost(queue)) as server:
        print(server.address, flush=True)
        while not queue.status().readers:
            time.sleep(0.0005)
        while queue.status().readers:  # it closes at the moment when it has pushed everything
            time.sleep(0.0005)
"""
    server = start("-c", code)
    for _ in range(12):
        with Peer(server.line()) as peer, peer.subscribe(Subscribe(stream="d/a")) as subscription:
            assert sum(len(section) for section in subscription) == 40_000
    assert server.end() == ""


@pytest.mark.parametrize("frozen", [False, True])
def test_a_host_ends_although_readers_are_stuck(
    host: Process, peer: Peer, start: Callable[..., Process], frozen: bool
) -> None:
    readers = [start(READER, peer.address, "d/lossy", 1) for _ in range(3)]
    soon(lambda: len(queue(peer, "d/lossy").readers) == 3, seconds=30)
    append(peer, "d/lossy", rows=1000, width=1000, times=50)
    for reader in readers:
        reader.line()
        if frozen:
            reader.signal(signal.SIGSTOP)
    idle = peer.subscribe(Subscribe(stream="d/a"))
    assert host.end() == ""
    assert host.popen.returncode == 0
    with pytest.raises(BorealisError, match=r"closing|closed|broke off"):
        list(idle)
