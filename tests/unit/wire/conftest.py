"""What the wire's tests share: a host, its server and a peer, all real and in this process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hosting import SCHEMA, TinyHost

from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.wire.client import Peer
from borealis.wire.server import WireServer
from borealis.wire.waiting import PeerTimings


@pytest.fixture
def queue() -> OutputQueue:
    return OutputQueue("d/a", SCHEMA)


@pytest.fixture
def host(queue: OutputQueue) -> Iterator[TinyHost]:
    small = OutputQueue("d/small", SCHEMA, QueueLimits(bytes_most=1 << 20, keep_bytes=0))
    lossy = OutputQueue("d/lossy", SCHEMA, QueueLimits(bytes_most=1 << 20, keep_bytes=0, full="drop"))
    host = TinyHost(queue, small, lossy)
    yield host
    host.close()


@pytest.fixture
def server(host: TinyHost) -> Iterator[WireServer]:
    with WireServer(host) as server:
        yield server
        host.close()


@pytest.fixture
def peer(server: WireServer) -> Iterator[Peer]:
    with Peer(server.address, timings=PeerTimings(connect_s=10, answer_s=30, silence_s=30)) as peer:
        yield peer


@pytest.fixture
def soon() -> Callable[[Callable[[], object]], None]:
    """Waits until something is so, and fails if it is not in time."""

    def wait(what: Callable[[], object], seconds: float = 30.0) -> None:
        until = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < until, f"not within {seconds} s"
            time.sleep(0.005)

    return wait
