"""One simulated run: a cluster is started and fed, faults come and heal, everything is read to the end, and judged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow.compute as pc

from borealis.client.publisher import Publisher, Publishing
from borealis.client.subscriber import ReadOptions, Subscription
from borealis.clock import WALL
from borealis.coordinator.layout import Layout
from borealis.coordinator.timings import TIMINGS
from borealis.diagram.cut import Piece, cut
from borealis.diagram.deployment import Deployment
from borealis.diagram.spec import Spec
from borealis.errors import BorealisError
from borealis.retrying import Retries
from borealis.sim.cluster import CoordinatorLine, SimCluster
from borealis.sim.history import History, Received, check, plain
from borealis.sim.invariants import (
    AfterFaults,
    Given,
    Guarded,
    InputRecord,
    acked_and_lost,
    inconsistent,
    stuck,
)
from borealis.sim.kernel import Kernel, LivelockError
from borealis.sim.looks import Looks
from borealis.sim.oracle import Oracle, Rows, shape_of
from borealis.sim.plan import Plan, Weather
from borealis.sim.programs import Programs
from borealis.sim.strikes import Strikes
from borealis.sim.threads import KilledError
from borealis.streams.queue import QueueLimits
from borealis.streams.section import Section
from borealis.threads import Task
from borealis.wire.messages import ENTRY
from borealis.wire.status import ClusterStatus

BATCH_ROWS = 40
NEXT_ROWS = 3  # among which one has a time
TOGETHER_S = 0.005  # between batches that come in quick succession
READY_S = 20.0  # for the cluster to come up, and the diagram to run
PROTECTED_S = 30.0  # after the last fault, until everything is protected again
LOST_S = 60.0  # the same where no copy of a unit was left: the coordinator waits a while before it starts from nothing
ROWS_S = 15.0  # after the last fault, until every output gives what was published since
LEAN_BYTES = 4096  # of a stream, and of an input while a unit has a fork, in the memory of a lean cluster
END_S = 20.0  # for the end to pass through everything
LOOK_S = 0.2  # between two looks
MOVES_PAUSE_S = 0.5  # between units that move by themselves, where they do soon
MOVES_LOOK_S = 0.05  # between two looks for units that move
RETRIES = Retries(give_up_s=120.0)
STALE_MS = 5_000.0  # since a backup has heard of its primary
SAFE = ("protected", "watching")
MISSING = ("catching up", "away", "failed")  # how a copy is that does not answer
RUNS = ("running", "waiting", "tentative")  # rows have to come in any case
DAMAGED = "is damaged"  # words of a log that has no other copy
SPOILING = ("wipe", "flipped bit")  # a log may be gone, or unreadable
GIVEN_UP = "in epoch"  # a unit's words when what it reads began from nothing

log = logging.getLogger("borealis.sim")


@dataclass(frozen=True)
class Subject:
    """A diagram and what is known of it."""

    spec: Spec
    yaml: str
    pieces: Sequence[Piece]
    oracle: Oracle
    rows: Rows
    silent: frozenset[str] = frozenset()  # outputs that give so little that their silence says nothing

    @classmethod
    def of(cls, yaml: str, spec: Spec, cuts: Sequence[str], programs: Programs, rows: Rows) -> Subject:
        return cls(spec, yaml, cut(spec, cuts), Oracle(spec, programs.compiled(spec, 1, None), rows), rows)


@dataclass
class Outcome:
    """What came of a run."""

    plan: Plan
    faults: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # what happened, in order
    simulated_s: float = 0.0
    real_s: float = 0.0
    rows: int = 0  # that readers got
    both_died: bool = False

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


class StuckError(Exception):
    """Something did not happen in its time."""


class Run:
    """The run of a plan; `play` it once."""

    def __init__(self, plan: Plan, subject: Subject, programs: Programs) -> None:
        self.plan, self.subject = plan, subject
        self.weather = weather = Weather.drawn(plan.seed)
        self.kernel = Kernel(plan.seed, weather.preempt, weather.stall_s)
        limits = QueueLimits(keep_bytes=0, memory_bytes=LEAN_BYTES) if plan.lean else None
        timings = TIMINGS if plan.calm_s is None else replace(TIMINGS, calm_s=plan.calm_s, pause_s=MOVES_PAUSE_S)
        weather = weather if plan.start_s is None else replace(weather, start_s=plan.start_s)
        stored = plan.approach == "storage"
        self.cluster = SimCluster(self.kernel, plan.nodes, programs, weather, limits, timings, stored=stored)
        self.outcome = Outcome(plan)
        self._looks = Looks(self.cluster)
        self._over = False
        self._given_up = ""  # why the diagram does not go on, where no copy of a unit was left
        self._healed = False
        self._published = {one.name: 0 for one in subject.spec.inputs}
        self._acked: dict[str, dict[int, list[Any]]] = {one.name: {} for one in subject.spec.inputs}
        self._forgotten: dict[str, int] = {}  # how often an entry point did not know what it had given receipts for
        self._sections: dict[str, list[Given]] = {}  # that the reader of each output got
        self.came: list[tuple[str, int, int]] = []  # an output, its tuples by now, and the line of the history
        self._chance = self.kernel.chance("run")
        self._strikes = Strikes(self.cluster, self.kernel.chance("faults"), self.note)
        self._t0 = 0.0
        self._moved: set[str] = set()  # units that were under way elsewhere
        self._at_once: set[str] = set()  # what is wrong with that
        self.histories = {
            output.name: History(
                f"seed {plan.seed}",
                output.name,
                shape_of(subject.oracle, subject.pieces, output.name, plan.protection),
                plan.approach,
                plan.guarantee,
            )
            for output in subject.spec.outputs
        }

    # -- the whole

    def play(self) -> Outcome:
        begun, outcome = WALL.now(), self.outcome
        handler = _Noted(self)
        logger = logging.getLogger("borealis")
        level, propagate = logger.level, logger.propagate
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(handler)
        try:
            self._client: CoordinatorLine = self.cluster.start()
            client = self.cluster.client.process
            assert client is not None
            self._clock = client.machine.clock
            self._threads = client.machine.threads
            driver = client.start("driver", self._drive)
            client.start("moves", self._watch_moves)
            self._looks.begin()
            most = READY_S + self.plan.seconds + PROTECTED_S + ROWS_S + END_S + 60.0
            self.kernel.run(self.kernel.now + most, lambda: self._over or not driver.is_alive())
            if driver.is_alive():
                outcome.faults.append("stuck: the run did not end")
            elif (error := driver.exception(0)) is not None:
                if not isinstance(error, StuckError):
                    raise error
                outcome.faults.append(f"stuck: {error}")
            for died in self.kernel.errors:
                outcome.faults.append(f"a thread died: {died.process} {died.task}: {died.error!r}")
        except LivelockError as error:
            outcome.faults.append(f"livelock: {error}")
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
            outcome.simulated_s = self.kernel.now
            self._looks.end()
            self.kernel.dispose()
        self._judge()
        outcome.real_s = WALL.now() - begun
        return outcome

    def note(self, where: str, what: str) -> None:
        self.outcome.lines.append(f"{self.kernel.now:10.6f} {where:<14} {what}")

    # -- the client's threads

    def _drive(self) -> None:
        self._await(self._all_there, READY_S, "the nodes did not come")
        self._deploy()
        self._await(lambda: not self._unsafe(), READY_S, "not everything is protected to begin with")
        self._t0 = self.kernel.now
        readers = [self._threads.start(f"read-{name}", lambda name=name: self._read(name)) for name in self.histories]  # type: ignore[misc]
        self._await(lambda: len(self._sections) == len(readers), READY_S, "the outputs cannot be read")
        feeds = [self._threads.start(f"feed-{name}", lambda name=name: self._feed(name)) for name in self._published]  # type: ignore[misc]
        for fault in self.plan.faults:
            self.kernel.at(fault.at, lambda fault=fault: self._strikes.strike(fault))  # type: ignore[misc]
        self._clock.sleep(self.plan.healed_at + 0.001)
        self._strikes.mend()
        healed = self.kernel.now
        self.note("run", "all faults are healed")
        self._recover(healed)
        if self._given_up:
            return
        left = self._t0 + self.plan.seconds - self.kernel.now
        if left > 0:
            self._clock.sleep(left)
        self._healed = True
        self._join(feeds, "a publisher did not end")
        self._join(readers, "an output did not end")
        self._over = True

    def _watch_moves(self) -> None:
        """Which units are on their way elsewhere, as the catalog has it: one of a diagram at a time.

        One that was under way between two looks is elsewhere with the same incarnation.
        """
        homes: dict[str, tuple[str, int]] = {}
        while not self._over:
            host, layouts = self.cluster.coordinator, list[Layout]()
            if host.alive and host.coordinator is not None:
                try:
                    layouts = host.coordinator.cluster.catalog.layouts()
                except KilledError:  # it died while it was looked at, unless that is this thread's own end
                    if self.kernel.current is None or self.kernel.current.process.dead:
                        raise
                for layout in layouts:
                    moving = {unit.unit for unit in layout.units if unit.moving_to is not None}
                    before, homes = homes, {unit.unit: (unit.node, unit.incarnation) for unit in layout.units}
                    for name, (node, incarnation) in homes.items():
                        if before.get(name, (node, 0))[0] != node and before[name][1] == incarnation:
                            self._moved.add(name)
                    self._moved |= moving
                    if len(moving) > 1:
                        self._at_once.add(f"units {', '.join(sorted(moving))} of {layout.name} moved at once")
            self._clock.sleep(MOVES_LOOK_S)

    def _await(self, what: Callable[[], Any], within: float, otherwise: str) -> None:
        until = self.kernel.now + within
        while not what():
            if self.kernel.now > until:
                raise StuckError(otherwise)
            self._clock.sleep(LOOK_S)

    def _join(self, tasks: Sequence[Task[Any]], otherwise: str) -> None:
        """Wait until clients have ended; a unit may find out that late that it cannot go on."""
        until = self.kernel.now + END_S
        while any(task.is_alive() for task in tasks) and not self._is_given_up():
            if self.kernel.now > until:
                raise StuckError(f"{otherwise}: {'; '.join(self._unsafe()) or 'all is protected'}")
            self._clock.sleep(LOOK_S)
        failed = [error for task in tasks if not task.is_alive() and (error := task.exception()) is not None]
        self.outcome.faults += [f"a client failed: {error!r}" for error in failed]

    def _is_given_up(self) -> bool:
        if not self._given_up and self._may_give_up() and (why := self._gave_up()):
            self.note("run", f"given up: {why}")
            self._given_up = why
        return bool(self._given_up)

    def _all_there(self) -> bool:
        coordinator = self.cluster.coordinator.coordinator
        return coordinator is not None and len(coordinator.cluster.members.alive()) == len(self.plan.nodes)

    def _deploy(self) -> None:
        plan = self.plan
        how: Any = {"cut": list(plan.cuts), "place": dict(plan.place)} | plan.protection.plain()
        wish = Deployment.of(self.subject.yaml, how)
        task = self.cluster.coordinator.do(lambda coordinator: coordinator.deploy(wish))
        task.result(READY_S)
        self.note("run", "deployed")

    def _feed(self, name: str) -> None:
        """Publish to an input until everything has healed, then its end."""
        publishing = Publishing(name=f"pub-{name}", retries=RETRIES)
        machine = self.cluster.client.process.machine  # type: ignore[union-attr]
        publisher = Publisher(self._client, f"{self.subject.spec.name}/{name}", publishing, machine=machine)
        sent: dict[int, tuple[int, int]] = {}
        while not self._healed:
            count = self._chance.choice((1, 1, 1, 3))
            silent = self._strikes.silent.pop(name, 0.0) - self.kernel.now
            if silent > 0:
                self._clock.sleep(silent)
            for _ in range(count):
                first = self._published[name]
                stop = first + self._chance.randint(1, 2 * BATCH_ROWS // count)
                if silent > 0:  # what was not published meanwhile comes now
                    stop = max(stop, *self._published.values())
                batch = self.subject.rows(name, first, stop)
                sent[publisher.next_number] = (first, stop)
                publisher.send_batch(batch.cast(publisher.schema))
                self._published[name] = stop
                self._strikes.published()
                self._clock.sleep(self._chance.uniform(0.0, TOGETHER_S))
            self._receipts(name, publisher, sent)
            self._clock.sleep(self._pause())
        publisher.end()
        publisher.close(END_S)
        self._receipts(name, publisher, sent)
        self._forgotten[name] = publisher.forgotten

    def _pause(self) -> float:
        """Until the next batch: often that of a beat at which the other inputs get one, too."""
        beat_s = self.weather.batch_s
        if self._chance.random() < 0.5:
            return beat_s - (self.kernel.now - self._t0) % beat_s + self._chance.uniform(0.0, TOGETHER_S)
        return self._chance.uniform(0.2, 1.8) * beat_s

    def _receipts(self, name: str, publisher: Publisher, sent: dict[int, tuple[int, int]]) -> None:
        acked = self._acked[name]
        for number in [n for n in sent if n <= publisher.receipt.number]:
            first, stop = sent.pop(number)
            acked[number] = plain(self.subject.rows(name, first, stop))
            self.note("client", f"{name}: batch {number}, rows {first} to {stop}, is acknowledged")

    def _read(self, output: str) -> None:
        history = self.histories[output]
        machine = self.cluster.client.process.machine  # type: ignore[union-attr]
        reader = "client" if self.plan.lean else None
        tentative = self.plan.delay is not None
        patience: Any = {"on_gap": "continue", "retries": RETRIES, "first_s": 60.0}
        options = ReadOptions(start="oldest", reader=reader, tentative=tentative, **patience)
        subscription = Subscription(self._client, f"{self.subject.spec.name}/{output}", options, machine=machine)
        sections = self._sections[output] = []
        try:
            for section in subscription.sections():
                self._take(history, section)
                self._looks.hear("the client", subscription._follower)
                sections.append(Given.of(section, subscription.gaps, subscription.connection))
            history.ended = subscription.ended
        except BorealisError as error:
            history.trouble.append(f"the reader failed: {error}")
        history.gaps = subscription.gaps
        history.events.append({"jumps": subscription.jumps})

    def _take(self, history: History, section: Section) -> None:
        if section.undo:
            self.note("client", f"{history.output}: what was tentative is void; it goes on at {section.first}")
        if section.done:
            self.note("client", f"{history.output}: recovery is done at {section.first}")
        if not len(section):
            return
        if not section.stable:
            what = f"tentative tuples {section.first} to {section.stop} of fork {section.fork}"
            self.note("client", f"{history.output}: {what} came")
            return
        rows = plain(section.rows, history.shape.columns)
        times = section.time.tolist()
        for number, (at, row) in enumerate(zip(times, rows, strict=True)):
            history.received.append(Received(section.first + number, at, row))
        self.outcome.rows += len(rows)
        self.came.append((history.output, len(history.received), len(self.outcome.lines)))
        shown = f"{rows[0]} ... {rows[-1]}"
        self.note("client", f"{history.output}: tuples {section.first} to {section.stop} came: {shown}")

    # -- how it stands

    def _status(self) -> ClusterStatus | None:
        host = self.cluster.coordinator
        if not host.alive or host.coordinator is None or host.coordinator.cluster is None:
            return None
        return host.coordinator.status()

    def _unsafe(self) -> list[str]:
        """What is not as it shall be."""
        status = self._status()
        if status is None:
            return ["the coordinator is not there"]
        found = [f"unit {u.unit} on {u.node} is {u.state}: {u.error}" for u in status.units if u.state not in RUNS]
        if self.plan.approach != "none":
            for unit in status.units:
                if not _is_safe(unit):
                    found.append(f"unit {unit.unit} is {_protection(unit)}")
            for stream in status.streams:
                if stream.entry and not _is_safe(stream):
                    found.append(f"input {stream.arrow} is {_protection(stream)}")
        return found

    def _may_give_up(self) -> bool:
        """Whether a unit may stop, since no copy was left of what it reads. Under `gap` that holds of inputs only."""
        inputs = [unit for _, unit in self._strikes.lost if unit.startswith(ENTRY)]
        return bool(inputs or (self._strikes.lost and self.plan.guarantee != "gap"))

    def _gave_up(self) -> str:
        """Why a unit does not go on, if what it reads began from nothing, or a person has to look at a damaged log."""
        status = self._status()
        if status is None:
            return ""
        said = [unit.error for unit in status.units if unit.state == "failed" and GIVEN_UP in unit.error]
        spoilt = any(fault.what == "flipped bit" for fault in self.plan.faults)
        damaged = [trouble.why for trouble in status.troubles if DAMAGED in trouble.why] if spoilt else []
        return next(iter(said + damaged), "")

    def _recover(self, healed: float) -> None:
        """Everything is protected again, and every output gives what is published from now on; or it is stuck."""
        protected_s, rows_s = (LOST_S, LOST_S) if self._strikes.lost else (PROTECTED_S, ROWS_S)
        newer = self._next_time()
        since: float | None = None
        flowing: dict[str, float | None] = dict.fromkeys(n for n in self.histories if n not in self.subject.silent)
        until = healed + max(protected_s, rows_s)
        while self.kernel.now < until:
            unsafe = self._unsafe()
            if self._is_given_up():
                return
            since = None if unsafe else since if since is not None else self.kernel.now
            for name, history in self.histories.items():
                if flowing.get(name, 0.0) is None and history.received and history.received[-1].time > newer:
                    flowing[name] = self.kernel.now
            if since is not None and None not in flowing.values():
                break
            self._clock.sleep(LOOK_S)
        why = "; ".join(self._unsafe())
        state = "protected" if since is not None else "unprotected"
        recovery = AfterFaults(healed, self.kernel.now, [Guarded("the diagram", state, why, since)], flowing)
        self.outcome.faults += [f"stuck: {fault}" for fault in stuck(recovery, protected_s, rows_s)]

    def _next_time(self) -> int:
        """Results with a later time are made of rows that are published from now on."""
        times = {one.name: one.time for one in self.subject.spec.inputs}
        published = self._published.items()
        return min(int(pc.max(self.subject.rows(n, c, c + NEXT_ROWS)[times[n]]).value) for n, c in published)

    # -- the judgement

    def _judge(self) -> None:
        outcome, plan = self.outcome, self.plan
        outcome.both_died = bool(self._strikes.lost)
        for history in self.histories.values():
            history.published = dict(self._published)
            history.both_died = bool(self._strikes.lost)
            history.given_up = self._given_up
            history.resent = any(unit.startswith(ENTRY) for unit in self._strikes.struck)
            history.struck = bool(self._strikes.struck) or any(f.what != "slow" for f in plan.faults)
            if not any(fault.startswith(("stuck", "livelock")) for fault in outcome.faults) or history.ended:
                outcome.faults += [f"{history.output}: {fault}" for fault in check(history)]
        for output, sections in self._sections.items():
            ended = self.histories[output].ended
            outcome.faults += [f"{output}: {fault}" for fault in inconsistent(sections, ended=ended)]
        outcome.faults += self._looks.faults(self._strikes.moved | self._moved)
        outcome.faults += sorted(self._at_once)
        outcome.faults += self._unacknowledged()

    def _unacknowledged(self) -> list[str]:
        if not self._keeps_receipts():
            return []
        found = [f"input {name}: acknowledged and lost, {n} times" for name, n in self._forgotten.items() if n]
        for name, acked in self._acked.items():
            numbers = self._taken(name)
            if self._given_up and not numbers:  # it was just being taken over when that was seen
                continue
            taken = {f"pub-{name}": max(numbers, default=-1)}
            found += acked_and_lost(InputRecord(name, {f"pub-{name}": acked}, taken=taken, approach=self.plan.approach))
        return found

    def _keeps_receipts(self) -> bool:
        """Whether what has a receipt is there: on a node that lives, or in the log of the one that had it last."""
        if self._strikes.lost and not (self.plan.durable and all(f.what not in SPOILING for f in self.plan.faults)):
            return False
        return self.plan.approach not in ("amnesia", "none")

    def _taken(self, name: str) -> list[int]:
        key = (self.subject.spec.name, f"in-{name}")
        hosts = [h for h in self.cluster.nodes.values() if h.node is not None]
        entries = [h.node.entries[key] for h in hosts if h.node is not None and key in h.node.entries]
        return [e.entry.state.publishers.get(f"pub-{name}", -1) for e in entries if not e.standby]


def _is_safe(view: Any) -> bool:
    kept = view.protection
    if kept is None or kept.state not in SAFE or kept.stale_ms >= STALE_MS:
        return False
    return kept.copies is None or [how not in MISSING for how in kept.replicas.values()].count(True) >= kept.copies


def _protection(view: Any) -> str:
    kept = view.protection
    if kept is None:
        return "unprotected"
    return f"{kept.state} ({kept.why or f'{kept.stale_ms:.0f} ms ago'}) {kept.replicas or ''}".strip()


class _Noted(logging.Handler):
    """What the processes log, in the history."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        task = self._run.kernel.current
        where = task.process.name if task is not None else "-"
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" [{record.exc_info[1]!r}]"
        self._run.note(where, f"{record.levelname.lower()}: {text}")
