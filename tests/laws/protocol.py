"""A protected unit, its backups, its upstream and its readers in one thread; chance says who does what next.

The machines (`ha.primary`, `ha.backup`), the queues and the coordinator's claims are the real ones. What the nodes do
with them is told again here, without threads, in the order of `node.primary`, `node.standby` and `node.unit`. Messages
get lost, repeated, late; any node may be held to be dead at any moment, rightly or not: a pause, a partition.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.coordinator import claims
from borealis.coordinator.layout import Shield, UnitPlace
from borealis.emit.jumps import JUMP, above
from borealis.emit.queue import OutputQueue, QueueLimits
from borealis.emit.snapshot import QueueSnapshot
from borealis.errors import GoneError, StateError
from borealis.ha.backup import Approach, Backup, Resume
from borealis.ha.primary import Active, Amnesia, Passive, Primary, Upstream, Want
from borealis.ha.steps import Effects, Place, Step
from borealis.ingest.entry import Cursor
from borealis.ingest.input_manager import Passed, Script
from borealis.node.primary import twin_of
from borealis.section import Section, section
from borealis.tuples import FIRST_TIME, LAST_TIME
from borealis.wire.messages import Claim, Claimed

SCHEMA = pa.schema([("v", pa.string())])
WINDOW = 4  # in the same unit as the tuples' times
EACH, SUMS = "each", "sums"  # the unit's outlets: all tuples as they are, and what was in each window
POLICIES: Mapping[str, type[Primary]] = {
    "amnesia": Amnesia,
    "passive": Passive,
    "active": Active,
    "upstream-backup": Upstream,
}
READER = "d.u1"
State = dict[int, tuple[str, ...]]  # what is in each window that is open, by its end
Item = tuple[int, str | None]  # a tuple (time, value), or a boundary (time, None)


def append(queue: OutputQueue, items: Sequence[Item]) -> None:
    """Let tuples and boundaries follow in a queue."""
    rows = [(time, value) for time, value in items if value is not None]
    at, bounds, seen = [], [], 0
    for time, value in items:
        seen += value is not None
        if value is None:
            at.append(queue.next_id + seen)
            bounds.append(time)
    values = pa.record_batch([pa.array([value for _, value in rows], pa.string())], schema=SCHEMA)
    times = np.array([time for time, _ in rows], np.int64)
    where, what = np.array(at, np.int64), np.array(bounds, np.int64)
    part = section(queue.next_id, values, times, where, what).above(queue.boundary)
    if len(part) or len(part.bound):
        queue.append(replace(part, standing=queue.boundary))


def items_of(part: Section) -> list[tuple[int, Item]]:
    """Tuples and boundaries in their order, each with the id behind it."""
    values, found, bounds = part.rows["v"].to_pylist(), [], deque(zip(part.at.tolist(), part.bound.tolist(), strict=True))
    for number in range(part.first, part.stop + 1):
        while bounds and bounds[0][0] == number:
            found.append((number, (int(bounds.popleft()[1]), None)))
        if number < part.stop:
            index = number - part.first
            found.append((number + 1, (int(part.time[index]), values[index])))
    return found


def needed(outputs: Mapping[str, int], inputs: Sequence[str]) -> dict[str, int | None]:
    """As `ha.span.needed_after` has it for such a unit."""
    return dict.fromkeys(inputs, outputs[SUMS] - WINDOW)


# -- a unit on a node: node.unit, node.feeds


@dataclass
class Unit:
    """One copy of the unit: what it has computed, and where it stands."""

    world: World
    reader: str
    cursors: dict[str, Cursor] = field(init=False)
    queues: dict[str, OutputQueue] = field(init=False)
    state: State = field(default_factory=dict)
    train: int = 0
    passed: tuple[Passed, ...] = ()
    silent: bool = False  # the last train was
    deferred: bool = False
    runs: bool = False
    jumps: bool = False
    following: bool = False
    scripts: deque[Script] = field(default_factory=deque)
    acknowledged: dict[str, int] = field(default_factory=dict)
    watch: Callable[[Step, State], None] | None = None

    def __post_init__(self) -> None:
        self.cursors = {name: Cursor() for name in self.world.inputs}
        limits, readers = QueueLimits(keep_bytes=0), [r.name for r in self.world.readers]
        self.queues = {n: OutputQueue(n, SCHEMA, limits, readers=readers, epoch="e1") for n in (EACH, SUMS)}

    def step(self) -> Step:
        places = {name: (queue.next_id, queue.boundary) for name, queue in self.queues.items()}
        return Step(self.train, 0, dict(self.cursors), places, self.passed, self.world.now, self.silent)

    def start(self) -> None:
        """The feeds subscribe: StreamFeed.sections, _from_queue."""
        self.runs = True
        for name, queue in self.world.upstream.items():
            at = self.cursors[name].position
            self.acknowledged[name] = min(self.acknowledged.get(name, 0), at) if self.deferred else at
            queue.register(self.reader, at)
            queue.ack(self.reader, 1, self.acknowledged[name])

    def acknowledge(self, name: str, position: int) -> None:
        self.acknowledged[name] = max(position, self.acknowledged.get(name, 0))
        self.world.acks.append((name, self.reader, self.acknowledged[name]))

    def resume(self, begin: Step, scripts: Sequence[Script] = (), *, jump: bool = False) -> None:
        self.jumps = jump
        self.cursors, self.train = dict(begin.inputs), begin.train
        self.scripts.extend(scripts)
        self.following = False

    def load(self, step: Step, state: State) -> None:
        self.state, self.cursors, self.train = dict(state), dict(step.inputs), step.train

    def run_train(self, rng: Random) -> bool:
        """Make a train of what is there, and commit it."""
        if self.scripts or self.following:
            taken, silent = self._by_script(rng)
            free = False
        else:
            taken, silent, free = self._by_arrival(rng), False, True
        if taken:
            self._commit(taken, silent=silent, free=free)
        return bool(taken)

    def _by_arrival(self, rng: Random) -> list[tuple[str, int, Item]]:
        places = {name: (c.position, c.boundary) for name, c in self.cursors.items()}
        taken: list[tuple[str, int, Item]] = []
        for _ in range(rng.randint(1, 4)):
            name = rng.choice(self.world.inputs)
            found = self._there(name, places[name])[: rng.randint(1, 4)]
            taken += [(name, *event) for event in found]
            places[name] = _behind(places[name], found)
        return taken

    def _by_script(self, rng: Random) -> tuple[list[tuple[str, int, Item]], bool]:
        """A train does not go beyond a script, and may have to stop before its end."""
        taken: list[tuple[str, int, Item]] = []
        silent, room = False, rng.randint(1, 6)
        places = {name: (c.position, c.boundary) for name, c in self.cursors.items()}
        while self.scripts and not taken:
            script, left = self.scripts[0], deque(self.scripts[0].order)
            silent = script.silent
            while left:
                name, *to = left[0]
                found = [e for e in self._there(name, places[name]) if _behind(places[name], [e]) <= tuple(to)][:room]
                taken += [(name, *event) for event in found]
                room -= len(found)
                places[name] = _behind(places[name], found)
                if places[name] < tuple(to):
                    break
                left.popleft()
            self.scripts.popleft()
            if left:
                self.scripts.appendleft(Script(tuple(left), script.silent))
                break
        return taken, silent

    def _there(self, name: str, place: Place) -> list[tuple[int, Item]]:
        queue = self.world.upstream[name]
        if self.world.approach == "amnesia":  # a gap
            place = (max(place[0], queue.first_id), place[1])
        part = queue.read(*place, 0)  # raises a GoneError where something is missing
        return [] if part is None else items_of(part)

    def _commit(self, taken: list[tuple[str, int, Item]], *, silent: bool, free: bool) -> None:
        """UnitRun._commit: queues, then whoever watches, then the acknowledgements that nobody defers."""
        if self.jumps and free:
            self.jumps = False
            for queue in self.queues.values():
                queue.jump_to(_beyond(queue, queue.next_id))
        self.passed = _passed(taken, {name: (c.position, c.boundary) for name, c in self.cursors.items()})
        before, outputs = dict(self.state), self._compute(taken)
        for name, queue in self.queues.items():
            if not silent:
                append(queue, outputs[name])
        self.train, self.silent = self.train + 1, silent
        changed = {end: self.state.get(end, ()) for end in before | self.state if before.get(end) != self.state.get(end)}
        if self.watch is not None:
            self.watch(self.step(), changed)
        for name, cursor in self.cursors.items():
            if not self.deferred:
                self.acknowledge(name, cursor.position)

    def _compute(self, taken: list[tuple[str, int, Item]]) -> dict[str, list[Item]]:
        """What the unit is: a pure function of the order of its input."""
        found: dict[str, list[Item]] = {EACH: [], SUMS: []}
        for name, behind, (time, value) in taken:
            cursor = self.cursors[name]
            if value is not None:
                self.cursors[name] = replace(cursor, position=behind, newest=max(cursor.newest, time))
                found[EACH].append((time, value))
                end = (time // WINDOW + 1) * WINDOW
                self.state[end] = (*self.state.get(end, ()), value)
                continue
            self.cursors[name] = replace(cursor, boundary=time, ended=time == LAST_TIME)
            least = min(c.boundary for c in self.cursors.values())
            for end in sorted(end for end in self.state if end <= least):
                found[SUMS].append((end - 1, f"{end}:" + " ".join(self.state.pop(end))))
            for items in found.values():
                items.append((least, None))
        return {name: _rising(items) for name, items in found.items()}


def _beyond(queue: OutputQueue, last: int) -> int:
    """Where ids go on after a takeover: not where they went on after an earlier one that this copy may not know of."""
    return above(max(last, (queue.incarnation - 1) * JUMP - 1))


def _behind(place: Place, events: Sequence[tuple[int, Item]]) -> Place:
    for behind, (time, value) in events:
        place = (behind, place[1] if value is not None else time)
    return place


def _passed(taken: list[tuple[str, int, Item]], places: dict[str, Place]) -> tuple[Passed, ...]:
    """input_manager._passed: the places where the merge went from one input to another."""
    found: list[Passed] = []
    for name, *event in taken:
        places[name] = _behind(places[name], [tuple(event)])  # type: ignore[list-item]
        if found and found[-1][0] == name:
            found.pop()
        found.append((name, *places[name]))
    return tuple(found)


def _rising(items: Sequence[Item]) -> list[Item]:
    """Without the boundaries that say nothing new."""
    found, highest = list[Item](), FIRST_TIME
    for time, value in items:
        if value is None and time <= highest:
            continue
        highest = time if value is None else highest
        found.append((time, value))
    return found


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

    def desert(self) -> None:
        """_desert"""
        self.partner = None
        self.do(self.policy.desert())
        self.deltas.clear()
        if self.world.approach == "active":
            self.world.forget(twin_of(self.unit.reader))

    def committed(self, step: Step, changed: State) -> None:
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
            self.unit.queues[name].absorb(snapshot)
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
            self.unit.following = self.backup.several
            self.followed = want.step.train
            self.unit.start()
        if self.backup.several:
            self.unit.scripts.extend(self.backup.follow(want, self.followed))
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
        if isinstance(leader.policy, Upstream):
            leader.policy.rebuilding = any(script.silent for script in resume.scripts)
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
                    queue.jump_to(_beyond(queue, place[0]))
                else:
                    queue.begin_at(place)
        self.unit.resume(begin, resume.scripts, jump=resume.jump and self.world.approach != "amnesia")

    def _present(self, resume: Resume) -> Step:
        ends = {name: (q.next_id, q.boundary) for name, q in self.world.upstream.items()}
        inputs = {n: Cursor(position=at, boundary=b, ended=b == LAST_TIME) for n, (at, b) in ends.items()}
        return Step(0, 0, inputs, resume.outputs)


# -- whoever reads the unit's outputs


@dataclass
class Reader:
    """Reads from whoever serves, never from a lower incarnation than it has seen, and remembers everything."""

    name: str
    places: dict[str, Place] = field(default_factory=lambda: dict.fromkeys((EACH, SUMS), (0, FIRST_TIME)))
    durable: dict[str, Place] = field(default_factory=lambda: dict.fromkeys((EACH, SUMS), (0, FIRST_TIME)))
    incarnation: int = 0
    seen: dict[str, dict[int, Item]] = field(default_factory=lambda: {EACH: {}, SUMS: {}})
    jumped: int = 0

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
        self.jumped += part.first != self.places[outlet][0]
        for behind, item in items_of(part):
            if item[1] is not None:
                known = self.seen[outlet].setdefault(behind - 1, item)
                assert known == item, f"{self.name} got tuple {behind - 1} of {outlet} as {known}, then as {item}"
            else:
                assert item[0] > self.places[outlet][1], f"boundary {item[0]} of {outlet} after {self.places[outlet][1]}"
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


# -- all of them


@dataclass(frozen=True)
class Machines:
    """What is under test; a law that cannot fail proves nothing, so others can be put in their place."""

    policies: Mapping[str, type[Primary]] = field(default_factory=lambda: POLICIES)
    backup: type[Backup] = Backup


class World:
    """A protected unit and all around it."""

    def __init__(
        self, approach: Approach, *, precise: bool, inputs: Sequence[str], rng: Random, machines: Machines | None = None
    ) -> None:
        self.approach, self.precise, self.inputs, self.rng = approach, precise, list(inputs), rng
        self.machines = machines or Machines()
        self.several = len(inputs) > 1
        self.now = 0.0
        self.readers = [Reader("d.u2"), Reader("d.u3")]
        names = [READER, twin_of(READER)] if approach == "active" else [READER]
        limits = QueueLimits(keep_bytes=0)
        self.upstream = {n: OutputQueue(n, SCHEMA, limits, readers=names, epoch="e0") for n in inputs}
        self.published: dict[str, list[Item]] = {n: [] for n in inputs}
        self.acks: list[tuple[str, str, int]] = []  # on their way upstream
        self.messages: list[Message] = []
        self.answers: list[tuple[Message, str]] = []
        self.place = UnitPlace("u1", (), tuple(inputs), (EACH, SUMS), "n1", protection=Shield(approach, "gap"))
        self.nodes = 1
        unit = Unit(self, READER)
        self.leaders = [Leader(self, "n1", unit, 1)]
        self.standbys: list[Standby] = []
        self.protect()
        unit.start()

    # -- the machines

    def policy(self, first: Step) -> Primary:
        """node.primary.policy_of"""
        kind = self.machines.policies[self.approach]
        common: Any = (0.5, self.several, self.several, self.precise, first)
        if issubclass(kind, Upstream):
            return kind(*common, needed=lambda outputs: needed(outputs, self.inputs))
        return kind(*common)

    def make_backup(self, incarnation: int) -> Backup:
        return self.machines.backup(self.approach, self.several, self.several, self.precise, incarnation)

    # -- the coordinator

    def claim(self, what: Any, node: str, incarnation: int) -> Claimed:
        claim = Claim(what=what, diagram="d", unit="u1", node=node, incarnation=incarnation)
        then = claims.after(self.place, claim)
        self.place = then or self.place
        return Claimed(granted=then is not None, incarnation=self.place.incarnation)

    @property
    def leader(self) -> Leader:
        """Who runs the unit, as the coordinator has it."""
        return next(one for one in self.leaders if one.node == self.place.node)

    @property
    def standby(self) -> Standby | None:
        """Who stands by, as the coordinator has it."""
        return next((s for s in self.standbys if s.node == self.place.backup and s.alive), None)

    def protect(self) -> None:
        """A node stands by from now on: protecting.protect."""
        if self.place.backup is not None or not self.leader.alive:
            return
        self.nodes += 1
        node = f"n{self.nodes}"
        self.place = replace(self.place, backup=node, was=None)
        other = twin_of(self.leader.unit.reader) if self.approach == "active" else READER
        if self.approach == "active":  # who had the name before is gone by then
            self.carry_acks_of(other)
            for old in [*self.leaders, *self.standbys]:
                old.alive = old.alive and old.unit.reader != other
        self.standbys.append(Standby(self, node, self.place.incarnation, other))
        self.leader.join(self.standbys[-1])

    # -- what may happen

    def publish(self) -> None:
        """Some tuples with rising times, and boundaries that hold."""
        for name, queue in self.upstream.items():
            if queue.ended or self.rng.random() < 0.3:
                continue
            items: list[Item] = []
            for _ in range(self.rng.randint(1, 3)):
                at = len(self.published[name])
                if self.rng.random() < 0.3:
                    items.append((at, None))
                items.append((at + self.rng.randint(0, 2), f"{name}{at}"))
                self.published[name].append(items[-1])
            append(queue, items)

    def run_train(self) -> None:
        """Whoever runs, also in parallel; a deposed one may find that nothing is kept for it any more, and ends."""
        running: list[Leader | Standby] = [one for one in self.leaders if one.alive]
        running += [s for s in self.standbys if s.alive and s.unit.runs]
        if not running:
            return
        who = self.rng.choice(running)
        try:
            who.unit.run_train(self.rng)
        except GoneError:
            if who in (self.leader, self.standby):
                raise
            who.alive = False

    def converse(self) -> None:
        for leader in self.leaders:
            if leader.alive and leader.under_way is None and (message := leader.converse()) is not None:
                self.messages.append(message)

    def deliver(self) -> None:
        """Any message, which may come again."""
        if self.messages:
            message = self.rng.choice(self.messages)
            if self.rng.random() < 0.8:
                self.messages.remove(message)
            if message.to.alive and (message.to is self.standby or message.to not in self.standbys):
                self.answers.append((message, message.to.receive(message)))

    def answer(self) -> None:
        """Any answer, which may come again or never."""
        if self.answers:
            answer = self.rng.choice(self.answers)
            if self.rng.random() < 0.8:
                self.answers.remove(answer)
            answer[0].sender.answered(*answer)

    def miss(self) -> None:
        """Someone waits no longer for an answer."""
        for leader in self.leaders:
            if leader.alive and leader.under_way is not None:
                leader.give_up_waiting()

    def carry_ack(self) -> None:
        """An acknowledgement arrives upstream, whoever sent it; again, late, after newer ones."""
        if self.acks:
            ack = self.rng.choice(self.acks)
            if self.rng.random() < 0.8:
                self.acks.remove(ack)
            self.upstream[ack[0]].ack(ack[1], 1, ack[2])

    def carry_acks_of(self, reader: str) -> None:
        """All that are under way from whoever has this name."""
        for ack in [a for a in self.acks if a[1] == reader]:
            self.acks.remove(ack)
            self.upstream[ack[0]].ack(ack[1], 1, ack[2])

    def read(self) -> None:
        serving = [one for one in self.leaders if one.alive]
        if serving:
            self.rng.choice(self.readers).read(self.rng.choice(serving), self.rng)

    def save(self) -> None:
        serving = [one for one in self.leaders if one.alive]
        if serving:
            self.rng.choice(self.readers).save(self.rng.choice(serving))

    def wait(self) -> None:
        self.now += self.rng.choice([0.1, 0.5, 2.0])

    def suspect_primary(self) -> None:
        """The backup hears nothing of its primary, who may be well: Guards.died."""
        standby = self.standby
        if standby is not None and standby.backup.step is not None:
            if self.claim("take over", standby.node, standby.backup.incarnation + 1).granted:
                self.standbys.remove(standby)
                self.leaders.append(standby.take_over())

    def suspect_backup(self) -> None:
        """A primary, perhaps a deposed one, hears nothing of its backup: _partner_died."""
        leader = self.rng.choice(self.leaders)
        if not leader.alive or leader.partner is None:
            return
        claimed = self.claim("alone", leader.node, leader.incarnation)
        if not claimed.granted and claimed.incarnation > leader.incarnation:
            leader.alive = False
            return
        leader.desert()

    def kill_primary(self) -> None:
        """Only what is protected may die."""
        standby = self.standby
        if standby is not None and standby.backup.step is not None:
            self.leader.alive = False

    def kill_backup(self) -> None:
        """Only if the primary lives."""
        if self.standby is not None and self.leader.alive:
            self.standby.alive = False

    def forget(self, reader: str) -> None:
        """Guards.forget_reader; here at once."""
        for queue in self.upstream.values():
            queue.forget(reader)

    # -- how it ends

    def finish(self) -> None:
        """No more trouble: everything that was published is computed, released and read."""
        for name, queue in self.upstream.items():
            append(queue, [(LAST_TIME, None)])
            assert queue.ended, name
        if not self.leader.alive:
            self.suspect_primary()
        leader = self.leader
        if self.standby is None and leader.partner is not None:
            self.place = claims.alone(self.place)
            leader.desert()
        for other in self.leaders:
            other.alive = other is leader
        self._run_out(leader)
        for reader in self.readers:
            for _ in range(10_000):
                before = dict(reader.places)
                reader.read(leader, self.rng)
                if reader.places == before:
                    break
        self._run_out(leader)
        for name, who, upto in self.acks:
            self.upstream[name].ack(who, 1, upto)

    def _run_out(self, leader: Leader) -> None:
        quiet = 0
        while quiet < 8:
            quiet = 0 if leader.unit.run_train(self.rng) else quiet + 1
            if self.standby is not None and self.standby.unit.runs:
                quiet = 0 if self.standby.unit.run_train(self.rng) else quiet
            self.now += 1.0
            if leader.under_way is not None:
                leader.give_up_waiting()
            message = leader.converse()
            if message is not None and message.to.alive:
                leader.answered(message, message.to.receive(message))

    # -- what must hold

    def check(self) -> None:
        """After every step."""
        serving = [one.incarnation for one in self.leaders if one.alive]
        assert len(serving) == len(set(serving)), f"two serve under one incarnation: {serving}"
        self._check_upstream()

    def _check_upstream(self) -> None:
        """Upstream has what whoever goes on next needs, also when all acknowledgements have arrived."""
        standby, leader = self.standby, self.leader
        for name, queue in self.upstream.items():
            first = queue.first_id
            if self.approach == "amnesia":
                continue
            if leader.alive:
                assert first <= leader.unit.cursors[name].position, f"{leader.node} still has to read {first} of {name}"
            if standby is None or standby.backup.step is None:
                continue
            if standby.unit.runs:
                begin, least = standby.unit.cursors[name].position, first
            else:
                resume = copy.deepcopy(standby.backup).take_over()
                assert resume is not None
                assert resume.begin is not None
                begin = resume.begin.inputs[name].position
                mine = [upto for n, who, upto in self.acks if n == name and who == standby.unit.reader]
                least = max([first, *mine])
            assert least <= begin, f"{name} is let go of up to {least}, but {standby.node} would begin at {begin}"

    def check_end(self) -> None:
        """When everything has been read."""
        if self.approach == "amnesia":
            return
        for reader in self.readers:
            each = [item for _, item in sorted(reader.seen[EACH].items())]
            sums = [str(value) for _, (_, value) in sorted(reader.seen[SUMS].items())]
            self._check_complete(each, sums)
            assert all(at[1] == LAST_TIME for at in reader.places.values()), f"{reader.name} waits at {reader.places}"
            if self.precise or not self.several:
                assert not reader.jumped
                self._check_once(each, sums)

    def _check_complete(self, each: list[Item], sums: list[str]) -> None:
        """Nothing is lost, and no window is wrong, however often it came."""
        everything = [item for items in self.published.values() for item in items]
        assert set(everything) <= set(each), f"lost: {sorted(set(everything) - set(each), key=str)}"
        wanted: dict[str, set[str]] = {}
        for time, value in everything:
            wanted.setdefault(str((time // WINDOW + 1) * WINDOW), set()).add(str(value))
        found = {end: set(values.split()) for end, _, values in (one.partition(":") for one in sums)}
        assert found == wanted
        assert all(set(one.partition(":")[2].split()) == wanted[one.partition(":")[0]] for one in sums)

    def _check_once(self, each: list[Item], sums: list[str]) -> None:
        """Nothing twice; each input in its order; and windows made of tuples in the very order that was seen."""
        for name, items in self.published.items():
            assert [item for item in each if str(item[1]).startswith(name)] == items
        windows: State = {}
        for time, value in each:
            end = (time // WINDOW + 1) * WINDOW
            windows[end] = (*windows.get(end, ()), str(value))
        assert sums == [f"{end}:" + " ".join(windows[end]) for end in sorted(windows)]
