"""Lanes: a micro-batch is a lease, during which its tasks run train after train.

A unit whose program has one level needs nothing of Spark but a process on some executor. So the task of a micro-batch
stays in the source's `read`: it takes *turns* with the node, each of which hands over what came of the last train and
is answered with the next one. There is one lane for each bucket; a train is committed when all of them have answered.

Lanes need no unit to be kept: a task that has come waits until they are *dressed* as one, and learns which it is from
the header of its first train. So a query can be started, and its processes warm, long before it is known what for.

A turn is taken in the thread that serves the task, and so is the commit: between a result and the next train there is
no hand-over from thread to thread. A result counts only if it comes from the holder of the present lease, in the
attempt that was last to begin; a task that comes instead of one that died finds the same train waiting.

If the next train is made already, its task is given that first, and what came of the last one is committed while it
runs (`bring_in`). A lane that is alone may ask for it even before it hands over what came of the last: that may still
be on its way to a file. One train at most is handed out ahead of one that is not committed. Should that fail, all is
over, as it always is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession

from borealis.errors import BorealisError, TrainError
from borealis.kernels.program import Packet
from borealis.machine import HERE, Machine
from borealis.spark.lane import AHEAD, ATTEMPT, BUCKET, LEASE, MORE, NUMBER, OVER, PACKETS, TRAIN, WAIT, packets_of
from borealis.spark.session import cores
from borealis.trains.header import Standing, TrainHeader, rows_apart
from borealis.trains.results import Arrived

if TYPE_CHECKING:
    from borealis.trains.unit import UnitRun

SPARE = 1  # cores that lanes leave to everything else

Message = tuple[dict[str, Any], list[Any]]


@dataclass(frozen=True)
class LaneTimings:
    """How long leases and turns last, in seconds."""

    lease_s: float = 600.0  # a lease ends when it is this old and there is nothing to do; at twice that in any case
    turn_s: float = 10.0  # a turn is answered after this time, even if there is no train
    pause_s: float = 0.02  # before the next question, where there was nothing


@dataclass(frozen=True)
class Dress:
    """A unit, as lanes run its trains. `outward` makes a train's header fit for executors elsewhere."""

    trains: UnitRun
    commit: Callable[[Arrived], None]
    outward: Callable[[TrainHeader], TrainHeader] | None = None
    fitting: bool = False  # it is put on to rehearse, and taken off again

    def outside(self, header: TrainHeader) -> TrainHeader:
        return header if self.outward is None else self.outward(header)


@dataclass
class _UnderWay:
    """A train that was handed out, and what came of it so far."""

    dress: Dress  # whose it is
    number: int
    header: TrainHeader
    stands: Standing  # the state that it starts from
    message: Message
    answers: dict[int, list[Packet]] = field(default_factory=dict)  # by bucket

    @property
    def behind(self) -> tuple[str, tuple[int, int]]:
        """The log, and the state that its tasks hold when they have run it."""
        log, train, loads = self.stands
        return log, (train if "rehearsal" in self.header else train + 1, loads)

    def result(self) -> Arrived:
        return Arrived(train=self.header, packets=[p for b in sorted(self.answers) for p in self.answers[b]])


