"""A reader of a stream that several nodes serve: asks them how they are, many times a second, and goes to the best.

1. As long as the copy that it reads is stable, and gives something, no other is asked.
2. A connection that broke is the follower's affair: it tries the other copy at once.
3. A copy that does not hold what the reader wants next is no choice: to stay loses nothing.
4. Where the reader hears nothing for some tens of milliseconds, others are asked whether they have more. The silent one
   is not waited for: the system of a process that was killed answers for it until its memory is given back.
5. If another copy does not answer, the coordinator is asked now and then where they are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from borealis.clock import WALL, Clock
from borealis.errors import BorealisError
from borealis.machine import HERE, Machine
from borealis.streams.replicas import Choice, ReplicaState, Silence
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
    locate_s: float = 1.0  # between questions to the coordinator, where the copy that is read is not well
    nobody_s: float = 5.0  # the same where it is, but no other is known that answers


class Copies:
    """The copies of one stream, asked how they are; the coordinator says where they are. Threads may share it."""

    def __init__(
        self,
        known: Callable[[], Location | None],
        locate: Callable[[], object],  # what is known is newer then
        ask: Callable[[str, float], QueueStatus],
        timings: ReplicaTimings | None = None,
        clock: Clock = WALL,
    ) -> None:
        self._known, self._locate, self._ask = known, locate, ask
        self.timings, self._clock = timings or ReplicaTimings(), clock
        self._located = -math.inf
        self._away: dict[str, float] = {}  # by address: when a copy did not answer

    def ask(self, address: str) -> QueueStatus | None:
        """How the copy there is; None: it is away, stands by, or has no such stream any more."""
        try:
            found = self._ask(address, self.timings.answer_s)
        except BorealisError:
            self._away[address] = self._clock.now()
            return None
        self._away.pop(address, None)
        return found

    def others(self, at: str) -> dict[str, QueueStatus | None]:
        """How those beside the one that is read are. The coordinator is asked now and then if one is away."""
        found = self._ask_all(at)
        if (not found or None in found.values()) and self._found_again(self.timings.locate_s):
            found = self._ask_all(at)
        return found

    def first(self, at: str, wanted: Callable[[QueueStatus], bool]) -> str:
        """The first of them that is as wanted, or nothing; those are not asked that did not answer a moment ago."""
        now, answered = self._clock.now(), False
        for other in _others(at, self._known()):
            if now - self._away.get(other, -math.inf) < self.timings.locate_s:
                continue
            copy = self.ask(other)
            if copy is not None and wanted(copy):
                return other
            answered = answered or copy is not None
        if not answered:
            self._found_again(self.timings.nobody_s)
        return ""

    def _ask_all(self, at: str) -> dict[str, QueueStatus | None]:
        return {other: self.ask(other) for other in _others(at, self._known())}

    def _found_again(self, every_s: float) -> bool:
        """Ask the coordinator where they are, unless that was done just now."""
        now = self._clock.now()
        if now - self._located < every_s:
            return False
        self._located = now
        with suppress(BorealisError):  # the coordinator is away as well
            self._locate()
        return True


def as_choice(copy: QueueStatus | None, has: Callable[[QueueStatus], bool] = lambda _: True) -> ReplicaState:
    """How a copy is for a reader: no better than away if it does not have what that wants next."""
    return copy.state if copy is not None and has(copy) else "unreachable"


class ReplicaWatch:
    """Has a follower read from the best copy of its stream, until the follower is stopped: with two threads."""

    def __init__(
        self,
        follower: Follower,
        copies: Copies,
        over: Callable[[], None] = lambda: None,  # called when no more is asked
        machine: Machine = HERE,
    ) -> None:
        self._follower, self._copies, self._over = follower, copies, over
        self._timings, self._clock = copies.timings, machine.clock
        self._choice = Choice(follower.wants != "stable")
        self._silence = Silence()
        self._listening = machine.threads.start(f"silence {follower.stream}", self._listen_on)
        machine.threads.start(f"replicas {follower.stream}", self._look_on)

    def _look_on(self) -> None:
        while not self._follower.stopped.wait(self._timings.every_s) and not self._follower.over:
            self.look()
        self._listening.join()
        self._over()

    def look(self) -> None:
        """Go to another copy if that is better."""
        at = self._follower.address
        if not at:
            return
        state = as_choice(self._copies.ask(at))
        if state == "stable":
            self._choice.stay()
            return
        found = self._copies.others(at)
        states = {at: state} | {other: as_choice(copy, self._goes_on_at) for other, copy in found.items()}
        best = self._choice.best(at, states)
        if best != at:
            self._go(at, best, state)

    def _goes_on_at(self, copy: QueueStatus) -> bool:
        return copy.epoch == self._follower.epoch and copy.first_id <= self._follower.next_id

    def _listen_on(self) -> None:
        follower = self._follower
        while not follower.stopped.wait(min(self._pause(), self._timings.every_s)) and not follower.over:
            self.listen()

    def _pause(self) -> float:
        return self._silence.due(self._clock.now(), self._follower.silent_since)

    def listen(self) -> None:
        """Go to another copy if nothing comes from the one that is read, and that has more."""
        follower, at, since = self._follower, self._follower.address, self._follower.silent_since
        if not at or since is None or self._silence.due(self._clock.now(), since) > 0:
            return
        more = self._copies.first(at, self._has_more)
        lacks = bool(more) and follower.silent_since == since
        if self._silence.goes(self._clock.now(), since, lacks):
            self._go(at, more, "silence")

    def _has_more(self, copy: QueueStatus) -> bool:
        """Whether a copy that is well has come further than the reader, who could go on there."""
        further = (copy.next_id, copy.boundary) > (self._follower.next_id, self._follower.boundary)
        return further and copy.state == "stable" and not copy.held and self._goes_on_at(copy)

    def _go(self, at: str, to: str, why: str) -> None:
        if self._follower.address == at:
            log.info("%s is read at %s now: at %s there is %s", self._follower.stream, to, at, why)
            self._follower.go_to(to)


def watch(follower: Follower, locator: Locator, found: Location, machine: Machine = HERE) -> None:
    """Have a follower that is no node's read from the best copy, if there are several: over connections of its own."""
    if not found.replicated:
        return
    known, peers, lock = found, dict[str, Peer](), machine.threads.lock()

    def locate() -> None:
        nonlocal known
        known = locator.locate(follower.stream)

    def ask(address: str, within: float) -> QueueStatus:
        with lock:
            if address not in peers:
                peers[address] = locator.peer(address)
        return peers[address].say("stream", SchemaOf(stream=follower.stream), QueueStatus, within=within)

    def over() -> None:
        for peer in peers.values():
            peer.close()

    ReplicaWatch(follower, Copies(lambda: known, locate, ask, clock=machine.clock), over, machine)


def _others(at: str, location: Location | None) -> list[str]:
    """The addresses of copies beside the one that is read."""
    addresses = (location.address, *location.others) if location is not None else ()
    return [address for address in dict.fromkeys(addresses) if address and address != at]
