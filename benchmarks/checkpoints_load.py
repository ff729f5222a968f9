"""A model of servers that checkpoint their units in idle moments, as load grows (Hwang, figures 4.6 and 4.7).

Five servers run eight units each: four of type 1, which take most of the processor, and four of type 2, which change
state at a similar pace and do little else. A capture stops processing; what came meanwhile is a burst behind it. A
paste gives way to processing. What a capture and a paste of so many bytes take is learnt from real ones
(`checkpoints_chain.py`), and who is captured when is said by the machine that nodes use (`ha.min_max.Turns`), or by a
baseline: all units as one, or one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

from borealis.ha.min_max import Costs, Turns

Method = Literal["whole", "round-robin", "min-max"]
METHODS: tuple[Method, ...] = ("whole", "round-robin", "min-max")
SERVERS, OF_A_TYPE = 5, 4
HEAVIER = 20  # a unit of type 1 has so many times the load of one of type 2
BYTES_PER_S = {1: 1_000_000, 2: 500_000}  # of state that changes
BYTES_MOST = {1: 10_000_000, 2: 500_000}  # when all of it has changed
TICK_S = 0.001
SOONEST_S = 0.05  # between two checkpoints of a unit
WARM_S = 5.0


@dataclass
class Unit:
    """A checkpoint unit: its load, and where its backup is."""

    name: str
    kind: int
    load: float
    backup: int
    captured_at: float = 0.0  # when the capture began that its backup has
    sent_at: float = 0.0  # when the last one began
    under_way: bool = False

    def size(self, now: float) -> int:
        return int(min(BYTES_PER_S[self.kind] * (now - self.sent_at), BYTES_MOST[self.kind]))


@dataclass
class Paste:
    """A checkpoint that has come, and what is left of taking it in."""

    server: Server
    units: list[Unit]
    began: float
    left_s: float
    cost_s: float


@dataclass
class Server:
    """One processor, and what waits for it."""

    number: int
    units: list[Unit]
    turns: Turns = field(default_factory=Turns)
    backlog_s: float = 0.0  # of processing
    capture_left_s: float = 0.0
    capturing: list[Unit] = field(default_factory=list)
    pastes: deque[Paste] = field(default_factory=deque)
    next: int = 0
    spike_s: float = 0.0

    def recovery_s(self, now: float, pending: dict[str, float]) -> float:
        """What the slowest of the others would take to come to where this one is."""
        found = dict.fromkeys(range(SERVERS), 0.0)
        for unit in self.units:
            since = unit.sent_at if unit.name in pending else unit.captured_at
            found[unit.backup] += unit.load * (now - since) + pending.get(unit.name, 0.0)
        return max(found.values())


class Model:
    """All servers under one method and one load."""

    def __init__(self, method: Method, load: float, capture: Costs, paste: Costs) -> None:
        self.method, self.capture, self.paste = method, capture, paste
        light = load / OF_A_TYPE / (HEAVIER + 1)
        self.now = 0.0
        self.servers = []
        for number in range(SERVERS):
            others = [n for n in range(SERVERS) if n != number]
            units = []
            for n in range(2 * OF_A_TYPE):
                kind = 1 + n % 2
                backup = others[0] if method == "whole" else others[n // 2 % len(others)]
                units.append(Unit(f"{number}.{n}", kind, light * (HEAVIER if kind == 1 else 1), backup))
            self.servers.append(Server(number, units))
            for unit in units:
                self.servers[-1].turns.join(unit.name, str(unit.backup), SOONEST_S, 0.0)

    def play(self, seconds: float) -> tuple[float, float]:
        """The mean expected recovery time, and how late results were at worst."""
        found: list[float] = []
        ticks = round(seconds / TICK_S)
        for tick in range(ticks):
            self.now = tick * TICK_S
            if self.now >= WARM_S and not found:
                for server in self.servers:
                    server.spike_s = 0.0
            for server in self.servers:
                self._step(server)
            if self.now >= WARM_S and tick % 20 == 0:
                pending = {u.name: p.left_s for s in self.servers for p in s.pastes for u in p.units}
                found += [server.recovery_s(self.now, pending) for server in self.servers]
        return sum(found) / len(found), max(server.spike_s for server in self.servers)

    def _step(self, server: Server) -> None:
        for unit in server.units:
            server.turns.worked(unit.name, unit.load * TICK_S, int(BYTES_PER_S[unit.kind] * TICK_S))
        server.backlog_s += sum(unit.load for unit in server.units) * TICK_S
        left = TICK_S
        if server.capturing:
            used = min(left, server.capture_left_s)
            server.capture_left_s -= used
            left -= used
            if server.capture_left_s <= 0:
                self._send(server)
        server.spike_s = max(server.spike_s, server.backlog_s + server.capture_left_s)
        used = min(left, server.backlog_s)
        server.backlog_s, left = server.backlog_s - used, left - used
        if left > 0 and server.pastes:
            first = server.pastes[0]
            used = min(left, first.left_s)
            first.left_s, left = first.left_s - used, left - used
            if first.left_s <= 0:
                self._pasted(server.pastes.popleft())
        if left > 0 and not server.capturing:
            self._begin(server)

    def _begin(self, server: Server) -> None:
        units = self._chosen(server)
        if not units:
            return
        sizes = sum(unit.size(self.now) for unit in units)
        server.capturing, server.capture_left_s = units, self.capture.seconds(sizes)
        for unit in units:
            unit.under_way = True
            server.turns.captured(unit.name, self.now, self.capture.seconds(unit.size(self.now)))

    def _chosen(self, server: Server) -> list[Unit]:
        ready = [u for u in server.units if not u.under_way and self.now - u.sent_at >= SOONEST_S]
        if self.method == "whole":
            return ready if len(ready) == len(server.units) else []
        if self.method == "min-max":
            name: Hashable | None = server.turns.next(self.now)
            return [unit for unit in ready if unit.name == name]
        if not ready:
            return []
        server.next += 1
        return [ready[server.next % len(ready)]]

    def _send(self, server: Server) -> None:
        units, server.capturing = server.capturing, []
        began = self.now
        cost = self.paste.seconds(sum(unit.size(began) for unit in units))
        for unit in units:
            unit.sent_at = began
        there = self.servers[units[0].backup]
        there.pastes.append(Paste(server, units, began, cost, cost))

    def _pasted(self, paste: Paste) -> None:
        for unit in paste.units:
            unit.captured_at, unit.under_way = paste.began, False
            paste.server.turns.answered(unit.name, paste.cost_s / len(paste.units))


def active_recovery_s(load: float, seconds: float) -> float:
    """How far copies that run beside the primaries are behind, on average: they get what is left of a processor."""
    lag = max(0.0, load - (1 - load)) / load  # seconds of input a second
    return lag * load * (WARM_S + seconds) / 2
