"""The shell of a node's pool (`ha.pool`): starts queries, has images tried on, and hands queries to units that run.

All units get their queries here, whatever they need them for: those of a deployment, a move or a restart as well. Who
finds none in the pool waits until one is started. One thread does all of it, one piece of work after the other: to
start two queries at once is no faster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from borealis.errors import ClusterError
from borealis.ha.pool import AT_ONCE, End, Fit, Given, Pool, Start, Taken, UnitKey, Work, in_order
from borealis.machine import HERE, Machine
from borealis.node.running import RunningUnit
from borealis.node.session import Session
from borealis.spark.lane_query import LaneQuery
from borealis.wire.messages import PoolStatus, called

POOL = 1  # queries, if nobody says otherwise
LOOK_S = 1.0  # between looks whether queries of the pool have died
FIT_S = 30.0  # within that a rehearsal is over, or its query is of no use

log = logging.getLogger("borealis.node")
Make = Callable[[Any, int], LaneQuery]  # of Spark, and how many lanes; not started


class QueryPool:
    """Thread-safe."""

    def __init__(self, session: Session, make: Make, size: int = POOL, machine: Machine = HERE) -> None:
        self._session, self._make, self._now = session, make, machine.clock.now
        self._threads = machine.threads
        self._pool = Pool(size)
        self._queries: dict[int, LaneQuery] = {}  # those of the pool
        self._images: dict[UnitKey, RunningUnit] = {}
        self._asked: dict[UnitKey, LaneQuery | BaseException | None] = {}  # by who waits: what there is for it
        self._trouble = ""  # why there is none
        self._closed = False
        self._changed = machine.threads.condition()
        self._looked = self._now()
        self._thread = machine.threads.start("pool", self._run)

    def keep_spare(self) -> None:
        """From now on have a query ready although there is no image: for what may be restored here from storage."""
        with self._changed:
            self._pool.spare = True
            self._changed.notify_all()

    # -- images

    def add(self, unit: RunningUnit) -> None:
        """It stands by here, with an image."""
        with self._changed:
            self._images[unit.key] = unit
            self._pool.add(unit.key, unit.run.compiled.program.buckets, self._now())
            self._changed.notify_all()

    def warm(self, unit: RunningUnit, seconds: float) -> None:
        """Wait until a query is warm for it, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_warm(unit), seconds if self._pool.size else 0.0)

    def _is_warm(self, unit: RunningUnit) -> bool:
        if self._closed or self._images.get(unit.key) is not unit:
            return True
        return (self._pool.fittings(unit.key) or 0) >= AT_ONCE

    # -- queries

    def reserve(self, units: Sequence[RunningUnit]) -> None:
        """These are about to run, all at once: who gets a query first is settled here, and not by chance."""
        taken = {u.key: Taken(u.piece.reads, u.piece.gives, u.run.progress.rows_in) for u in units if u.image}
        with self._changed:
            for rank, key in enumerate(in_order(taken)):
                if key in self._images:
                    self._ask(key, self._images[key].run.compiled.program.buckets, rank)

    def unreserve(self, unit: RunningUnit) -> None:
        """It does not run after all."""
        self.drop(unit.key)
        if unit.image:
            self.add(unit)

    def take(self, key: UnitKey, lanes: int) -> LaneQuery:
        """A query for this unit; waits for it. Raises why there is none."""
        with self._changed:
            if key not in self._asked and not self._closed:
                self._ask(key, lanes, 0)
            self._changed.wait_for(lambda: self._closed or key not in self._asked or self._asked[key] is not None)
            found = self._asked.pop(key, None)
        if isinstance(found, BaseException):
            raise found
        if found is None:
            raise ClusterError(f"{called(*key)} was stopped before its query was there")
        return found

    def _ask(self, key: UnitKey, lanes: int, rank: int) -> None:
        """With the lock."""
        self._asked[key] = None
        self._images.pop(key, None)
        self._hand(self._pool.ask(key, lanes, rank, self._now()))

    def drop(self, key: UnitKey) -> None:
        """A unit is here no more, or not any more as an image: it needs nothing."""
        with self._changed:
            self._images.pop(key, None)
            self._pool.drop(key)
            self._pool.cancel(key)
            left = self._asked.pop(key, None)
            self._changed.notify_all()
        if isinstance(left, LaneQuery):  # Spark takes its time
            self._threads.start("end-query", lambda: self._end(left))

    def status(self) -> PoolStatus:
        with self._changed:
            pool, trouble = self._pool, self._trouble
            return PoolStatus(
                size=pool.size,
                ready=pool.ready,
                given=pool.given,
                missed=pool.missed,
                images=pool.images,
                trouble=trouble,
            )

    def close(self) -> None:
        """Stop what is in the pool; who waits is sent away."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(FIT_S)
        queries, self._queries = self._queries, {}
        for query in queries.values():
            self._end(query)

    # -- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                work = None if self._closed else self._pool.next(self._now())
                if work is None:
                    wait = self._pool.wait_s(self._now())
                    if self._queries:
                        wait = LOOK_S if wait is None else min(wait, LOOK_S)
                    if not self._closed:
                        self._changed.wait(wait)
                if self._closed:
                    return
            if work is not None:
                self._do(work)
            self._look()

    def _do(self, work: Work) -> None:
        match work:
            case Start():
                self._start(work)
            case Fit():
                self._fit(work)
            case End():
                with self._changed:
                    query = self._queries.pop(work.number)
                self._end(query)

    def _start(self, work: Start) -> None:
        query: LaneQuery | None = None
        try:
            query = self._make(self._session.get(), work.lanes)
            query.start()
        except BaseException as error:
            with self._changed:
                who = self._pool.not_started(work.number, self._now())
                if who is not None:
                    self._asked[who] = error
                self._trouble = str(error)
                self._changed.notify_all()
            if who is None:
                log.warning("no query for the pool: %s", error)
            return
        with self._changed:
            self._trouble, self._queries[work.number] = "", query
            self._hand(self._pool.started(work.number, self._now()))

    def _fit(self, work: Fit) -> None:
        with self._changed:
            query, unit = self._queries[work.number], self._images.get(work.image)
        well = unit is None or not unit.image or self._rehearsed(unit, query)
        with self._changed:
            if well:
                self._hand(self._pool.fitted(work.number, work.image, self._now()))
                return
            del self._queries[work.number]
            self._hand(self._pool.died(work.number, self._now(), work.image))
        log.warning("a query of the pool ends: it could not rehearse %s", called(*work.image))
        self._end(query)

    def _rehearsed(self, unit: RunningUnit, query: LaneQuery) -> bool:
        try:
            return unit.query.fit(query, FIT_S)
        except Exception as error:  # its unit may be gone, or Spark
            log.warning("%s cannot be rehearsed: %s", unit.title, error)
            return False

    def _hand(self, given: Given) -> None:
        """With the lock."""
        for who, number in given:
            self._asked[who] = self._queries.pop(number)
        self._changed.notify_all()

    def _look(self) -> None:
        """Take out what has died."""
        if self._now() - self._looked < LOOK_S:
            return
        self._looked = self._now()
        with self._changed:
            there = {number: self._queries[number] for number in self._pool.numbers()}
        for number, query in there.items():
            if (failure := _failure_of(query)) is None:
                continue
            with self._changed:
                if self._queries.get(number) is not query:  # given meanwhile: its unit will see to it
                    continue
                del self._queries[number]
                self._hand(self._pool.died(number, self._now()))
            log.warning("a query of the pool died: %s", failure)
            self._end(query)

    def _end(self, query: LaneQuery) -> None:
        with suppress(Exception):  # its JVM may be gone
            query.stop()


def _failure_of(query: LaneQuery) -> BaseException | None:
    try:
        return query.failure()
    except Exception as error:  # Spark cannot say
        return error
