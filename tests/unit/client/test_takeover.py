"""Clients when a primary dies: they go on at the backup, soon, without loss or repetition."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from town import SCHEMA, SOON, STREAM, WAIT_S, Counter, Place, add, eventually, finish

from aborting import abort
from borealis.client.client import Streams
from borealis.client.publisher import Publisher, Publishing
from borealis.client.subscriber import ReadOptions, Subscription
from borealis.errors import GoneError, StreamError, WireError
from borealis.machine import Machine
from borealis.retrying import Backoff, Retries
from borealis.streams.id_gaps import JUMP
from borealis.streams.queue import MovedError, OutputQueue, StandbyError
from borealis.tuples import FIRST_TIME
from borealis.wire.calls import cut_connections
from borealis.wire.client import Peer
from borealis.wire.endpoints import STANDBY_S, Endpoints, Location


class Node(Place):
    """A node that can die, and hears that it is deposed."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[int] = []

    def deposed(self, stream: str, incarnation: int) -> None:
        self.heard.append(incarnation)
        self.queues[stream].close()

    def die(self) -> None:
        """As after kill -9: connections break, and nobody listens any more."""
        abort(self.server)


class Pair:
    """A primary, its backup, and the way to them."""

    def __init__(self, stack: ExitStack) -> None:
        self.primary, self.backup = Node(), Node()
        for node in (self.primary, self.backup):
            stack.callback(node.close)
            queue = node.queues[STREAM] = OutputQueue(STREAM, SCHEMA, epoch="e", incarnation=1)
            node.entries[STREAM] = Counter(queue)
        self.backup.queues[STREAM].hold()
        self.found: Location | None = None
        self.asked = 0

    @property
    def queue(self) -> OutputQueue:
        return self.primary.queues[STREAM]

    @property
    def mirror(self) -> OutputQueue:
        return self.backup.queues[STREAM]

    def locate(self, stream: str) -> Location:
        self.asked += 1
        return self.found or Location(STREAM, self.primary.address, True, self.backup.address)

    def peer(self, address: str) -> Peer:
        return Peer(address)

    def take_over(self) -> None:
        """The backup goes on."""
        self.mirror.incarnation = 2
        self.mirror.release()

    def subscribe(self, **reading: object) -> Subscription:
        return Subscription(self, STREAM, ReadOptions(**{"start": "oldest", "retries": SOON} | reading))  # type: ignore[arg-type]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


def numbers(subscription: Subscription, count: int) -> list[int]:
    rows = subscription.rows()
    return [next(rows)["n"] for _ in range(count)]


# -- subscribers


def test_a_client_waits_at_the_backup_and_goes_on_when_that_is_open(pair: Pair) -> None:
    subscription = pair.subscribe(timeout=WAIT_S)
    add(pair.queue, 5)
    add(pair.mirror, 5)
    assert numbers(subscription, 5) == list(range(5))
    pair.primary.die()
    eventually(lambda: bool(pair.mirror.status().readers))
    add(pair.mirror, 3)
    pair.take_over()
    assert numbers(subscription, 1) == [5]
    finish(pair.mirror)
    assert [row["n"] for row in subscription] == [6, 7]
    assert (subscription.gaps, subscription.lost, subscription.jumps, subscription.reconnects) == (0, 0, 0, 1)


def test_a_client_reads_the_better_of_two_copies_that_both_answer(pair: Pair) -> None:
    pair.found = Location(STREAM, pair.primary.address, True, pair.backup.address, incarnation=1, replicated=True)
    pair.mirror.release()
    subscription = pair.subscribe(timeout=WAIT_S)
    add(pair.queue, 5)
    add(pair.mirror, 3)  # it is behind
    assert numbers(subscription, 5) == list(range(5))
    pair.queue.condition = lambda: "failure"
    eventually(lambda: bool(pair.mirror.status().readers))
    add(pair.mirror, 4)
    assert numbers(subscription, 2) == [5, 6]
    pair.mirror.condition = lambda: "failure"  # no better than the other: it stays
    add(pair.mirror, 1)
    assert numbers(subscription, 1) == [7]
    eventually(lambda: not pair.queue.status().readers)
    pair.backup.die()
    add(pair.queue, 4)
    finish(pair.queue)
    assert [row["n"] for row in subscription] == [8]
    assert (subscription.gaps, subscription.lost, subscription.reconnects) == (0, 0, 2)