class Lanes:
    """Hands trains to tasks and takes what comes of them. Safe to use from threads."""

    def __init__(self, buckets: int, *, timings: LaneTimings | None = None, machine: Machine = HERE) -> None:
        self._buckets = buckets
        timings = timings or LaneTimings()
        self._lease_s, self._turn_s, self._pause_s = timings.lease_s, timings.turn_s, timings.pause_s
        self._now = machine.clock.now
        self.failure: BaseException | None = None  # why a commit was refused
        self.leases = 0  # the number of the present one, or of the last
        self._given = 0.0  # when
        self._ended = True
        self._closed = False
        self._worn = False  # a task died: Spark counts such deaths, and begins to count again with each lease
        self._holders: dict[int, int] = {}  # by bucket: whose answers count
        self._attempts = 0
        self._stands: dict[tuple[int, str], tuple[int, int]] = {}  # by attempt and log: the state that its task holds
        self._dress: Dress | None = None
        self._alone = True  # tasks hold nothing of units that were taken off
        self._trains: list[_UnderWay] = []  # two at most, the older one first
        self._busy = False  # a thread fetches the next train
        self._due: _UnderWay | None = None  # whose result is to be committed
        self._committing = False  # a thread commits it
        self._changed = machine.threads.condition(machine.threads.rlock())

    # -- leases

    def lease(self, after: int) -> int | None:
        """Begin a new lease, behind one of this number, if there may be one; says its number."""
        with self._changed:
            if self._closed or self.failure is not None:
                return None
            self.leases = max(self.leases, after) + 1
            self._given, self._ended, self._worn, self._holders, self._stands = self._now(), False, False, {}, {}
            self._changed.notify_all()
            return self.leases

    def close(self) -> None:
        """No train is handed out any more; the holder of the lease is answered so."""
        with self._changed:
            self._closed = self._ended = True
            dress = self._dress
            self._changed.notify_all()
        if dress is not None:
            dress.trains.nudge()

    # -- which unit

    def dress(self, dress: Dress) -> bool:
        """Run the trains of this unit from now on; says whether that is possible: the query may have died."""
        with self._changed:
            if self._closed or self.failure is not None or self._dress is not None:
                return False
            self._dress = dress
            self._changed.notify_all()
            return True

    def undress(self, seconds: float) -> bool:
        """Run no more trains of the unit; says whether none is under way at the end of this time."""
        with self._changed:
            dress, self._dress = self._dress, None
            self._alone = False
        until = self._now() + seconds
        while not self.wait_idle(self._pause_s):
            if dress is None or self._now() > until:
                return False
            dress.trains.nudge()  # again: it is heard by who waits already
        return True

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no train is under way; says whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_idle, seconds)

    @property
    def _is_idle(self) -> bool:
        """Whether nothing will come of any train any more. With the lock held."""
        busy = self._busy or self._committing
        return not busy and (self.failure is not None or not (self._trains or self._due))

    @property
    def _is_settled(self) -> bool:
        """Whether all that came of trains is committed. With the lock held."""
        return self._due is None and not self._committing

    # -- turns

    def enter(self, lease: int, bucket: int) -> int:
        """A task begins to work for a lease: from now on its answers count, and no other's."""
        with self._changed:
            self._attempts += 1
            if lease == self.leases and not self._ended and 0 <= bucket < self._buckets:
                self._worn = self._worn or bucket in self._holders
                self._holders[bucket] = self._attempts
                self._changed.notify_all()
            return self._attempts

    def turn(self, head: dict[str, Any], buffers: list[pa.Buffer]) -> Message:
        """What a task says, and what it is to do next; call `bring_in` as soon as it is told that."""
        lease, bucket = head[LEASE], head[BUCKET]
        attempt = head.get(ATTEMPT) or self.enter(lease, bucket)
        mine = (lease, bucket, attempt)
        if PACKETS in head:
            self._answer(mine, head[NUMBER], head[PACKETS], buffers)
        try:
            if AHEAD in head:  # it has run that train, and does not say yet what came of it
                return self._next_ahead(mine, head[NUMBER])
            return ({}, []) if MORE in head else self._next(mine)
        except BaseException as error:
            self._fail(error)
            return {OVER: True}, []

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self.failure, self._ended = error, True
            self._changed.notify_all()

    def _holds(self, mine: tuple[int, int, int]) -> bool:
        lease, bucket, attempt = mine
        return lease == self.leases and not self._ended and self._holders.get(bucket) == attempt

    def _answer(self, mine: tuple[int, int, int], number: int, index: list[Any], buffers: list[Any]) -> None:
        with self._changed:
            # a lease that was just closed may still bring in its last train: it was handed out before
            lease, bucket, attempt = mine
            holds = lease == self.leases and self._holders.get(bucket) == attempt
            train = next((one for one in self._trains if one.number == number), None)
            if not holds or train is None or bucket in train.answers or self.failure is not None:  # it may come twice
                return
            self._has_run(attempt, train)
            results = None if train.dress.outward else train.header["results"]
            train.answers[bucket] = packets_of(index, buffers, results)
            if len(train.answers) < self._buckets:
                return
            self._trains.remove(train)
            self._busy = True
        try:
            self.bring_in()  # what is before it
            with self._changed:
                self._due = train
                self._ended = self._ended or self._worn
                ahead = bool(self._trains)
            if not (ahead or self._fetch_ahead(train)):
                self.bring_in()
        except BaseException as error:
            self.bring_in()
            self._fail(error)
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _has_run(self, attempt: int, train: _UnderWay) -> None:
        """A task stands behind a train, if not further on. With the lock held."""
        log, (number, loads) = train.behind
        before = self._stands.get((attempt, log))
        if before is None or before[1] != loads or before[0] < number:
            self._stands[attempt, log] = number, loads

    def bring_in(self) -> None:
        """Commit what came of the last train, if it is not yet, or is not just being committed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._committing)
            due, self._due = self._due, None
            if due is None or self.failure is not None:
                return
            self._committing = True
        try:
            due.dress.commit(due.result())
        except BaseException as error:
            self._fail(error)
        finally:
            with self._changed:
                self._committing = False
                self._changed.notify_all()

    def _next(self, mine: tuple[int, int, int]) -> Message:
        until, looked = self._now() + self._turn_s, False
        while True:
            with self._changed:
                if not self._holds(mine):
                    return {OVER: True}, []
                wanted = next((one for one in self._trains if mine[1] not in one.answers), None)
                settled = self._is_settled
                if wanted is not None and (settled or self._has_state(mine, wanted)):
                    return self._told(mine, wanted)
                if looked and self._now() >= until:
                    return {WAIT: True, ATTEMPT: mine[2]}, []
                if wanted is None and (self._busy or self._trains):
                    self._changed.wait(max(0.0, until - self._now()))
                    looked = True
                    continue
                age, dress = self._now() - self._given, self._dress
                if settled and (age > 2 * self._lease_s or (dress is None and (age > self._lease_s or self._worn))):
                    self._ended = True
                    self._changed.notify_all()
                    continue
                if settled and dress is None:
                    self._changed.wait(max(0.0, until - self._now()))
                    looked = True
                    continue
                self._busy = self._busy or settled
            if not settled:
                self.bring_in()
                continue
            assert dress is not None
            if not self._fetch(dress, until, may_end=age > self._lease_s):
                # an input that has failed says at once that there is nothing: do not ask all the time
                with self._changed:
                    pause = min(self._pause_s, self._turn_s)
                    self._changed.wait_for(lambda d=dress: not self._holds(mine) or self._dress is not d, pause)  # type: ignore[misc]
            looked = True

    def _next_ahead(self, mine: tuple[int, int, int], number: int) -> Message:
        """The train behind one whose result this lane, which is alone, has not told yet; if it can be had at once."""
        nothing: Message = {WAIT: True, ATTEMPT: mine[2]}, []
        with self._changed:
            lane_is_alone = self._buckets == 1 and self._holds(mine) and self._is_settled and not self._busy
            if not lane_is_alone or self._worn or [one.number for one in self._trains] != [number]:
                return nothing
            train = self._trains[0]
            self._has_run(mine[2], train)
        if not self._fetch_ahead(train):
            return nothing
        with self._changed:
            return self._told(mine, self._trains[-1])

    def _has_state(self, mine: tuple[int, int, int], train: _UnderWay) -> bool:
        """Whether a task holds the state that a train starts from. With the lock held."""
        log, *stands = train.stands
        return self._stands.get((mine[2], log)) == tuple(stands)

    def _told(self, mine: tuple[int, int, int], train: _UnderWay) -> Message:
        """A train that is under way, for a task. With the lock held."""
        head, buffers = train.message
        header = head[TRAIN]
        if header["manifest"] is None and not self._has_state(mine, train):
            header = train.dress.outside(header | {"manifest": train.dress.trains.manifest(train.number)})
        return head | {TRAIN: header, ATTEMPT: mine[2]}, buffers

    def _fetch(self, dress: Dress, until: float, *, may_end: bool) -> bool:
        """Get the next train; whether there is one."""
        trains, found = dress.trains, False
        try:
            wait = 0.0 if may_end else max(0.0, min(until, self._given + self._lease_s) - self._now())
            number = trains.next_train(trains.committed(), wait, forks=True)
            if number is not None:
                self._hand_out(dress, number, trains.standing(number))
                found = True
        except BaseException as error:
            self._fail(error)
        finally:
            with self._changed:
                self._busy = False
                self._ended = self._ended or (may_end and not found)
                self._changed.notify_all()
        return found

    def _fetch_ahead(self, train: _UnderWay) -> bool:
        """Get the train behind one that is not committed yet; whether there is one, and the lease goes on."""
        dress = train.dress
        with self._changed:
            young = self._now() - self._given <= self._lease_s
            if self._ended or dress is not self._dress or dress.fitting or not young or self.failure is not None:
                return False
        if dress.outward is not None:  # Flight's answers are whole when their thread is done: with the commit
            return False
        ahead = dress.trains.next_ahead(train.number)
        if ahead is not None:
            log, (number, loads) = train.behind
            self._hand_out(dress, ahead, (log, number, loads))
        return ahead is not None

    def _hand_out(self, dress: Dress, number: int, stands: Standing) -> None:
        """This train is under way from now on; it starts from the state that stands so."""
        header = dress.trains.plan(number, inline=True)
        if number < 0:  # a rehearsal: what it starts from may change meanwhile
            header["manifest"] = dress.trains.manifest(number)
        if not (self._alone or dress.fitting):
            header["alone"] = self._alone = True
        outside = dress.outside(header)
        inputs, buffers = rows_apart(outside["inputs"])  # rows that are buffers go behind the message
        with self._changed:
            message: Message = {NUMBER: number, TRAIN: {**outside, "inputs": inputs}}, buffers
            self._trains.append(_UnderWay(dress, number, header, stands, message))


def failure_of(error: BaseException) -> BorealisError:
    """What a commit was refused for, as an error of ours."""
    if isinstance(error, BorealisError):
        return error
    failure = TrainError(f"a train failed: {type(error).__name__}: {error}", hint="everything before it is committed")
    failure.__cause__ = error
    return failure


# -- cores


class Cores:
    """How many cores of a session's executors lanes hold: each keeps one as long as it runs."""

    def __init__(self, machine: Machine = HERE) -> None:
        self._held: dict[object, tuple[str, int]] = {}  # by whose lanes: the application, and how many
        self._lock = machine.threads.lock()

    def take(self, spark: SparkSession, whose: object, lanes: int) -> str | None:
        """Hold cores for a query's lanes; says why not, if there are too few."""
        application, total = spark.sparkContext.applicationId, cores(spark)
        with self._lock:
            held = sum(count for where, count in self._held.values() if where == application)
            if held + lanes + SPARE > total:
                others = f", and lanes of other units hold {held}" if held else ""
                return f"it takes {lanes} of Spark's cores and leaves {SPARE} to others; there are {total}{others}"
            self._held[whose] = application, lanes
            return None

    def give_back(self, whose: object) -> None:
        """These lanes are over; its Spark may be gone."""
        with self._lock:
            self._held.pop(whose, None)


CORES = Cores()
