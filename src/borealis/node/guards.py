"""All that is protected on a node, or kept here for the protection of others: who watches whom, and who takes over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from borealis.diagram.spec import LATE
from borealis.entry.point import Entry
from borealis.errors import BorealisError, ClusterError
from borealis.ha.detector import Detector
from borealis.node.entry_guard import EntryGuard, MirrorMessage
from borealis.node.parcel import DamagedError, Parcel
from borealis.node.primary import PrimaryGuard, pace_of
from borealis.node.standby import Standby
from borealis.node.watch import Watch
from borealis.trains.commit_point import Position
from borealis.wire.auth import Security
from borealis.wire.messages import Claim, Claimed, Done, EntryOrder, Forget, Guard, GuardAnswer, Protect

if TYPE_CHECKING:
    from borealis.node.node import Node
    from borealis.node.running import RunningUnit

FORGET_S = 2.0

log = logging.getLogger("borealis.node")
Key = tuple[str, str]
Claiming = Callable[[Sequence[Claim]], list[Claimed] | None]


class Guards:
    """The guards of a node's units. Thread-safe."""

    def __init__(self, node: Node, security: Security | None, claim: Claiming) -> None:
        self._node, self.claim = node, claim
        self.name, self.peers, self.routes = node.name, node.peers, node.routes
        self.watch = Watch(security)
        self.primaries: dict[Key, PrimaryGuard] = {}
        self.standbys: dict[Key, Standby] = {}
        self._lock = threading.Lock()
        self._taking: set[object] = set()  # those whose primary was found dead
        self._rebuilding: set[Standby] = set()  # those that begin anew
        self.entries: dict[str, EntryGuard] = {}  # by stream; of entry points here, and of those that stand by here

    # -- coming and going

    def start_primary(self, key: Key, unit: RunningUnit) -> None:
        """Protect a unit before it runs its first train."""
        guard = unit.order.guard
        assert guard is not None
        primary = self.primaries[key] = PrimaryGuard(unit, guard, self)
        primary.start()

    def start_standby(self, key: Key, unit: RunningUnit) -> None:
        """Stand by for a unit of another node."""
        guard = unit.order.guard
        assert guard is not None
        self.standbys[key] = Standby(unit, guard, self)
        self.watch.add(guard.partner, pace_of(guard), self.died)

    def drop(self, key: Key) -> None:
        """A unit is no more here."""
        primary, standby = self.primaries.pop(key, None), self.standbys.pop(key, None)
        if primary is not None:
            primary.stop()
        if standby is not None and not any(s.guard.partner == standby.guard.partner for s in self.standbys.values()):
            self.watch.remove(standby.guard.partner, self.died)

    def protect(self, order: Protect) -> Done:
        """Another backup for what runs here, or none."""
        if order.input:
            entry = self.entries.get(f"{order.diagram}/{order.input}")
            if entry is None or entry.is_backup:
                raise ClusterError(f"input {order.input} of {order.diagram} is not protected on {self.name}")
            entry.protect(order.partner, order.partner_node)
            return Done()
        primary = self.primaries.get((order.diagram, order.unit))
        if primary is None:
            raise ClusterError(f"unit {order.unit} of {order.diagram} is not protected on {self.name}")
        if order.incarnation < primary.guard.incarnation:
            raise ClusterError(f"unit {order.unit} is in incarnation {primary.guard.incarnation}", hint="look again")
        primary.protect(order.partner, order.partner_node)
        return Done()

    def close(self) -> None:
        for primary in self.primaries.values():
            primary.stop()
        for entry in self.entries.values():
            entry.stop()
        self.watch.close()

    # -- entry points

    def start_entry(self, entry: Entry, order: EntryOrder) -> None:
        """Protect an entry point, or stand by for one."""
        guard = self.entries[entry.queue.stream] = EntryGuard(entry, order, self)
        guard.start()

    def drop_entry(self, stream: str) -> EntryGuard | None:
        """An entry point is no more here."""
        guard = self.entries.pop(stream, None)
        if guard is not None:
            guard.stop()
        return guard

    def mirror(self, data: bytes) -> GuardAnswer:
        """What an entry point sent to its peer here."""
        message = MirrorMessage.decode(data)
        stream = f"{message.diagram}/{message.entry}"
        guard = self.entries.get(stream)
        if guard is None:
            raise ClusterError(f"node {self.name} does not stand by for {stream}")
        return guard.apply(message)

    def step_down_entry(self, guard: EntryGuard, address: str) -> None:
        """Another node is this entry point now."""
        log.warning("entry point %s is elsewhere now (%s): it ends here", guard.stream, address or "unknown")
        guard.entry.step_down(address)
        threading.Thread(target=self._node.drop_entry_of, args=(guard,), name="step-down", daemon=True).start()

    # -- parcels

    def receive(self, data: bytes) -> GuardAnswer:
        """What a primary sent to its backup here."""
        try:
            parcel = Parcel.decode(data)
        except DamagedError as error:
            known = self.standbys.get(error.of) if error.of is not None else None
            log.warning("%s: discarded", error)
            return known.discard() if known is not None else GuardAnswer(said="damaged")
        key = (parcel.diagram, parcel.unit)
        standby = self.standbys.get(key)
        if standby is None:
            primary = self.primaries.get(key)
            if primary is not None and primary.guard.incarnation > parcel.incarnation:
                return GuardAnswer(said="deposed", incarnation=primary.guard.incarnation)
            raise ClusterError(f"node {self.name} does not stand by for unit {parcel.unit} of {parcel.diagram}")
        answer = standby.receive(parcel, len(data))
        if answer.said == "busy":  # it runs in parallel, and shall begin anew
            with self._lock:  # once, however often the primary asks meanwhile
                if standby in self._rebuilding:
                    return answer
                self._rebuilding.add(standby)
            threading.Thread(target=self._rebuild, args=(key, standby), name="rebuild", daemon=True).start()
        return answer

    def _rebuild(self, key: Key, standby: Standby) -> None:
        try:
            self._node.drop_unit(key, only=standby.unit)
            self._node.start_unit(standby.unit.order)
        except Exception:  # the coordinator will see that it is not here
            log.exception("the backup of unit %s of %s could not begin anew", key[1], key[0])
        finally:
            with self._lock:
                self._rebuilding.discard(standby)

    # -- deaths

    def died(self, address: str, dead: Detector) -> None:
        """A node is dead: take over what it ran and what is kept here."""
        with self._lock:  # several may have watched it
            units = [(k, s) for k, s in list(self.standbys.items()) if s.guard.partner == address and s.ready]
            entries = [e for e in list(self.entries.values()) if e.guard.partner == address and e.ready]
            units = [(k, s) for k, s in units if s not in self._taking]
            entries = [e for e in entries if e not in self._taking]
            self._taking.update([*(s for _, s in units), *entries])
        claims = [
            Claim(what="take over", diagram=k[0], unit=k[1], node=self.name, incarnation=s.backup.incarnation + 1)
            for k, s in units
        ]
        for e in entries:
            order, following = e.order, e.guard.incarnation + 1
            claims.append(
                Claim(what="take over", diagram=order.diagram, input=order.input, node=self.name, incarnation=following)
            )
        if not claims:
            return
        claimed = self.claim(claims)
        works = [partial(self._take_over, key, standby, dead) for key, standby in units]
        works += [partial(self._open_entry, entry, dead) for entry in entries]
        for number, work in enumerate(works):
            if claimed is not None and not claimed[number].granted:
                log.warning("not ours to take over: %s", claims[number])
                self._taking.discard(work.args[1] if number < len(units) else work.args[0])
            else:
                threading.Thread(target=work, name="take-over", daemon=True).start()

    def _open_entry(self, guard: EntryGuard, dead: Detector | None) -> None:
        try:
            guard.take_over(dead)
            with self._node.ordering:
                if self.entries.get(guard.stream) is not guard:
                    raise ClusterError(f"{guard.stream} was dropped while it was taken over")
                self._node.opened_entry(guard.entry, guard.guard.incarnation)
            log.warning("entry point %s was taken over: incarnation %d", guard.stream, guard.guard.incarnation)
        except Exception as error:
            log.exception("entry point %s could not be taken over: %s", guard.stream, error)
            guard.stop()
            self._node.drop_entry_of(guard)

    def _take_over(self, key: Key, standby: Standby, dead: Detector | None) -> None:
        try:
            made: list[PrimaryGuard] = []
            takeover = standby.take_over(dead, lambda *how: made.append(self._become(key, standby, *how)))
            if takeover is None:
                return
            made[0].takeovers.append(takeover)
            made[0].start()
            log.warning(
                "unit %s of %s was taken over from %s: incarnation %d, after %.0f ms of silence",
                key[1],
                key[0],
                takeover.primary,
                takeover.incarnation,
                takeover.detection_ms,
            )
        except Exception as error:
            # dropped, so that the coordinator sees that nobody has it
            log.exception("unit %s of %s could not be taken over: %s", key[1], key[0], error)
            self._node.drop_unit(key, only=standby.unit)

    def _become(self, key: Key, standby: Standby, guard: Guard, until: Mapping[str, Position]) -> PrimaryGuard:
        """A standby is a primary from now on, before it runs its first train as one."""
        unit = standby.unit
        unit.order = unit.order.model_copy(update={"guard": guard})
        primary = PrimaryGuard(unit, guard, self, until)
        with self._node.ordering:
            if self._node.units.get(key) is not unit:
                raise ClusterError(f"unit {key[1]} of {key[0]} was dropped while it was taken over")
            self.primaries[key] = primary
            self.standbys.pop(key, None)
            self._node.opened(unit)
        return primary

    # -- for those above

    def deposed(self, stream: str, incarnation: int) -> None:
        """A reader of a stream has seen a higher incarnation of it than ours."""
        for primary in list(self.primaries.values()):
            serves = any(queue.stream == stream for queue in primary.unit.queues.values())
            if serves and primary.guard.incarnation < incarnation:
                self.step_down(primary.unit, "")
        entry = self.entries.get(stream.removesuffix(LATE))
        if entry is not None and not entry.is_backup and entry.guard.incarnation < incarnation:
            self.step_down_entry(entry, "")

    def step_down(self, unit: RunningUnit, address: str) -> None:
        """Another node runs this unit now."""
        key = (unit.order.diagram, unit.order.unit)
        log.warning("unit %s of %s runs elsewhere now (%s): it ends here", key[1], key[0], address or "unknown")
        work = partial(self._node.drop_unit, key, address or None, only=unit)
        threading.Thread(target=work, name="step-down", daemon=True).start()

    def forget_reader(self, unit: RunningUnit, reader: str) -> bool:
        """Nobody reads the unit's inputs under that name any more; says whether upstream knows."""
        known = True
        for feed in unit.feeds.values():
            queue, address = self.routes.local(feed.stream), self.routes.address(feed.stream)
            try:
                if queue is not None:
                    queue.forget(reader)
                elif address is not None:
                    order = Forget(stream=feed.stream, reader=reader)
                    self.peers.at(address).act("unread", order, Done, within=FORGET_S)
            except BorealisError as error:
                log.info("stream %s still keeps tuples for %s: %s", feed.stream, reader, error)
                known = False
        return known