def test_a_copy_that_gives_nothing_is_left_though_it_says_that_it_is_well(pair: Pair) -> None:
    pair.found = Location(STREAM, pair.primary.address, True, pair.backup.address, incarnation=1, replicated=True)
    pair.mirror.release()
    subscription = pair.subscribe(timeout=WAIT_S)
    add(pair.queue, 5)
    add(pair.mirror, 5)
    assert numbers(subscription, 5) == list(range(5))
    add(pair.mirror, 3)
    assert numbers(subscription, 3) == [5, 6, 7]
    assert (pair.queue.status().state, subscription.address) == ("stable", pair.backup.address)
    assert (subscription.gaps, subscription.lost, subscription.reconnects) == (0, 0, 1)


def test_a_copy_that_does_not_hold_what_comes_next_is_no_choice(pair: Pair) -> None:
    pair.found = Location(STREAM, pair.primary.address, True, pair.backup.address, incarnation=1, replicated=True)
    pair.mirror.release()
    pair.mirror.begin_at((3, FIRST_TIME))  # what was before it is gone there
    subscription = pair.subscribe(timeout=WAIT_S)
    add(pair.queue, 2)
    assert numbers(subscription, 2) == [0, 1]
    looks: list[str] = []
    pair.mirror.condition = lambda: "stable" if looks.append("") is None else "failure"  # type: ignore[func-returns-value]
    pair.queue.condition = lambda: "failure"
    eventually(lambda: len(looks) > 4)
    add(pair.queue, 2)
    assert numbers(subscription, 2) == [2, 3]  # now it has all that is to come
    eventually(lambda: subscription.reconnects == 1)
    add(pair.mirror, 2)
    finish(pair.mirror)
    assert [row["n"] for row in subscription] == [4]


def test_nobody_watches_copies_for_a_reader_that_is_gone(pair: Pair) -> None:
    pair.found = Location(STREAM, pair.primary.address, True, pair.backup.address, incarnation=1, replicated=True)
    pair.mirror.release()
    before = set(threading.enumerate())  # those of other tests take their time

    def watching() -> list[str]:
        names = {f"replicas {STREAM}", f"silence {STREAM}"}
        return [thread.name for thread in threading.enumerate() if thread.name in names and thread not in before]

    pair.queue.incarnation = 0
    with pytest.raises(GoneError):
        pair.subscribe(start=7)
    eventually(lambda: not watching())
    subscription = pair.subscribe(timeout=WAIT_S)
    finish(pair.queue)
    assert list(subscription) == []
    eventually(lambda: not watching())


def test_a_connection_that_breaks_for_no_reason_is_found_again(pair: Pair) -> None:
    add(pair.queue, 2)
    subscription = pair.subscribe(timeout=WAIT_S)
    assert numbers(subscription, 2) == [0, 1]
    cut_connections(pair.primary.server.port)
    eventually(lambda: bool(pair.mirror.status().readers))
    add(pair.queue, 2)
    assert numbers(subscription, 2) == [2, 3]  # the backup said that it is one
    assert not pair.mirror.status().readers


def test_a_client_outlives_a_backup_that_takes_its_time(pair: Pair) -> None:
    add(pair.queue, 2)
    subscription = pair.subscribe(timeout=WAIT_S)
    assert numbers(subscription, 2) == [0, 1]
    asked = pair.asked
    pair.primary.die()
    eventually(lambda: pair.asked >= asked + 2)  # it is sent away, finds nobody else, and comes back
    add(pair.mirror, 4)
    pair.take_over()
    assert numbers(subscription, 2) == [2, 3]


