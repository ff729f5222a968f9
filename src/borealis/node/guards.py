"""All that is protected on a node, or stands by on it for others: watching, receiving, taking over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from borealis.errors import BorealisError, ClusterError, StateError
from borealis.ha.detector import Detector
from borealis.message import Message
from borealis.node.claiming import pace_of
from borealis.node.feeds import keep_from
from borealis.node.parcel import DamagedError, Parcel
from borealis.node.primary import GuardTimings, PrimaryGuard
from borealis.node.running import RunningEntry, RunningUnit, UnitKey
from borealis.node.standby import Standby
from borealis.node.stored import Stored, UnitHistory
from borealis.node.turns import NodeTurns
from borealis.node.watch import Watch
from borealis.streams.section import Place
from borealis.threads import side_by_side
from borealis.wire.messages import Claim, Claimed, Done, Forget, Further, Guard, GuardAnswer, Protect, Reading, called

if TYPE_CHECKING:
    from borealis.node.node import Node

TIMINGS = GuardTimings()
RESTORE = "its storage is damaged, or of another version: deploy the diagram again, with --replace"
DURABLE_TRIES = 5  # to have a log on a disk that fails, before its unit is claimed all the same

log = logging.getLogger("borealis.node")
Claiming = Callable[[Sequence[Claim]], list[Claimed] | None]


class Guards:
    """The guards of a node's units. Thread-safe."""

    def __init__(self, node: Node, claim: Claiming) -> None:
        self._node, self.claim = node, claim
        self.name, self.peers, self.routes, self.machine = node.name, node.peers, node.routes, node.machine
        self.process = node.incarnation
        self.watch = Watch(self.peers)
        self.turns = NodeTurns(self, self.machine)
        self.primaries: dict[UnitKey, PrimaryGuard] = {}
        self.standbys: dict[UnitKey, Standby] = {}
        self._lock = self.machine.threads.lock()
        self._taking: set[object] = set()  # those whose primary was found dead
        self._rebuilding: set[Standby] = set()  # those that begin again
        self._stored: dict[UnitKey, Stored] = {}  # of units that are being restored

    # -- coming and going

    def start_primary(self, unit: RunningUnit | RunningEntry, guard: Guard, stored: Stored | None = None) -> None:
        """Protect a unit or an entry point before its first train."""
        self.primaries[unit.key] = PrimaryGuard(unit, guard, self, stored=stored)
        self.primaries[unit.key].start()

    def restore(
        self, unit: RunningUnit | RunningEntry, guard: Guard, stored: Stored, history: UnitHistory, begun: float
    ) -> None:
        """Go on where the storage says that a unit was: as a backup does that heard all of it."""
        standby = self.standbys[unit.key]
        for parcel in history:
            answer = standby.receive(replace(parcel, incarnation=guard.incarnation - 1), 0)
            if answer.verdict not in ("take", "known"):
                raise StateError(f"{unit.title} cannot be restored: {answer.why or answer.verdict}", hint=RESTORE)
        self._stored[unit.key] = stored
        with self._lock:
            self._taking.add(standby)
        self._take_over(standby, None, begun)
        if self.primaries.get(unit.key) is None:
            raise StateError(f"{unit.title} cannot be restored on {self.name}", hint="the node's log says why")

    def start_standby(self, unit: RunningUnit | RunningEntry, guard: Guard) -> None:
        standby = self.standbys[unit.key] = Standby(unit, guard, self)
        self._watch_primary_of(standby)

    def _watch_primary_of(self, standby: Standby) -> None:
        """Only a backup does: it alone may take over. One that is fed from storage has no primary."""
        if standby.guard.role == "backup" and standby.guard.partner:
            self.watch.add(standby.guard.partner, pace_of(standby.guard), self.died)

    def drop(self, key: UnitKey) -> None:
        primary, standby = self.primaries.pop(key, None), self.standbys.pop(key, None)
        if primary is not None:
            primary.stop()
        if standby is not None and not self._backups_of(standby.guard.partner):
            self.watch.remove(standby.guard.partner, self.died)

    def _backups_of(self, address: str) -> list[Standby]:
        backups = [one for one in list(self.standbys.values()) if one.guard.role == "backup"]
        return [one for one in backups if one.guard.partner == address]

    def protect(self, order: Protect) -> Done:
        """Another backup or further copies for what runs here, or none; or what stands by here gets another part."""
        key = (order.diagram, order.unit)
        primary, standby = self.primaries.get(key), self.standbys.get(key)
        if standby is not None and (order.role == "backup" or standby.may_succeed(order.incarnation)):
            return self._promote(standby, order)
        if primary is None:
            raise ClusterError(f"{called(*key)} is not protected on {self.name}")
        if order.incarnation < primary.guard.incarnation:
            raise ClusterError(f"{primary.unit.title} is in incarnation {primary.guard.incarnation}", hint="look again")
        primary.protect(order)
        return Done()

    def _promote(self, standby: Standby, order: Protect) -> Done:
        """A copy becomes the backup; or it goes on where the primary and the backup are lost, or the primary failed."""
        if order.role == "backup":
            standby.follow(order)
            self._watch_primary_of(standby)
            return Done()
        with self._lock:
            if not standby.ready or standby in self._taking:
                raise ClusterError(f"{standby.unit.title} on {self.name} cannot go on for its primary now")
            self._taking.add(standby)
        standby.succeed(order)
        self._take_over(standby, None)
        return Done()

    def close(self) -> None:
        for primary in self.primaries.values():
            primary.stop()
        self.watch.close()

    # -- parcels

    def receive(self, data: bytes) -> GuardAnswer:
        """What a primary sent to its backup here."""
        try:
            parcel = Parcel.decode(data)
        except DamagedError as error:
            known = self.standbys.get(error.of) if error.of is not None else None
            log.warning("%s: discarded", error)
            return known.discard() if known is not None else GuardAnswer(verdict="damaged")
        key = (parcel.diagram, parcel.unit)
        standby = self.standbys.get(key)
        if standby is None:
            primary = self.primaries.get(key)
            if primary is not None and primary.guard.incarnation > parcel.incarnation:
                return GuardAnswer(verdict="deposed", incarnation=primary.guard.incarnation)
            raise ClusterError(f"node {self.name} does not stand by for {called(*key)}")
        if parcel.want.kind == "whole" and standby in self._taking:  # what it has is what was claimed for
            raise ClusterError(f"node {self.name} is about to take over {called(*key)}")
        knew = standby.ready
        answer = standby.receive(parcel, len(data))
        if standby.ready and not knew:  # its primary may have been found dead before it could go on for it
            self._watch_primary_of(standby)
        if answer.verdict == "busy":  # it runs in parallel, and has to begin again
            with self._lock:  # once, however often the primary asks meanwhile
                if standby in self._rebuilding:
                    return answer
                self._rebuilding.add(standby)
            self.machine.threads.start("rebuild", partial(self._rebuild, standby))
        return answer

    def _rebuild(self, standby: Standby) -> None:
        try:
            self._node.drop_unit(standby.unit)
            self._node.start_unit(standby.unit.order)
        except Exception:  # the coordinator will see that it is not here
            log.exception("the backup of %s could not begin again", standby.unit.title)
        finally:
            with self._lock:
                self._rebuilding.discard(standby)

    # -- deaths

    def died(self, address: str, dead: Detector) -> None:
        """A node is dead: take over what it ran and what is kept here."""
        with self._lock:  # several may have watched it
            ready = [s for s in self._backups_of(address) if s.ready]
            mine = [s for s in ready if s not in self._taking]
            self._taking.update(mine)
        self._claim(mine, dead)

    def _claim(self, mine: list[Standby], dead: Detector) -> None:
        """Take over what the coordinator grants.

        If it does not answer, that can be done without it where the death is certain. Otherwise it is asked until it
        answers: a claim may be granted as long as it is under way.
        """
        entries = [standby.unit for standby in mine if isinstance(standby.unit, RunningEntry)]
        side_by_side(self.machine.threads, [partial(self._make_durable, entry) for entry in entries])
        while mine := [standby for standby in mine if self.standbys.get(standby.unit.key) is standby]:
            claims = [standby.claim(self.name, self.process) for standby in mine]
            claimed = self.claim(claims)
            if claimed is None and not dead.certain:
                self.machine.clock.sleep(TIMINGS.claim_s)
                continue
            granted = [s.unit for n, s in enumerate(mine) if claimed is None or claimed[n].granted]
            self._node.pool.reserve([unit for unit in granted if isinstance(unit, RunningUnit)])
            for number, standby in enumerate(mine):
                if claimed is not None and not claimed[number].granted:
                    log.warning("not ours to take over: %s", claims[number])
                    self._taking.discard(standby)
                else:
                    self.machine.threads.start("take-over", partial(self._take_over, standby, dead))
            return

    def _make_durable(self, unit: RunningEntry) -> None:
        """Before its place is claimed: the log of a dead primary is not looked for once its backup was granted that.

        A disk that fails for longer than a moment does not keep the backup from going on with what it has in memory.
        """
        for _ in range(DURABLE_TRIES):
            try:
                return unit.entry.make_durable()
            except StateError as error:
                log.warning("the log of %s would not survive: %s", unit.title, error)
                self.machine.clock.sleep(TIMINGS.claim_s)

    def _take_over(self, standby: Standby, dead: Detector | None, begun: float | None = None) -> None:
        """What this took is told as of now, or as of when it was `begun`: to read what is in storage takes time."""
        unit = standby.unit
        image = unit if isinstance(unit, RunningUnit) and unit.image else None
        try:
            takeover = standby.take_over(dead, partial(self._become, standby.unit), begun)
            if takeover is None:
                if image is not None:
                    self._node.pool.unreserve(image)
                return
            primary = self.primaries[unit.key]
            primary.takeovers.append(takeover)
            primary.start()
            if image is not None:
                self._launch(image)
            self.news()
            log.warning(
                "%s was taken over from %s: incarnation %d, after %.0f ms of silence",
                standby.unit.title,
                takeover.primary,
                takeover.incarnation,
                takeover.detection_ms,
            )
        except Exception as error:
            # dropped, so that the coordinator sees that no node has it
            log.exception("%s could not be taken over: %s", standby.unit.title, error)
            self._node.drop_unit(standby.unit)

    def _launch(self, unit: RunningUnit) -> None:
        """Have a query run its trains; if there is none, that is tried again, as after the death of one."""
        try:
            unit.launch()
            if unit.ended:
                self._node.pool.drop(unit.key)
        except Exception as error:
            log.warning("%s has no query yet: %s", unit.title, error)

    def _become(
        self, unit: RunningUnit | RunningEntry, guard: Guard, until: Mapping[str, Place]
    ) -> Mapping[str, Place] | None:
        """A unit that stood by is a primary from now on, before it runs its first train as one."""
        unit.order = unit.order.model_copy(update={"guard": guard})
        primary = PrimaryGuard(unit, guard, self, until, stored=self._stored.pop(unit.key, None))
        with self._node.ordering:
            if self._node.running(unit.key) is not unit:
                raise ClusterError(f"{unit.title} was dropped while it was taken over")
            self.primaries[unit.key] = primary
            self.standbys.pop(unit.key, None)
            self._node.opened(unit)
        return primary.links.copies.limits

    # -- for those above

    def news(self) -> None:
        """What is protected here has changed: the coordinator can do something about it, or need not any more."""
        self._node.news.set()

    def deposed(self, stream: str, incarnation: int) -> None:
        """A reader of a stream has seen a higher incarnation of it than ours."""
        for primary in list(self.primaries.values()):
            serves = any(queue.stream == stream for queue in primary.unit.queues.values())
            if serves and primary.guard.incarnation < incarnation:
                self.step_down(primary.unit, "")

    def step_down(self, unit: RunningUnit | RunningEntry, address: str) -> None:
        """Another node runs this unit now."""
        log.warning("%s runs elsewhere now (%s): it ends here", unit.title, address or "unknown")
        unit.step_down(address)
        self.machine.threads.start("step-down", partial(self._node.drop_unit, unit, address or None))

    def _look_up(self, stream: str) -> None:
        """Where it is may have changed."""
        with suppress(BorealisError):
            self.routes.look_up(stream)

    def forget_reader(self, unit: RunningUnit | RunningEntry, reader: str) -> bool:
        """Have upstream keep nothing for a name that the unit reads under no more; says whether upstream knows.

        Its own name comes first: where upstream was taken over, too, the other may be all that is known there.
        """
        known, positions = True, unit.run.step().positions() if unit.feeds else {}
        for name, feed in unit.feeds.items():
            order = Forget(stream=feed.stream, reader=reader)
            try:
                keep_from(self.routes, self.peers, feed.stream, feed.reader, positions[name])
                self._tell_copies(feed.stream, "unread", order, partial(self._node.served.unread, order))
            except BorealisError as error:
                log.info("stream %s still keeps tuples for %s: %s", feed.stream, reader, error)
                self._look_up(feed.stream)
                known = False
        return known

    def say_who_reads(self, unit: RunningUnit | RunningEntry, further: Further) -> bool:
        """Have upstream keep nothing for copies of a unit that are no more; says whether all of upstream knows."""
        known, who = True, f"{unit.order.diagram}.{unit.order.unit}"
        for feed in unit.feeds.values():
            order = Reading(stream=feed.stream, unit=who, numbers=list(further.numbers.values()), given=further.given)
            try:
                self._tell_copies(feed.stream, "reading", order, partial(self._node.served.reading, order))
            except BorealisError as error:
                log.info("stream %s may still keep tuples for copies of %s: %s", feed.stream, unit.title, error)
                self._look_up(feed.stream)
                known = False
        return known

    def _tell_copies(self, stream: str, action: str, order: Message, here: Callable[[], object]) -> None:
        """Have each copy of a stream do something about its readers: the one names them to the other."""
        queue, copies = self.routes.local(stream), self.routes.copies(stream)
        if queue is not None:
            here()
        for address in copies if queue is None or len(copies) > 1 else ():
            if queue is None or address != self.routes.here():
                self.peers.at(address).act(action, order, Done, within=TIMINGS.forget_s)
