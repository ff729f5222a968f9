"""A protected unit, its backups, its upstream and its readers in one thread; chance says who does what next.

The machines (`ha.primary`, `ha.backup`), the queues and the coordinator's claims are the real ones. What the nodes do
with them is told again here, without threads, in the order of `node.primary`, `node.standby` and `node.unit`. Messages
get lost, repeated, late; any node may be held to be dead at any moment, rightly or not: a pause, a partition.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from copies import EACH, SCHEMA, SUMS, WINDOW, Item, State, Unit, append, needed, twin_of
from partners import Leader, Message, Reader, Standby

from borealis.coordinator.layout import UnitAssignment
from borealis.diagram.protection import Protection
from borealis.errors import GoneError
from borealis.ha.backup import Approach, Backup
from borealis.ha.primary import Active, Amnesia, Passive, Primary, Upstream
from borealis.streams.id_gaps import HOP, above
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.trains.commit_point import CommitPoint
from borealis.tuples import LAST_TIME
from borealis.wire.messages import Claim, Claimed

POLICIES: Mapping[str, type[Primary]] = {
    "amnesia": Amnesia,
    "passive": Passive,
    "active": Active,
    "upstream-backup": Upstream,
}
READER = "d.u1"


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
        self.landings: dict[str, list[int]] = {n: [] for n in inputs}  # where ids went on that were left out upstream
        self.acks: list[tuple[str, str, int]] = []  # on their way upstream
        self.messages: list[Message] = []
        self.answers: list[tuple[Message, str]] = []
        self.place = UnitAssignment(
            "u1", ("a",), tuple(inputs), (EACH, SUMS), "n1", protection=Protection(ha=approach, guarantee="gap")
        )
        self.nodes = 1
        unit = Unit(self, READER)
        self.leaders = [Leader(self, "n1", unit, 1)]
        self.standbys: list[Standby] = []
        self.protect()
        unit.start()

    # -- the machines

    def policy(self, first: CommitPoint) -> Primary:
        """node.primary.policy_of"""
        kind = self.machines.policies[self.approach]
        policy = kind(0.5, self.several, self.several, self.precise, first)
        if isinstance(policy, Upstream):
            policy.needed = lambda outputs: needed(outputs, self.inputs)
        return policy

    def make_backup(self, incarnation: int) -> Backup:
        return self.machines.backup(self.approach, self.several, self.several, self.precise, incarnation)

    # -- the coordinator

    def claim(self, what: Any, node: str, incarnation: int) -> Claimed:
        claim = Claim(what=what, diagram="d", unit="u1", node=node, incarnation=incarnation)
        then = self.place.after(claim)
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
            before: list[Leader | Standby] = [*self.leaders, *self.standbys]
            for old in before:
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

    def jump(self) -> None:
        """Whoever feeds the unit was taken over, and its ids go on elsewhere."""
        name = self.rng.choice(self.inputs)
        queue = self.upstream[name]
        if not queue.ended and queue.next_id not in self.landings[name]:
            queue.jump_to(above(queue.next_id))
            self.landings[name].append(queue.next_id)

    def pass_on(self, queues: Iterable[OutputQueue]) -> None:
        """What a unit does with its outputs where its input jumped: UnitRun._commit."""
        for queue in queues:
            queue.jump_to(above(queue.next_id, HOP))

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
            if message.to.alive and self._is_heard(message):
                self.answers.append((message, message.to.receive(message)))

    def _is_heard(self, message: Message) -> bool:
        """Whoever was replaced as a backup is dropped. One that runs in parallel must not begin anew for an old whole:
        it would, so here that comes in time or never."""
        if message.to in self.standbys and message.to is not self.standby:
            return False
        late = message.want.kind == "whole" and message is not message.sender.under_way
        return not (late and self.approach == "active")

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

    def fall_back(self) -> None:
        self.rng.choice(self.readers).fall_back()

    def work_well(self) -> None:
        """A train, and everything that follows from it, without any trouble."""
        self.now += 1.0
        leader, standby = self.leader, self.standby
        leader.unit.run_train(self.rng)
        while (message := leader.converse()) is not None:
            leader.answered(message, message.to.receive(message))
        if standby is not None and standby.unit.runs:
            standby.unit.run_train(self.rng)
            standby.unit.run_train(self.rng)
        for reader in self.readers:
            reader.read(leader, self.rng)
            reader.read(leader, self.rng)
            reader.save(leader)
        for ack in self.acks:
            self.upstream[ack[0]].ack(ack[1], 1, ack[2])
        self.acks.clear()

    def wait(self) -> None:
        self.now += self.rng.choice([0.1, 0.5, 2.0])

    def suspect_primary(self) -> None:
        """The backup hears nothing of its primary, who may be well: Guards.died."""
        standby = self.standby
        if standby is None or standby.backup.step is None:
            return
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
        leader.remove_backup()

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
            self.place = self.place.alone()
            leader.remove_backup()
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
                assert first <= over(queue, leader.unit.cursors[name].position), (
                    f"{leader.node} still has to read {first} of {name}"
                )
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
            assert least <= over(queue, begin), (
                f"{name} is let go of up to {least}, but {standby.node} would begin at {begin}"
            )

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
                self._check_jumps(reader)
                self._check_once(each, sums)

    def _check_jumps(self, reader: Reader) -> None:
        """Each jump upstream reaches each reader, once; two of several inputs may come together."""
        jumps = sum(map(len, self.landings.values()))
        for outlet, landings in reader.landings.items():
            assert len(landings) <= jumps, f"{reader.name} landed at {landings} of {outlet}"
            assert bool(landings) == bool(jumps), f"{reader.name} never heard of {self.landings}"
        if not self.several:
            assert len(reader.landings[EACH]) == jumps

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


def over(queue: OutputQueue, position: int) -> int:
    """Where a reader goes on that wants this id."""
    hole = queue._held.jumps.over(position)
    return position if hole is None else hole[1]
