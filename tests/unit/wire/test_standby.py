"""Subscriptions to queues of protected units: at a backup, at a deposed primary, across a jump of ids."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hosting import SCHEMA, TinyHost, next_section

from borealis.errors import StreamError, WireError
from borealis.streams.id_gaps import JUMP
from borealis.streams.queue import MovedError, OutputQueue, QueueLimits, StandbyError
from borealis.streams.section import Section
from borealis.tuples import FIRST_TIME
from borealis.wire.client import Peer
from borealis.wire.feed import FeedTimings
from borealis.wire.messages import SectionHead, Subscribe
from borealis.wire.problems import error_of, problem_of
from borealis.wire.server import WireServer
from borealis.wire.subscription import WireSubscription
from borealis.wire.waiting import PeerTimings

Soon = Callable[..., None]


@pytest.fixture
def queue() -> OutputQueue:
    """Of a protected unit."""
    return OutputQueue("d/a", SCHEMA, incarnation=2)


class Waiting(threading.Thread):
    """Subscribes in a thread, and keeps what came."""

    def __init__(self, peer: Peer, wanted: Subscribe) -> None:
        super().__init__(daemon=True)
        self.peer, self.wanted = peer, wanted
        self.subscription: WireSubscription | None = None
        self.came: list[Section] = []
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with self.peer.subscribe(self.wanted) as self.subscription:
                for section in self.subscription:
                    self.came.append(section)
        except Exception as error:
            self.error = error


def append(queue: OutputQueue, n: int, bound: int | None = None) -> None:
    queue.append(next_section(queue, n, bound))


def test_the_incarnation_is_told(queue: OutputQueue, peer: Peer) -> None:
    with peer.subscribe(Subscribe(stream="d/a", incarnation=2)) as subscription:
        assert subscription.incarnation == 2
    with peer.subscribe(Subscribe(stream="d/small", incarnation=7)) as subscription:
        assert subscription.incarnation == 0  # nothing protects it, so nobody can be deposed


def test_who_knows_of_a_later_incarnation_is_not_served(queue: OutputQueue, host: TinyHost, peer: Peer) -> None:
    with pytest.raises(MovedError, match="incarnation 3 of its unit, not by 2 here") as caught:
        peer.subscribe(Subscribe(stream="d/a", incarnation=3, epoch=queue.epoch))
    assert caught.value.moved_to == ""
    assert host.heard == [("d/a", 3)]
    assert not queue.status().readers


def test_at_a_backup_a_subscriber_waits_and_is_served_as_soon_as_it_takes_over(
    queue: OutputQueue, host: TinyHost, soon: Soon
) -> None:
    queue.hold()
    append(queue, 5)
    patient = FeedTimings(tick_s=90.0, hold_s=90.0)  # who is not told waits so long
    with WireServer(host, timings=patient) as server, Peer(server.address) as peer:
        waiting = Waiting(peer, Subscribe(stream="d/a", start=3, epoch=queue.epoch, incarnation=2))
        soon(lambda: queue.status().readers)
        assert not waiting.came
        queue.incarnation = 3
        queue.release()
        soon(lambda: waiting.came)
        section = waiting.came[0]
        assert (section.first, section.stop) == (3, 5)
        assert waiting.subscription is not None
        assert waiting.subscription.incarnation == 3
        queue.close()  # wakes its reader, too


def test_a_backup_sends_its_subscribers_away_after_a_while(queue: OutputQueue, peer: Peer, soon: Soon) -> None:
    queue.hold()
    began = time.monotonic()
    with pytest.raises(StandbyError, match="stream d/a is on standby here"):
        peer.subscribe(Subscribe(stream="d/a"))
    assert time.monotonic() - began >= FeedTimings().hold_s
    soon(lambda: not queue.status().readers)
    with pytest.raises(StandbyError):  # at once: there is no way that these ids come true
        peer.subscribe(Subscribe(stream="d/a", epoch="another"))


def test_a_primary_whose_output_waits_for_its_backup_keeps_its_subscribers(
    queue: OutputQueue, host: TinyHost, soon: Soon
) -> None:
    queue.hold()
    queue.release((0, FIRST_TIME))
    append(queue, 5)
    hasty = FeedTimings(tick_s=0.01, hold_s=0.01, heartbeat_s=0.2)
    with WireServer(host, timings=hasty) as server, Peer(server.address) as peer:
        with peer.subscribe(Subscribe(stream="d/a")) as subscription:
            assert next(subscription.beats()) is None  # it was held for far longer than a backup would
        waiting = Waiting(peer, Subscribe(stream="d/a"))
        queue.release((4, FIRST_TIME))
        soon(lambda: waiting.came)
        assert waiting.came[0].stop == 4


def test_a_primary_that_steps_down_sends_its_subscribers_away(queue: OutputQueue, peer: Peer, soon: Soon) -> None:
    waiting = Waiting(peer, Subscribe(stream="d/a"))
    soon(lambda: queue.status().readers)
    queue.hold()
    soon(lambda: waiting.error)
    assert isinstance(waiting.error, StandbyError)


def test_a_subscriber_leaves_a_backup_when_it_wants(queue: OutputQueue, server: WireServer, soon: Soon) -> None:
    queue.hold()
    with Peer(server.address) as peer:
        waiting = Waiting(peer, Subscribe(stream="d/a", reader="ada"))
        soon(lambda: queue.status().readers)
        server.close()  # waits for nobody
    waiting.join(5)
    assert isinstance(waiting.error, WireError)


def test_a_frozen_backup_is_left(queue: OutputQueue, host: TinyHost) -> None:
    queue.hold()
    with (
        WireServer(host, timings=FeedTimings(hold_s=60.0)) as server,
        Peer(server.address, timings=PeerTimings(silence_s=0.2)) as peer,
    ):
        with pytest.raises(WireError, match="silent for"):
            peer.subscribe(Subscribe(stream="d/a"))
        queue.release()


def test_ids_that_jump_are_no_loss(queue: OutputQueue, peer: Peer) -> None:
    append(queue, 3, bound=30)
    queue.jump_to(JUMP)
    append(queue, 2)
    for start, first in ((1, [1, 2]), (3, []), (77, [])):
        with peer.subscribe(Subscribe(stream="d/a", start=start, epoch=queue.epoch)) as subscription:
            sections = iter(subscription)
            if start <= 3:
                one = next(sections)
                assert list(range(one.first, one.stop)) == first
                assert subscription.jumps == 0
            one = next(sections)
            assert (one.first, one.stop) == (JUMP, JUMP + 2)
            assert (subscription.jumps, subscription.lost, subscription.next_id) == (1, 0, JUMP + 2)


def test_a_range_that_ends_among_ids_that_were_left_out_ends(queue: OutputQueue, peer: Peer) -> None:
    append(queue, 3)
    queue.jump_to(JUMP)
    append(queue, 2)
    with peer.subscribe(Subscribe(stream="d/a", start=2, stop=50)) as subscription:
        assert [n for s in subscription for n in range(s.first, s.stop)] == [2]


def test_what_was_dropped_before_a_jump_is_counted(server: WireServer, host: TinyHost, peer: Peer) -> None:
    lossy = OutputQueue("d/l", SCHEMA, QueueLimits(bytes_most=1 << 16, keep_bytes=0, full="drop"), incarnation=1)
    host.queues["d/l"] = lossy
    lossy.register("ada", 0)
    append(lossy, 5)
    lossy.jump_to(JUMP)
    lossy.append(next_section(lossy, 100, width=1000))
    with peer.subscribe(Subscribe(stream="d/l", start=2, reader="ada")) as subscription:
        section = next(iter(subscription))
        assert section.first >= JUMP
        assert (subscription.lost, subscription.jumps) == (3, 1)


def test_a_jump_must_go_forward(queue: OutputQueue, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    append(queue, 3)
    encode = SectionHead.encode
    monkeypatch.setattr(SectionHead, "encode", lambda head: encode(head.model_copy(update={"jump": True})))
    with peer.subscribe(Subscribe(stream="d/a")) as subscription, pytest.raises(WireError, match="after tuple 0"):
        next(iter(subscription))


def test_the_error_survives_the_wire() -> None:
    again = error_of(problem_of(StandbyError("on standby", hint="go")))
    assert type(again) is StandbyError
    assert isinstance(again, StreamError)
    assert (again.message, again.hint) == ("on standby", "go")


@pytest.fixture(autouse=True)
def _open_at_the_end(queue: OutputQueue) -> Iterator[None]:
    yield
    queue.release()
