"""A primary and the further copies of its unit: a thread for each sends what it lacks, and hears from there.

A copy of checkpoints holds up what readers may have (see `ha.copies`). Its node is watched as that of the backup is;
when it is dead, or takes nothing, the primary goes on without it as soon as the coordinator counts on it no more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from borealis.diagram.protection import CHECKPOINTED, PARALLEL
from borealis.errors import BorealisError, FullError
from borealis.ha.copies import FurtherCopies
from borealis.ha.detector import Detector
from borealis.ha.primary import Effects, Primary, Want
from borealis.node.claiming import answer_to, pace_of
from borealis.node.parcel import Acks
from borealis.streams.section import Place
from borealis.tuples import FIRST_TIME
from borealis.wire.messages import Claim, Further, GuardAnswer

if TYPE_CHECKING:
    from borealis.node.guards import Guards
    from borealis.node.primary import GuardTimings, PrimaryGuard
    from borealis.threads import Event, Lock

SAY_AGAIN_S = 0.5  # until upstream that did not hear which copies read is told again

log = logging.getLogger("borealis.node")


class CopyLinks:
    """What a primary has to do with the further copies; none takes its place without the coordinator's word."""

    def __init__(
        self, owner: PrimaryGuard, copies: FurtherCopies, lock: Lock, host: Guards, timings: GuardTimings
    ) -> None:
        self._owner, self.copies = owner, copies
        self._lock, self._host, self._timings = lock, host, timings
        self._further = Further()
        self._stopped = host.machine.threads.event()
        self._waking: dict[str, Event] = {}  # by node: there may be something to send
        self._shown: dict[str, Mapping[str, Place]] = {}  # by node: outputs up to here are there
        self._waited_at: dict[str, float] = {}  # by node: when it last said that it waits to be corrected
        self.failures: dict[str, str] = {}  # by node: why it did not take what was sent last

    @property
    def gates(self) -> bool:
        """Whether readers wait for further copies: they are of checkpoints."""
        return self._owner.guard.approach in CHECKPOINTED

    def stop(self) -> None:
        self._stopped.set()
        self.wake()
        if self.gates:
            for address in self._further.nodes.values():
                self._host.watch.remove(address, self._died)

    def meet(self, further: Further) -> None:
        """These are there when the primary begins: it may follow another, from which they know the unit.

        To be called before its first train. Nothing is sent to them before `begin`.
        """
        if not self.gates:
            return
        self._further, unit = further, self._owner.unit
        if not further.nodes:
            return
        seen = {name: (queue.wanted(), FIRST_TIME) for name, queue in unit.queues.items()}
        self._owner.carry_out(self.copies.are(further.nodes, unit.run.step(), seen, fresh=False))

    def begin(self, further: Further) -> None:
        """Bring those up to date that there are; these, if nothing else was ordered meanwhile."""
        if not self.gates:
            self.follow(further)
        elif self._further.nodes:
            with self._lock:
                new = self._without_thread()
            self._start(new)

    def follow(self, further: Further) -> None:
        """These are the further copies from now on."""
        owner, unit = self._owner, self._owner.unit
        if further == self._further:
            return
        with unit.run.between_trains(), self._lock:
            before, self._further = self._further, further
            stay = {
                node: address
                for node, address in further.nodes.items() & before.nodes.items()
                if further.numbers.get(node) == before.numbers.get(node)
            }
            owner.carry_out(self.copies.are(stay, unit.run.step()))
            owner.carry_out(self.copies.are(further.nodes, unit.run.step()))
            self.failures = {node: why for node, why in self.failures.items() if node in further.nodes}
            gone = sorted(before.nodes.items() - stay.items())
            for node, _ in gone:
                self._waking.pop(node, None)
            new = self._without_thread()
        if self.gates:
            for _, address in gone:
                self._host.watch.remove(address, self._died)
        self._start(new)
        if owner.guard.approach in PARALLEL and unit.feeds and further.given:
            unit.machine.threads.start(f"readers-{unit.order.unit}", partial(self._say_who_reads, further))

    def _without_thread(self) -> list[tuple[str, str, Primary, Event]]:
        """Copies that nothing is sent to yet. Under the lock."""
        new = [(node, at) for node, at in sorted(self._further.nodes.items()) if node not in self._waking]
        self._waking |= {node: self._owner.unit.machine.threads.event() for node, _ in new}
        return [(node, address, self.copies.machines[node], self._waking[node]) for node, address in new]

    def _start(self, new: Iterable[tuple[str, str, Primary, Event]]) -> None:
        unit = self._owner.unit
        for how in new:
            unit.machine.threads.start(f"copy-{unit.order.unit}-{how[0]}", partial(self._run, *how))
            if self.gates:
                self._host.watch.add(how[1], pace_of(self._owner.guard), self._died)

    def has(self, node: str, further: Further) -> bool:
        """Whether a node has the same copy of checkpoints still: it may become the backup."""
        number = self.number(node)
        known = self.gates and number is not None and node in self.copies.machines
        return known and number == further.numbers.get(node)

    def promote(self, node: str) -> tuple[Primary, Mapping[str, Place], Effects]:
        """The machine of a copy that is the backup from now on, up to where it has outputs, and what follows."""
        machine, effects = self.copies.promote(node)
        self._host.watch.remove(self._further.nodes[node], self._died)
        nodes = {name: address for name, address in self._further.nodes.items() if name != node}
        self._further = self._further.model_copy(update={"nodes": nodes})
        if (waking := self._waking.pop(node, None)) is not None:
            waking.set()
        return machine, self._shown.pop(node, {}), effects

    # -- one that is gone

    def _died(self, address: str, dead: Detector) -> None:
        node = next((name for name, at in self._further.nodes.items() if at == address), None)
        if node is not None:
            self._give_up(node, self.number(node), "its node does not answer", dead)

    def _give_up(self, node: str, number: int | None, why: str, dead: Detector | None = None) -> None:
        """Go on without a copy, as soon as the coordinator does not count on it, or nothing of it can be left."""
        owner, (diagram, unit) = self._owner, self._owner.unit.key
        claim = Claim(
            what="without",
            diagram=diagram,
            unit=unit,
            node=self._host.name,
            process=self._host.process,
            incarnation=owner.guard.incarnation,
            copy_node=node,
            copy_number=number or 0,
        )
        while not self._stopped.is_set() and node in self._further.nodes and self.number(node) == number:
            answer = answer_to(claim, self._host.claim)
            if answer is not None and not answer.granted and answer.incarnation > owner.guard.incarnation:
                self._host.step_down(owner.unit, answer.address)
                return
            is_gone = answer.granted if answer is not None else dead is not None and dead.certain
            if is_gone:
                log.warning("%s goes on without its copy on %s: %s", owner.unit.title, node, why)
                self.forget(node, number)
                self._host.news()
                return
            self._owner.unit.machine.clock.sleep(self._timings.claim_s)

    def numbers(self) -> dict[str, int]:
        """Of the further copies that there are, by node."""
        return {node: n for node, n in self._further.numbers.items() if node in self.copies.machines}

    def number(self, node: str) -> int | None:
        """That of the copy on a node."""
        return self._further.numbers.get(node)

    def forget(self, node: str, number: int | None) -> None:
        """The copy of this number that a node had reads nothing any more; there may be another by now."""
        if number is not None and self.number(node) == number:
            self.follow(self._further.without(node))

    def wake(self, *, urgent: bool = False) -> None:
        """Send what is due at once; or only where something waits for that."""
        for node, waking in list(self._waking.items()):
            machine = self.copies.machines.get(node)
            if not urgent or (machine is not None and machine.urgent):
                waking.set()

    def hasten(self) -> None:
        """The backup is sent something: copies of checkpoints as well."""
        if self.gates:
            for machine in self.copies.machines.values():
                machine.hasten()
            self.wake()

    def waits(self, within_s: float) -> bool:
        """Whether one of them said just now that it waits for the primary to be corrected first."""
        now = self._owner.unit.machine.clock.now()
        return any(now - at < within_s for node, at in self._waited_at.items() if node in self._further.nodes)

    def _say_who_reads(self, further: Further) -> None:
        clock, owner = self._owner.unit.machine.clock, self._owner
        while not self._stopped.is_set() and self._further is further:
            if self._host.say_who_reads(owner.unit, further):
                return
            clock.sleep(SAY_AGAIN_S)

    def _run(self, node: str, address: str, machine: Primary, waking: Event) -> None:
        while not self._stopped.is_set() and self.copies.machines.get(node) is machine:
            waking.clear()
            try:
                self._converse(node, address, machine)
            except Exception:
                log.exception("the copy of %s on %s is not kept up to date", self._owner.unit.title, node)
            waking.wait(min(self._owner.guard.interval_s, self._timings.tick_s))

    def _converse(self, node: str, address: str, machine: Primary) -> None:
        """Send what is due, and do what follows from the answer."""
        owner, unit = self._owner, self._owner.unit
        if self.gates and owner.is_about_to_jump():
            return
        with unit.run.between_trains(), self._lock:
            if self.copies.machines.get(node) is not machine:
                return
            now = unit.machine.clock.now()
            want = machine.want(now, owner.received(machine, now))
            compose = owner.composing(want, self._shown.get(node, {})) if want is not None else None
        if want is None or compose is None:
            return
        try:
            owner.check_size(want)
            parcel, within = compose(), self._timings.within(want)
            answer = self._host.peers.at(address).say("guard", parcel, GuardAnswer, within=within)
        except BorealisError as error:
            with self._lock:
                if self.copies.machines.get(node) is machine:  # it may be the backup's by now
                    machine.failed()
                self._failed(node, str(error))
            if self.gates and isinstance(error, FullError):
                self._give_up(node, self.number(node), error.message)
            elif self.gates:
                self._stopped.wait(self._timings.retry_s)
            return
        if answer.verdict == "deposed":
            self._host.step_down(unit, "")
            return
        with unit.run.between_trains() if self.gates else nullcontext(), self._lock:
            self._answered(node, machine, want, answer, parcel.acks)
        if self.gates and answer.verdict in ("full", "failed"):
            self._give_up(node, self.number(node), f"it takes nothing: {answer.why}")

    def _answered(self, node: str, machine: Primary, want: Want, answer: GuardAnswer, told: Acks) -> None:
        owner = self._owner
        if self.copies.machines.get(node) is not machine:
            return  # of a copy that was
        if answer.verdict in ("take", "known"):
            self.failures.pop(node, None)
            if answer.waits:
                self._waited_at[node] = owner.unit.machine.clock.now()
            else:
                self._waited_at.pop(node, None)
            for name, readers in answer.acks.items():
                owner.unit.queues[name].raise_acks(readers, told[name])
            self._shown[node] = want.step.outputs
            fresh = not machine.known
            owner.carry_out(self.copies.acknowledged(node, want.number))
            owner.let_go()
            if self.gates and fresh and machine.known:
                self._host.news()
            if machine.waits_behind(want):
                self.wake(urgent=True)
        elif answer.verdict == "whole":
            machine.rejected()
        else:
            machine.failed()
            self._failed(node, answer.why or answer.verdict)

    def _failed(self, node: str, why: str) -> None:
        if node not in self.failures:
            log.warning("%s: its copy on %s did not take a parcel: %s", self._owner.unit.title, node, why)
        self.failures[node] = why
