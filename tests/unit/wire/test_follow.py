"""Following a stream: where it is looked for next, from which place, and whom a follower does not believe."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from borealis.errors import BorealisError, GoneError, StreamError, WireError
from borealis.retrying import Backoff, Retries
from borealis.streams.queue import MovedError, StandbyError
from borealis.streams.section import NOTHING, Section, section
from borealis.tuples import LAST_TIME
from borealis.wire.endpoints import Endpoints, Location
from borealis.wire.follow import Follower
from borealis.wire.messages import Subscribe

QUICK = Retries(0.001, 0.004, math.inf)


class Fake:
    """A feed that gives what it was made of; an error among it is raised."""

    def __init__(self, first: int, *gives: Section | Exception, epoch: str = "e", incarnation: int = 0) -> None:
        self.epoch, self.next_id, self.incarnation = epoch, first, incarnation
        self.cancelled = threading.Event()
        self._gives = gives

    def __iter__(self) -> Iterator[Section]:
        for one in self._gives:
            if isinstance(one, Exception):
                raise one
            yield one
        if not (self._gives and isinstance(self._gives[-1], Section) and self._gives[-1].ended):
            assert self.cancelled.wait(10)

    def cancel(self) -> None:
        self.cancelled.set()


class Cluster:
    """What each address answers, in turn; all that was asked of whom."""

    def __init__(self, answers: dict[str, list[Fake | BorealisError]], known: Location, told: Location) -> None:
        self.answers, self.known, self.told = answers, known, told
        self.asked: list[tuple[str, Subscribe]] = []
        self.questions = 0
        self.errors: list[BorealisError] = []
        self.pauses: list[float] = []
        endpoints = Endpoints(self.locate, recall=lambda: self.known)
        self.follower = Follower(
            "d/s", endpoints, self.subscribe, self.broken, Backoff(QUICK), reader="r", pause=self.pauses.append
        )

    def locate(self) -> Location:
        self.questions += 1
        return self.told

    def subscribe(self, address: str) -> Fake:
        self.asked.append((address, self.follower.wanted()))
        answer = self.answers[address].pop(0)
        if isinstance(answer, BorealisError):
            raise answer
        return answer

    def broken(self, error: BorealisError) -> None:
        self.errors.append(error)
        if isinstance(error, GoneError):
            raise error

    def places(self) -> list[tuple[str, int | str]]:
        """Where it was asked for, and from which tuple on."""
        return [(address, wanted.start) for address, wanted in self.asked]


def rows(first: int, count: int, end: bool = False) -> Section:
    bound = np.array([LAST_TIME]) if end else NOTHING
    at = np.full(len(bound), first + count)
    return section(first, pa.table({"n": range(count)}), np.arange(count), at, bound)


def ids(follower: Follower) -> list[int]:
    return [i for one in follower for i in range(one.first, one.stop)]


def test_it_goes_on_at_the_backup_where_it_was() -> None:
    there = Location("d/s", "A", fallback="B")
    town = Cluster(
        {"A": [Fake(0, rows(0, 3), WireError("broken"))], "B": [Fake(3, rows(3, 2, end=True))]}, there, there
    )
    assert ids(town.follower) == list(range(5))
    assert town.places() == [("A", "oldest"), ("B", 3)]
    assert [w.epoch for _, w in town.asked] == [None, "e"]
    assert (town.questions, town.pauses) == (0, [])


def test_further_copies_are_tried_behind_the_backup() -> None:
    there = Location("d/s", "A", fallback="B", replicated=True, copies=("C",))
    answers: dict[str, list[Fake | BorealisError]] = {
        "A": [Fake(0, rows(0, 3), WireError("broken"))],
        "B": [WireError("away")],
        "C": [Fake(3, rows(3, 2, end=True))],
    }
    town = Cluster(answers, there, there)
    assert ids(town.follower) == list(range(5))
    assert town.places() == [("A", "oldest"), ("B", 3), ("C", 3)]
    assert (town.questions, town.pauses) == (0, [])


def test_a_stream_that_is_read_elsewhere_has_the_same_addresses() -> None:
    there = Location("d/s", "A", fallback="B", replicated=True, copies=("C", "D"))
    assert there.serving == ["A", "B", "C", "D"]
    for address, others in {"A": ["B", "C", "D"], "B": ["A", "C", "D"], "D": ["B", "C", "A"]}.items():
        moved = there.served_at(address)
        assert (moved.address, moved.others) == (address, others)
    alone = Location("d/s", "A", fallback="B")
    assert (alone.serving, alone.served_at("B").others) == (["A"], ["B"])


def test_a_move_is_followed_at_once() -> None:
    there = Location("d/s", "A")
    town = Cluster(
        {"A": [Fake(0, rows(0, 3), MovedError("off", moved_to="C"))], "C": [Fake(3, rows(3, 1, end=True))]},
        there,
        there,
    )
    assert ids(town.follower) == list(range(4))
    assert (town.places(), town.pauses) == ([("A", "oldest"), ("C", 3)], [])


def test_pauses_grow_until_it_is_served_and_are_short_beside_a_backup() -> None:
    there = Location("d/s", "A")
    away: list[Fake | BorealisError] = [WireError("away") for _ in range(4)]
    town = Cluster({"A": [*away, Fake(0, rows(0, 1, end=True))]}, there, there)
    assert ids(town.follower) == [0]
    assert town.pauses == [0.001, 0.002, 0.004, 0.004]
    assert town.questions == 4
    both = Location("d/s", "A", fallback="B")
    answers: dict[str, list[Fake | BorealisError]] = {
        "A": [WireError("away"), Fake(0, rows(0, 1, end=True))],
        "B": [StandbyError("not yet")],
    }
    town = Cluster(answers, both, both)
    town.follower.backoff = Backoff(Retries(10.0, 10.0))
    assert ids(town.follower) == [0]
    assert town.pauses == [0.05]


def test_a_primary_that_was_deposed_is_not_believed() -> None:
    there = Location("d/s", "A", fallback="B")
    first = Fake(0, rows(0, 2), WireError("broken"), incarnation=2)
    old = Fake(2, rows(2, 5), incarnation=1)
    town = Cluster(
        {"A": [first, Fake(2, rows(2, 1, end=True), incarnation=2)], "B": [old]}, there, Location("d/s", "A")
    )
    assert ids(town.follower) == [0, 1, 2]
    assert old.cancelled.is_set()
    assert "deposed" in str(town.errors[-1])
    assert town.asked[-1][1].incarnation == 2


def test_an_incarnation_is_of_one_epoch() -> None:
    """The next life of a stream begins with low ones; its primary must not be deposed for those of the last."""
    there = Location("d/s", "A")
    before = Fake(0, rows(0, 2), WireError("broken"), incarnation=5)
    after = Fake(0, rows(0, 1), WireError("broken"), epoch="f", incarnation=1)
    town = Cluster({"A": [before, after, Fake(1, rows(1, 1, end=True), epoch="f", incarnation=1)]}, there, there)
    read = iter(town.follower)
    assert next(read).stop == 2
    town.follower.begin("oldest")
    assert [s.stop for s in read] == [1, 2]
    assert [(w.start, w.epoch, w.incarnation) for _, w in town.asked[1:]] == [("oldest", None, 5), (1, "f", 1)]


def test_who_is_to_look_again_does_so_where_the_stream_is_known_to_be_now() -> None:
    town = Cluster(
        {"A": [Fake(0, rows(0, 1))], "C": [Fake(1, rows(1, 1, end=True))]}, Location("d/s", "A"), Location("d/s", "A")
    )
    read = iter(town.follower)
    assert next(read).stop == 1
    town.known = Location("d/s", "C")
    town.follower.look_again()
    assert [s.stop for s in read] == [2]
    assert (town.places(), town.questions, town.pauses, town.errors) == ([("A", "oldest"), ("C", 1)], 0, [], [])


def test_it_ends_when_stopped_and_when_its_reader_raises() -> None:
    there = Location("d/s", "A")
    silent = Fake(0)
    town = Cluster({"A": [silent]}, there, there)
    reader = threading.Thread(target=lambda: ids(town.follower))
    reader.start()
    assert town.follower.opened.wait(10)
    town.follower.stop()
    reader.join(10)
    assert not reader.is_alive()
    assert silent.cancelled.is_set()
    town = Cluster({"A": [GoneError("trimmed")]}, there, there)
    with pytest.raises(GoneError, match="trimmed"):
        ids(town.follower)


def test_a_range_ends_before_its_stop() -> None:
    there = Location("d/s", "A")
    feed = Fake(2, rows(2, 3))
    feed.cancel()
    endpoints = Endpoints(lambda: there)
    follower = Follower("d/s", endpoints, lambda _: feed, lambda _: None, Backoff(QUICK), stop=5)
    follower.epoch = "e"
    follower.go_on(2)
    assert ids(follower) == [2, 3, 4]


def test_what_opens_and_breaks_over_and_over_is_tried_less_and_less() -> None:
    here = Location("d/s", "a")
    breaks: list[Fake | BorealisError] = [Fake(0, WireError("broken")) for _ in range(4)]
    cluster = Cluster(
        {"a": [*breaks, Fake(0, rows(0, 1), WireError("broken")), Fake(1, rows(1, 1, end=True))]}, here, here
    )
    assert sum(len(one) for one in cluster.follower) == 2
    before, after = cluster.pauses[:-1], cluster.pauses[-1]
    assert before == sorted(before)
    assert before[-1] > before[0]
    assert after <= 2 * QUICK.first_s  # something came: it begins anew


def test_a_call_that_was_refused_can_be_made_again() -> None:
    answers: list[Location | BorealisError] = [StreamError("no such stream"), Location("d/s", "a")]

    def locate() -> Location:
        answer = answers.pop(0)
        if isinstance(answer, BorealisError):
            raise answer
        return answer

    endpoints = Endpoints(locate)
    with pytest.raises(StreamError):
        endpoints.call(str.upper, lambda error: isinstance(error, WireError), Backoff(QUICK))
    assert endpoints.call(str.upper, lambda _: False, Backoff(QUICK)) == "A"


def test_a_route_that_came_while_another_was_tried_is_tried_at_once() -> None:
    routes = [Location("d/s", "a")]
    endpoints = Endpoints(lambda: Location("d/s", "b"), recall=lambda: routes[-1])
    assert endpoints.next() == "a"
    endpoints.lost(WireError("away"))
    assert endpoints.next() == "b"
    routes.append(Location("d/s", "c"))
    endpoints.lost(WireError("away"))
    assert not endpoints.exhausted
    assert endpoints.next() == "c"
