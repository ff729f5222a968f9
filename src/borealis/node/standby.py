"""A backup of a unit: takes parcels from its primary while that lives, and its place when it is dead."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from borealis.entry.admission import Cursor
from borealis.errors import BorealisError, StateError
from borealis.ha.backup import Backup, Resume
from borealis.ha.classes import classify
from borealis.ha.detector import Detector
from borealis.ha.primary import Want
from borealis.node.feeds import keep_from
from borealis.node.parcel import Parcel
from borealis.streams.snapshot import QueueSnapshot
from borealis.trains.commit_point import CommitPoint, Position
from borealis.trains.sections import beyond
from borealis.tuples import LAST_TIME
from borealis.wire.messages import Guard, GuardAnswer, GuardStatus, Takeover

if TYPE_CHECKING:
    from borealis.node.feeds import Peers, Routes
    from borealis.node.running import RunningUnit

log = logging.getLogger("borealis.node")


class Host(Protocol):
    """What a standby needs of its node."""

    peers: Peers
    routes: Routes


class Standby:
    """One unit that is ready to run here. Thread-safe."""

    def __init__(self, unit: RunningUnit, guard: Guard, host: Host) -> None:
        self.unit, self.guard, self._host = unit, guard, host
        multi_input, random = len(unit.piece.reads) > 1, classify(unit.run.spec, unit.piece).nondeterministic
        self.backup = Backup(guard.approach, multi_input, random, guard.guarantee == "precise", guard.incarnation)
        self._lock = threading.Lock()
        self._followed = 0  # the last train whose order is known, of a backup that runs in parallel
        self._heard, self._messages, self._bytes, self._discarded = time.monotonic(), 0, 0, 0
        self._since = time.time()
        for feed in unit.feeds.values():
            feed.deferred = guard.approach != "active"

    @property
    def ready(self) -> bool:
        """Whether it knows enough to take over."""
        return self.backup.step is not None

    def discard(self) -> GuardAnswer:
        """A parcel came that is not what was sent; what is here stays as it is."""
        self._discarded += 1
        return GuardAnswer(said="damaged", incarnation=self.backup.incarnation)

    def receive(self, parcel: Parcel, size: int) -> GuardAnswer:
        """Take what the primary sent."""
        want = parcel.want
        with self._lock:
            if want.kind == "whole" and self.unit.started and not self.backup.taken_over:
                if not self._goes_on(parcel):
                    return GuardAnswer(said="busy", number=want.number, incarnation=self.backup.incarnation)
                want = replace(want, kind="facts")
            said = self.backup.receive(parcel.incarnation, want)
            if said == "take":
                try:
                    self._take(parcel, want)
                except (BorealisError, ValueError) as error:
                    self._discarded += isinstance(error, StateError)
                    self.backup.step = None
                    log.warning("a parcel for unit %s cannot be used (%s): the whole is needed", parcel.unit, error)
                    said = "whole"
            self._heard = time.monotonic()
            self._messages, self._bytes = self._messages + 1, self._bytes + size
            return GuardAnswer(said=said, number=want.number, incarnation=self.backup.incarnation)

    def _goes_on(self, parcel: Parcel) -> bool:
        """Whether a whole for a backup that runs already changes nothing: it came from the same run of the primary."""
        if parcel.incarnation != self.backup.incarnation or self.backup.step is None:
            return False
        return not self.backup.multi_input or parcel.want.since <= self._followed

    def _take(self, parcel: Parcel, want: Want) -> None:
        for name, epoch in parcel.epochs.items():
            if epoch is not None and not self.unit.started:
                self.unit.feeds[name].epoch = epoch
        if want.kind == "facts":
            parcel = replace(parcel, queues={})
        snapshots = {name: QueueSnapshot.from_bytes(data) for name, data in parcel.queues.items()}
        for name, snapshot in snapshots.items():
            self.unit.queues[name].apply(snapshot)
        if want.kind == "delta":
            self.unit.run.extend(want.step, parcel.state)
        elif want.kind == "whole" and self.guard.approach in ("passive", "active"):
            self.unit.run.load(want.step, parcel.state)
        if self.guard.approach == "active":
            self._keep_up(parcel, want)

    def _keep_up(self, parcel: Parcel, want: Want) -> None:
        """Run in parallel: from the first whole on, and in the order in which the primary merges its inputs."""
        run, multi_input = self.unit.run, self.backup.multi_input
        for name, readers in parcel.acks.items():
            self.unit.queues[name].raise_acks(readers)
        if want.kind == "whole":
            for name, position in want.step.positions().items():
                feed = self.unit.feeds[name]
                keep_from(self._host.routes, self._host.peers, feed.stream, feed.reader, position)
            run.resume(want.step)
            if multi_input:
                run.manager.replay(())
            self._followed = want.step.train
            self.unit.started = True
            if not run.done.is_set():
                run.start()
        if multi_input:
            run.manager.replay(self.backup.follow(want, self._followed))
            self._followed = max(self._followed, want.step.train)

    # -- the primary is dead

    def take_over(
        self, dead: Detector | None, become: Callable[[Guard, Mapping[str, Position]], None]
    ) -> Takeover | None:
        """Go on in its place; None if that is impossible. `become` is called before anything new is run or read."""
        begun, primary = time.time(), self.guard.partner_node
        with self._lock:
            resume = self.backup.take_over()
            if resume is None:
                log.error("unit %s cannot be taken over: nothing was ever heard of it", self.unit.order.unit)
                return None
            for queue in self.unit.queues.values():
                queue.incarnation = self.backup.incarnation
            if self.guard.approach == "active" and self.unit.started:
                self._lead(resume)
            else:
                self._resume(resume)
            if self.backup.multi_input:  # of what was not heard any more, the order is not known
                self.unit.run.renew_writer_id()
            alone = {"role": "primary", "partner": "", "partner_node": "", "incarnation": self.backup.incarnation}
            become(self.guard.model_copy(update=alone), resume.until)
            for queue in self.unit.queues.values():
                queue.release(None)
            if not self.unit.run.done.is_set() and not self.unit.started:
                self.unit.started = True
                self.unit.run.start()
        return Takeover(
            at=begun,
            incarnation=self.backup.incarnation,
            primary=primary,
            detection_ms=round(dead.detection_s() * 1000, 3) if dead is not None else 0.0,
            takeover_ms=round((time.time() - begun) * 1000, 3),
            jumped=resume.jump,
        )

    def _lead(self, resume: Resume) -> None:
        """It runs already: from here on it merges for itself."""
        if resume.jump:
            self.unit.run.jump()
        self.unit.run.manager.go_live()

    def _resume(self, resume: Resume) -> None:
        run = self.unit.run
        begin = resume.begin or self._present(resume)
        if self.guard.approach in ("amnesia", "upstream-backup"):
            at = (begin.train, begin.next_cause, begin.inputs, resume.outputs)
            run.load(CommitPoint(*at, writer_id=begin.writer_id, rows=begin.rows), {})
            for name, place in resume.outputs.items():
                queue = self.unit.queues[name]
                if self.guard.approach == "amnesia":  # whoever lacks something before the hole goes on behind it, too
                    queue.begin_at((0, place[1]))
                    queue.jump_to(beyond(queue, place[0]))
                else:
                    queue.begin_at(place)
        run.resume(begin, resume.replays, jump=resume.jump and self.guard.approach != "amnesia", repeats=True)

    def _present(self, resume: Resume) -> CommitPoint:
        """Inputs as they stand now: what came before is forgotten."""
        assert self.backup.step is not None
        inputs = {}
        for name, feed in self.unit.feeds.items():
            status = feed.status(lambda: not self.unit.run.closed)
            feed.epoch, feed.forgetful = status.epoch, True
            boundary = status.boundary
            if boundary == LAST_TIME:  # the end itself is to be read
                boundary = self.backup.step.inputs[name].boundary
            inputs[name] = Cursor(position=status.next_id, boundary=boundary)
        return CommitPoint(0, 0, inputs, resume.outputs, rows=self.backup.step.rows)

    # -- how it stands

    def status(self) -> GuardStatus:
        """How much it knows."""
        return GuardStatus(
            approach=self.guard.approach,
            guarantee=self.guard.guarantee,
            role="backup",
            incarnation=self.backup.incarnation,
            partner=self.guard.partner_node,
            state="watching" if self.ready else "catching up",
            since=self._since,
            stale_ms=round((time.monotonic() - self._heard) * 1000, 1),
            messages=self._messages,
            bytes=self._bytes,
            discarded=self._discarded,
        )
