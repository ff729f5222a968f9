"""A primary and its backup, seen from the primary: acts on what `ha.primary` says, and sends parcels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from borealis.diagram.protection import CHECKPOINTED, PARALLEL
from borealis.errors import BorealisError, FullError, StateError
from borealis.ha.copies import FurtherCopies
from borealis.ha.detector import Detector
from borealis.ha.min_max import MinMax
from borealis.ha.primary import Effects, Primary, Upstream, Want, active_reader
from borealis.node.claiming import answer_to, pace_of
from borealis.node.links import CopyLinks
from borealis.node.parcel import Acks, Parcel
from borealis.node.stored import Stored
from borealis.node.unsent import Unsent
from borealis.state.log import Key
from borealis.streams.section import Place
from borealis.streams.snapshot import QueueSnapshot
from borealis.streams.status import StreamState
from borealis.trains.commit_point import CommitPoint
from borealis.wire.messages import Claim, Guard, GuardAnswer, GuardStatus, Protect, Takeover
from borealis.wire.service import PARCEL_BYTES_MOST

if TYPE_CHECKING:
    from borealis.node.guards import Guards
    from borealis.node.running import RunningEntry, RunningUnit

WHOLE_BYTES_MOST = PARCEL_BYTES_MOST * 3 // 4  # of tuples that are held; the rest is for state
HEARD_S = 1.0  # what the other copy said is news for so long
MANY = 50  # parcels in a row that did not arrive, before that is logged again
DELTAS_BYTES_MOST = 256 << 20  # kept for a backup that does not answer; then it gets the whole
TAKEOVER_MS = 50.0  # what opening the queues of a backup takes, about

log = logging.getLogger("borealis.node")


@dataclass(frozen=True)
class GuardTimings:
    """How long a guard waits, in seconds."""

    answer_s: float = 10.0  # for an answer to a parcel
    whole_s: float = 60.0  # to one with all there is: a large state takes its time
    tick_s: float = 0.1  # before it looks whether something is due, at most
    retry_s: float = 0.05  # after a parcel that did not arrive
    claim_s: float = 0.1  # before a coordinator that did not answer is asked again
    jump_s: float = 2.0  # for the first train of a unit that begins from nothing, before its backup hears of it
    forget_s: float = 2.0  # for upstream to say that it keeps nothing for a reader any more

    def within(self, want: Want) -> float:
        """So long for the answer to a parcel."""
        return self.whole_s if want.kind == "whole" else self.answer_s


class PrimaryGuard:
    """Protects a unit or an entry point as long as it runs here."""

    def __init__(
        self,
        unit: RunningUnit | RunningEntry,
        guard: Guard,
        host: Guards,
        until: Mapping[str, Place] | None = None,
        timings: GuardTimings | None = None,
        *,
        stored: Stored | None = None,
    ) -> None:
        """With `stored` its backup is a log in storage."""
        self.unit, self.guard, self._host, self.stored = unit, guard, host, stored
        self._timings = timings or GuardTimings()
        self._clock, self._threads = host.machine.clock, host.machine.threads
        self.takeovers: list[Takeover] = []
        self._lock = self._threads.rlock()
        self._wake = self._threads.event()
        self._stopped = False
        self._unsent = Unsent()
        self._shown: Mapping[str, Place] = {}  # outputs up to here are at the backup
        self._since, self._why = self._clock.time(), "no backup yet"
        self._messages = self._bytes = self._failures = 0
        self._has_trimmed = False  # readers have let go of output, and the policy was not told
        self._stale_readers = self._others()  # names under which no copy reads, as long as there is no backup
        self._covered_at = self._ran_at = self._clock.now()  # the backup has everything up to then
        self._waited_at = -HEARD_S  # its backup answered tentatively, and waited for this copy to be corrected
        unit.correct_with(self)
        for queue in unit.queues.values():
            queue.incarnation = guard.incarnation
        for feed in unit.feeds.values():
            feed.deferred = True
        with unit.run.between_trains():  # from here on it sees every train
            self.policy = unit.policy(guard, unit.run.step())
            self.policy.until = until or {}
            self._first = self.policy.first.train
            self.links = CopyLinks(self, FurtherCopies(partial(unit.policy, guard)), self._lock, host, self._timings)
            self.links.meet(guard.further)
            if stored is not None and stored.follows is not None:
                self._shown = self.policy.last.outputs
                self._do(self.policy.go_on())
            unit.attach(self._committed, self._flush)
        if self.policy.sweeps:
            for queue in unit.queues.values():
                queue.on_trim = self._note_trim

    # -- coming and going

    def start(self) -> None:
        """Begin; if there is a backup it knows of this unit when this returns, or is tried again."""
        if self.guard.partner or (self.stored is not None and not self.policy.joined):
            self._join()
            self._converse()
        if self.stored is not None and not self.policy.known:
            raise StateError(f"{self.unit.title} cannot be kept in storage: {self._why}", hint="mend that first")
        self.links.begin(self.guard.further)
        self._threads.start(f"guard-{self.unit.order.unit}", self._run)

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        self.links.stop()
        if self.stored is not None:
            self.stored.close()
        if self.policy.in_turns:
            self._host.turns.leave(self)
        if self.guard.partner:
            self._host.watch.remove(self.guard.partner, self._partner_died)

    def retained(self) -> list[dict[str, Any]]:
        """What must go along when the unit moves."""
        with self._lock:
            return [step.to_json() for step in self.policy.retained()] if isinstance(self.policy, Upstream) else []

    def protect(self, order: Protect) -> None:
        """There is another backup, or none (an empty address), or there are other further copies."""
        if self.links.has(order.partner_node, order.further) and order.standing > self.guard.standing:
            self._promote(order)
            return
        self.links.follow(order.further)
        address, news = order.partner, {"partner_node": order.partner_node, "standing": order.standing}
        with self._lock:
            same = address == self.guard.partner and order.standing == self.guard.standing
            if same and self.policy.joined == bool(address):
                return
            if self.guard.partner:
                self._host.watch.remove(self.guard.partner, self._partner_died)
            fresh = order.standing > self.guard.standing  # it was made for this order, and knows of nothing else
            self.guard = self.guard.model_copy(update={"partner": address, **news})
        if address:
            self._join(fresh=fresh)
        else:
            self._remove_backup("its backup was taken away")
        self._wake.set()

    def _promote(self, order: Protect) -> None:
        """A further copy is the backup from now on: what holds up for it goes on doing so."""
        node, address = order.partner_node, order.partner
        with self.unit.run.between_trains(), self._lock:
            if self.guard.partner:
                self._host.watch.remove(self.guard.partner, self._partner_died)
            self.guard = self.guard.model_copy(
                update={"partner": address, "partner_node": node, "standing": order.standing}
            )
            self.policy, self._shown, effects = self.links.promote(node)
            self.carry_out(effects)
            self.unit.refuse(None)
            self._stale_readers = []
            self._since, self._why = self._clock.time(), ""
        if self.policy.in_turns:
            self._host.turns.join(self)
        self._host.watch.add(address, pace_of(self.guard), self._partner_died)
        self.links.follow(order.further)
        self._wake.set()

    def take_turn(self, policy: MinMax) -> None:
        """Make a checkpoint now: the node is idle."""
        with self._lock:
            policy.take_turn()
        self._wake.set()

    def _join(self, *, fresh: bool = False) -> None:
        with self.unit.run.between_trains(), self._lock:
            self._do(self.policy.join(fresh=fresh))
            self.unit.refuse(None)
            self._why = ""
            self._stale_readers = []
            self.let_go()
            self._since = self._clock.time()
        if self.policy.in_turns:
            self._host.turns.join(self)
        if self.guard.partner:
            self._host.watch.add(self.guard.partner, pace_of(self.guard), self._partner_died)

    def _remove_backup(self, why: str) -> None:
        with self.unit.run.between_trains(), self._lock:
            self._do(self.policy.remove_backup())
            self.unit.refuse(None)
            self.let_go()
            self._since, self._why = self._clock.time(), why
            self._stale_readers = self._others()
        if self.policy.in_turns:
            self._host.turns.leave(self)
        self._host.news()
        log.warning("%s is UNPROTECTED: %s", self.unit.title, why)

    def _others(self) -> list[str]:
        """Names of an actively protected unit under which upstream may keep tuples: the one before, the one after."""
        if self.guard.approach not in PARALLEL or self.guard.further.given:
            return []
        base, number = f"{self.unit.order.diagram}.{self.unit.order.unit}", self.guard.incarnation
        return [active_reader(base, n) for n in (number - 1, number + 1) if n > 0]

    def _partner_died(self, address: str, dead: Detector) -> None:
        """The backup's node is dead: go on alone, unless it thinks the same of us and was faster.

        Where it may live behind a cut, the coordinator has to say that it did not take over. Until then nothing is
        given or acknowledged that the backup does not have.
        """
        if address != self.guard.partner or self._stopped:
            return
        (diagram, unit), guard, answer = self.unit.key, self.guard, None
        copy = self.links.number(guard.partner_node)
        numbers: dict[str, Any] = {"incarnation": guard.incarnation, "standing": guard.standing}
        node, process = self._host.name, self._host.process
        claim = Claim(what="alone", diagram=diagram, unit=unit, node=node, process=process, **numbers)
        while True:
            answer = answer_to(claim, self._host.claim)
            if answer is None and dead.certain:
                break
            if answer is not None and (answer.granted or answer.incarnation > guard.incarnation):
                break
            self._why = f"neither {guard.partner_node} nor the coordinator answers"  # or it speaks of another backup
            self.policy.doubt()
            self._clock.sleep(self._timings.claim_s)
            if self._stopped or self.guard.standing != guard.standing:
                return
        if answer is not None and not answer.granted and answer.incarnation > guard.incarnation:
            self._host.step_down(self.unit, answer.address)
            return
        with self._lock:
            if self._stopped or self.guard.standing != guard.standing:
                return
            node = self.guard.partner_node or self.guard.partner
            self.guard = self.guard.model_copy(update={"partner": "", "partner_node": ""})
        self._remove_backup(f"{node} does not answer")
        self.links.forget(node, copy)

    # -- trains

    def runs(self) -> None:
        """This process runs, and says so many times a second; if it did not for so long that its backup may have held
        it for dead, it asks that first."""
        pace = pace_of(self.guard)
        with self._lock:
            now = self._clock.now()
            if now - self._ran_at > pace.every_s * pace.misses:
                self.policy.doubt()
                self._wake.set()
            self._ran_at = now

    def _committed(self, step: CommitPoint, deltas: Mapping[Key, bytes]) -> None:
        self.runs()
        with self._lock:
            if self.guard.approach in CHECKPOINTED and (self.policy.joined or self.links.copies.machines):
                size = self._unsent.add(step.train, deltas)
                if self.policy.in_turns:
                    self._host.turns.worked(self, size)
            self.links.copies.committed(step)
            self._do(self.policy.committed(step))
            while self._unsent.bytes > DELTAS_BYTES_MOST:
                self._reject_the_farthest()
            if self.policy.urgent:
                self._wake.set()
            self.links.wake(urgent=True)
        self._note_new_output()

    def _machines(self) -> list[Primary]:
        """Those of all copies."""
        return [*([self.policy] if self.policy.joined else []), *self.links.copies.machines.values()]

    def let_go(self) -> None:
        """Keep only deltas that some copy is yet to be sent."""
        told = min((machine.told for machine in self._machines()), default=self.policy.last.train)
        self._unsent.answered(told)

    def _reject_the_farthest(self) -> None:
        """More is kept for copies that do not answer than may be: those that lack most get the whole."""
        machines = self._machines()
        told = min((machine.told for machine in machines), default=0)
        for machine in machines:
            if machine.told == told:
                machine.rejected()
        self.let_go()

    def _do(self, effects: Effects) -> None:
        """What comes of what the machine of the backup says, with regard to further copies."""
        now = {name: (queue.next_id, queue.boundary) for name, queue in self.unit.queues.items()}
        self.carry_out(self.links.copies.first(effects, now))

    def carry_out(self, effects: Effects) -> None:
        if effects.ack:
            self.acknowledge(effects.ack)
        if effects.open:
            for queue in self.unit.queues.values():
                if queue.held:
                    queue.release(None)
        for name, place in (effects.release or {}).items():
            if effects.hold:
                self.unit.queues[name].hold(place)
            else:
                self.unit.queues[name].release(place)

    def acknowledge(self, upto: Mapping[str, int]) -> None:
        """Inputs need not be kept up to there; what sweeps does not keep those upstream waiting for it."""
        for name, position in upto.items():
            self.unit.feeds[name].acknowledge(position, now=self.policy.sweeps)

    def _note_trim(self) -> None:
        """Called by a reader's thread, which must not wait."""
        self._has_trimmed = True
        self._wake.set()

    def _note_new_output(self) -> None:
        """After a takeover: when readers first get what they had not had."""
        if not self.takeovers or self.takeovers[-1].reprocess_ms:
            return
        if any(queue.next_id > queue.wanted() for queue in self.unit.queues.values()):
            last = self.takeovers[-1]
            ms = (self._clock.time() - last.at) * 1000 - last.takeover_ms
            trains = self.unit.run.committed() - self._first
            self.takeovers[-1] = last.model_copy(update={"reprocess_ms": round(max(ms, 0.001), 3), "trains": trains})

    # -- messages

    def _run(self) -> None:
        while not self._stopped:
            tick_s = self._timings.tick_s
            self._wake.wait(min(self.guard.interval_s, tick_s) if self.policy.joined else tick_s)
            self._wake.clear()
            try:
                if not self._stopped:
                    self._converse()
            except Exception:
                log.exception("guarding %s failed", self.unit.title)

    def _converse(self) -> None:
        """Send what is due, and do what follows from the answer."""
        if self.stored is not None and self.unit.frozen_since is not None:
            return  # on its way elsewhere: what is written there counts from now on
        if self.is_about_to_jump():
            return
        with self.unit.run.between_trains(), self._lock:
            if self._has_trimmed:  # what readers let go of from here on is told the next time
                self._has_trimmed = False
                for machine in (self.policy, *self.links.copies.machines.values()):
                    machine.trimmed()
            now = self._clock.now()
            received = self.received(self.policy, now)
            alone = not self.policy.joined
            if alone:
                self._do(self.policy.tick(now, received))
            want = self.policy.want(now, received)
            compose = self.composing(want, self._shown) if want is not None else None
            if want is not None:
                self.links.hasten()
        if alone:
            self._stale_readers = [n for n in self._stale_readers if not self._host.forget_reader(self.unit, n)]
        if want is None or compose is None:
            return
        try:
            self.check_size(want)
        except FullError as error:
            self._remove_backup(error.message)
            return
        captured = now
        try:
            parcel = compose()
            captured = self._clock.now()
            if self.policy.in_turns:
                self._host.turns.captured(self, captured - now)
            answer = self._say(parcel, self._timings.within(want))
        except BorealisError as error:
            self._end_turn(captured, arrived=False)
            with self._lock:
                self.policy.failed()
                self._failures += 1
                self._why = str(error)
            if self._failures in (1, MANY):
                log.warning("%s: its backup did not take a parcel: %s", self.unit.title, error)
            self._clock.sleep(self._timings.retry_s)
            return
        self._end_turn(captured, arrived=answer.verdict in ("take", "known"))
        self._failures = 0
        self._messages, self._bytes = self._messages + 1, self._bytes + parcel.nbytes
        self._answered(want, answer, now, parcel.acks)

    def _flush(self) -> None:
        """Send what any copy lacks; all are waited for elsewhere."""
        self.links.wake()
        self._converse()

    def is_about_to_jump(self) -> bool:
        """Whether ids jump with the next train: a backup that knows nothing of that would go on with those before."""
        begins = self.unit.leaps and self.unit.run.committed() <= self._first
        return begins and self._clock.time() - self._since < self._timings.jump_s

    def _say(self, parcel: Parcel, within: float) -> GuardAnswer:
        """Give the backup a parcel, on its node or in storage."""
        if self.stored is not None:
            return self.stored.say(parcel)
        return self._host.peers.at(self.guard.partner).say("guard", parcel, GuardAnswer, within=within)

    def _write_base(self, stored: Stored) -> None:
        """Have storage write all there is, from the last train on, while parcels go on."""
        with self.unit.run.between_trains(), self._lock:
            want = Want("whole", 0, 0, self.policy.last)
            compose = self.composing(want, self._shown)
        stored.write_base(want.step.train, compose)

    def _end_turn(self, captured: float, *, arrived: bool) -> None:
        """What was captured then has come to its backup, or not."""
        if self.policy.in_turns:
            self._host.turns.ended(self, self._clock.now() - captured, arrived=arrived)

    def received(self, policy: Primary, now: float) -> dict[str, int]:
        """What readers of each output lack; where checkpoints sweep, what named ones need, and the others apart."""
        queues = self.unit.queues
        if not policy.sweeps:
            return {name: queue.pushed() for name, queue in queues.items()}
        passing = {name: queue.passing() for name, queue in queues.items()}
        policy.pushed(now, {name: upto for name, upto in passing.items() if upto is not None})
        return {name: queue.acknowledged() for name, queue in queues.items()}

    def check_size(self, want: Want) -> None:
        """A FullError if a whole is too large to be sent."""
        if self.stored is not None:
            return
        size = sum(queue.status().held_bytes for queue in self.unit.queues.values()) if want.kind == "whole" else 0
        if size > WHOLE_BYTES_MOST:
            raise FullError(f"{size:,} bytes are kept for readers: more than a backup can be sent")

    def _answered(self, want: Want, answer: GuardAnswer, sent: float, told: Acks) -> None:
        if answer.verdict == "deposed":
            self._host.step_down(self.unit, self.guard.partner)
            return
        if self.policy._under_way is not want:
            return  # of a backup that was
        if answer.verdict in ("full", "failed") and not self.policy.known and self.stored is None:
            self._remove_backup(f"its backup cannot stand by: {answer.why}")  # the coordinator tries again, or another
            return
        with self.unit.run.between_trains(), self._lock:
            if answer.verdict in ("take", "known"):
                fresh = not self.policy.known
                self.unit.refuse(None)
                self._waited_at = self._clock.now() if answer.waits else -HEARD_S
                for name, readers in answer.acks.items():
                    self.unit.queues[name].raise_acks(readers, told[name])
                self._do(self.policy.acknowledged(want.number))
                self.let_go()
                self._shown, self._covered_at = want.step.outputs, sent
                if fresh and self.policy.known:
                    self._since = self._clock.time()
                    self._host.news()
            elif answer.verdict == "whole":
                self.policy.rejected()
                self._why = "its backup lost the thread"
            elif answer.verdict == "full" or (answer.verdict == "failed" and self.stored is not None):
                self.policy.failed()
                other = "backup" if self.stored is None else "storage"
                self._why = f"its {other} takes nothing: {answer.why}"
                why = f"the {other} of {self.unit.title} takes nothing, and so nothing is safe here: {answer.why}"
                kind = FullError if answer.verdict == "full" else StateError
                self.unit.refuse(kind(why, hint="mend that there; what was sent is acknowledged then"))
            else:
                self.policy.failed()
                self._why = f"its backup says: {answer.verdict}"
        if self.policy.waits_behind(want):
            self._wake.set()
        if self.stored is not None and answer.verdict == "take" and self.stored.wants_base():
            self._write_base(self.stored)

    def composing(self, want: Want, shown: Mapping[str, Place]) -> Callable[[], Parcel]:
        """Everything a parcel needs, as of now: no train is committed meanwhile. What takes time is done later.

        The copy that it is for has the outputs as far as was `shown` to it.
        """
        unit, queues = self.unit, self.unit.queues
        acks = {name: queue.acks() for name, queue in queues.items()}
        epochs = {name: feed.epoch for name, feed in unit.feeds.items() if feed.seen}
        base, how = (unit.order.diagram, unit.order.unit, self.guard.incarnation, want, acks, epochs), unit.condition()
        state: Callable[[], Mapping[Key, bytes]] = dict
        snapshots: dict[str, QueueSnapshot] = {}
        if want.kind == "whole" and self.policy.needs_state:
            snapshots = {name: queue.snapshot() for name, queue in queues.items()}
            state = unit.run.whole_state()
        elif want.kind == "delta":
            snapshots = {
                name: queue.needed(want.starts[name]) if name in want.starts else queue.since(shown[name])
                for name, queue in queues.items()
            }
            state = partial(unit.merged, self._unsent.since(want.since))
        self._unsent.tell(want.step.train)
        return lambda: Parcel(*base, state(), {name: s.to_bytes() for name, s in snapshots.items()}, how)

    # -- as the partner that is corrected first

    def first(self) -> StreamState | None:
        return None

    def waits(self) -> bool:
        """Whether its backup does, or a further copy."""
        return self._clock.now() - self._waited_at < HEARD_S or self.links.waits(HEARD_S)

    # -- how it stands

    def status(self) -> GuardStatus:
        with self._lock:
            policy, guard = self.policy, self.guard
            protected = policy.joined and policy.known
            behind = policy.last.train - policy._acked if protected else 0
            stale = (self._clock.now() - self._covered_at) * 1000 if behind else 0.0
            return GuardStatus(
                approach=guard.approach,
                guarantee=guard.guarantee,
                role="primary",
                incarnation=guard.incarnation,
                standing=guard.standing,
                partner=guard.partner_node if self.stored is None else "storage",
                further=sorted(self.links.copies.machines),
                numbers=self.links.numbers(),
                state="protected" if protected else "catching up" if policy.joined else "alone",
                since=self._since,
                why="" if protected else self._why,
                stale_ms=round(stale, 1),
                recovery_ms=round(self._recovery_ms(behind), 1) if protected else 0.0,
                messages=self._messages,
                bytes=self._bytes,
                takeovers=self.takeovers,
            )

    def _recovery_ms(self, behind: int) -> float:
        how = self.guard.protection
        detection = how.ping_us / 1000 * (how.misses - 0.5)
        again = dict.fromkeys(CHECKPOINTED, float(behind)) | {"upstream-backup": 1 + len(self.policy._steps) / 10}
        return detection + TAKEOVER_MS + again.get(self.guard.approach, 0) * self.unit.train_ms()
