"""Watching real servers: one that is cut off, one that does not answer, one that is another."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from aborting import abort
from borealis.errors import ClusterError
from borealis.ha.detector import Detector, Pace
from borealis.node.watch import Watch
from borealis.wire.client import Peers
from borealis.wire.messages import Pong
from borealis.wire.server import WireServer

PACE = Pace(every_s=0.03, misses=3, patience_s=1.0)
LONG_S = 10.0  # for what should come at once, on a busy machine
QUIET_S = 0.4  # for what should not come at all


class Someone:
    """A host that answers pings."""

    def __init__(self, life: str = "1") -> None:
        self.life, self.pinged, self.refuses = life, threading.Event(), False

    def act(self, action: str, body: bytes) -> bytes:
        self.pinged.set()
        if self.refuses:
            raise ClusterError("not now")
        return Pong(node="n1", incarnation=self.life, version="0").encode()


class Deaths:
    """Hears of them."""

    def __init__(self) -> None:
        self.told: queue.Queue[tuple[str, Detector]] = queue.Queue()

    def __call__(self, address: str, dead: Detector) -> None:
        self.told.put((address, dead))

    def none(self) -> bool:
        try:
            self.told.get(timeout=QUIET_S)
        except queue.Empty:
            return True
        return False


@pytest.fixture
def watch() -> Iterator[Watch]:
    one = Watch(Peers())
    yield one
    one.close()


@pytest.fixture
def host() -> Someone:
    return Someone()


@pytest.fixture
def server(host: Someone) -> Iterator[WireServer]:
    with WireServer(host) as one:  # type: ignore[arg-type]
        yield one


def test_a_server_that_is_cut_off_is_dead_soon(watch: Watch, host: Someone, server: WireServer) -> None:
    deaths, address = Deaths(), server.address
    watch.add(address, PACE, deaths)
    assert host.pinged.wait(LONG_S)
    assert watch._watched[address].detector.health() == "alive"
    abort(server)
    told, dead = deaths.told.get(timeout=LONG_S)
    assert (told, dead.health(), watch._watched[address].detector.health()) == (address, "dead", "dead")
    assert deaths.none()  # it is told once


def test_behind_a_refusal_pings_come_faster(watch: Watch, host: Someone, server: WireServer) -> None:
    deaths = Deaths()
    watch.add(server.address, Pace(every_s=2.0, misses=5, patience_s=60.0), deaths)
    assert host.pinged.wait(LONG_S)
    abort(server)
    _, dead = deaths.told.get(timeout=LONG_S)
    assert dead.detection_s() < 3 * 2.0, "five misses at the usual pace take at least eight seconds"


def test_a_line_that_is_cut_is_looked_at_before_a_ping_is_due(watch: Watch, host: Someone, server: WireServer) -> None:
    deaths, pace = Deaths(), Pace(every_s=20.0, misses=2, patience_s=60.0)
    watch.add(server.address, pace, deaths)
    watched = watch._watched[server.address]
    deadline = time.monotonic() + LONG_S
    while watched._line._line is None and time.monotonic() < deadline:
        time.sleep(0.01)
    abort(server)
    deaths.told.get(timeout=0.75 * pace.every_s)


def test_lines_that_are_cut_all_the_time_cost_no_pings(watch: Watch, host: Someone, server: WireServer) -> None:
    pings = []
    host.act, act = lambda action, body: (pings.append(action), act(action, body))[1], host.act  # type: ignore[method-assign]
    watch.add(server.address, Pace(every_s=0.1), Deaths())
    watched, began, passed = watch._watched[server.address], time.monotonic(), 0.0
    while len(pings) < 5 and (passed := time.monotonic() - began) < LONG_S:
        if (line := watched._line._line) is not None:
            with suppress(OSError):
                line._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
        time.sleep(0.005)
    assert len(pings) == 5
    assert passed > 0.2, "a ping for each cut takes no time"


def test_who_listens_and_does_not_answer_is_slow_before_it_is_dead(watch: Watch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        deaths, address = Deaths(), f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        watch.add(address, PACE, deaths)
        deadline = time.monotonic() + LONG_S
        while watch._watched[address].detector.health() == "alive" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert watch._watched[address].detector.health() == "suspect"
        _, dead = deaths.told.get(timeout=LONG_S)
        assert dead.detection_s() >= PACE.patience_s * 0.9  # it counts the waiting, not the clock


def test_a_refusal_is_an_answer(watch: Watch, host: Someone, server: WireServer) -> None:
    host.refuses = True
    deaths = Deaths()
    watch.add(server.address, PACE, deaths)
    assert deaths.none()
    assert watch._watched[server.address].detector.health() == "alive"


def test_another_life_at_the_same_address_means_the_first_is_dead(
    watch: Watch, host: Someone, server: WireServer
) -> None:
    deaths = Deaths()
    watch.add(server.address, PACE, deaths)
    for _ in range(3):
        assert host.pinged.wait(LONG_S)
        host.pinged.clear()
    host.life = "2"
    assert deaths.told.get(timeout=LONG_S)[0] == server.address


def test_who_wants_to_know_no_more_is_not_told(watch: Watch, host: Someone, server: WireServer) -> None:
    one, other, address = Deaths(), Deaths(), server.address
    watch.add(address, PACE, one)
    watch.add(address, PACE, other)
    assert host.pinged.wait(LONG_S)
    watch.remove(address, one)
    abort(server)
    assert other.told.get(timeout=LONG_S)[0] == address
    assert one.told.empty()


def test_a_dead_one_can_be_watched_anew(watch: Watch, host: Someone, server: WireServer) -> None:
    deaths, address = Deaths(), server.address
    watch.add(address, PACE, deaths)
    assert host.pinged.wait(LONG_S)
    abort(server)
    deaths.told.get(timeout=LONG_S)
    again = Deaths()
    watch.add(address, PACE, again)
    assert again.told.get(timeout=LONG_S)[0] == address
