"""Servers that checkpoint units onto each other in their idle moments: Hwang 4.1.4 and 4.8 as a simulation.

Simulated time only; what processing, captures and pastes cost is passed in. A server with load L that captures for c
seconds defers its tuples meanwhile, and has caught up, and is idle again, after c / (1 - L). A paste of c seconds is
done between tuples, and takes as long. A unit is captured again when its last message has been pasted.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

STEP_S = 0.1  # between two looks at what a death would take


@dataclass(frozen=True)
class Kind:
    """Units of a kind: the part of a server that they take, and what a checkpoint after x seconds costs either side."""

    name: str
    load: float
    capture_s: Callable[[float], float]
    paste_s: Callable[[float], float]


@dataclass
class Unit:
    """One unit, its primary and its backup, and how fresh its image is there."""

    number: int
    kind: Kind
    load: float
    primary: int
    backup: int = -1
    next_backup: int | None = None  # its next checkpoint is all there is, and goes there
    image_at: float = 0.0  # the image has all up to then, once what is pending is pasted
    waits: bool = True  # it can be captured
    waits_since: float = 0.0

    def since(self, now: float) -> float:
        return now - self.image_at

    def redo_s(self, now: float) -> float:
        """What its backup would have to process again (4.5)."""
        return self.load * self.since(now)


@dataclass(frozen=True)
class Message:
    """A checkpoint that has arrived and is not pasted yet."""

    unit: Unit
    cost_s: float
    came: float


@dataclass
class Server:
    """One server: what it runs, what it has to paste, and until when it is busy."""

    number: int
    units: list[Unit] = field(default_factory=list)
    inbox: list[Message] = field(default_factory=list)
    pasting: Message | None = None
    pasting_since: float = 0.0
    free_at: float = 0.0

    @property
    def load(self) -> float:
        return sum(unit.load for unit in self.units)


@dataclass(frozen=True)
class Capture:
    unit: Unit


@dataclass(frozen=True)
class Paste:
    message: Message


Task = Capture | Paste
Schedule = Callable[["Cluster", Server, float], Task | None]


class Cluster:
    """Some servers with units, and what their deaths would take."""

    def __init__(self, servers: Sequence[Server], schedule: Schedule) -> None:
        self.servers, self._schedule = list(servers), schedule
        self.now = 0.0
        self.captures = self.pastes = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    # -- time

    def run(self, until: float, look: Callable[[], None]) -> None:
        """Go on until then; `look` is called every so often."""
        self._at(self.now, lambda: self._look(look))
        for server in self.servers:
            self._at(self.now, lambda server=server: self._idle(server))  # type: ignore[misc]
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()
        self.now = until
        self._events.clear()

    def _at(self, when: float, do: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, do))

    def _look(self, look: Callable[[], None]) -> None:
        look()
        self._at(self.now + STEP_S, lambda: self._look(look))

    # -- what an idle server does

    def _idle(self, server: Server) -> None:
        if self.now < server.free_at:
            return
        match self._schedule(self, server, self.now):
            case Capture(unit):
                self._capture(server, unit)
            case Paste(message):
                self._paste(server, message)
            case None:
                return  # a message that comes, or one that is pasted elsewhere, wakes it

    def _busy(self, server: Server, cost_s: float) -> float:
        server.free_at = self.now + cost_s / (1.0 - server.load)
        self._at(server.free_at, lambda: self._idle(server))
        return server.free_at

    def _capture(self, server: Server, unit: Unit) -> None:
        self.captures += 1
        began, unit.waits = self.now, False
        since = unit.since(began) if unit.next_backup is None else WINDOW_S
        cost_s, paste_s = unit.kind.capture_s(since), unit.kind.paste_s(since)
        self._busy(server, cost_s)
        self._at(began + cost_s, lambda: self._arrived(unit, began, paste_s))

    def _arrived(self, unit: Unit, began: float, paste_s: float) -> None:
        if unit.next_backup is not None:
            unit.backup, unit.next_backup = unit.next_backup, None
        backup = self.servers[unit.backup]
        unit.image_at = began
        backup.inbox.append(Message(unit, paste_s, self.now))
        self._idle(backup)

    def _paste(self, server: Server, message: Message) -> None:
        self.pastes += 1
        server.inbox.remove(message)
        server.pasting, server.pasting_since = message, self.now
        self._at(self._busy(server, message.cost_s), lambda: self._pasted(server, message))

    def _pasted(self, server: Server, message: Message) -> None:
        server.pasting = None
        message.unit.waits, message.unit.waits_since = True, self.now
        self._idle(self.servers[message.unit.primary])

    # -- expected recovery (4.8)

    def consume_s(self, unit: Unit, now: float) -> float:
        """What its backup has of it that is not pasted (4.4)."""
        backup = self.servers[unit.backup]
        pending = sum(message.cost_s for message in backup.inbox if message.unit is unit)
        if backup.pasting is not None and backup.pasting.unit is unit:
            pending += max(0.0, backup.pasting.cost_s - (now - backup.pasting_since) * (1.0 - backup.load))
        return pending

    def unit_s(self, unit: Unit, now: float) -> float:
        return self.consume_s(unit, now) + unit.redo_s(now)

    def segment_s(self, primary: int, backup: int, now: float) -> float:
        """The share of one server in the death of another (4.2)."""
        return sum(self.unit_s(unit, now) for unit in self.servers[primary].units if unit.backup == backup)

    def shares_s(self, primary: int, now: float) -> dict[int, float]:
        found: dict[int, float] = {}
        for unit in self.servers[primary].units:
            found[unit.backup] = found.get(unit.backup, 0.0) + self.unit_s(unit, now)
        return found

    def recovery_s(self, now: float) -> float:
        """The mean over servers of what their death would take (4.1)."""
        worst = [max(self.shares_s(server.number, now).values(), default=0.0) for server in self.servers]
        return sum(worst) / len(worst)


# -- the units of Hwang 4.6.1: counts by address over windows of 10 s that begin every second, two to a unit

WINDOW_S, PAIR = 10.0, 2
CAPTURE_US, PASTE_US = (18.6, 7.3), (30.2, 7.2)  # of a new window and of one that changed, as measured there
MESSAGE_S = 0.001  # of any message, on either side: without it, checkpoints of nothing would be free
GROUPS_2 = 100  # addresses of the steady input, a tuple of each every second on average
DEARER_1 = 2.0  # the busy input's checkpoints cost about twice as much, with twenty times its rows


def windows(groups: int, seconds: float) -> tuple[float, float]:
    """So many are new after that time, and so many others have changed."""
    new = groups * (1 - math.exp(-1.0)) * min(seconds, WINDOW_S)
    touched = groups * (1 - math.exp(-seconds)) * WINDOW_S
    return min(new, touched), max(0.0, touched - new)


def cost(rates_us: tuple[float, float], times: float = 1.0) -> Callable[[float], float]:
    """Of a checkpoint after so many seconds."""

    def seconds(since: float) -> float:
        new, changed = windows(GROUPS_2, since)
        return MESSAGE_S + times * PAIR * (new * rates_us[0] + changed * rates_us[1]) / 1e6

    return seconds


BUSY = Kind("type 1", 0.168, cost(CAPTURE_US, DEARER_1), cost(PASTE_US, DEARER_1))
STEADY = Kind("type 2", 0.028, cost(CAPTURE_US), cost(PASTE_US))
