"""One simulated run: a cluster is started and fed, faults come and heal, everything is read to the end, and judged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from borealis.client.publisher import Publisher, Publishing
from borealis.client.subscriber import ReadOptions, Subscription
from borealis.clock import WALL
from borealis.coordinator.coordinator import Coordinator
from borealis.diagram.cut import Piece, cut
from borealis.diagram.deployment import Deployment
from borealis.diagram.spec import Spec
from borealis.errors import BorealisError
from borealis.node.primary import PrimaryGuard
from borealis.retrying import Retries
from borealis.sim.cluster import CoordinatorLine, Host, SimCluster
from borealis.sim.disk import SimDisk
from borealis.sim.history import History, Received, check, plain
from borealis.sim.invariants import (
    Fed,
    Guarded,
    InputRecord,
    Recovery,
    acked_and_lost,
    deposed_heard,
    stable_undone,
    stuck,
)
from borealis.sim.kernel import Kernel, LivelockError
from borealis.sim.oracle import Oracle, Rows, shape_of
from borealis.sim.plan import COORDINATOR, Fault, Plan
from borealis.sim.programs import Programs
from borealis.streams.section import Section
from borealis.wire.status import ClusterStatus

BATCH_ROWS = 40
TICK_S = 0.5  # between two batches of an input, on average
READY_S = 20.0  # for the cluster to come up, and the diagram to run
PROTECTED_S = 30.0  # after the last fault, until everything is protected again
ROWS_S = 15.0  # after the last fault, until every output gives what was published since
END_S = 20.0  # for the end to pass through everything
LOOK_S = 0.1  # between two looks
TAIL_S = 1.0  # everything runs on for a moment before its end
RETRIES = Retries(give_up_s=120.0)
SAFE = ("protected", "watching")
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

    @classmethod
    def of(cls, yaml: str, spec: Spec, cuts: Sequence[str], programs: Programs, rows: Rows) -> Subject:
        oracle = Oracle(spec, programs.compiled(spec, 1, None), rows)
        return cls(spec, yaml, cut(spec, cuts), oracle, rows)


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
        self.kernel = Kernel(plan.seed)
        self.cluster = SimCluster(self.kernel, plan.nodes, programs)
        self.outcome = Outcome(plan)
        self._over = False
        self._healed = False
        self._copies: dict[tuple[str, str], set[str]] = {}  # of each unit: nodes that have all of it
        self._lost: set[tuple[str, str]] = set()  # units of which no copy was left
        self._struck: set[str] = set()  # units that were taken over
        self._published = {one.name: 0 for one in subject.spec.inputs}
        self._acked: dict[str, dict[int, list[Any]]] = {one.name: {} for one in subject.spec.inputs}
        self._fed: list[Fed] = []
        self._sections: dict[str, list[Section]] = {}
        self._chance = self.kernel.chance("run")
        self._t0 = 0.0
        self.histories = {
            output.name: History(
                f"seed {plan.seed}",
                output.name,
                shape_of(subject.oracle, subject.pieces, output.name),
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
        feeds = [self._threads.start(f"feed-{name}", lambda name=name: self._feed(name)) for name in self._published]  # type: ignore[misc]
        for number, fault in enumerate(self.plan.faults):
            self.kernel.at(fault.at, lambda number=number, fault=fault: self._strike(number, fault))  # type: ignore[misc]
        self._clock.sleep(self.plan.healed_at + 0.001)
        self._mend()
        healed = self.kernel.now
        self.note("run", "all faults are healed")
        self._recover(healed)
        left = self._t0 + self.plan.seconds - self.kernel.now
        if left > 0:
            self._clock.sleep(left)
        self._healed = True
        for feed in feeds:
            self._join(feed, END_S, "a publisher did not end")
        for reader in readers if not self._lost else ():
            self._join(reader, END_S, f"an output did not end: {self._unsafe() or 'all is protected'}")
        self._over = True

    def _await(self, what: Callable[[], Any], within: float, otherwise: str) -> None:
        until = self.kernel.now + within
        while not what():
            if self.kernel.now > until:
                raise StuckError(otherwise)
            self._clock.sleep(LOOK_S)

    def _join(self, task: Any, within: float, otherwise: str) -> None:
        task.join(within)
        if task.is_alive():
            raise StuckError(otherwise)
        if (error := task.exception()) is not None:
            self.outcome.faults.append(f"a client failed: {error!r}")

    def _all_there(self) -> bool:
        coordinator = self.cluster.coordinator.coordinator
        return coordinator is not None and len(coordinator.cluster.members.alive()) == len(self.plan.nodes)

    def _deploy(self) -> None:
        plan = self.plan
        how: Any = {"cut": list(plan.cuts), "ha": plan.approach, "guarantee": plan.guarantee}
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
            first = self._published[name]
            stop = first + self._chance.randint(1, 2 * BATCH_ROWS)
            batch = self.subject.rows(name, first, stop)
            sent[publisher.next_number] = (first, stop)
            publisher.send_batch(batch.cast(publisher.schema))
            self._published[name] = stop
            self._receipts(name, publisher, sent)
            self._clock.sleep(self._chance.uniform(0.2, 1.8) * TICK_S)
        publisher.end()
        publisher.close(END_S)
        self._receipts(name, publisher, sent)

    def _receipts(self, name: str, publisher: Publisher, sent: dict[int, tuple[int, int]]) -> None:
        acked = self._acked[name]
        for number in [n for n in sent if n <= publisher.receipt.number]:
            first, stop = sent.pop(number)
            acked[number] = plain(self.subject.rows(name, first, stop))
            self.note("client", f"{name}: batch {number}, rows {first} to {stop}, is acknowledged")

    def _read(self, output: str) -> None:
        history = self.histories[output]
        machine = self.cluster.client.process.machine  # type: ignore[union-attr]
        options = ReadOptions(start="oldest", on_gap="continue", retries=RETRIES, first_s=60.0)
        subscription = Subscription(self._client, f"{self.subject.spec.name}/{output}", options, machine=machine)
        sections = self._sections.setdefault(subscription.epoch, [])
        try:
            for section in subscription.sections():
                self._take(history, section)
                sections.append(section.bare() if hasattr(section, "bare") else section)
            history.ended = subscription.ended
        except BorealisError as error:
            history.trouble.append(f"the reader failed: {error}")
        history.gaps = subscription.gaps
        history.events.append({"jumps": subscription.jumps})

    def _take(self, history: History, section: Section) -> None:
        if not len(section):
            return
        rows = plain(section.rows, history.shape.columns)
        times = section.time.tolist()
        for number, (at, row) in enumerate(zip(times, rows, strict=True)):
            history.received.append(Received(section.first + number, at, row))
        self.outcome.rows += len(rows)
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
        found = [f"unit {u.unit} on {u.node} is {u.state}: {u.error}" for u in status.units if u.state != "running"]
        if self.plan.approach != "none":
            for unit in status.units:
                if unit.protection is None or unit.protection.state not in SAFE:
                    found.append(f"unit {unit.unit} is {_protection(unit)}")
            for stream in status.streams:
                if stream.entry and (stream.protection is None or stream.protection.state not in SAFE):
                    found.append(f"input {stream.arrow} is {_protection(stream)}")
        return found

    def _recover(self, healed: float) -> None:
        """Everything is protected again, and every output gives what is published from now on; or it is stuck."""
        if self._lost:  # what was promised for this: see `history.both_died`
            self._clock.sleep(TAIL_S)
            return
        moments = dict(self._published)
        since: float | None = None
        flowing: dict[str, float | None] = dict.fromkeys(self.histories)
        until = healed + max(PROTECTED_S, ROWS_S)
        while self.kernel.now < until:
            unsafe = self._unsafe()
            since = None if unsafe else since if since is not None else self.kernel.now
            for name, history in self.histories.items():
                if flowing[name] is None and history.received and self._is_new(history, moments):
                    flowing[name] = self.kernel.now
            if since is not None and None not in flowing.values():
                break
            self._clock.sleep(LOOK_S)
        why = "; ".join(self._unsafe())
        state = "protected" if since is not None else "unprotected"
        recovery = Recovery(healed, self.kernel.now, [Guarded("the diagram", state, why, since)], flowing)
        self.outcome.faults += [f"stuck: {fault}" for fault in stuck(recovery, PROTECTED_S, ROWS_S)]

    def _is_new(self, history: History, moments: dict[str, int]) -> bool:
        """Whether the last row was made of rows that were published later."""
        first = min(self.subject.rows(n, c, c + 1).column(0)[0].value for n, c in moments.items())
        return bool(history.received[-1].time > first)

    # -- faults

    def _strike(self, number: int, fault: Fault) -> None:
        self.note("fault", f"{fault.what} {' '.join(fault.nodes)}".strip())
        hosts = [self.cluster.host(name) for name in fault.nodes]
        wires, names = self.cluster.wires, set(self.plan.nodes) | {COORDINATOR, "client"}
        last = fault.until - fault.at
        match fault.what:
            case "kill" | "crash" | "wipe" | "flipped bit":
                for host in hosts:
                    self._kill(host, fault)
                    self.kernel.at(last, lambda host=host: self._restart(host))  # type: ignore[misc]
            case "cut off" | "cut one way":
                wires.cut(fault.nodes, sorted(names - set(fault.nodes)), both=fault.what == "cut off")
                self.kernel.at(last, self._heal)
            case "cut pair":
                wires.cut(fault.nodes[:1], fault.nodes[1:])
                self.kernel.at(last, self._heal)
            case "break connections":
                wires.break_some(fault.amount)
            case "pause":
                for host in hosts:
                    if host.process is not None and host.alive:
                        host.process.pause()
                        self.kernel.at(last, host.process.resume)
            case "slow":
                for host in hosts:
                    if host.process is not None:
                        host.process.slow = fault.amount
                        self.kernel.at(last, lambda host=host: self._at_full_speed(host))  # type: ignore[misc]
            case "full disk":
                for host in hosts:
                    host.disk.limit = host.disk.used
                    self.kernel.at(last, lambda host=host: self._make_room(host))  # type: ignore[misc]
            case "failing disk":
                for host in hosts:
                    host.disk.failing.update(dict.fromkeys(("write", "sync"), int(fault.amount)))
            case "move":
                self.cluster.coordinator.do(lambda coordinator: self._move(coordinator, fault.nodes[0]))

    def _move(self, coordinator: Coordinator, node: str) -> None:
        """A unit that is elsewhere, as is its backup, moves to this node."""
        units = [u for u in coordinator.status().units if u.node != node and u.state != "orphan"]
        for unit in [u.unit for u in units if u.protection is None or u.protection.backup != node][:1]:
            try:
                coordinator.move(unit, node, self.subject.spec.name)
                self.note("fault", f"{unit} has moved to {node}")
            except BorealisError as error:
                self.note("fault", f"{unit} does not move to {node}: {error}")

    def _heal(self) -> None:
        self.note("fault", "the network is whole again")
        self.cluster.wires.heal()

    def _make_room(self, host: Host) -> None:
        host.disk.limit = None

    def _at_full_speed(self, host: Host) -> None:
        if host.process is not None:
            host.process.slow = 1.0

    def _kill(self, host: Any, fault: Fault) -> None:
        if not host.alive:
            return
        if host.name != COORDINATOR:
            self._count_copies(host.name)
        host.kill()
        if fault.what == "crash":
            host.disk.crash(self._chance)
        elif fault.what == "wipe":
            host.disk = SimDisk()
        elif fault.what == "flipped bit":
            host.disk.flip(self._chance)

    def _restart(self, host: Any) -> None:
        if not host.alive:
            self.note("fault", f"{host.name} starts again")
            host.start()

    def _mend(self) -> None:
        self.cluster.wires.heal()
        for host in (self.cluster.coordinator, *self.cluster.nodes.values()):
            self._make_room(host)
            host.disk.failing.clear()
            if host.process is not None:
                host.process.resume()
                host.process.slow = 1.0
            self._restart(host)

    def _count_copies(self, dying: str) -> None:
        """A node is about to die: which units have no copy left then? That is more than protection is promised for."""
        for key, copies in self._all_copies().items():
            self._copies[key] = copies - {dying}
            if not self._copies[key] and key not in self._lost:
                self._lost.add(key)
                self.note("run", f"no copy of {key[1]} is left")
            if dying in copies:
                self._struck.add(key[1])

    def _all_copies(self) -> dict[tuple[str, str], set[str]]:
        found = dict(self._copies)
        best: dict[tuple[str, str], int] = {}
        for name, host in self.cluster.nodes.items():
            if not host.alive or host.node is None:
                continue
            for key in [*host.node.units, *host.node.entries]:
                unit = host.node.running(key)
                if unit is None or unit.standby:
                    continue
                guard = host.node.guards.primaries.get(key)
                incarnation = guard.guard.incarnation if guard is not None else 1
                if incarnation >= best.get(key, 0):
                    best[key] = incarnation
                    found[key] = {name, *self._backup(guard)}
        return found

    def _backup(self, guard: PrimaryGuard | None) -> set[str]:
        if guard is None or not (guard.policy.joined and guard.policy.known):
            return set()
        partner = guard.guard.partner_node
        return {partner} if partner in self.cluster.nodes and self.cluster.nodes[partner].alive else set()

    # -- the judgement

    def _judge(self) -> None:
        outcome, plan = self.outcome, self.plan
        outcome.both_died = bool(self._lost)
        for history in self.histories.values():
            history.published = dict(self._published)
            history.both_died = bool(self._lost)
            history.given_up = "no copy was left" if self._lost and not history.ended else ""
            history.struck = bool(self._struck) or any(f.what not in ("slow", "move") for f in plan.faults)
            if not any(fault.startswith(("stuck", "livelock")) for fault in outcome.faults) or history.ended:
                outcome.faults += [f"{history.output}: {fault}" for fault in check(history)]
        for epoch, sections in self._sections.items():
            outcome.faults += stable_undone(epoch, sections)
        outcome.faults += deposed_heard(self._fed)
        outcome.faults += self._unacknowledged()

    def _unacknowledged(self) -> list[str]:
        if self._lost or self.plan.approach in ("amnesia", "none"):
            return []
        found = []
        for name, acked in self._acked.items():
            taken = {f"pub-{name}": max(self._taken(name), default=-1)}
            found += acked_and_lost(InputRecord(name, {f"pub-{name}": acked}, taken=taken, approach=self.plan.approach))
        return found

    def _taken(self, name: str) -> list[int]:
        key = (self.subject.spec.name, f"in-{name}")
        hosts = [h for h in self.cluster.nodes.values() if h.node is not None]
        entries = [h.node.entries[key] for h in hosts if h.node is not None and key in h.node.entries]
        return [e.entry.state.publishers.get(f"pub-{name}", -1) for e in entries if not e.standby]


def _protection(view: Any) -> str:
    kept = view.protection
    return "unprotected" if kept is None else f"{kept.state} ({kept.why})"


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