def test_a_backup_that_is_behind_catches_up_first(pair: Pair) -> None:
    add(pair.queue, 5)
    add(pair.mirror, 2)
    subscription = pair.subscribe(timeout=WAIT_S)
    assert numbers(subscription, 5) == list(range(5))
    pair.primary.die()
    pair.take_over()
    eventually(lambda: subscription.reconnects == 1)
    for _ in range(4):
        add(pair.mirror, 1)
    assert numbers(subscription, 1) == [5]


def test_the_first_connection_may_be_to_the_backup(pair: Pair) -> None:
    pair.primary.die()
    add(pair.mirror, 2)
    pair.take_over()
    assert numbers(pair.subscribe(timeout=WAIT_S), 2) == [0, 1]


def test_a_deposed_primary_hears_of_it_and_is_left(pair: Pair) -> None:
    add(pair.queue, 2)
    add(pair.mirror, 3)
    subscription = pair.subscribe(timeout=WAIT_S)
    assert numbers(subscription, 2) == [0, 1]
    pair.take_over()
    cut_connections(pair.primary.server.port)  # the primary lives, behind a broken network
    assert numbers(subscription, 1) == [2]
    cut_connections(pair.backup.server.port)  # the coordinator has not heard of anything
    eventually(lambda: pair.primary.heard == [2])
    add(pair.mirror, 1)
    assert numbers(subscription, 1) == [3]


def test_ids_that_jump_are_counted_and_reading_goes_on(pair: Pair) -> None:
    add(pair.queue, 5)
    add(pair.mirror, 3)
    subscription = pair.subscribe(reader="ada", timeout=WAIT_S)
    assert numbers(subscription, 5) == list(range(5))
    pair.primary.die()
    pair.mirror.jump_to(JUMP)
    add(pair.mirror, 2)
    pair.take_over()
    eventually(lambda: subscription.jumps == 1)
    subscription.ack(5)  # ids still rise: what came before can be acknowledged
    assert pair.mirror.acks()["ada"][1] == 5
    assert numbers(subscription, 2) == [JUMP, JUMP + 1]
    subscription.ack()
    assert pair.mirror.acks()["ada"][1] == JUMP + 2
    assert (subscription.jumps, subscription.gaps, subscription.lost) == (1, 0, 0)
    subscription.stop()


def test_a_gap_is_told_by_the_node_that_has_it(pair: Pair) -> None:
    add(pair.queue, 5)
    subscription = pair.subscribe(on_gap="continue", timeout=WAIT_S)
    assert numbers(subscription, 5) == list(range(5))
    queue = pair.backup.queues[STREAM] = OutputQueue(STREAM, SCHEMA, epoch="f", incarnation=2)
    add(queue, 2)
    pair.primary.die()
    assert numbers(subscription, 2) == [0, 1]
    assert subscription.gaps == 1


# -- publishers


def test_a_publisher_goes_on_at_the_backup(pair: Pair) -> None:
    mirror = pair.backup.entries[STREAM]
    waiting, refused = threading.Event(), []

    def standby(stream: str) -> Counter:
        if not waiting.is_set():
            refused.append(stream)
            raise StandbyError(f"entry point {stream} is on standby here")
        return mirror

    pair.backup.entry = standby  # type: ignore[method-assign]
    out = Publisher(pair, STREAM, Publishing("me", retries=SOON))
    out.send([{"n": 0, "word": "a"}])
    out.flush(WAIT_S)
    mirror.last = dict(pair.primary.entries[STREAM].last)  # as its peer it holds what was acknowledged
    add(pair.mirror, 1)
    pair.primary.die()
    out.send([{"n": 1, "word": "b"}])
    eventually(lambda: not out.connected)
    eventually(lambda: len(refused) > 2)
    waiting.set()
    out.close(WAIT_S)
    assert (pair.mirror.next_id, mirror.last, out.forgotten) == (2, {"me": 1}, 0)


