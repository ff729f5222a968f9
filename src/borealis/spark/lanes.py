"""Lanes: a micro-batch is a lease, during which its tasks run train after train.

A unit whose program has one level needs nothing of Spark but a process on some executor. So the task of a micro-batch
stays in the source's `read`: it takes *turns* with the node, each of which hands over what came of the last train and
is answered with the next one. There is one lane for each bucket; a train is committed when all of them have answered.

Lanes need no unit to be kept: a task that has come waits until they are *dressed* as one, and learns which it is from
the header of its first train. So a query can be started, and its processes warm, long before it is known what for.

A turn is taken in the thread that serves the task, and so is the commit: between a result and the next train there is
no hand-over from thread to thread. A result counts only if it comes from the holder of the present lease, in the
attempt that was last to begin; a task that comes instead of one that died finds the same train waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession

from borealis.errors import BorealisError, TrainError
from borealis.kernels.program import Packet
from borealis.machine import HERE, Machine
from borealis.spark.lane import ATTEMPT, BUCKET, LEASE, NUMBER, OVER, PACKETS, TRAIN, WAIT, packets_of
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
        self._number: int | None = None  # the train that is under way
        self._of: Dress | None = None  # whose it is
        self._header: TrainHeader | None = None
        self._from: Standing = ("", 0, 0)  # the state that it starts from
        self._message: Message | None = None
        self._answers: dict[int, list[Packet]] = {}
        self._busy = False  # a thread fetches the next train, or commits the last
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
            return self._changed.wait_for(lambda: self._number is None and not self._busy, seconds)

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
        """What a task says, and what it is to do next."""
        lease, bucket = head[LEASE], head[BUCKET]
        attempt = head.get(ATTEMPT) or self.enter(lease, bucket)
        mine = (lease, bucket, attempt)
        if PACKETS in head:
            self._answer(mine, head[NUMBER], head[PACKETS], buffers)
        try:
            return self._next(mine)
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
            if lease != self.leases or self._holders.get(bucket) != attempt or number != self._number:
                return
            if bucket in self._answers:  # it came twice
                return
            assert self._header is not None
            assert self._of is not None
            dress = self._of
            log, train, loads = self._from
            self._stands[attempt, log] = (train if "rehearsal" in self._header else train + 1, loads)
            self._answers[bucket] = packets_of(index, buffers, None if dress.outward else self._header["results"])
            if len(self._answers) < self._buckets:
                return
            header, answers = self._header, [p for b in sorted(self._answers) for p in self._answers[b]]
            self._busy = True
        try:
            dress.commit(Arrived(train=header, packets=answers))
        except BaseException as error:
            self._fail(error)
        finally:
            with self._changed:
                self._number, self._message, self._answers, self._busy = None, None, {}, False
                self._ended = self._ended or self._worn
                self._changed.notify_all()

    def _next(self, mine: tuple[int, int, int]) -> Message:
        until, looked = self._now() + self._turn_s, False
        while True:
            with self._changed:
                if not self._holds(mine):
                    return {OVER: True}, []
                if self._number is not None and mine[1] not in self._answers:
                    assert self._message is not None
                    assert self._of is not None
                    head, buffers = self._message
                    train, (log, *stands) = head[TRAIN], self._from
                    if train["manifest"] is None and self._stands.get((mine[2], log)) != tuple(stands):
                        train = self._of.outside(train | {"manifest": self._of.trains.manifest(self._number)})
                    return head | {TRAIN: train, ATTEMPT: mine[2]}, buffers
                if looked and self._now() >= until:
                    return {WAIT: True, ATTEMPT: mine[2]}, []
                if self._busy or self._number is not None:
                    self._changed.wait(max(0.0, until - self._now()))
                    looked = True
                    continue
                age, dress = self._now() - self._given, self._dress
                if age > 2 * self._lease_s or (dress is None and (age > self._lease_s or self._worn)):
                    self._ended = True
                    self._changed.notify_all()
                    continue
                if dress is None:
                    self._changed.wait(max(0.0, until - self._now()))
                    looked = True
                    continue
                self._busy = True
            if not self._fetch(dress, until, may_end=age > self._lease_s):
                # an input that has failed says at once that there is nothing: do not ask all the time
                with self._changed:
                    pause = min(self._pause_s, self._turn_s)
                    self._changed.wait_for(lambda d=dress: not self._holds(mine) or self._dress is not d, pause)  # type: ignore[misc]
            looked = True

    def _fetch(self, dress: Dress, until: float, *, may_end: bool) -> bool:
        """Get the next train; whether there is one."""
        trains = dress.trains
        number, header, message, stands = None, None, None, ("", 0, 0)
        try:
            wait = 0.0 if may_end else max(0.0, min(until, self._given + self._lease_s) - self._now())
            number = trains.next_train(trains.committed(), wait, forks=True)
            if number is not None:
                stands = trains.standing(number)
                header = trains.plan(number, inline=True)
                if number < 0:  # a rehearsal: what it starts from may change meanwhile
                    header["manifest"] = trains.manifest(number)
                if not (self._alone or dress.fitting):
                    header["alone"] = self._alone = True
                outside = dress.outside(header)
                inputs, buffers = rows_apart(outside["inputs"])  # rows that are buffers go behind the message
                message = {NUMBER: number, TRAIN: {**outside, "inputs": inputs}}, buffers
        except BaseException as error:
            number = None
            self._fail(error)
        finally:
            with self._changed:
                self._busy = False
                self._number, self._header, self._message, self._from = number, header, message, stands
                self._of = dress
                if number is None and may_end:
                    self._ended = True
                self._changed.notify_all()
        return number is not None


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
