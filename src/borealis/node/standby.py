"""A backup of a unit: takes parcels from its primary while that lives, and its place when it is dead."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from borealis.diagram.protection import PARALLEL
from borealis.entry.admission import Cursor
from borealis.errors import BorealisError, ClusterError, FullError, StateError
from borealis.ha.backup import Backup, Resume
from borealis.ha.detector import Detector
from borealis.ha.primary import Want
from borealis.node.feeds import keep_from
from borealis.node.parcel import Acks, Parcel
from borealis.node.primary import HEARD_S
from borealis.node.running import RunningEntry, RunningUnit
from borealis.streams.reader_place import ReaderPlace
from borealis.streams.section import Place
from borealis.streams.snapshot import QueueSnapshot
from borealis.streams.status import StreamState
from borealis.trains.commit_point import CommitPoint
from borealis.trains.sections import beyond
from borealis.tuples import LAST_TIME
from borealis.wire.messages import Claim, Guard, GuardAnswer, GuardStatus, ParcelVerdict, Protect, Takeover

if TYPE_CHECKING:
    from borealis.node.guards import Guards

log = logging.getLogger("borealis.node")


class Standby:
    """One unit, or an entry point, that is ready to run here. Thread-safe."""

    def __init__(self, unit: RunningUnit | RunningEntry, guard: Guard, host: Guards) -> None:
        self.unit, self.guard, self._host = unit, guard, host
        known = (unit.merges_freely, unit.nondeterministic, guard.precise, guard.incarnation)
        self.backup = Backup(guard.approach, *known)
        self._clock = host.machine.clock
        self._lock = host.machine.threads.lock()
        self._acks: Acks = {}  # of each output, by reader
        self._loading = False  # a whole
        self._followed = 0  # the last train whose order is known, of a backup that runs in parallel
        self._heard, self._messages, self._bytes, self._discarded = self._clock.now(), 0, 0, 0
        self._since = self._clock.time()
        self._primary: StreamState | None = None  # how that is
        unit.correct_with(self)
        for feed in unit.feeds.values():
            feed.deferred = guard.approach not in PARALLEL

    @property
    def ready(self) -> bool:
        """Whether it knows enough to take over; not while it takes a whole, which may turn out to be of no use."""
        return self.backup.can_take_over and not self._loading

    def follow(self, order: Protect) -> None:
        """Be the backup of this primary from now on; what runs here goes on."""
        with self._lock:
            if self.backup.taken_over:
                raise ClusterError(f"{self.unit.title} was taken over by {self._host.name}", hint="look again")
            if self.guard.role != "backup":
                self._since = self._clock.time()
            self.backup.follow_on(order.incarnation)
            self._learn(role="backup", partner=order.partner, partner_node=order.partner_node, **_of_all(order))

    def succeed(self, order: Protect) -> None:
        """Get ready to go on as this incarnation, where the primary and the backup are lost."""
        with self._lock:
            self.backup.follow_on(order.incarnation - 1)
            self._learn(**_of_all(order))

    def may_succeed(self, incarnation: int) -> bool:
        """Whether the coordinator may have it go on as this one: its primary is not asked, and may live."""
        return self.guard.role == "copy" or incarnation == self.backup.incarnation + 1

    def _learn(self, **news: Any) -> None:
        self.guard = self.guard.model_copy(update=news)
        self.unit.order = self.unit.order.model_copy(update={"guard": self.guard})

    def claim(self, node: str, process: str) -> Claim:
        """That it wants to go on for its primary, on this node."""
        (diagram, unit), numbers = self.unit.key, (self.backup.incarnation + 1, self.guard.standing)
        return Claim(
            what="take over",
            diagram=diagram,
            unit=unit,
            node=node,
            incarnation=numbers[0],
            standing=numbers[1],
            process=process,
        )

    def discard(self) -> GuardAnswer:
        """A parcel came that is not what was sent; what is here stays as it is."""
        self._discarded += 1
        return GuardAnswer(verdict="damaged", incarnation=self.backup.incarnation)

    def receive(self, parcel: Parcel, size: int) -> GuardAnswer:
        want, why = parcel.want, ""
        with self._lock:
            known = self.backup.step, self.backup.incarnation, self.backup.complete
            if want.kind == "whole" and self.unit.started and not self.backup.taken_over:
                if not self._goes_on(parcel):
                    return GuardAnswer(verdict="busy", number=want.number, incarnation=self.backup.incarnation)
                want = replace(want, kind="facts")
            self._loading = want.kind == "whole"
            verdict: ParcelVerdict = self.backup.receive(parcel.incarnation, want)
            if verdict == "take":
                try:
                    self._take(parcel, want)
                except FullError as error:  # what was here before stays, and suffices to take over
                    self.backup.step, self.backup.incarnation, self.backup.complete = known
                    verdict, why = "full", error.message
                except (BorealisError, ValueError, KeyError, TypeError) as error:
                    self._discarded += isinstance(error, StateError)
                    self.backup.step = None
                    log.warning("a %s for %s cannot be used: %s", want.kind, self.unit.title, error)
                    verdict, why = ("failed", str(error)) if want.kind == "whole" else ("whole", "")
            self._loading = False
            self._heard, self._primary = self._clock.now(), parcel.condition
            self._messages, self._bytes = self._messages + 1, self._bytes + size
            acks, incarnation = self._read_here(), self.backup.incarnation
            waits, number = self.unit.waits_for_partner(), want.number
            how: dict[str, Any] = {"acks": acks, "waits": waits, "number": number, "incarnation": incarnation}
            return GuardAnswer(verdict=verdict, why=why, **how)

    def _read_here(self) -> dict[str, dict[str, ReaderPlace]]:
        """How far readers of this copy are, where it has any: the primary keeps what they need, too."""
        if self.guard.approach != "replicas" or not self.unit.started:
            return {}
        return {name: queue.acks() for name, queue in self.unit.queues.items()}

    # -- as the partner that is corrected second

    def first(self) -> StreamState | None:
        """How the primary is, if it was heard of just now."""
        return self._primary if self._clock.now() - self._heard < HEARD_S else None

    def waits(self) -> bool:
        return False  # the primary does not

    def _goes_on(self, parcel: Parcel) -> bool:
        """Whether a whole for a backup that runs already changes nothing."""
        if self.backup.step is None:
            return False
        if parcel.incarnation == self.backup.incarnation:
            return not self.backup.merges_freely or parcel.want.since <= self._followed
        queues = self.unit.queues  # another primary comes to the same, in the same life of its streams
        return self.backup.self_reliant and all(
            queues[name].epoch == QueueSnapshot.from_bytes(data).epoch for name, data in parcel.queues.items()
        )

    def _take(self, parcel: Parcel, want: Want) -> None:
        self._acks = parcel.acks
        for name, epoch in parcel.epochs.items():
            if epoch is not None and not self.unit.started:
                self.unit.feeds[name].epoch, self.unit.feeds[name].seen = epoch, True
        if want.kind == "facts":
            parcel = replace(parcel, queues={})
        self.unit.mirror(want, parcel.state, {n: QueueSnapshot.from_bytes(data) for n, data in parcel.queues.items()})
        if self.guard.approach in PARALLEL and isinstance(self.unit, RunningUnit):
            self._keep_up(self.unit, parcel, want)

    def _keep_up(self, unit: RunningUnit, parcel: Parcel, want: Want) -> None:
        """Run in parallel: from the first whole on, and in the order in which the primary merges its inputs."""
        run, merges_freely = unit.run, self.backup.merges_freely
        for name, readers in parcel.acks.items():
            unit.queues[name].raise_acks(readers)
        if want.kind == "whole":
            for name, position in want.step.positions().items():
                feed = unit.feeds[name]
                keep_from(self._host.routes, self._host.peers, feed.stream, feed.reader, position)
            run.resume(want.step)
            if merges_freely:
                run.manager.replay(())
            self._followed = want.step.train
            unit.started = True
            if not run.done.is_set():
                run.start()
        if self.guard.approach == "replicas":  # its readers need not wait for the death of the other
            for queue in unit.queues.values():
                queue.incarnation = self.backup.incarnation
                queue.release(None)
        if merges_freely:
            run.manager.replay(self.backup.follow(want, self._followed))
            self._followed = max(self._followed, want.step.train)

    # -- the primary is dead

    def take_over(
        self,
        dead: Detector | None,
        become: Callable[[Guard, Mapping[str, Place]], Mapping[str, Place] | None],
        begun: float | None = None,
    ) -> Takeover | None:
        """Go on in its place; None if that is impossible.

        `become` is called before anything new is run or read; it says up to where readers may have output that is held
        from here on.
        """
        primary = self.guard.partner_node
        begun = self._clock.time() if begun is None else begun
        with self._lock:
            resume = self.backup.take_over()
            if resume is None:
                log.error("%s cannot be taken over: too little was heard of it", self.unit.title)
                return None
            for queue in self.unit.queues.values():
                queue.incarnation = self.backup.incarnation
            if isinstance(self.unit, RunningUnit):
                self._run_on(self.unit, resume)
            elif self.guard.approach == "amnesia":
                self._leave_out(resume)
            self.unit.correct_with(None)
            alone: dict[str, Any] = {"role": "primary", "partner": "", "partner_node": ""}
            alone |= {"incarnation": self.backup.incarnation, "further": self.guard.further.without(primary)}
            limits = become(self.guard.model_copy(update=alone), resume.until)
            for name, queue in self.unit.queues.items():
                queue.release(None if limits is None else limits[name])
            if not self.unit.started and not self.unit.ended:
                self.unit.started = True
                self.unit.run.start()
        return Takeover(
            at=begun,
            incarnation=self.backup.incarnation,
            primary=primary,
            detection_ms=round(dead.detection_s() * 1000, 3) if dead is not None else 0.0,
            takeover_ms=round((self._clock.time() - begun) * 1000, 3),
            jumped=resume.jump,
        )

    def _run_on(self, unit: RunningUnit, resume: Resume) -> None:
        if self.guard.approach in PARALLEL and unit.started:  # from here on it merges for itself
            if resume.jump:
                unit.run.jump()
            unit.run.manager.go_live()
        else:
            self._resume(unit, resume)
        if self.backup.merges_freely:  # of what was not heard any more, the order is not known
            unit.run.renew_writer_id()

    def _resume(self, unit: RunningUnit, resume: Resume) -> None:
        begin = resume.begin or self._present(unit, resume)
        if self.guard.approach in ("amnesia", "upstream-backup"):
            at = (begin.train, begin.next_cause, begin.inputs, resume.outputs)
            unit.run.load(CommitPoint(*at, writer_id=begin.writer_id, rows=begin.rows), {})
        if self.guard.approach == "amnesia":
            self._leave_out(resume)
        elif self.guard.approach == "upstream-backup":
            for name, place in resume.outputs.items():
                unit.queues[name].begin_at(place)
        for (
            name,
            readers,
        ) in self._acks.items():  # what they have not acknowledged is kept for them, also before they come
            unit.queues[name].raise_acks(readers)
        jump = resume.jump and self.guard.approach != "amnesia"
        unit.run.resume(begin, resume.replays, jump=jump, repeats=True)

    def _leave_out(self, resume: Resume) -> None:
        """Give ids behind a hole; a reader that lacks something before the hole goes on behind it, too."""
        for name, place in resume.outputs.items():
            queue = self.unit.queues[name]
            queue.begin_at((0, place[1]))
            queue.jump_to(beyond(queue, place[0]))

    def _present(self, unit: RunningUnit, resume: Resume) -> CommitPoint:
        """Inputs as they stand now: what came before is forgotten."""
        assert self.backup.step is not None
        inputs = {}
        for name, feed in unit.feeds.items():
            status = feed.status(lambda: not unit.run.closed)
            feed.epoch, feed.forgetful = status.epoch, True
            boundary = status.boundary
            if boundary == LAST_TIME:  # the end itself is to be read
                boundary = self.backup.step.inputs[name].boundary
            inputs[name] = Cursor(position=status.next_id, boundary=boundary)
        return CommitPoint(0, 0, inputs, resume.outputs, rows=self.backup.step.rows)

    # -- how it stands

    def _numbers(self) -> dict[str, int]:
        """Its own, if it is a further copy."""
        node = self._host.name
        number = self.guard.further.numbers.get(node)
        return {node: number} if self.guard.role == "copy" and number is not None else {}

    def status(self) -> GuardStatus:
        return GuardStatus(
            approach=self.guard.approach,
            guarantee=self.guard.guarantee,
            role=self.guard.role,
            incarnation=self.backup.incarnation,
            standing=self.guard.standing,
            numbers=self._numbers(),
            partner=self.guard.partner_node,
            state="watching" if self.ready else "catching up",
            since=self._since,
            stale_ms=round((self._clock.now() - self._heard) * 1000, 1),
            messages=self._messages,
            bytes=self._bytes,
            discarded=self._discarded,
        )


def _of_all(order: Protect) -> dict[str, Any]:
    """What an order says that does not depend on who is the partner."""
    return {"standing": order.standing, "further": order.further}
