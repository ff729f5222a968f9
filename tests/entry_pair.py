"""An entry point and its backup with their real guards, in one thread; the line between them can break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from borealis.diagram.cut import Piece
from borealis.diagram.protection import Protection
from borealis.entry.point import Entry
from borealis.errors import UnreachableError
from borealis.machine import HERE
from borealis.node.parcel import DamagedError, Parcel
from borealis.node.primary import GuardTimings, PrimaryGuard
from borealis.node.running import RunningEntry
from borealis.node.standby import Standby
from borealis.wire.messages import Guard, GuardAnswer, UnitOrder

TIMINGS = GuardTimings(retry_s=0.0)


class DeathError(Exception):
    """The primary is no more."""


class Host:
    """What guards need of a node. It is its own line to the backup: `coming` says what happens to the next parcels."""

    name = "node1"
    routes: Any = None
    machine = HERE
    process = ""

    def __init__(self) -> None:
        self.peers = self.watch = self
        self.standby: Standby | None = None
        self.coming: list[str | Callable[[], None]] = []
        self.sent: list[Parcel] = []

    def add(self, *_: object) -> None: ...

    remove = add

    def news(self) -> None: ...

    def claim(self, _: object) -> None:
        return None

    def step_down(self, unit: RunningEntry, address: str) -> None:
        unit.step_down(address)

    def at(self, _: str) -> Host:
        return self

    def say(self, _: str, message: Any, __: type[GuardAnswer], within: float) -> GuardAnswer:
        what = self.coming.pop(0) if self.coming else "well"
        data = message.encode()
        self.sent.append(Parcel.decode(data))
        if callable(what):
            what()
        if what == "died before":
            raise DeathError
        if what == "lost":
            raise UnreachableError("the line is cut")
        if what == "damaged":
            data = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
        if what == "twice":
            self._deliver(data)
        answer = self._deliver(data)
        if what == "died after":
            raise DeathError
        if what == "no answer":
            raise UnreachableError("no answer")
        return answer

    def _deliver(self, data: bytes) -> GuardAnswer:
        assert self.standby is not None
        try:
            return self.standby.receive(Parcel.decode(data), len(data))
        except DamagedError:
            return self.standby.discard()


def running(entry: Entry, guard: Guard | None = None) -> RunningEntry:
    """An entry point as its node has it."""
    order = UnitOrder(diagram="d", yaml="", unit=f"in-{entry.spec.name}", boxes=[], guard=guard)
    for queue in entry.queues.values():
        queue.incarnation = 0 if guard is None else guard.incarnation
        if entry.standby:
            queue.hold()
    piece = Piece(name=order.unit, boxes=(), reads=(), gives=tuple(entry.queues))
    return RunningEntry(order, piece, entry.queues, entry, started=not entry.standby)


def guard_of(entry: Entry, approach: str = "passive", incarnation: int = 1) -> PrimaryGuard:
    """Protects an entry point that has no backup yet."""
    guard = Guard(protection=Protection(ha=approach), incarnation=incarnation)
    return PrimaryGuard(running(entry, guard), guard, Host(), timings=TIMINGS)  # type: ignore[arg-type]


def protect(guard: PrimaryGuard, entry: Entry, *coming: str | Callable[[], None], fresh: bool = False) -> Host:
    """Give it this one as its backup, which has all of it when this returns, unless something else is coming.

    For one that is `fresh` its output is not held before that has nearly all.
    """
    host: Any = guard._host
    mine = guard.guard.model_copy(update={"role": "backup", "partner": "grpc://one:1", "partner_node": "one"})
    host.standby = Standby(running(entry, mine), mine, host)
    host.coming += coming
    guard.guard = guard.guard.model_copy(update={"partner": "grpc://two:1", "partner_node": "two"})
    guard._join(fresh=fresh)
    guard._converse()
    while fresh and not guard.policy.known:
        guard._converse()
    return host


def take_over(host: Host) -> PrimaryGuard:
    """The primary is dead: its backup goes on, and is protected by nothing yet."""
    made: list[PrimaryGuard] = []
    assert host.standby is not None
    unit: Any = host.standby.unit
    other: Any = Host()
    took = host.standby.take_over(
        None, lambda guard, until: made.append(PrimaryGuard(unit, guard, other, until, TIMINGS))
    )
    assert took is not None
    return made[0]
