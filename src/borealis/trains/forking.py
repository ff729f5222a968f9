"""Forks of a unit's input (DPC 4.3, 4.4): what is read without what is missing, so that there is an answer in time.

A unit with a bound on delay reads its streams by time. What is pending for longer than the bound allows, because some
stream has not come so far, goes into trains of a fork, and so does what other units gave tentatively. The trunk waits,
with all that is stable pending; when what was missing has come, it goes on as if nothing had been. The fork is over
when the trunk has read all that the fork has.
"""

from __future__ import annotations

import math
import shutil
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.clock import Clock
from borealis.diagram.protection import Protection
from borealis.entry.admission import Cursor
from borealis.streams.section import Place, Section
from borealis.streams.status import StreamState
from borealis.trains.intake import Admission, Intake
from borealis.trains.keeping import KEEP_BYTES, MEMORY_BYTES, KeepLimits
from borealis.trains.line import Line
from borealis.trains.merging import ByTime, Merged, cut_off
from borealis.trains.relay import Relay, Relayed
from borealis.tuples import FIRST_TIME, LAST_TIME

ALPHA = 0.9  # of the delay that is promised: the rest is for the work
HALFWAY = 0.5  # of the time until a fork begins, all is made ready for it
NOTICE_S = 0.5  # within which both copies of a unit notice that they can be corrected
LOOK_S = 0.05  # between looks whether something can be read that is overdue
FORKS = 1 << 40  # trains of forks are numbered from multiples of this on


@dataclass(frozen=True)
class DelayBound:
    """How long a unit waits for what is missing, and what it does then with tuples that come."""

    patience_s: float  # alpha X: before what is pending is read without what is missing
    during_failure: Literal["process", "delay"] = "process"  # at once, or each as late as may be
    during_stabilization: Literal["process", "delay", "suspend"] = "process"  # the same, or not at all
    keep: KeepLimits = field(default_factory=KeepLimits)  # of what the trunk has not read yet

    @classmethod
    def of(cls, protection: Protection | None, memory_bytes: int = MEMORY_BYTES) -> DelayBound | None:
        """Of a unit that is protected like this, if it promises an answer in time; so much of an input is in memory."""
        if protection is None or protection.delay_us is None:
            return None
        policies = protection.during_failure, protection.during_stabilization
        seconds = None if protection.keep_time_us is None else protection.keep_time_us / 1e6
        keep = KeepLimits(protection.keep_bytes or KEEP_BYTES, memory_bytes, seconds, protection.when_full)
        return cls(ALPHA * protection.delay_us / 1e6, *policies, keep)


class Partner(Protocol):
    """The other copy of a unit, where the two correct themselves one after the other (DPC 4.4)."""

    def first(self) -> StreamState | None:
        """How the copy is that goes first; None: this one does, or it is not known."""

    def waits(self) -> bool:
        """Whether the copy that goes second answers tentatively, and waits."""


