"""Which nodes are there: a node that is silent for three heartbeats is not. Pure: time is passed in as a clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from borealis.clock import Clock
from borealis.coordinator.http_errors import AbsentError, MissingError, TakenError
from borealis.errors import did_you_mean
from borealis.streams.status import QueueStatus
from borealis.version import __version__
from borealis.wire.messages import NodeStatus, UnitStatus

RATE_S = 5.0  # rates are means over about so long
BEAT_LEAST_S = 0.5  # one that comes sooner after another is none of its own: it may have left as early


@dataclass(frozen=True)
class Member:
    """A node by its heartbeats, since its process began."""

    status: NodeStatus
    at: float  # when the last heartbeat came
    beats: int
    history: tuple[tuple[float, NodeStatus], ...]
    beaten: float = 0.0  # when the last came that counts

    @property
    def name(self) -> str:
        return self.status.node

    def unit(self, diagram: str, unit: str) -> UnitStatus | None:
        """What it says of a unit or an entry point, if it has it."""
        return next((u for u in self.parts() if u.diagram == diagram and u.unit == unit), None)

    def parts(self) -> list[UnitStatus]:
        """All it runs or stands by for."""
        return [*self.status.entries, *self.status.units]

    def queue(self, stream: str) -> QueueStatus | None:
        """What it says of a stream, if it serves it."""
        return next((q for q in self.status.queues if q.stream == stream), None)

    def diagrams(self) -> set[str]:
        return {part.diagram for part in self.parts()}

    def beat(self, status: NodeStatus, now: float) -> Member:
        history = [*self.history, (now, status)]
        while len(history) > 2 and history[1][0] <= now - RATE_S:
            history.pop(0)
        if now - self.beaten < BEAT_LEAST_S:
            return Member(status, now, self.beats, tuple(history), self.beaten)
        return Member(status, now, self.beats + 1, tuple(history), now)

    def guarded(self) -> list[tuple[str, str, str, str, int]]:
        """What changes when something is taken over, or gets or loses its backup."""
        return [
            (u.diagram, u.unit, u.state, u.guard.state, u.guard.incarnation)
            for u in self.parts()
            if u.guard is not None
        ]

    def unit_rates(self, diagram: str, unit: str) -> tuple[float, float, float]:
        """Rows in, rows out and trains a second; nothing while only one heartbeat shows the unit.

        What a backup showed before it took over was its primary's, and is not counted.
        """
        samples = self._samples(diagram, unit)
        return _rate(samples, "rows_in"), _rate(samples, "rows_out"), _rate(samples, "trains")

    def _samples(self, diagram: str, unit: str) -> list[tuple[float, UnitStatus]]:
        samples = [(at, u) for at, s in self.history for u in s.units if u.diagram == diagram and u.unit == unit]
        return [(at, u) for at, u in samples if (u.state == "standby") == (samples[-1][1].state == "standby")]

    def queue_rate(self, stream: str) -> float:
        """Tuples a second that a queue takes in; of one that began again only since then."""
        samples = [(at, q) for at, s in self.history for q in s.queues if q.stream == stream]
        return _rate([(at, q) for at, q in samples if q.epoch == samples[-1][1].epoch], "next_id")

    def busy(self) -> float:
        """Of each second the part that the node's trains take."""
        return round(sum(self.load(unit.diagram, unit.unit) for unit in self.status.units), 3)

    def load(self, diagram: str, unit: str) -> float:
        """Of each second the part that a unit's trains take."""
        return min(1.0, _rate(self._samples(diagram, unit), "busy_s"))  # one that waited long says more than it took


def _rate(samples: Sequence[tuple[float, object]], count: str) -> float:
    """Of a count between the first and the last sample."""
    if not samples or samples[-1][0] <= samples[0][0]:
        return 0.0
    (then_at, then), (now_at, now) = samples[0], samples[-1]
    return float(max(0, getattr(now, count) - getattr(then, count))) / (now_at - then_at)


class Membership:
    """The nodes by name. Any thread may read it, one at a time may change it."""

    def __init__(self, clock: Clock, dead_after_s: float) -> None:
        self._clock, self._dead_after_s = clock, dead_after_s
        self._members: dict[str, Member] = {}

    def heard(self, status: NodeStatus) -> bool:
        """Take a heartbeat; true if this process is new. Refused: another version, a name or an address in use."""
        check_version(status.node, status.version)
        now = self._clock.now()
        known = self._members.get(status.node)
        if known is not None and known.status.incarnation == status.incarnation:
            self._members[status.node] = known.beat(status, now)
            return False
        if (holder := self.holder(status)) is not None:
            other = holder.status
            what = f"the name '{status.node}'" if other.node == status.node else f"the address {status.address}"
            raise TakenError(
                f"{what} belongs to node '{other.node}', which is alive (pid {other.pid} on {other.host})",
                hint="give this node another, or stop that one",
            )
        self._members[status.node] = Member(status, now, 1, ((now, status),), now)
        return True

    def holder(self, status: NodeStatus) -> Member | None:
        """The living node that has the name or the address already that another process comes with."""
        for member in self.alive():
            other = member.status
            same_process = (other.node, other.incarnation) == (status.node, status.incarnation)
            if not same_process and (other.node == status.node or other.address == status.address):
                return member
        return None

    def lives(self, name: str) -> bool:
        """Whether the node has been heard lately."""
        silence = self.silent_for(name)
        return silence is not None and silence < self._dead_after_s

    def silent_for(self, name: str) -> float | None:
        """Seconds since its last heartbeat; None if it has never sent one."""
        member = self._members.get(name)
        return None if member is None else self._clock.now() - member.at

    def silence(self, name: str) -> str:
        """The same in words."""
        seconds = self.silent_for(name)
        return "has not come back yet" if seconds is None else f"has been silent for {seconds:.0f} s"

    def member(self, name: str) -> Member | None:
        """What is known of a node, alive or not."""
        return self._members.get(name)

    def if_alive(self, name: str | None) -> Member | None:
        return self._members.get(name) if name is not None and self.lives(name) else None

    def members(self) -> list[Member]:
        """All that were ever heard, by name."""
        return sorted(self._members.values(), key=lambda member: member.name)

    def alive(self) -> list[Member]:
        """The living, by name."""
        return [member for member in self.members() if self.lives(member.name)]

    def living(self, name: str, known: Iterable[str] = ()) -> Member:
        """The node, which must be alive; `known` are names of others that are not, or not yet."""
        if (member := self.if_alive(name)) is not None:
            return member
        if name not in self._members and name not in known:
            others = [member.name for member in self.alive()]
            listing = f"nodes are {', '.join(others)}" if others else "there is none"
            hint = did_you_mean(name, others) or "start it, or choose one that is there"
            raise MissingError(f"there is no node '{name}' ({listing})", hint=hint)
        raise AbsentError(f"node '{name}' {self.silence(name)}", hint="start it again, or choose another")

    def died(self, name: str, incarnation: str) -> None:
        """This process does not answer any more, whatever its heartbeats said."""
        member = self._members.get(name)
        if member is not None and member.status.incarnation == incarnation:
            self._members[name] = replace(member, at=min(member.at, self._clock.now() - self._dead_after_s))

    def forget(self, name: str) -> None:
        self._members.pop(name, None)


def check_version(node: str, version: str) -> None:
    if version != __version__:
        raise TakenError(
            f"node '{node}' is Borealis {version}, the coordinator is {__version__}",
            hint="run the same version everywhere",
        )
