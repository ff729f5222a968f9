"""The input manager of a unit: reads its sources, puts their tuples in one order, and cuts that order into trains.

A merge order (`merging.py`) says which tuple goes before which. Whatever the order, each tuple and each boundary gets a
*cause*: its place in the unit's sequence of events.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from borealis.compile.company import GivesNothing
from borealis.connectors.source import Source
from borealis.diagram.spec import Input
from borealis.entry.admission import Cursor, EntryPoint
from borealis.errors import BorealisError, InputError, MachineError
from borealis.kernels.time_of import TimeOf
from borealis.machine import HERE, Machine
from borealis.streams.section import Section, wire_schema
from borealis.threads import Task
from borealis.trains.forking import FORKS, DelayBound, Forking, ForkLine, Partner
from borealis.trains.header import TrainInputs
from borealis.trains.intake import READ_AHEAD, Admission, Intake
from borealis.trains.keeping import Keeping, KeepLimits
from borealis.trains.line import Cut, Line
from borealis.trains.merging import ByArrival, ByReplay, ByTime, Merged, Replay
from borealis.trains.relay import Relay, SectionSource, StreamInput
from borealis.trains.train import Train

TRAINS_AHEAD = 2  # trains made before they are asked for
HELD_UP_S = 1.0  # from when on it is told that streams wait for another
READER_ENDS_S = 1.0  # how long `stop` waits for sources that are read


@dataclass(frozen=True)
class KeptInput:
    """What waits for the trunk to read it."""

    rows: int
    memory_bytes: int
    disk_bytes: int
    full: list[str]  # inputs of which no more is kept: both lines wait
    trouble: str  # why the disk takes no more; empty: it does


class InputManager:
    """Ask `next_train` for trains, one after the other; `release` what is committed. Safe to use from threads."""

    def __init__(
        self,
        inputs: Sequence[Input | StreamInput],
        sources: Mapping[str, Source | SectionSource],
        schemas: Mapping[str, pa.Schema],
        paces: Mapping[str, int],
        depot: Path,
        *,
        cursors: dict[str, Cursor] | None = None,
        next_cause: int = 0,
        trains: int = 0,
        admission: Admission | None = None,
        times: Mapping[str, TimeOf] | None = None,  # by input; those that are columns may be left out
        gives_nothing: GivesNothing | None = None,  # whether a train can wait: nothing comes of it yet
        bucket_us: int | None = None,  # several streams are read by time, by such buckets; None: as they come
        bound: DelayBound | None = None,  # on how long what is pending waits for what is missing
        on_fork: Callable[[int | None], None] = lambda _: None,  # a fork begins, in the place of any before; or is over
        on_prepare: Callable[[int], None] = lambda _: None,  # one may begin soon
        on_recovery: Callable[[], None] = lambda: None,  # all that forks gave is corrected
        machine: Machine = HERE,
    ) -> None:
        self.depot = depot
        self.admission = admission or Admission()
        self.clock, self._threads = machine.clock, machine.threads
        self._intakes: dict[str, Intake] = {}
        for spec in inputs:
            name, schema, cursor = spec.name, schemas[spec.name], (cursors or {}).get(spec.name, Cursor())
            entry: EntryPoint | Relay
            if isinstance(spec, StreamInput):
                gives_up = bound is not None and bound.keep.gives_up
                entry, schema = Relay(spec, cursor, gives_up), wire_schema(schema)
            else:
                entry = EntryPoint(spec, paces[name], cursor, (times or {}).get(name))
            read = self._threads.mailbox(READ_AHEAD)
            self._intakes[name] = Intake(entry, sources[name], schema, cursor, self.clock.now(), cursor.ended, read)
        self._gives_nothing = gives_nothing
        self._waits_since: float | None = None  # what is pending does, for company
        self._held_since: float | None = None  # what is pending is, by a stream that has not come so far
        self._nudges = 0
        files = all(isinstance(s, Source) and s.finite_and_ordered for s in sources.values())
        streams = all(isinstance(spec, StreamInput) for spec in inputs)
        self.by_time = files or (streams and len(inputs) > 1 and bucket_us is not None)
        self._trunk = Line(self._intakes, depot, next_cause, trains)
        self._forking: Forking | None = None
        if bound is not None:
            how = (self.admission, bucket_us if self.by_time else None, bound, self.clock)
            self._forking = Forking(self._trunk, *how, on_fork, on_prepare, on_recovery)
        self._keeping = Keeping(KeepLimits() if bound is None else bound.keep, machine)
        self._is_forks_turn = False
        self._rehearsal: int | None = None  # the number of a train of nothing, of a fork that may begin
        self._paused = False
        self.failure: BaseException | None = None  # in reading, once all trains before it are made
        self._stopped = False
        self._news = 0  # counts what the making of trains may be waiting for
        lock = self._threads.rlock()
        self._changed = self._threads.condition(lock)
        self._crowded = self._threads.condition(lock)  # for the maker
        self._making = self._threads.lock()  # one makes trains at a time; taken before the other
        self._live: ByTime | ByArrival = ByArrival(self._intakes, self.admission, self.clock)
        by_time = None
        if self.by_time and len(self._intakes) > 1:
            self._live = by_time = ByTime(self._intakes, self.admission, bucket_us or 1)
        self._scripts = ByReplay(self._intakes, self.admission, self._changed, by_time)
        self._maker: Task[None] | None = None
        self._readers: list[Task[None]] = []

    # -- standing by

    def begin_at(self, cursors: Mapping[str, Cursor], next_cause: int, trains: int) -> None:
        """Start elsewhere than was said when this was made; only before `start`."""
        with self._changed:
            for name, cursor in cursors.items():
                intake = self._intakes[name]
                intake.entry.cursor = intake.cut = cursor
                intake.source_ended = cursor.ended
            self._trunk.begin(next_cause, trains)
            self._tell()

    def put_back(self, train: Train, header: TrainInputs) -> None:
        """Hand this train out first, and go on behind it; only before `start`."""
        self.begin_at(train.cursors, train.next_cause, train.number - 1)
        with self._changed:
            self._trunk.add(Cut(train, header))
            self._tell()

    def replay(self, replays: Iterable[Replay]) -> None:
        """Read as the replays say, and nothing else, until `lead`."""
        with self._changed:
            self._scripts.only = True
            self._scripts.add(replays)
            self._tell()

    @property
    def is_replaying(self) -> bool:
        with self._changed:
            return self._scripts.unfinished

    def go_live(self) -> None:
        """When the replays that are there are done, read whatever arrives."""
        with self._changed:
            self._scripts.only = False
            self._tell()

    def start(self) -> None:
        self.depot.mkdir(parents=True, exist_ok=True)
        for name, intake in self._intakes.items():
            if not intake.source_ended:
                self._readers.append(self._threads.start(f"read-{name}", partial(self._read, intake)))
        self._maker = self._threads.start("trains", self._make_trains)
        with self._changed:  # who waits for a train has heard of what was read before, and could make none of it
            self._tell()

    def stop(self) -> None:
        """Stop reading; trains already made stay. A source that waits for its next row is soon left to itself.

        The others have ended then: a reader still inside Arrow when Python is taken apart would abort the process.
        """
        with self._changed:
            self._stopped = True
            self._tell()
        for intake in self._intakes.values():
            stop = getattr(intake.source, "stop", None)
            if stop is not None:
                stop()
        if self._maker is not None:
            self._maker.join()
        with self._making:  # no more trains are made: readers that wait for room find it, and see that it is over
            for intake in self._intakes.values():
                with suppress(queue.Empty):
                    while True:
                        intake.read.get_nowait()
        until = self.clock.now() + READER_ENDS_S
        for reader in self._readers:
            reader.join(max(0.0, until - self.clock.now()))

    @property
    def finished(self) -> bool:
        """Whether every input had ended with the newest train."""
        return self._trunk.finished

    @property
    def deterministic(self) -> bool:
        """Whether the same causes will stand for the same tuples if this is read again: nothing depends on arrival."""
        idle = any(i.entry.spec.idle_us for i in self._intakes.values())
        return self.by_time or (len(self._intakes) == 1 and not idle)

    def time_columns(self) -> dict[str, str]:
        return {name: intake.entry.time_column for name, intake in self._intakes.items()}

    def cursors(self) -> dict[str, Cursor]:
        """Where every input stands after the newest train."""
        return self._trunk.cursors()

    def rows_read(self) -> int:
        """How many rows all inputs have given so far, whether they are in a train or not; earlier starts included."""
        return sum(intake.entry.cursor.position for intake in self._intakes.values())

    def next_train(self, after: int, wait: float, *, forks: bool = False) -> int | None:
        """The number of the train after `after`, waiting for it at most so many seconds, or until a nudge.

        Who asks makes the train himself, as soon as there is something to make it of: small ones need no other thread.
        With `forks`, it may be one of a fork (see FORKS): who asks so takes one train at a time.
        """
        until = self.clock.now() + wait
        with self._changed:
            nudges = self._nudges
        while True:
            with self._changed:
                seen, last = self._news, max(after, self._trunk.released)  # it may have begun elsewhere by now
                if not self._paused and (number := self._hand_out(last, forks)) is not None:
                    return number
                if self._stopped or self.failure is not None or self._nudges != nudges:
                    return None
            if not self._paused and self._work_on(wanted=True, forks=forks, after=last):
                continue
            left = until - self.clock.now()
            if left <= 0:
                return None
            with self._changed:
                self._changed.wait_for(lambda seen=seen: self._news != seen, min(left, self._patience()))  # type: ignore[misc]

    def _hand_out(self, last: int, forks: bool) -> int | None:
        """A train that is made: trunk and fork take turns. With the lock held."""
        if forks and (rehearsal := self._rehearsal) is not None:
            self._rehearsal = None
            return rehearsal
        fork, ready = self.fork, self._trunk.made > last
        if forks and fork is not None and fork.made > fork.released and (self._is_forks_turn or not ready):
            self._is_forks_turn = False
            return fork.serial * FORKS + fork.hand_out(fork.made)
        if ready:
            self._is_forks_turn = True
            return self._trunk.hand_out(last + 1)
        return None

    def nudge(self) -> None:
        """Wake the thread that waits for a train."""
        with self._changed:
            self._nudges += 1
            self._tell()

    def pause(self) -> int:
        """Hand out no more trains until `resume`; returns the number of the last one that was handed out."""
        with self._changed:
            self._paused = True
            return self._trunk.handed

    def resume(self) -> None:
        with self._changed:
            self._paused = False
            self._tell()

    def waiting(self) -> int:
        """How many rows have arrived and are in no committed train."""
        with self._changed:
            return self._trunk.waiting

    def held_s(self) -> float:
        """For how long what has come waits for a stream that has not come so far."""
        since = self._held_since
        return 0.0 if since is None else self.clock.now() - since

    def kept(self) -> KeptInput:
        """What has arrived and is not read for good, by input; it is much while there is a fork."""
        with self._changed:
            intakes, full = self._intakes.values(), self._is_kept_full
            return KeptInput(
                self._trunk.waiting,
                sum(i.size - i.on_disk for i in intakes),
                sum(i.on_disk for i in intakes),
                [name for name, i in self._intakes.items() if full(name, i)],
                self._keeping.trouble if self.fork is not None else "",
            )

    def _is_kept_full(self, name: str, intake: Intake) -> bool:
        forking = self._forking
        return (
            forking is not None
            and forking.fork is not None
            and self._keeping.is_full(name, intake, forking.holds(name))
        )

    def given_up(self) -> dict[str, int]:
        """How many tuples of each input were, for newer ones."""
        return dict(self._keeping.given_up)

    def held_up(self) -> tuple[str, float] | None:
        """Which streams wait for which, where they are read by time, and for how many seconds, if that is long."""
        live, seconds = self._live, self.held_s()
        if not isinstance(live, ByTime) or seconds < HELD_UP_S:
            return None
        slow = live.held_up_by()
        others = [name for name in self._intakes if name not in slow]
        return (f"for {', '.join(slow)}, behind {', '.join(others)} (merge: time)", seconds) if slow else None

    def train(self, number: int) -> Train:
        """A train that was made and not yet released."""
        return self._line(number).train(number % FORKS)

    def header(self, number: int, *, files: bool = False) -> TrainInputs:
        """What workers must know of a train; see `Line.header`."""
        return self._line(number).header(number % FORKS, files=files)

    def release(self, number: int) -> None:
        """The train is committed: forget it, and tell sources that wait for that."""
        with self._changed:
            train, files = self._line(number).release(number % FORKS)
            self._tell()
        for path in files:
            Path(path).unlink(missing_ok=True)
        if number >= FORKS:
            return
        for name, intake in self._intakes.items():
            committed = getattr(intake.source, "committed", None)
            if committed is not None:
                committed(train.cursors[name].position)

    # -- forks

    def _line(self, number: int) -> Line:
        """The one that a train is of."""
        if number < FORKS:
            return self._trunk
        if self.fork is None or self.fork.serial != number // FORKS:
            raise KeyError(f"the fork of train {number} is over")
        return self.fork

    @property
    def fork(self) -> ForkLine | None:
        """That of now, if there is one."""
        return None if self._forking is None else self._forking.fork

    def is_corrected(self) -> bool:
        """Whether the trunk has read all that the fork has, if there is one."""
        return self.fork is not None and self.fork.is_corrected_by(self._trunk)

    def end_fork(self) -> None:
        """Read on without it; its trains count no more."""
        if self._forking is not None:
            with self._making, self._changed:
                self._forking.end()
                self._tell()

    def settle(self) -> None:
        """After a commit: if all that forks gave is corrected with it, recovery is done."""
        if self._forking is not None and self._forking.is_recovering:
            with self._making:
                self._forking.settle()

    def correct_with(self, partner: Partner | None) -> None:
        """Correct what was tentative by turns with the other copy of the unit; with none, at once."""
        if self._forking is not None:
            self._forking.partner = partner

    def waits_for_partner(self) -> bool:
        """Whether the other copy is corrected first, and this one answers tentatively."""
        return self._forking is not None and self._forking.is_waiting

    def _waits_for_partner(self) -> bool:
        return self._forking is not None and self._forking.waits()

    def _make_tentative(self) -> bool:
        """Make a train of the fork, if there is one to make and none under way."""
        merged = Merged([]) if self._forking is None else self._forking.next()
        fork = self.fork
        if fork is None or not merged.pieces:
            return False
        cut = fork.cut(merged)
        with self._changed:
            fork.add(cut)
            self._tell()
        return True

    def _begin_fork(self) -> bool:
        """If it is time; a while before that, a train of nothing lets workers get ready for it."""
        if self._forking is None:
            return False
        self._forking.settle()
        may = not self._scripts.active
        if (serial := self._forking.prepare(may=may)) is not None:
            self._rehearsal = serial * FORKS
            return True
        return self._forking.begin(may=may)

    # -- threads

    def _read(self, intake: Intake) -> None:
        item: BaseException | None = None
        source, cursor = intake.source, intake.entry.cursor
        batches: Iterator[pa.RecordBatch | Section]
        try:
            if isinstance(source, SectionSource):
                batches = source.sections(cursor.position, cursor.boundary)
            else:
                batches = source.batches(intake.schema, cursor.position, self.admission.rows_most)
            for batch in batches:
                if not self._hand_over(intake, batch):
                    return
        except BaseException as error:
            item = error
        self._hand_over(intake, item)

    def _hand_over(self, intake: Intake, item: pa.RecordBatch | Section | BaseException | None) -> bool:
        if self._stopped:
            return False
        intake.read.put(item)
        with self._changed:
            self._tell()
        return True

    def _make_trains(self) -> None:
        """Make trains ahead of those who ask, of sources that have more to give than trains can take."""
        intakes = list(self._intakes.values())
        while not self.finished:
            with self._changed:
                seen = self._news
                if self._stopped or self.failure is not None:
                    return
                # small batches wait for each other until a train is wanted
                ahead = self._trunk.made - self._trunk.released < TRAINS_AHEAD and any(i.crowded for i in intakes)
            if not (ahead and self._work_on(wanted=False)):
                with self._crowded:
                    self._crowded.wait_for(lambda seen=seen: self._news != seen)  # type: ignore[misc]

    def _work_on(self, *, wanted: bool, forks: bool = False, after: int | None = None) -> bool:
        """Admit what was read and make a train of it, if there is one to make; whether that changed anything."""
        if self._maker is None:  # nothing is read yet
            return False
        with self._making:
            forks_turn = self.fork is not None and self._is_forks_turn
            if after is not None and self._trunk.made > after and not forks_turn:  # by who was at it before
                return True
            try:
                over = self._stopped or self.finished
                if over or self._fill():
                    return not over
                if forks and self._is_forks_turn and self._make_tentative():
                    return True
                if self._waits_for_partner():
                    self._waits_since = None  # for company: nobody looks whether that is over
                elif self._make(wanted):
                    return True
                return forks and (self._make_tentative() or self._begin_fork())
            except BaseException as error:
                with self._changed:
                    self.failure = error
                    if isinstance(error, OSError):
                        hint = "make room there, or make trains smaller"
                        self.failure = MachineError(f"cannot write a train to {self.depot}: {error}", hint=hint)
                        self.failure.__cause__ = error
                    self._tell()
                return False

    def _tell(self) -> None:
        """Wake all threads that wait; called with the lock held."""
        self._news += 1
        self._changed.notify_all()
        over = self._stopped or self.finished or self.failure is not None
        if over or any(i.crowded for i in self._intakes.values()):
            self._crowded.notify_all()

    def _patience(self) -> float:
        """How long to wait before idleness, or what waits for company, is to be looked at again, in seconds."""
        patience = 0.05 if any(i.entry.spec.idle_us for i in self._intakes.values()) else 5.0
        if (since := self._waits_since) is not None:
            patience = min(patience, max(0.0, since + self.admission.company_s - self.clock.now()))
        return patience if self._forking is None else min(patience, self._forking.patience())

    def _fill(self) -> bool:
        """Admit what the sources have read, up to a train's worth of each input; whether more may be had at once."""
        if not self.by_time and any(i.failure is not None for i in self._intakes.values()):
            return False  # what is pending goes into trains, then comes the failure; live inputs might never pause
        news = False
        for name, intake in self._intakes.items():
            while not intake.source_ended and intake.failure is None and not self._is_full(name, intake):
                try:
                    item = intake.read.get_nowait()
                except queue.Empty:
                    break
                if isinstance(item, BaseException):
                    intake.failure = item
                elif item is None:
                    intake.source_ended = True
                    intake.entry.end()
                    news = True
                elif isinstance(item, Section) or len(item):
                    intake.last_arrival = self.clock.now()
                    if self._forking is not None and isinstance(item, Section):
                        self._forking.take_in(name, item)
                        if item.stable and len(item):
                            self._keeping.note(name, item.first)
                    else:
                        intake.add(intake.entry.admit(item))
                    intake.failure = intake.entry.refused
                    intake.source_ended = intake.entry.cursor.ended
                    news = news or not self._enough()
        return news

    def _is_full(self, name: str, intake: Intake) -> bool:
        """Whether enough of an input is pending; while there is a fork, the trunk keeps what it has to read later."""
        forking, keeping = self._forking, self._keeping
        if forking is None or forking.fork is None:
            return intake.full(self.admission)
        mine, held = forking.fork.intakes[name], forking.holds(name)
        if keeping.has_room(name, intake, mine, held=held):
            return False
        if not (keeping.limits.gives_up and held):  # if it is not held, it makes room itself
            return True
        upto, acknowledge = keeping.give_up(name, intake), getattr(intake.source, "acknowledge", None)
        if upto is not None and acknowledge is not None:
            acknowledge(upto)  # upstream need not keep it, either
        return not keeping.fits(mine)

    def _enough(self) -> bool:
        """Whether what is pending makes a full train."""
        return self._has_pending(self.admission.rows_most, self.admission.bytes_most)

    def _has_pending(self, rows: int, size: int) -> bool:
        intakes = self._intakes.values()
        return sum(i.rows for i in intakes) >= rows or sum(i.size for i in intakes) >= size

    # -- the order of events

    def _make(self, wanted: bool) -> bool:
        """Make a train if there is one to make: any, when one is wanted, otherwise only a full one."""
        if not (wanted or self._enough()):
            return False
        scripted = self._scripts.active
        if not scripted and not self.by_time and self._can_wait():
            return False
        self._live.rows_most = self.admission.rows_most if self.fork is None else self.admission.turn_rows
        merged = (self._scripts if scripted else self._live).next()
        if merged.pieces:
            self._write(merged)
            return True
        if self.by_time and self._held_since is None and any(i.pending for i in self._intakes.values()):
            self._held_since = self.clock.now()
        for name, intake in self._intakes.items():
            if (error := intake.failure) is not None and not intake.pending:
                if isinstance(error, BorealisError):
                    raise error
                reason = " ".join(str(error).split())[:300] or type(error).__name__
                raise InputError(
                    f"input '{name}' failed: {reason}", hint="everything before it is committed"
                ) from error
        return False

    def _can_wait(self) -> bool:
        """Whether nothing comes of what is pending yet: then it waits a moment for company."""
        intakes = self._intakes.values()
        if self._gives_nothing is None or not any(i.pending for i in intakes) or any(i.urgent for i in intakes):
            return False
        if self._has_pending(self.admission.company_rows, self.admission.company_bytes):
            return False
        standing = {name: intake.cut.boundary for name, intake in self._intakes.items()}
        if not self._gives_nothing(standing, {name: i.entry.cursor.boundary for name, i in self._intakes.items()}):
            return False
        self._waits_since = self.clock.now() if self._waits_since is None else self._waits_since
        return self.clock.now() < self._waits_since + self.admission.company_s

    def _write(self, merged: Merged) -> None:
        self._waits_since = self._held_since = None
        cut = self._trunk.cut(merged)
        with self._changed:
            self._trunk.add(cut)
            self._tell()
