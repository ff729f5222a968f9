"""A unit on a node: what runs it, and how it stands."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

from borealis.diagram.cut import Piece
from borealis.errors import BorealisError, GivenUpError, TrainError
from borealis.node.feeds import StreamFeed
from borealis.spark.query import Query
from borealis.streams.queue import OutputQueue
from borealis.trains.commit_point import CommitPoint
from borealis.trains.sections import beyond
from borealis.trains.unit import UnitRun
from borealis.wire.messages import UnitOrder, UnitStatus, Waiting

RESTARTS_MOST = 5  # of a query that dies over and over, before its unit counts as failed
RESTART_S = 0.5  # before the first of them; twice as long before each further one
REHEARSALS = 4  # of a unit that stands by, to begin with
REHEARSE_S = 20.0  # between later ones; Spark ends Python workers that were idle for a minute

log = logging.getLogger("borealis.node")


@dataclass
class RunningUnit:
    """A unit that runs here."""

    order: UnitOrder
    piece: Piece
    run: UnitRun
    query: Query
    feeds: dict[str, StreamFeed]
    queues: dict[str, OutputQueue]
    frozen_since: float | None = None
    restarts: int = 0  # of its query, since the last train that was committed
    restart_at: float | None = None  # when the next is due
    restarting: bool = False
    trains_then: int = 0
    started: bool = False
    failure: BorealisError | None = None
    last_failure: BorealisError | None = None  # of its query, since the last train that was committed
    standby: bool = False  # it waits for the death of another
    rehearsed_at: float = 0.0
    retained_points: list[CommitPoint] = field(default_factory=list)  # noted by its protection on the node it came from

    @property
    def reader(self) -> str:
        """Under which name it reads its inputs."""
        return self.order.reader or f"{self.order.diagram}.{self.order.unit}"

    def rehearse(self) -> None:
        """Keep a unit that waits warm: a few trains of nothing to begin with, then one now and then."""
        now = time.monotonic()
        if self.run.rehearsals.count < REHEARSALS or now - self.rehearsed_at > REHEARSE_S:
            self.rehearsed_at = now
            self.run.rehearse()

    def look(self) -> BorealisError | None:
        """Why the unit stands still, if it does and cannot help it."""
        if self.failure is None and not self.run.done.is_set():
            broken = self.run.manager.failure
            if broken is not None:
                told = TrainError(f"its input failed: {type(broken).__name__}: {broken}", hint="a defect of Borealis")
                self.failure = broken if isinstance(broken, BorealisError) else told
            elif self.restarts >= RESTARTS_MOST and not self.restarting:
                self.failure = self.query.failure()
        return self.failure

    def wants_restart(self) -> BorealisError | None:
        """Why its query died, if it did and may be started again: the next train is then simply run anew."""
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
            self.restart_at = time.monotonic() + RESTART_S * 2**self.restarts
        return failure if self.restart_at is not None and time.monotonic() >= self.restart_at else None

    def dying(self) -> list[str]:
        """Why its query died, while it is tried again: until a train is committed, or it is given up."""
        if self.run.progress.trains > self.trains_then or self.run.done.is_set():
            return []
        died = self.query.failure() or self.last_failure
        return [] if died is None else [f"{died} (trying again, {self.restarts} of {RESTARTS_MOST})"]

    def status(self) -> UnitStatus:
        progress, failure = self.run.progress, self.look()
        troubles = self.run.troubles.now() if failure is None else []
        awaited = [f.waiting_for for f in self.feeds.values() if f.waiting_for]
        state: Any = "running"
        if failure is not None:
            state = "failed"
        elif self.run.done.is_set():
            state = "ended"
        elif self.standby:
            state = "standby"
        elif not self.started:
            state = "starting"
        elif self.frozen_since is not None:
            state = "frozen"
        recent = sorted(list(progress.train_ms)[-50:])
        return UnitStatus(
            diagram=self.order.diagram,
            unit=self.order.unit,
            state=state,
            boxes=list(self.piece.boxes),
            trains=progress.trains,
            rows_in=progress.rows_in,
            rows_out=sum(progress.rows_out.values()),
            train_ms=round(recent[len(recent) // 2], 3) if recent else 0.0,
            state_bytes=progress.state_bytes,
            inputs={f"{self.order.diagram}/{a}": c["position"] for a, c in self.run.cursors().items()},
            lag_rows=self.run.manager.waiting(),
            jumps=progress.jumps,
            boundary=min((q.boundary for q in self.queues.values()), default=-(2**63)),
            error=str(failure) if failure is not None else "; ".join([*self.dying(), *awaited]),
            errors=progress.errors,
            last_error=progress.last_error,
            in_lanes=self.query.hinders is None,
            hinders=self.query.hinders or "",
            waiting=[Waiting(why=why, seconds=round(seconds, 1)) for why, seconds in troubles],
        )

    def begin_anew(self, *, may_lose: bool) -> None:
        """Both copies of the unit were lost: it reads what there is. If it may lose tuples, what the lost copies gave
        is neither given again (ids jump) nor made again (it begins at what is newest): nobody shall count it twice.
        """
        for feed in self.feeds.values():
            feed.forgetful = True
            feed.fresh = "newest" if may_lose else "oldest"
        for queue in self.queues.values() if may_lose else ():
            queue.jump_to(beyond(queue, 0))

    def end(self) -> None:
        """Stop, when nobody can see it any more."""
        try:
            self.query.stop()
        except Exception:  # its JVM may be gone; what is ours goes all the same
            log.exception("the query of unit %s could not be stopped", self.order.unit)
        finally:
            self.run.close(complete=False)