def test_a_publisher_begins_at_the_backup_where_that_has_taken_over(pair: Pair) -> None:
    pair.primary.die()
    with Publisher(pair, STREAM, Publishing(retries=SOON)) as out:
        out.send([{"n": 0, "word": "a"}])
    assert pair.mirror.next_id == 1
    pair.backup.die()
    time.sleep(0.1)
    with pytest.raises(WireError):
        Publisher(pair, STREAM, Publishing(retries=SOON, first_s=0.2))


# -- without a coordinator


class Program(Streams):
    """A client that knows by itself where streams are."""

    def __init__(self, pair: Pair, machine: Machine) -> None:
        super().__init__(SOON, machine)
        self._pair = pair

    def locate(self, stream: str) -> Location:
        return self._pair.locate(stream)

    def peer(self, address: str) -> Peer:
        return self._pair.peer(address)


def test_a_program_that_knows_where_streams_are_needs_no_coordinator(pair: Pair) -> None:
    class Same:
        def token(self, length: int = 16) -> str:
            return "5" * length

    program = Program(pair, Machine(chance=Same()))
    subscription = program.subscribe(STREAM, "oldest", timeout=WAIT_S)
    program.publish(STREAM, [{"n": 0, "word": "a"}], timeout=WAIT_S)
    assert numbers(subscription, 1) == [0]
    assert list(pair.primary.entries[STREAM].last) == [f"client-{'5' * 12}"]
    program.close()
    assert not subscription.running


# -- in which order addresses are tried


def endpoints(*answers: Location | Exception, fallback: str | None = "B") -> Endpoints:
    left = list(answers)

    def locate() -> Location:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Endpoints(locate, Location("s", "A", False, fallback))


def lose(some: Endpoints, error: Callable[[], WireError | StreamError], *expected: str | None) -> None:
    for address in expected:
        assert some.next() == address
        some.lost(error())


def broken() -> WireError:
    return WireError("broken")


def test_the_backup_is_next_then_where_the_coordinator_says_then_there_is_a_pause() -> None:
    some = endpoints(Location("s", "B", False, "C"), Location("s", "C", False))
    lose(some, broken, "A", "B", "C")
    assert (some.next(), some.exhausted) == (None, True)
    assert some.pause(Backoff(Retries(first_s=0.3))) == 0.3
    lose(some, broken, "C")


def test_while_a_backup_stands_by_pauses_are_short() -> None:
    some = endpoints(Location("s", "A", False, "B"))
    backoff = Backoff(Retries(first_s=10.0))
    lose(some, broken, "A")
    lose(some, lambda: StandbyError("not yet"), "B")
    assert some.next() is None
    assert some.pause(backoff) == STANDBY_S
    with pytest.raises(StandbyError):
        Backoff(Retries(give_up_s=0)).lost(StandbyError("enough"))


def test_a_stream_that_moves_is_followed_at_once_but_not_in_circles() -> None:
    some = endpoints(Location("s", "A", False), fallback=None)
    assert some.next() == "A"
    some.lost(MovedError("gone", moved_to="C"))
    assert some.next() == "C"
    some.lost(MovedError("gone", moved_to="A"))
    assert some.next() is None


def test_while_the_coordinator_is_away_the_addresses_are_those_that_were() -> None:
    away = WireError("no coordinator")
    some = endpoints(away, away)
    lose(some, broken, "A", "B", None)
    some.pause(Backoff(Retries()))
    lose(some, broken, "A", "B")


def test_what_the_coordinator_says_for_good_is_raised() -> None:
    error = StreamError("no such stream")
    error.status = 404  # type: ignore[attr-defined]
    some = endpoints(error, fallback=None)
    lose(some, broken, "A")
    with pytest.raises(StreamError, match="no such"):
        some.next()


def test_a_gap_leads_back_to_where_it_was_told() -> None:
    some = endpoints(Location("s", "A", False, "B"))
    lose(some, lambda: GoneError("gone"), "A")
    assert some.exhausted
    some.pause(Backoff(Retries()))
    assert some.next() == "A"