class Arrivals:
    """How far the streams of a unit had come, and when."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()  # both rise

    def note(self, now: float, reached: int) -> None:
        """One of them has come so far."""
        if reached > FIRST_TIME and (not self._samples or reached > self._samples[-1][1]):
            self._samples.append((now, reached))

    def before(self, moment: float) -> int:
        """How far the one that had come furthest had come; what is older is forgotten."""
        while len(self._samples) > 1 and self._samples[1][0] <= moment:
            self._samples.popleft()
        return self._samples[0][1] if self._samples and self._samples[0][0] <= moment else FIRST_TIME

    def when(self, reached: int) -> float | None:
        """When one had come so far; None if that is not known."""
        return next((at for at, come in self._samples if come >= reached), None)

    def copy(self) -> Arrivals:
        other = Arrivals()
        other._samples.extend(self._samples)
        return other


class ForkRelay(Relay):
    """Takes what comes of one stream into a fork, stable or tentative, under ids of the fork's own.

    Where the stream goes over from the one to the other, or goes back and corrects itself, only what goes further than
    the fork has come is taken: the rest it has already, or has done without.
    """

    def __init__(self, relay: Relay) -> None:
        super().__init__(relay.spec, relay.cursor)
        self.half = relay.half
        self._fork, self._next = "", relay.cursor.position + relay.halves
        self.seen = relay.cursor.reached  # how far the stream itself has come, with what was not taken
        self.floor = FIRST_TIME  # the boundary that was written for it while it was missing

    def admit(self, section: Section) -> Relayed:
        reached = _reached(section)
        goes_on = section.first == self._next and (section.fork == self._fork or not self._fork)
        keep = np.ones(len(section), np.bool_) if goes_on else reached > self.cursor.reached
        if goes_on or keep.any():
            self._fork, self._next = section.fork, section.stop
        ends = [int(reached[-1])] if len(section) else []
        self.seen = max([self.seen, section.final if section.final < LAST_TIME else FIRST_TIME, *ends])
        return super().admit(_kept(section, keep & (section.time >= self.floor), self.cursor.position + self.halves))

    @property
    def is_tentative(self) -> bool:
        """Whether what was taken last was, and is not void."""
        return bool(self._fork)

    def undo(self) -> None:
        """What was tentative is void: the stream goes back."""
        self._fork, self._next = "", -1

    def stand_in(self, boundary: int) -> None:
        """A boundary was written for the stream: what is before it comes too late."""
        self.floor, self.cursor = boundary, replace(self.cursor, boundary=boundary)


def _reached(section: Section) -> NDArray[np.int64]:
    """How far the stream has come with each tuple, as far as the section tells."""
    before = np.searchsorted(section.at, section.first + np.arange(len(section)), "right")
    stands = np.concatenate(([section.standing], section.bound))[before]
    return np.maximum(np.maximum.accumulate(section.time), stands)


def _kept(section: Section, keep: NDArray[np.bool_], first: int) -> Section:
    """Some of its tuples, from this id on, among all of its boundaries."""
    at = first + np.concatenate(([0], np.cumsum(keep)))[section.at - section.first]
    rows = section.rows if keep.all() else section.rows.filter(pa.array(keep))
    return Section(first, rows, section.time[keep], at, section.bound, section.standing)


class Tentatively(ByTime):
    """By time, without what is missing: a stream that has not come so far for as long as the bound allows.

    A missing stream is as far as the others: a boundary says so in its place.
    """

    def __init__(
        self,
        intakes: Mapping[str, Intake],
        admission: Admission,
        bucket_us: int,
        bound: DelayBound,
        arrivals: Arrivals,
        clock: Clock,
    ) -> None:
        super().__init__(intakes, admission, bucket_us)
        self.rows_most = admission.turn_rows
        self._bound, self._arrivals, self._clock = bound, arrivals, clock
        self.missing: set[str] = set()
        self.stabilizing = False  # what was missing has come, and the trunk reads it
        self.relieved = False  # a partner answers meanwhile

    def next(self, until: Mapping[str, Place] | None = None) -> Merged:
        merged = super().next(until)
        others = [i.cut.boundary for name, i in self._intakes.items() if name not in self.missing]
        boundary = min(others, default=FIRST_TIME)
        if not merged.pieces or boundary == LAST_TIME:
            return merged
        pieces, order = list(merged.pieces), merged.order
        assert order is not None
        for name in sorted(self.missing):
            intake = self._intakes[name]
            if not intake.pending and boundary > intake.cut.boundary:
                pieces.append(cut_off(name, intake, intake.nothing(), (boundary,)))
                _fork_relay(intake).stand_in(boundary)
        added = np.arange(len(pieces) - len(merged.pieces))
        return Merged(pieces, np.append(order, len(order) + added))

    def _limits(self, bucket: int) -> list[tuple[int, int]]:
        return [(self._limit(), -1)]

    def _limit_of(self, number: int, limits: list[tuple[int, int]], exactly: bool) -> tuple[int, int]:
        """The same for all: what is free of one is free of all."""
        return limits[0]

    def _limit(self) -> int:
        overdue = self._overdue()
        seen = {n: LAST_TIME if i.source_ended else _fork_relay(i).seen for n, i in self._intakes.items()}
        self.missing = {name for name, reached in seen.items() if reached < overdue}
        if self.suspended:
            return FIRST_TIME
        policy = self._bound.during_stabilization if self.stabilizing else self._bound.during_failure
        limit = self._end(overdue)
        present = min((reached for name, reached in seen.items() if name not in self.missing), default=FIRST_TIME)
        if policy == "process" and present > FIRST_TIME:
            at_once = len(seen) == 1 or present == LAST_TIME
            limit = max(limit, self._end(present) if at_once else self._begin(present))
        return limit

    @property
    def suspended(self) -> bool:
        """Whether nothing is read before what is right."""
        return self.stabilizing and (self.relieved or self._bound.during_stabilization == "suspend")

    def _overdue(self) -> int:
        """What is in this bucket or before it has waited for as long as the bound allows."""
        return self._begin(self._arrivals.before(self._clock.now() - self._bound.patience_s))

    def free(self, intakes: Mapping[str, Intake]) -> int:
        """Before what the trunk may read, with what is there of these of its streams."""
        ends = (LAST_TIME if i.source_ended else self._begin(i.entry.cursor.reached) for i in intakes.values())
        return min(ends, default=LAST_TIME)

    def _begin(self, time: int) -> int:
        """Of the bucket that this is in."""
        return time if time in (FIRST_TIME, LAST_TIME) else time // self._bucket * self._bucket

    def _end(self, time: int) -> int:
        """Behind the bucket that this is in."""
        return time if time in (FIRST_TIME, LAST_TIME) else (time // self._bucket + 1) * self._bucket


def _relay(intake: Intake) -> Relay:
    assert isinstance(intake.entry, Relay)
    return intake.entry


def _fork_relay(intake: Intake) -> ForkRelay:
    assert isinstance(intake.entry, ForkRelay)
    return intake.entry


class ForkLine(Line):
    """The trains of a fork, from where the trunk stands."""

    def __init__(
        self,
        serial: int,
        trunk: Line,
        admission: Admission,
        bucket_us: int,
        bound: DelayBound,
        arrivals: Arrivals,
        clock: Clock,
    ) -> None:
        intakes = {name: _forked(intake) for name, intake in trunk.intakes.items()}
        super().__init__(intakes, trunk.depot / f"fork-{serial}", trunk.next_cause, trunk.made)
        self.serial, self.since, self.base, self.arrivals = serial, clock.now(), trunk.made, arrivals
        self.order = Tentatively(intakes, admission, bucket_us, bound, arrivals, clock)
        self.depot.mkdir(parents=True, exist_ok=True)

    def take_in(self, name: str, section: Section) -> None:
        intake = self.intakes[name]
        intake.add(_fork_relay(intake).admit(section))
        intake.source_ended = intake.entry.cursor.ended

    def undo(self, name: str) -> None:
        """What was tentative of a stream is void; that it was read stays, until the trunk has read the truth."""
        _fork_relay(self.intakes[name]).undo()

    def tentative(self) -> list[str]:
        """The streams that are, by what came last."""
        return [name for name, intake in self.intakes.items() if _fork_relay(intake).is_tentative]

    def reached(self) -> int:
        """How far the stream that has come furthest has come."""
        return max(_fork_relay(i).seen for i in self.intakes.values())

    def is_corrected_by(self, trunk: Line) -> bool:
        """Whether all that this has read is in trains of the trunk."""
        return all(_reaches(trunk.intakes[n].cut, i.cut) for n, i in self.intakes.items())

    def can_be_corrected_by(self, trunk: Line) -> bool:
        """Whether the trunk has all it needs to read what this has read; where a stream is tentative, more will be."""
        if self.tentative() or self.is_corrected_by(trunk):
            return False
        frontier = max(i.cut.reached for i in self.intakes.values())
        return len(self.intakes) == 1 or self.order.free(trunk.intakes) > frontier


def _reaches(cursor: Cursor, other: Cursor) -> bool:
    return cursor.ended or cursor.reached >= other.reached


def _forked(intake: Intake) -> Intake:
    mine = deque(replace(part) for part in intake.pending)  # what is found out of a part in reading it goes with it
    return replace(intake, entry=ForkRelay(_relay(intake)), pending=mine, idle_tail=[])


class Forking:
    """When the input of a unit forks, and what becomes of the fork. Not thread-safe."""

    def __init__(
        self,
        trunk: Line,
        admission: Admission,
        bucket_us: int | None,
        bound: DelayBound,
        clock: Clock,
        on_fork: Callable[[int | None], None],
        on_prepare: Callable[[int], None],
        on_recovery: Callable[[], None],
    ) -> None:
        self._on_prepare, self._on_recovery = on_prepare, on_recovery
        self._prepared: tuple[int, int] | None = None  # the number of a fork that may begin, and behind which train
        self._trunk, self._admission, self._bucket, self._bound = trunk, admission, bucket_us, bound
        self._clock, self._on_fork = clock, on_fork
        self.fork: ForkLine | None = None
        self._count = 0  # how many there were
        self._tentative: dict[str, list[Section]] = {}  # what came of each stream that is not stable, and not void
        self._undone: set[str] = set()  # streams on which there was an undo, and of which recovery is not done
        self._read: dict[str, int] = {}  # how far forks that are over had read each stream; nothing: that is corrected
        self._corrected_by: int | None = None  # the trunk's train that had read all that
        self._arrivals = Arrivals()
        self.partner: Partner | None = None
        self._could_since: float | None = None  # what was missing has come
        self.is_waiting = False  # for its partner, when that was looked at last

    def take_in(self, name: str, section: Section) -> None:
        """What came of a stream goes into the trunk if it is stable, and in any case into a fork, if there is one."""
        if section.undo:
            self._tentative.pop(name, None)
            self._undone.add(name)
            if self.fork is not None:
                self.fork.undo(name)
            return
        if section.done:
            self._undone.discard(name)
            return
        intake = self._trunk.intakes[name]
        if section.stable:
            intake.add(_relay(intake).admit(section))
            if section.ended:  # as it is right: nothing can be tentative behind that
                self._tentative.pop(name, None)
                self._undone.discard(name)
        else:
            self._tentative.setdefault(name, []).append(section)
        if self.fork is not None:
            self.fork.take_in(name, section)
        self._note()

    def _note(self) -> None:
        now = self._clock.now()
        self._arrivals.before(now - self._bound.patience_s)  # what is older need not be known
        self._arrivals.note(now, max(_relay(intake).cursor.reached for intake in self._trunk.intakes.values()))
        if self.fork is not None:
            self.fork.arrivals.note(now, self.fork.reached())

    def prepare(self, *, may: bool) -> int | None:
        """The number of a fork that may begin soon, if there is one to get ready for: to hold its state takes time."""
        since, base = self._pending_since(self._trunk), self._trunk.made
        ready = self._prepared is not None and self._prepared[1] == base
        if not may or self.fork is not None or ready or since is None or base > self._trunk.released:
            return None
        if self._clock.now() < since + HALFWAY * self._bound.patience_s:
            return None
        self._count += 1
        self._prepared = self._count, base
        self._on_prepare(self._count)
        return self._count

    def begin(self, *, may: bool) -> bool:
        """Begin a fork, if it is time and there may be one; says whether. Called when the trunk has nothing to read.

        Never while trains are under way: it begins where the trunk stands. Where the trunk has come further while a
        fork went on, but not as far as that, another fork takes its place: what is right by now is known then.
        """
        if not may:  # the trunk repeats what another copy has done
            self._tentative.clear()
        under_way = self._trunk.made > self._trunk.released
        if not may or under_way or not (self._is_behind() if self.fork is not None else self._is_due()):
            return False
        arrivals = self._arrivals if self.fork is None else self.fork.arrivals
        self.end()
        if not self._is_due():
            self._on_fork(None)
            return True
        serial, base = self._prepared or (0, -1)
        if base != self._trunk.made:
            self._count += 1
            serial = self._count
        self._prepared = None
        how = (self._admission, self._bucket or 1, self._bound, arrivals.copy(), self._clock)
        fork = ForkLine(serial, self._trunk, *how)
        for name, sections in self._tentative.items():
            for section in sections:
                fork.take_in(name, section)
        self._on_fork(serial)
        self.fork = fork
        self._note()
        return True

    def _is_due(self) -> bool:
        """Whether something is tentative, or pending in the trunk for longer than the bound allows."""
        since = self._pending_since(self._trunk)
        return bool(self._tentative) or (since is not None and self._clock.now() >= since + self._bound.patience_s)

    def _is_behind(self) -> bool:
        """Whether the trunk has come further since the fork began, and that is long enough ago."""
        fork = self.fork
        if fork is None or fork.made > fork.released or self._trunk.made == fork.base:
            return False
        return self._clock.now() >= fork.since + self._bound.patience_s

    def next(self) -> Merged:
        """What goes into the fork's next train; one is under way at a time."""
        fork = self.fork
        if fork is None or fork.made > fork.released:
            return Merged([])
        fork.order.stabilizing = fork.can_be_corrected_by(self._trunk) and not self.waits()
        fork.order.relieved = self.partner is not None and self.partner.waits()
        return fork.order.next()

    def waits(self) -> bool:
        """Whether the trunk leaves it to the other copy to be corrected first.

        It does as long as that is at it, and for a moment where it may not have noticed that it can.
        """
        now = self._clock.now()
        if self.partner is None or not self._could_begin():
            self._could_since, self.is_waiting = None, False
            return False
        self._could_since = now if self._could_since is None else self._could_since
        state = self.partner.first()
        may_notice = state == "failure" and now < self._could_since + NOTICE_S
        self.is_waiting = may_notice or state in ("stabilization", "suspended")
        return self.is_waiting

    def _could_begin(self) -> bool:
        """Whether the trunk stands where the fork began, and could read on."""
        fork, intakes = self.fork, self._trunk.intakes
        if fork is None or fork.base != self._trunk.made:
            return False
        firsts = [int(i.pending[0].reached[0]) for i in intakes.values() if i.pending]
        return bool(firsts) and (len(intakes) == 1 or min(firsts) < fork.order.free(intakes))

    def holds(self, name: str) -> bool:
        """Whether the trunk waits with what it has of a stream, for another that has not come as far.

        So never of those that are furthest behind: if two streams were held up by each other, neither would be read.
        """
        fork, intakes = self.fork, dict(self._trunk.intakes)
        mine = intakes.pop(name)
        if fork is None or not mine.pending:
            return False
        free = fork.order.free(intakes)
        return int(mine.pending[0].reached[0]) >= free and fork.order.free({name: mine}) > free

    def end(self) -> None:
        """Read on without the fork."""
        if self.fork is not None:
            for name, intake in self.fork.intakes.items():
                self._read[name] = max(self._read.get(name, FIRST_TIME), intake.cut.reached)
            shutil.rmtree(self.fork.depot, ignore_errors=True)
        self.fork, self._corrected_by = None, None

    @property
    def is_recovering(self) -> bool:
        """Whether there was a fork that is over, and readers do not know yet that all is right again."""
        return bool(self._read) and self.fork is None

    def settle(self) -> None:
        """If all that was tentative is corrected here, and upstream as well, recovery is done."""
        if not self.is_recovering or self._tentative or self._undone:
            return
        trunk = self._trunk
        cuts = [(trunk.intakes[name].cut, reached) for name, reached in self._read.items()]
        if self._corrected_by is None and all(cut.ended or cut.reached >= reached for cut, reached in cuts):
            self._corrected_by = trunk.made
        if self._corrected_by is not None and trunk.released >= self._corrected_by:
            self._read, self._corrected_by = {}, None
            self._on_recovery()

    def patience(self) -> float:
        """How long to wait before what is pending is to be looked at again, in seconds."""
        since = self._pending_since(self.fork or self._trunk)
        if since is None:
            return math.inf
        dues = [since + part * self._bound.patience_s - self._clock.now() for part in (HALFWAY, 1.0)]
        return min((due for due in dues if due > 0), default=LOOK_S)

    def _pending_since(self, line: Line) -> float | None:
        """Since when a line has had what it could read next; None if there is nothing, or it need not wait."""
        firsts = [int(i.pending[0].reached[0]) for i in line.intakes.values() if i.pending]
        if not firsts or (self._bucket is None and line is self._trunk):
            return None
        return (line.arrivals if isinstance(line, ForkLine) else self._arrivals).when(min(firsts))
