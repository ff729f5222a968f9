"""A primary and the further copies of its unit: a thread for each sends what readers have, and hears it from there."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from borealis.errors import BorealisError
from borealis.ha.copies import FurtherCopies
from borealis.ha.primary import Primary, Want
from borealis.node.parcel import Acks
from borealis.wire.messages import Further, GuardAnswer

if TYPE_CHECKING:
    from borealis.node.guards import Guards
    from borealis.node.primary import GuardTimings, PrimaryGuard
    from borealis.threads import Lock

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
        self._waited_at: dict[str, float] = {}  # by node: when it last said that it waits to be corrected
        self.failures: dict[str, str] = {}  # by node: why it did not take what was sent last

    def stop(self) -> None:
        self._stopped.set()

    def follow(self, further: Further) -> None:
        """These are the further copies from now on."""
        owner, unit = self._owner, self._owner.unit
        if further == self._further:
            return
        with unit.run.between_trains(), self._lock:
            before, self._further = self._further, further
            stay = further.nodes.items() & before.nodes.items()
            effects = self.copies.are(dict(stay), unit.run.step())
            effects = self.copies.are(further.nodes, unit.run.step())
            owner.acknowledge(effects.ack)
            self.failures = {node: why for node, why in self.failures.items() if node in further.nodes}
        threads = unit.machine.threads
        for node, address in sorted(further.nodes.items() - stay):
            how = (node, address, self.copies.machines[node])
            threads.start(f"copy-{unit.order.unit}-{node}", partial(self._run, *how))
        if unit.feeds and further.given:
            threads.start(f"readers-{unit.order.unit}", partial(self._say_who_reads, further))

    def number(self, node: str) -> int | None:
        """That of the copy on a node."""
        return self._further.numbers.get(node)

    def forget(self, node: str, number: int | None) -> None:
        """The copy of this number that a node had reads nothing any more; there may be another by now."""
        if number is not None and self.number(node) == number:
            self.follow(self._further.without(node))

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

    def _run(self, node: str, address: str, machine: Primary) -> None:
        while not self._stopped.is_set() and self.copies.machines.get(node) is machine:
            try:
                self._converse(node, address, machine)
            except Exception:
                log.exception("the copy of %s on %s is not kept up to date", self._owner.unit.title, node)
            self._stopped.wait(min(self._owner.guard.interval_s, self._timings.tick_s))

    def _converse(self, node: str, address: str, machine: Primary) -> None:
        """Send what is due, and do what follows from the answer."""
        owner, unit = self._owner, self._owner.unit
        with unit.run.between_trains(), self._lock:
            received = {name: queue.pushed() for name, queue in unit.queues.items()}
            want = machine.want(unit.machine.clock.now(), received)
            compose = owner.composing(want) if want is not None else None
        if want is None or compose is None:
            return
        try:
            owner.check_size(want)
            within = self._timings.whole_s if want.kind == "whole" else self._timings.answer_s
            parcel = compose()
            answer = self._host.peers.at(address).say("guard", parcel, GuardAnswer, within=within)
        except BorealisError as error:
            with self._lock:
                machine.failed()
                self._failed(node, str(error))
            return
        if answer.verdict == "deposed":
            self._host.step_down(unit, "")
            return
        with self._lock:
            self._answered(node, machine, want, answer, parcel.acks)

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
            owner.acknowledge(self.copies.acknowledged(node, want.number).ack)
        elif answer.verdict == "whole":
            machine.rejected()
        else:
            machine.failed()
            self._failed(node, answer.why or answer.verdict)

    def _failed(self, node: str, why: str) -> None:
        if node not in self.failures:
            log.warning("%s: its copy on %s did not take a parcel: %s", self._owner.unit.title, node, why)
        self.failures[node] = why
