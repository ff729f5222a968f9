"""A reader of a stream that several nodes serve: asks them how they are, many times a second, and goes to the best.

1. As long as the copy that it reads is stable no other is asked.
2. A connection that broke is the follower's affair: it tries the other copy at once.
3. A copy that does not hold what the reader wants next is no choice: to stay loses nothing.
4. If another copy does not answer, the coordinator is asked now and then where they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from borealis.errors import BorealisError
from borealis.machine import HERE, Machine
from borealis.streams.replicas import Choice, ReplicaState
from borealis.streams.status import QueueStatus
from borealis.wire.client import Peer
from borealis.wire.endpoints import Location, Locator
from borealis.wire.follow import Follower
from borealis.wire.messages import SchemaOf

log = logging.getLogger("borealis.wire")


@dataclass(frozen=True)
class ReplicaTimings:
    """How closely copies are watched, in seconds."""

    every_s: float = 0.1  # between questions to the copy that is read
    answer_s: float = 0.3  # for its answer
    locate_s: float = 1.0  # between questions to the coordinator


class ReplicaWatch:
    """Has a follower read from the best copy of its stream, until the follower is stopped."""

    def __init__(
        self,
        follower: Follower,
        known: Callable[[], Location | None],
        locate: Callable[[], Location],
        ask: Callable[[str, float], QueueStatus],
        over: Callable[[], None] = lambda: None,  # called when no more is asked
        timings: ReplicaTimings | None = None,
        machine: Machine = HERE,
    ) -> None:
        self._follower, self._known, self._locate = follower, known, locate
        self._ask, self._over = ask, over
        self._timings, self._clock = timings or ReplicaTimings(), machine.clock
        self._choice = Choice(follower.wants != "stable")
        self._located = -self._timings.locate_s
        machine.threads.start(f"replicas {follower.stream}", self._run)

    def _run(self) -> None:
        while not self._follower.stopped.wait(self._timings.every_s) and not self._follower.over:
            self.look()
        self._over()

    def look(self) -> None:
        """Go to another copy if that is better."""
        at = self._follower.address
        if not at:
            return
        state = self._state(at)
        if state == "stable":
            self._choice.stay()
            return
        states = {at: state} | self._others(at)
        best = self._choice.best(at, states)
        if best != at and self._follower.address == at:
            log.info("%s is read at %s now: at %s there is %s", self._follower.stream, best, at, state)
            self._follower.go_to(best)

    def _state(self, address: str) -> ReplicaState:
        follower = self._follower
        try:
            copy = self._ask(address, self._timings.answer_s)
        except BorealisError:  # it is away, stands by, or has no such stream any more
            return "unreachable"
        lacks = copy.epoch != follower.epoch or copy.first_id > follower.next_id
        return "unreachable" if lacks and address != follower.address else copy.state

    def _others(self, at: str) -> dict[str, ReplicaState]:
        """How other copies are, as far as it is known where."""
        found = {other: self._state(other) for other in others(at, self._known())}
        now = self._clock.now()
        if now - self._located >= self._timings.locate_s and _some_are_away(found):
            self._located = now
            with suppress(BorealisError):  # the coordinator is away as well
                found = {other: self._state(other) for other in others(at, self._locate())}
        return found


def _some_are_away(others: Mapping[str, ReplicaState]) -> bool:
    return not others or "unreachable" in others.values()


def watch(follower: Follower, locator: Locator, found: Location, machine: Machine = HERE) -> None:
    """Have a follower that is no node's read from the best copy, if there are several: over connections of its own."""
    if not found.replicated:
        return
    known, copies = found, dict[str, Peer]()

    def locate() -> Location:
        nonlocal known
        known = locator.locate(follower.stream)
        return known

    def ask(address: str, within: float) -> QueueStatus:
        if address not in copies:
            copies[address] = locator.peer(address)
        return copies[address].say("stream", SchemaOf(stream=follower.stream), QueueStatus, within=within)

    def over() -> None:
        for peer in copies.values():
            peer.close()

    ReplicaWatch(follower, lambda: known, locate, ask, over, machine=machine)


def others(at: str, location: Location | None) -> list[str]:
    """The addresses of copies beside the one that is read."""
    addresses = (location.address, *location.others) if location is not None else ()
    return [address for address in dict.fromkeys(addresses) if address and address != at]
