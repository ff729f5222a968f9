"""The nodes in the model of the protocols: a primary, a backup, a reader, each in the order of the real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from copies import EACH, SUMS, Item, State, Unit, beyond, items_of, twin_of

from borealis.entry.admission import Cursor
from borealis.errors import StateError
from borealis.ha.backup import Resume
from borealis.ha.primary import Effects, Want
from borealis.streams.section import Place, Section
from borealis.streams.snapshot import QueueSnapshot
from borealis.trains.commit_point import CommitPoint
from borealis.tuples import FIRST_TIME, LAST_TIME

if TYPE_CHECKING:
    from protocol import World


# -- the primary: node.primary


@dataclass(frozen=True)
class Message:
    """A parcel on its way."""

    sender: Leader
    to: Standby
    incarnation: int
    want: Want
    acks: Mapping[str, Mapping[str, tuple[int, int]]]
    state: State = field(default_factory=dict)
    queues: Mapping[str, QueueSnapshot] = field(default_factory=dict)


class Leader:
    """PrimaryGuard, and the unit it guards; may be deposed and not know it."""

    def __init__(self, world: World, node: str, unit: Unit, incarnation: int) -> None:
        self.world, self.node, self.unit, self.incarnation = world, node, unit, incarnation
        self.policy = world.policy(unit.step())
        self.partner: Standby | None = None
        self.alive = True  # neither dead nor stepped down
        self.under_way: Message | None = None  # it waits for the answer
        self.deltas: list[tuple[int, State]] = []
        self.shown: Mapping[str, Place] = {}
        for queue in unit.queues.values():
            queue.incarnation = incarnation
        unit.deferred, unit.watch = True, self.committed

    def join(self, partner: Standby) -> None:
        """_join"""
        self.partner = partner
        self.do(self.policy.join())
        self.deltas.clear()
        if self.policy.holding:
            for queue in self.unit.queues.values():
                queue.hold()
                queue.release((queue.next_id, queue.boundary))

    def remove_backup(self) -> None:
        """_remove_backup"""
        self.partner = None
        self.do(self.policy.remove_backup())
        self.deltas.clear()
        if self.world.approach == "active":
            self.world.forget(twin_of(self.unit.reader))

    def committed(self, step: CommitPoint, changed: State) -> None:
        """_committed"""
        if self.world.approach == "passive" and self.policy.joined:
            self.deltas.append((step.train, changed))
        self.do(self.policy.committed(step))

    def do(self, effects: Effects) -> None:
        """_do: acknowledge, open, release."""
        for name, position in effects.ack.items():
            self.unit.acknowledge(name, position)
        if effects.open:
            for queue in self.unit.queues.values():
                if queue.held:
                    queue.release(None)
        for name, place in (effects.release or {}).items():
            self.unit.queues[name].release(place)

    def converse(self) -> Message | None:
        """_converse, up to where the message is sent."""
        received = {name: queue.pushed() for name, queue in self.unit.queues.items()}
        if not self.policy.joined:
            self.do(self.policy.tick(self.world.now, received))
            return None
        want = self.policy.want(self.world.now, received)
        if want is None:
            return None
        assert self.partner is not None
        self.under_way = self._composed(want, self.partner)
        return self.under_way

    def _composed(self, want: Want, partner: Standby) -> Message:
        """_composing"""
        queues = self.unit.queues
        base = (self, partner, self.incarnation, want, {name: queue.acks() for name, queue in queues.items()})
        if want.kind == "whole" and self.policy.needs_state:
            return Message(*base, dict(self.unit.state), {name: queue.snapshot() for name, queue in queues.items()})
        if want.kind == "delta":
            merged: State = {}
            for train, changed in self.deltas:
                merged |= changed if train > want.since else {}
            return Message(*base, merged, {name: queue.since(self.shown[name]) for name, queue in queues.items()})
        return Message(*base)

    def answered(self, message: Message, said: str) -> None:
        """_answered; an answer that nobody waits for any more reaches only the machine."""
        if not self.alive:
            return
        if message is not self.under_way:
            self.do(self.policy.acknowledged(message.want.number) if said in ("take", "known") else Effects())
            return
        self.under_way = None
        if said == "deposed":
            self.alive = False
        elif said in ("take", "known"):
            self.do(self.policy.acknowledged(message.want.number))
            self.deltas = [d for d in self.deltas if d[0] > message.want.step.train]
            self.shown = message.want.step.outputs
        elif said == "whole":
            self.policy.rejected()
        else:
            self.policy.failed()

    def give_up_waiting(self) -> None:
        """No answer came."""
        self.under_way = None
        self.policy.failed()


# -- the backup: node.standby


class Standby:
    """A backup of the unit, as long as it is none itself."""

    def __init__(self, world: World, node: str, incarnation: int, reader: str) -> None:
        self.world, self.node, self.alive = world, node, True
        self.unit = Unit(world, reader)
        self.backup = world.make_backup(incarnation)
        self.followed = 0
        for queue in self.unit.queues.values():
            queue.incarnation = incarnation
            queue.hold()
        self.unit.deferred = world.approach != "active"

    def receive(self, message: Message) -> str:
        """A parcel has come, perhaps not for the first time."""
        if message.want.kind == "whole" and self.unit.runs and not self.backup.taken_over:
            self.world.carry_acks_of(self.unit.reader)
            self.__init__(self.world, self.node, self.backup.incarnation, self.unit.reader)  # type: ignore[misc]
            return "busy"
        said = self.backup.receive(message.incarnation, message.want)
        if said == "take":
            try:
                self._take(message, message.want)
            except StateError:
                self.backup.step = None
                return "whole"
        return said

    def _take(self, message: Message, want: Want) -> None:
        for name, snapshot in message.queues.items():
            self.unit.queues[name].apply(snapshot)
        if want.kind == "delta":
            self.unit.load(want.step, {k: v for k, v in (self.unit.state | message.state).items() if v})
        elif want.kind == "whole" and self.world.approach in ("passive", "active"):
            self.unit.load(want.step, message.state)
        if self.world.approach == "active":
            self._keep_up(message, want)

    def _keep_up(self, message: Message, want: Want) -> None:
        for name, readers in message.acks.items():
            self.unit.queues[name].raise_acks(readers)
        if want.kind == "whole":
            for name, position in want.step.positions().items():
                self.world.upstream[name].ack(self.unit.reader, 1, position)  # keep_from
            self.unit.resume(want.step)
            self.unit.following = self.backup.multi_input
            self.followed = want.step.train
            self.unit.start()
        if self.backup.multi_input:
            self.unit.replays.extend(self.backup.follow(want, self.followed))
            self.followed = max(self.followed, want.step.train)

    def take_over(self) -> Leader:
        """take_over, then Guards._take_over."""
        resume = self.backup.take_over()
        assert resume is not None
        for queue in self.unit.queues.values():
            queue.incarnation = self.backup.incarnation
        if self.world.approach == "active" and self.unit.runs:
            self._lead(resume)
        else:
            self._resume(resume)
        for queue in self.unit.queues.values():
            queue.release(None)
        if not self.unit.runs:
            self.unit.start()
        leader = Leader(self.world, self.node, self.unit, self.backup.incarnation)
        leader.policy.until = resume.until
        return leader

    def _lead(self, resume: Resume) -> None:
        self.unit.jumps = resume.jump
        self.unit.following = False
        self.world.forget(twin_of(self.unit.reader))

    def _resume(self, resume: Resume) -> None:
        begin = resume.begin or self._present(resume)
        if self.world.approach in ("amnesia", "upstream-backup"):
            self.unit.load(begin, {})
            for name, place in resume.outputs.items():
                queue = self.unit.queues[name]
                if self.world.approach == "amnesia":  # readers that lack something before that go on there, too
                    queue.begin_at((0, place[1]))
                    queue.jump_to(beyond(queue, place[0]))
                else:
                    queue.begin_at(place)
        self.unit.resume(begin, resume.replays, jump=resume.jump and self.world.approach != "amnesia")

    def _present(self, resume: Resume) -> CommitPoint:
        ends = {name: (q.next_id, q.boundary) for name, q in self.world.upstream.items()}
        inputs = {n: Cursor(position=at, boundary=b, ended=b == LAST_TIME) for n, (at, b) in ends.items()}
        return CommitPoint(0, 0, inputs, resume.outputs)


# -- whoever reads the unit's outputs


@dataclass
class Reader:
    """Reads from whoever serves, never from a lower incarnation than it has seen, and remembers everything."""

    name: str
    places: dict[str, Place] = field(default_factory=lambda: dict.fromkeys((EACH, SUMS), (0, FIRST_TIME)))
    durable: dict[str, Place] = field(default_factory=lambda: dict.fromkeys((EACH, SUMS), (0, FIRST_TIME)))
    incarnation: int = 0
    seen: dict[str, dict[int, Item]] = field(default_factory=lambda: {EACH: {}, SUMS: {}})
    landings: dict[str, set[int]] = field(default_factory=lambda: {EACH: set(), SUMS: set()})  # behind jumps

    def read(self, leader: Leader, rng: Random) -> None:
        if leader.incarnation < self.incarnation:
            leader.alive = False  # Guards.deposed
            return
        self.incarnation = leader.incarnation
        for outlet, queue in leader.unit.queues.items():
            position, boundary = self.places[outlet]
            queue.register(self.name, position)
            part = queue.read(position, boundary, 0, rng.choice([1, 1 << 20]))
            if part is not None:
                self._take(outlet, part)
            queue.ack(self.name, 0, self.places[outlet][0])

    def _take(self, outlet: str, part: Section) -> None:
        if part.first != self.places[outlet][0]:
            self.landings[outlet].add(part.first)
        for behind, item in items_of(part):
            if item[1] is not None:
                known = self.seen[outlet].setdefault(behind - 1, item)
                assert known == item, f"{self.name} got tuple {behind - 1} of {outlet} as {known}, then as {item}"
            else:
                assert item[0] > self.places[outlet][1], (
                    f"boundary {item[0]} of {outlet} after {self.places[outlet][1]}"
                )
        self.places[outlet] = (part.stop, part.final)

    def save(self, leader: Leader) -> None:
        """It needs nothing before this any more."""
        if leader.incarnation >= self.incarnation:
            self.durable = dict(self.places)
            for outlet, queue in leader.unit.queues.items():
                queue.ack(self.name, 1, self.places[outlet][0])

    def fall_back(self) -> None:
        """It died, and goes on where it was durable."""
        self.places = dict(self.durable)
