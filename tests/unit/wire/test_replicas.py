"""The copies of a stream are asked how they are, and the coordinator where they are, but not too often."""

from __future__ import annotations

from borealis.clock import ManualClock
from borealis.errors import WireError
from borealis.streams.status import QueueStatus
from borealis.wire.endpoints import Location
from borealis.wire.replicas import Copies, as_choice

STREAM = "d/x"
NOBODY = Location(STREAM, "one")


class Three:
    """Copies of a stream, some of which are away."""

    def __init__(self) -> None:
        self.clock, self.asked, self.located = ManualClock(), list[str](), 0
        self.known = Location(STREAM, "one", fallback="two", replicated=True, copies=("three",))
        self.away = set[str]()
        self.then: Location | None = None  # where they are by now
        self.copies = Copies(lambda: self.known, self.locate, self.ask, clock=self.clock)

    def ask(self, address: str, within: float) -> QueueStatus:
        self.asked.append(address)
        if address in self.away:
            self.clock.advance(within)
            raise WireError("no answer")
        return QueueStatus(stream=STREAM, epoch=address, boundary=0)

    def locate(self) -> None:
        self.located += 1
        if self.then is None:
            raise WireError("no coordinator")
        self.known = self.then

    def others(self, at: str) -> dict[str, str]:
        """What each is for a reader."""
        return {address: as_choice(copy) for address, copy in self.copies.others(at).items()}

    def first(self, at: str, *wanted: str) -> str:
        return self.copies.first(at, lambda copy: copy.epoch in wanted)


def test_all_others_are_asked_and_nobody_where_they_are() -> None:
    three = Three()
    assert three.others("one") == {"two": "stable", "three": "stable"}
    assert three.others("three") == {"one": "stable", "two": "stable"}
    assert three.located == 0


def test_a_copy_that_lacks_what_is_wanted_is_no_better_than_one_that_is_away() -> None:
    copy = Three().copies.ask("two")
    assert as_choice(copy, lambda copy: copy.first_id > 0) == as_choice(None) == "unreachable"


def test_where_a_copy_is_away_the_coordinator_is_asked_once_a_second() -> None:
    three = Three()
    three.away = {"two"}
    for _ in range(3):
        assert three.others("one") == {"two": "unreachable", "three": "stable"}
    assert three.located == 1
    three.then = Location(STREAM, "one", fallback="four", replicated=True, copies=("three",))
    three.clock.advance(three.copies.timings.locate_s)
    assert three.others("one") == {"four": "stable", "three": "stable"}
    assert three.others("one") == {"four": "stable", "three": "stable"}
    assert three.located == 2


def test_who_is_in_a_hurry_asks_no_more_than_it_takes() -> None:
    three = Three()
    assert three.first("one", "two", "three") == "two"
    assert three.first("one", "three") == "three"
    assert three.first("one") == ""
    assert three.asked == ["two", "two", "three", "two", "three"]
    assert three.located == 0


def test_who_is_in_a_hurry_does_not_ask_who_did_not_answer_just_now() -> None:
    three = Three()
    three.away = {"two"}
    for _ in range(3):
        assert three.first("one", "three") == "three"
    assert three.asked == ["two", *["three"] * 3]
    three.clock.advance(three.copies.timings.locate_s)
    three.away.clear()
    assert three.first("one", "two") == "two"


def test_where_no_other_is_known_the_coordinator_is_asked_now_and_then() -> None:
    three = Three()
    three.known = NOBODY
    for _ in range(10):
        assert three.first("one", "two") == ""
    assert three.located == 1
    three.then = Location(STREAM, "one", fallback="two", replicated=True)
    three.clock.advance(three.copies.timings.nobody_s)
    assert three.first("one", "two") == ""
    assert three.first("one", "two") == "two"
    assert three.located == 2
