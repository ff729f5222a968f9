"""What a node runs: units, with the queries that run their trains, and entry points, which are units without boxes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

from borealis.diagram.cut import Piece
from borealis.diagram.protection import CHECKPOINTED, PARALLEL, Checkpoint, Protection
from borealis.entry.point import Entry
from borealis.errors import BorealisError, GivenUpError, TrainError
from borealis.ha.checkpoints import Sweeping
from borealis.ha.classes import classify
from borealis.ha.min_max import MinMax
from borealis.ha.primary import Active, Amnesia, Passive, Primary, Synchronous, Upstream, Want
from borealis.ha.retention import horizon_of
from borealis.machine import HERE, Machine
from borealis.node.feeds import StreamFeed
from borealis.node.unsent import Deltas, merged
from borealis.spark.query import Query
from borealis.state.log import Key
from borealis.streams.queue import OutputQueue
from borealis.streams.snapshot import QueueSnapshot
from borealis.streams.status import StreamState
from borealis.trains.commit_point import CommitPoint
from borealis.trains.forking import Partner
from borealis.trains.sections import beyond
from borealis.trains.unit import UnitRun
from borealis.wire.messages import Forked, Guard, UnitOrder, UnitState, UnitStatus, Waiting, called

RESTARTS_MOST = 5  # of a query that dies over and over, before its unit counts as failed
CHECKPOINTS: dict[Checkpoint, type[Passive]] = {"interval": Passive, "sweeping": Sweeping, "min-max": MinMax}
REHEARSALS = 4  # of a unit that stands by, to begin with

log = logging.getLogger("borealis.node")
UnitKey = tuple[str, str]  # diagram, unit
FACTS: Key = ("entry", 0)
OnCommit = Callable[[CommitPoint, Mapping[Key, bytes]], None]


@dataclass(frozen=True)
class UnitTimings:
    """How long a unit waits before its query runs again, in seconds."""

    restart_s: float = 0.5  # before the first restart of a query that died; twice as long before each further one
    rehearse_s: float = 20.0  # between rehearsals; Spark ends Python workers that were idle for a minute
    held_s: float = 0.3  # from when on streams that wait for another are a failure, for readers that have a choice


@dataclass
class Running:
    """What is protected alike, whether it has boxes or not."""

    order: UnitOrder
    piece: Piece
    queues: dict[str, OutputQueue]
    feeds: dict[str, StreamFeed] = field(default_factory=dict, kw_only=True)
    started: bool = field(default=False, kw_only=True)
    standby: bool = field(default=False, kw_only=True)  # it waits for the death of another
    frozen_since: float | None = field(default=None, kw_only=True)
    machine: Machine = field(default=HERE, kw_only=True)
    leaps: bool = field(default=False, kw_only=True)  # it begins from nothing: ids jump with its first train
    # noted by its protection on the node it came from
    retained_points: list[CommitPoint] = field(default_factory=list, kw_only=True)

    @property
    def key(self) -> UnitKey:
        return self.order.diagram, self.order.unit

    def is_ordered_by(self, order: UnitOrder) -> bool:
        """Whether an order asks for what is here already: not if it is the copy of an earlier pair."""
        mine, asked = self.order.guard, order.guard
        stands_by = asked is not None and asked.role != "primary"
        earlier = mine is not None and asked is not None and mine.standing < asked.standing
        same = (self.order.yaml, self.order.epoch) == (order.yaml, order.epoch)
        return same and self.standby == stands_by and not earlier

    @property
    def protection(self) -> Protection | None:
        return self.order.guard.protection if self.order.guard is not None else None

    @property
    def merges_freely(self) -> bool:
        """Whether it reads several streams as they arrive: its backup must be told in which order that was."""
        by_time = self.protection is not None and self.protection.merge == "time"
        return len(self.piece.reads) > 1 and not by_time

    @property
    def title(self) -> str:
        """As people read it."""
        return called(*self.key)

    @property
    def state(self) -> UnitState:
        """In a word, as long as it does not fail."""
        if self.standby:
            return "standby"
        if not self.started:
            return "starting"
        return "running" if self.frozen_since is None else "frozen"

    def condition(self) -> StreamState:
        """What readers of its streams may expect: what is right, or something is missing, or is being corrected."""
        return "stable"

    def correct_with(self, partner: Partner | None) -> None:
        """Correct what was tentative by turns with the other copy; with none, at once."""

    @property
    def busy(self) -> bool:
        """Whether it is in the midst of a train."""
        return False

    def waits_for_partner(self) -> bool:
        """Whether the other copy is corrected first, and this one answers tentatively."""
        return False

    def refuse(self, error: BorealisError | None) -> None:
        """Its backup takes nothing, for this reason, or does again."""

    def step_down(self, address: str) -> None:
        """Another node runs it now, at this address if that is known; it ends here in a moment."""

    def launch(self) -> None:
        """Have ready what it needs to run."""

    def begin_again(self, *, may_lose: bool) -> None:
        """Both copies of it were lost: it goes on with what there is."""


@dataclass
class RunningUnit(Running):
    """A unit that runs here."""

    run: UnitRun
    query: Query
    restarts: int = 0  # of its query, since the last train that was committed
    restart_at: float | None = None  # when the next is due
    restarting: bool = False
    trains_then: int = 0
    failure: BorealisError | None = None
    last_failure: BorealisError | None = None  # of its query, since the last train that was committed
    rehearsed_at: float = 0.0
    timings: UnitTimings = field(default=UnitTimings(), kw_only=True)

    def __post_init__(self) -> None:
        for queue in self.queues.values():
            queue.condition = self.condition

    def correct_with(self, partner: Partner | None) -> None:
        by_turns = self.protection is not None and self.protection.reconcile == "partner"
        self.run.manager.correct_with(partner if by_turns else None)

    @property
    def busy(self) -> bool:
        return self.run.in_train

    def waits_for_partner(self) -> bool:
        return self.run.manager.waits_for_partner()

    def condition(self) -> StreamState:
        fork = self.run.manager.fork
        if fork is not None:
            how: StreamState = "suspended" if fork.order.suspended else "stabilization"
            return how if fork.order.stabilizing else "failure"
        stands = self.failure or self.run.manager.failure or self.restarting or self.restart_at is not None
        if stands or self.frozen_since is not None or any(feed.waiting_for for feed in self.feeds.values()):
            return "failure"
        return "failure" if self.run.manager.held_s() >= self.timings.held_s else "stable"

    @property
    def ended(self) -> bool:
        """Whether its inputs have ended, and all that follows from them is given."""
        return self.run.done.is_set()

    def launch(self) -> None:
        """Have Spark ready for its trains."""
        if not self.ended and not self.image:
            self.query.start()

    @property
    def image(self) -> bool:
        """Whether this is a backup that computes nothing: it needs no query of its own before it takes over."""
        guard = self.order.guard
        waits = self.standby and not self.started and guard is not None and guard.approach not in PARALLEL
        return waits and self.run.compiled.one_level

    # -- for its guard

    @property
    def nondeterministic(self) -> bool:
        """Whether a backup may come to other tuples, or to the same under other ids."""
        return classify(self.run.spec, self.piece, self.protection).nondeterministic

    def policy(self, guard: Guard, first: CommitPoint) -> Primary:
        """The state machine of its approach."""
        common = (guard.interval_s, self.merges_freely, self.nondeterministic, guard.precise, first)
        if guard.approach in PARALLEL:
            return Active(*common, asks=guard.further.given > 0)
        if guard.approach in CHECKPOINTED:
            kind = CHECKPOINTS[guard.checkpoint or "interval"]
            return kind(*common, rows_most=guard.protection.replay)
        if guard.approach == "amnesia":
            return Amnesia(*common, doubts=False)
        clients = bool({self.piece.errors, *(o.source for o in self.run.spec.outputs)} & set(self.piece.gives))
        policy = Upstream(*common, needed=horizon_of(self.run.spec, self.piece), clients=clients)
        if self.retained_points:  # it came from another node, with its state
            policy.adopt(self.retained_points)
        return policy

    def attach(self, watch: OnCommit, flush: Callable[[], None]) -> None:
        self.run.watch = watch

    def merged(self, stretches: Sequence[Sequence[Deltas]]) -> dict[Key, bytes]:
        """The deltas of several trains as one, so that only the latest value of anything travels."""
        return merged(self.run.compiled.tables, stretches)

    def mirror(self, want: Want, state: Mapping[Key, bytes], snapshots: Mapping[str, QueueSnapshot]) -> None:
        """While standing by: take in what the primary sent."""
        for name, snapshot in snapshots.items():
            self.queues[name].apply(snapshot)
        if want.kind == "delta":
            self.run.extend(want.step, state)
        elif (
            want.kind == "whole"
            and self.order.guard is not None
            and self.order.guard.approach in (*CHECKPOINTED, *PARALLEL)
        ):
            self.run.load(want.step, state)

    def train_ms(self) -> float:
        """The median of the last trains."""
        recent = sorted(list(self.run.progress.train_ms)[-50:])
        return recent[len(recent) // 2] if recent else 0.0

    # -- how it stands

    def rehearse(self) -> None:
        """Keep a unit that waits warm: a few trains of nothing to begin with, then one now and then."""
        now = self.machine.clock.now()
        if self.run.rehearsals.count < REHEARSALS or now - self.rehearsed_at > self.timings.rehearse_s:
            self.rehearsed_at = now
            self.run.rehearse()

    def look(self) -> BorealisError | None:
        """Why the unit stands still, if it does and cannot help it."""
        if self.failure is None and not self.run.done.is_set():
            broken = self.run.manager.failure
            if broken is not None:
                defect = TrainError(f"its input failed: {type(broken).__name__}: {broken}", hint="a defect of Borealis")
                self.failure = broken if isinstance(broken, BorealisError) else defect
            elif self.restarts >= RESTARTS_MOST and not self.restarting:
                self.failure = self.query.failure()
        return self.failure

    def wants_restart(self) -> BorealisError | None:
        """Why its query died, if it did and may be started again: the next train is then simply run again."""
        if self.failure is not None or self.restarting or self.run.done.is_set() or self.frozen_since is not None:
            return None
        if self.run.progress.trains > self.trains_then:
            self.trains_then, self.restarts, self.last_failure = self.run.progress.trains, 0, None
        failure = self.query.failure() if self.restarts < RESTARTS_MOST else None
        if isinstance(failure, GivenUpError):  # it has waited as long as it shall
            self.failure = failure
            return None
        self.last_failure = failure or self.last_failure
        if failure is None:
            self.restart_at = None
        elif self.restart_at is None:  # a machine that is too busy is given time
            self.restart_at = self.machine.clock.now() + self.timings.restart_s * 2**self.restarts
        return failure if self.restart_at is not None and self.machine.clock.now() >= self.restart_at else None

    def dying(self) -> list[str]:
        """Why its query died, while it is tried again: until a train is committed, or it is given up."""
        if self.run.progress.trains > self.trains_then or self.run.done.is_set():
            return []
        died = self.query.failure() or self.last_failure
        return [] if died is None else [f"{died} (trying again, {self.restarts} of {RESTARTS_MOST})"]

    def status(self) -> UnitStatus:
        progress, failure = self.run.progress, self.look()
        troubles = self.run.troubles.now() if failure is None else []
        fork = self._forked()
        if failure is None and fork is None and (held := self.run.manager.held_up()) is not None:
            troubles.append(held)
        awaited = [f.waiting_for for f in self.feeds.values() if f.waiting_for]
        state = "failed" if failure is not None else "ended" if self.run.done.is_set() else self.state
        return UnitStatus(
            diagram=self.order.diagram,
            unit=self.order.unit,
            state=state,
            boxes=list(self.piece.boxes),
            trains=progress.trains,
            rows_in=progress.rows_in,
            rows_out=sum(progress.rows_out.values()),
            train_ms=round(self.train_ms(), 3),
            busy_s=round(progress.busy_s, 3),
            state_bytes=progress.state_bytes,
            inputs={f"{self.order.diagram}/{a}": c["position"] for a, c in self.run.cursors().items()},
            lag_rows=self.run.manager.waiting(),
            jumps=progress.jumps,
            boundary=min((q.boundary for q in self.queues.values()), default=-(2**63)),
            error=str(failure) if failure is not None else "; ".join([*self.dying(), *awaited]),
            errors=progress.errors,
            last_error=progress.last_error,
            refused=progress.refused,
            given_up=self.run.manager.given_up(),
            fork=fork,
            condition=self.condition(),
            in_lanes=self.query.hinders is None,
            hinders=self.query.hinders or "",
            waiting=[Waiting(why=why, seconds=round(seconds, 1)) for why, seconds in troubles],
        )

    def _forked(self) -> Forked | None:
        """How its fork stands, if there is one."""
        fork, line = self.run.fork, self.run.manager.fork
        if fork is None or line is None:
            return None
        stabilizing, kept, rate = line.order.stabilizing, self.run.manager.kept(), self.run.progress.rate
        return Forked(
            state="stabilization" if stabilizing else "failure",
            missing=sorted(line.order.missing),
            tentative=line.tentative(),
            seconds=round(self.machine.clock.now() - fork.since, 1),
            tuples=fork.tuples,
            kept=kept.rows,
            memory_bytes=kept.memory_bytes,
            disk_bytes=kept.disk_bytes,
            full=kept.full,
            disk_trouble=kept.trouble,
            stable_in_s=round(kept.rows / rate, 1) if stabilizing and rate else None,
        )

    def begin_again(self, *, may_lose: bool) -> None:
        """Both copies of the unit were lost: it reads what there is. If it may lose tuples, what the lost copies gave
        is neither given again (ids jump) nor made again (it begins at what is newest): no reader shall count it twice.
        """
        self.leaps = may_lose
        for feed in self.feeds.values():
            feed.forgetful = True
            feed.fresh = "newest" if may_lose else "oldest"
        for queue in self.queues.values() if may_lose else ():
            queue.jump_to(beyond(queue, 0))

    def end(self) -> None:
        """Stop, once no order and no reader finds it any more."""
        try:
            self.query.stop()
        except Exception:  # its JVM may be gone; what is ours goes all the same
            log.exception("the query of unit %s could not be stopped", self.order.unit)
        finally:
            self.run.close(complete=False)


@dataclass
class RunningEntry(Running):
    """An entry point that is here."""

    entry: Entry
    ended: ClassVar[bool] = False

    @property
    def run(self) -> RunningEntry:
        """What takes its steps: itself."""
        return self

    # -- for its guard: steps are trains, and facts the one table of its state

    nondeterministic: ClassVar[bool] = True  # publishers come as they like

    def policy(self, guard: Guard, first: CommitPoint) -> Primary:
        kind = Synchronous if guard.approach in CHECKPOINTED else Amnesia
        return kind(guard.interval_s, False, self.nondeterministic, guard.precise, first)

    def attach(self, watch: OnCommit, flush: Callable[[], None]) -> None:
        """Be watched from now on; publishers wait for what `flush` sends."""
        self.entry.on_step = lambda facts: watch(self.step(), {FACTS: json.dumps(facts).encode()})
        self.entry.flush = flush

    def between_trains(self) -> AbstractContextManager[Any]:
        """No step is taken meanwhile."""
        return self.entry.lock

    def step(self) -> CommitPoint:
        """Where it stands after the last one."""
        outputs = {name: (queue.next_id, queue.boundary) for name, queue in self.queues.items()}
        return CommitPoint(self.committed(), 0, {}, outputs, at=self.machine.clock.now(), rows=self.entry.queue.next_id)

    def committed(self) -> int:
        return self.entry.state.steps

    def whole_state(self) -> Callable[[], dict[Key, bytes]]:
        """All it knows beside its queues."""
        facts = self.entry.state.facts()
        return lambda: {FACTS: json.dumps(facts).encode()}

    def merged(self, stretches: Sequence[Sequence[Deltas]]) -> dict[Key, bytes]:
        """The facts of several steps: later ones take the place of earlier ones."""
        facts: dict[str, Any] = {}
        for delta in chain.from_iterable(stretches):
            facts |= json.loads(delta[FACTS])
        return {FACTS: json.dumps(facts).encode()}

    def mirror(self, want: Want, state: Mapping[Key, bytes], snapshots: Mapping[str, QueueSnapshot]) -> None:
        """While standing by: take in what the primary sent."""
        if state:
            take_in = self.entry.load if want.kind == "whole" else self.entry.extend
            take_in(json.loads(state[FACTS]), snapshots)

    def refuse(self, error: BorealisError | None) -> None:
        self.entry.refusal = error

    def step_down(self, address: str) -> None:
        self.entry.step_down(address)

    def train_ms(self) -> float:
        return 0.0

    def start(self) -> None:
        """Let publishers in."""
        self.entry.start()

    # -- how it stands

    def status(self) -> UnitStatus:
        (diagram, unit), trains, boundary = self.key, self.committed(), self.entry.queue.boundary
        return UnitStatus(diagram=diagram, unit=unit, state=self.state, trains=trains, boundary=boundary)

    def end(self) -> None:
        self.entry.close()
