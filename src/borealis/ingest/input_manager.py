"""The input manager of a unit: reads its sources, puts their tuples in one order, and cuts that order into trains.

Several finite, replayable inputs (files) are merged by time: the tuple whose input had come less far goes first, so
that a replay gives the same order every time. Live inputs are merged as they arrive. Either way each tuple and each
boundary gets a *cause*: its place in the unit's order of events.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from borealis.clock import Clock, WallClock
from borealis.diagram.spec import Input
from borealis.errors import BorealisError, InputError, MachineError
from borealis.ingest.entry import Admitted, Cursor, EntryPoint
from borealis.ingest.relay import Feed, Relay, Relayed, SectionSource, nothing_relayed
from borealis.ingest.sources.base import Source
from borealis.section import Section, empty_rows, wire_schema
from borealis.tuples import CAUSE, FIRST_TIME, LAST_TIME, Int64s

READ_AHEAD = 2  # batches a source may be ahead of the trains
TRAINS_AHEAD = 2  # trains made before they are asked for


@dataclass(frozen=True)
class Admission:
    """How large a train may be, in rows and in bytes; one row of each input always has room."""

    rows_most: int = 500_000
    bytes_most: int = 64 << 20


Passed = tuple[str, int, int]  # an input was read up to this tuple id and boundary


@dataclass(frozen=True)
class Train:
    """A train as it was cut: where every input stands after it, and whether it is the last."""

    number: int
    cursors: dict[str, Cursor]
    next_cause: int
    rows: int
    final: bool
    order: tuple[Passed, ...] = ()  # the order in which its inputs were merged
    silent: bool = False  # what comes of it is known downstream already
    free: bool = True  # merged as tuples arrived, not as a script says


@dataclass(frozen=True)
class Script:
    """What to read next, in this order, whatever arrives first."""

    order: tuple[Passed, ...]
    silent: bool = False


@dataclass
class _Intake:
    """One input: its entry point, what its source has read, and what is admitted but in no train yet."""

    entry: EntryPoint | Relay
    source: Source | SectionSource
    schema: pa.Schema
    read: queue.Queue[pa.RecordBatch | Section | BaseException | None]
    pending: deque[Admitted | Relayed]
    cut: Cursor  # as of the last train
    last_arrival: float
    idle_tail: list[int]  # boundaries written while nothing arrived
    source_ended: bool = False
    failure: BaseException | None = None  # what stands behind the last row that could be read
    rows: int = 0  # pending
    size: int = 0  # of pending rows, in bytes

    def add(self, admitted: Admitted | Relayed) -> None:
        """Keep admitted rows until a train takes them."""
        if len(admitted) or admitted.tail():
            self.pending.append(admitted)
            self.rows += len(admitted)
            self.size += admitted.nbytes

    def take(self, count: int) -> Admitted | Relayed:
        """The next rows, so many of them, all from the first batch that is pending."""
        first = self.pending.popleft()
        if count < len(first):
            first, rest = first.split(count)
            self.pending.appendleft(rest)
        self.rows -= count
        self.size = max(0, self.size - first.nbytes) if self.pending else 0
        return first

    def nothing(self) -> Admitted | Relayed:
        """No rows, as of the last train."""
        if isinstance(self.entry, Relay):
            return nothing_relayed(self.cut, empty_rows(self.schema.remove(len(self.schema) - 1)))
        none = np.empty(0, np.int64)
        return Admitted(self.cut, self.schema.empty_table(), none, none, none, np.empty(0, np.bool_))

    def take_until(self, position: int, boundary: int) -> Relayed | None:
        """The next tuples and boundaries, but nothing behind that place; None if there are none, so far."""
        if not self.pending:
            return None
        first = self.pending[0]
        assert isinstance(first, Relayed)
        early, late = first.part(position, boundary)
        if early is None:
            return None
        self.pending.popleft()
        if late is not None:
            self.pending.appendleft(late)
        self.rows -= len(early)
        self.size = max(0, self.size - early.nbytes) if self.pending else 0
        return early

    def is_beyond(self, position: int) -> bool:
        """Whether what comes next lies behind this place: ids were left out, or tuples dropped, in between."""
        first = self.pending[0] if self.pending else None
        return isinstance(first, Relayed) and first.section.first > position

    def full(self, admission: Admission) -> bool:
        """Whether this is a train's worth. A single row is not: it may have to wait for the one behind it."""
        return self.rows > 1 and (self.rows >= admission.rows_most or self.size >= admission.bytes_most)

    @property
    def done(self) -> bool:
        return self.cut.ended


@dataclass(frozen=True)
class _Piece:
    """Consecutive rows of one input within a train, then boundaries that stand behind them."""

    name: str
    rows: Admitted | Relayed
    tail: tuple[int, ...]


class InputManager:
    """Ask `next_train` for trains, one after the other; `release` what is committed. Safe to use from threads."""

    def __init__(
        self,
        inputs: Sequence[Input | Feed],
        sources: Mapping[str, Source | SectionSource],
        schemas: Mapping[str, pa.Schema],
        paces: Mapping[str, int],
        depot: Path,
        *,
        cursors: dict[str, Cursor] | None = None,
        next_cause: int = 0,
        trains: int = 0,
        admission: Admission | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.depot = depot
        self.admission = admission or Admission()
        self.clock = clock or WallClock()
        self._intakes: dict[str, _Intake] = {}
        for spec in inputs:
            cursor = (cursors or {}).get(spec.name, Cursor())
            relayed = isinstance(spec, Feed)
            self._intakes[spec.name] = _Intake(
                Relay(spec, cursor) if isinstance(spec, Feed) else EntryPoint(spec, paces[spec.name], cursor),
                sources[spec.name],
                wire_schema(schemas[spec.name]) if relayed else schemas[spec.name],
                queue.Queue(READ_AHEAD),
                deque(),
                cursor,
                self.clock.now(),
                [],
                source_ended=cursor.ended,
            )
        self.by_time = all(isinstance(s, Source) and s.finite_and_ordered for s in sources.values())
        self._next_cause = next_cause
        self._trains: dict[int, Train] = {}
        self._made = trains  # number of the newest train
        self._asked = trains
        self._handed = trains  # number of the newest train that was handed out
        self._paused = False
        self._released = trains
        self._final = all(i.done for i in self._intakes.values())
        self._failure: BaseException | None = None
        self._stopped = False
        self._script: deque[Script] = deque()
        self._following = False  # without a script there is nothing to do
        self._news = 0  # counts what the making of trains may be waiting for
        self._changed = threading.Condition()
        self._maker: threading.Thread | None = None

    # -- standing by

    def begin_at(self, cursors: Mapping[str, Cursor], next_cause: int, trains: int) -> None:
        """Start elsewhere than was said when this was made; only before `start`."""
        with self._changed:
            for name, cursor in cursors.items():
                intake = self._intakes[name]
                intake.entry.cursor = intake.cut = cursor
                intake.source_ended = cursor.ended
            self._next_cause = next_cause
            self._made = self._asked = self._handed = self._released = trains
            self._final = all(i.done for i in self._intakes.values())
            self._tell()

    def put_back(self, train: Train, header: Mapping[str, Any]) -> None:
        """Hand this train out first, and go on behind it; only before `start`. Its files are in the depot."""
        self.begin_at(train.cursors, train.next_cause, train.number - 1)
        self.depot.mkdir(parents=True, exist_ok=True)
        (self.depot / f"{train.number}.json").write_text(json.dumps(header))
        with self._changed:
            self._trains[train.number] = train
            self._made = train.number
            self._tell()

    def follow(self, scripts: Iterable[Script]) -> None:
        """Read as the scripts say, and nothing else, until `lead`."""
        with self._changed:
            self._following = True
            self._script.extend(scripts)
            self._tell()

    @property
    def follows(self) -> bool:
        """Whether there is a script that is not done."""
        with self._changed:
            cuts = {name: (intake.cut.position, intake.cut.boundary) for name, intake in self._intakes.items()}
            return self._following or any(cuts[n] < (at, bound) for s in self._script for n, at, bound in s.order)

    def lead(self) -> None:
        """When the scripts that are there are done, read whatever arrives."""
        with self._changed:
            self._following = False
            self._tell()

    def start(self) -> None:
        """Begin to read."""
        self.depot.mkdir(parents=True, exist_ok=True)
        for name, intake in self._intakes.items():
            if not intake.source_ended:
                threading.Thread(target=self._read, args=(intake,), name=f"read-{name}", daemon=True).start()
        self._maker = threading.Thread(target=self._make_trains, name="trains", daemon=True)
        self._maker.start()

    def stop(self) -> None:
        """Stop reading; trains already made stay. A source that waits for its next row is left to itself."""
        with self._changed:
            self._stopped = True
            self._tell()
        for intake in self._intakes.values():
            stop = getattr(intake.source, "stop", None)
            if stop is not None:
                stop()
        if self._maker is not None:
            self._maker.join()

    @property
    def alike(self) -> bool:
        """Whether the same causes will stand for the same tuples if this is read again: nothing depends on arrival."""
        idle = any(i.entry.spec.idle_us for i in self._intakes.values())
        return self.by_time or (len(self._intakes) == 1 and not idle)

    @property
    def finished(self) -> bool:
        """Whether every input had ended when the newest train was made."""
        return self._final

    @property
    def failure(self) -> BaseException | None:
        """What went wrong while reading, once all trains before it are made."""
        return self._failure

    def time_columns(self) -> dict[str, str]:
        """For each input the column that holds a tuple's time."""
        return {name: intake.entry.spec.time for name, intake in self._intakes.items()}

    def cursors(self) -> dict[str, Cursor]:
        """Where every input stands after the newest train."""
        return {name: intake.cut for name, intake in self._intakes.items()}

    def next_train(self, after: int, wait: float) -> int | None:
        """The number of the train after `after`, waiting for it at most so many seconds."""
        with self._changed:
            if self._asked <= after:
                self._asked = after + 1
                self._tell()
            self._changed.wait_for(
                lambda: (
                    (self._made > max(after, self._released) and not self._paused)
                    or self._stopped
                    or self._failure is not None
                ),
                wait,
            )
            after = max(after, self._released)  # it may have begun elsewhere, even while we waited
            if self._asked <= after:
                self._asked = after + 1
                self._tell()
            if self._made <= after or self._paused:
                return None
            self._handed = max(self._handed, after + 1)
            return after + 1

    def pause(self) -> int:
        """Hand out no more trains until `resume`; returns the number of the last one that was handed out."""
        with self._changed:
            self._paused = True
            return self._handed

    def resume(self) -> None:
        """Hand out trains again."""
        with self._changed:
            self._paused = False
            self._tell()

    def waiting(self) -> int:
        """How many rows have arrived and are in no committed train."""
        with self._changed:
            return sum(i.rows for i in self._intakes.values()) + sum(t.rows for t in self._trains.values())

    def train(self, number: int) -> Train:
        """A train that was made and not yet released."""
        return self._trains[number]

    def header(self, number: int) -> dict[str, Any]:
        """What workers must know of a train."""
        header: dict[str, Any] = json.loads((self.depot / f"{number}.json").read_text())
        return header

    def release(self, number: int) -> None:
        """The train is committed: forget it, and tell sources that wait for that."""
        with self._changed:
            train = self._trains.pop(number)
            self._released = number
            self._tell()
        for path in self.depot.glob(f"{number}.*"):
            path.unlink(missing_ok=True)
        for name, intake in self._intakes.items():
            committed = getattr(intake.source, "committed", None)
            if committed is not None:
                committed(train.cursors[name].position)

    # -- threads

    def _read(self, intake: _Intake) -> None:
        item: pa.RecordBatch | BaseException | None = None
        try:
            for batch in self._batches(intake):
                if not self._hand_over(intake, batch):
                    return
        except BaseException as error:
            item = error
        self._hand_over(intake, item)

    def _batches(self, intake: _Intake) -> Iterator[pa.RecordBatch | Section]:
        cursor = intake.entry.cursor
        if isinstance(intake.source, SectionSource):
            return intake.source.sections(cursor.position, cursor.boundary)
        return intake.source.batches(intake.schema, cursor.position, self.admission.rows_most)

    def _hand_over(self, intake: _Intake, item: pa.RecordBatch | Section | BaseException | None) -> bool:
        while not self._stopped:
            try:
                intake.read.put(item, timeout=0.1)
            except queue.Full:
                continue
            with self._changed:
                self._tell()
            return True
        return False

    def _make_trains(self) -> None:
        try:
            while not self._final:
                with self._changed:
                    seen = self._news
                    if self._stopped:
                        return
                    wanted = self._asked > self._made
                    ahead = self._made - self._released < TRAINS_AHEAD
                if not ((wanted or ahead) and (self._fill() or self._make(wanted))):
                    with self._changed:
                        self._changed.wait_for(lambda seen=seen: self._news != seen, self._patience())  # type: ignore[misc]
        except BaseException as error:
            with self._changed:
                self._failure = _no_room(self.depot, error) if isinstance(error, OSError) else error
                self._tell()

    def _tell(self) -> None:
        """Wake whoever waits; called with the lock held."""
        self._news += 1
        self._changed.notify_all()

    def _patience(self) -> float:
        """How long to wait before idleness is to be looked at again, in seconds."""
        return 0.05 if any(i.entry.spec.idle_us for i in self._intakes.values()) else 5.0

    def _fill(self) -> bool:
        """Admit what the sources have read, up to a train's worth of each input; whether more may be had at once."""
        if not self.by_time and any(i.failure is not None for i in self._intakes.values()):
            return False  # what is pending goes into trains, then the failure is told; live inputs might never pause
        news = False
        for intake in self._intakes.values():
            while not intake.source_ended and intake.failure is None and not intake.full(self.admission):
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
                    intake.add(intake.entry.admit(item))
                    intake.failure = intake.entry.refused
                    intake.source_ended = intake.entry.cursor.ended
                    news = news or not self._enough()
        return news

    def _enough(self) -> bool:
        """Whether what is pending makes a full train."""
        rows = sum(i.rows for i in self._intakes.values())
        size = sum(i.size for i in self._intakes.values())
        return rows >= self.admission.rows_most or size >= self.admission.bytes_most

    # -- the order of events

    def _make(self, wanted: bool) -> bool:
        """Make a train if there is one to make: any, when one is wanted, otherwise only a full one."""
        if not (wanted or self._enough()):
            return False
        order, silent, free = None, False, not (self._script or self._following)
        if not free:
            pieces, silent = self._by_script()
        elif self.by_time:
            pieces, order = self._by_time()
        else:
            pieces = self._by_arrival()
        if pieces:
            self._write(pieces, order, silent=silent, free=free)
            return True
        for name, intake in self._intakes.items():
            if intake.failure is not None and not intake.pending:
                raise _told(name, intake.failure)
        return False

    def _by_arrival(self) -> list[_Piece]:
        """What is pending, each input its share: a fast one must not keep the others waiting."""
        self._write_idle_boundaries()
        rows, size = self.admission.rows_most, self.admission.bytes_most
        pieces: list[_Piece] = []
        waiting = sorted((i.rows, name) for name, i in self._intakes.items() if i.pending)
        for n, (_, name) in enumerate(waiting):
            intake, shares = self._intakes[name], len(waiting) - n
            rows_mine, size_mine = max(1, rows // shares), size // shares
            while intake.pending and rows_mine > 0:
                first = intake.pending[0]
                fit = size_mine // max(1, first.nbytes // max(1, len(first)))
                if fit < 1 and pieces and pieces[-1].name == name:
                    break
                piece = self._take(name, intake, min(len(first), max(1, min(rows_mine, fit))))
                pieces.append(piece)
                rows_mine, rows = rows_mine - len(piece.rows), rows - len(piece.rows)
                size_mine, size = size_mine - piece.rows.nbytes, size - piece.rows.nbytes
        for name, intake in self._intakes.items():
            ends = intake.idle_tail or intake.source_ended
            if ends and not intake.pending and not intake.done:
                pieces.append(self._take(name, intake, 0))
        return pieces

    def _by_script(self) -> tuple[list[_Piece], bool]:
        """What is there of the first script that is not done, in its order; a train does not go beyond a script."""
        pieces: list[_Piece] = []
        room = self.admission.rows_most
        while self._script and not pieces:
            script = self._script[0]
            left = deque(script.order)
            while left and room > 0:
                name, position, boundary = left[0]
                intake = self._intakes[name]
                while (intake.cut.position, intake.cut.boundary) < (position, boundary) and room > 0:
                    taken = intake.take_until(position, boundary)
                    if taken is None:
                        break
                    pieces.append(self._taken(name, intake, taken))
                    room -= len(taken)
                behind = (intake.cut.position, intake.cut.boundary) < (position, boundary)
                if behind and not intake.is_beyond(position):
                    break
                left.popleft()
            with self._changed:
                self._script.popleft()
                if left:
                    self._script.appendleft(Script(tuple(left), script.silent))
            if left:
                break
        return pieces, script.silent if pieces else False

    def _taken(self, name: str, intake: _Intake, rows: Relayed) -> _Piece:
        tail = rows.tail()
        cut = rows.cursor(len(rows))
        intake.cut = replace(cut, boundary=tail[-1], ended=tail[-1] == LAST_TIME) if tail else cut
        return _Piece(name, rows, tail)

    def _write_idle_boundaries(self) -> None:
        now = self.clock.now()
        for name, intake in self._intakes.items():
            spec, cursor = intake.entry.spec, intake.entry.cursor
            if spec.idle_us is None or intake.pending or intake.source_ended or not intake.read.empty():
                continue
            if intake.failure is not None or getattr(intake.source, "finite_and_ordered", False):
                continue  # a file is never silent, only slow: its boundaries must not depend on the clock
            silent_us = int((now - intake.last_arrival) * 1e6)
            if silent_us < spec.idle_us:
                continue
            others = [i.entry.cursor.boundary for n, i in self._intakes.items() if n != name and not i.source_ended]
            reach = max(others, default=FIRST_TIME)
            if cursor.newest > FIRST_TIME:
                reach = max(reach, cursor.newest + silent_us - spec.slack_us)
            if reach > FIRST_TIME and (bound := intake.entry.idle(reach)) is not None:
                intake.idle_tail.append(bound)

    def _by_time(self) -> tuple[list[_Piece], Int64s | None]:
        """All rows that no row still to be read can come before, by (newest time of their input, input, position)."""
        if len(self._intakes) == 1:
            return self._by_arrival(), None
        if not all(i.pending or i.source_ended for i in self._intakes.values()):
            return [], None
        free = {}
        weights = []
        for number, (name, intake) in enumerate(self._intakes.items()):
            whole = _joined(intake)
            intake.pending = deque([whole] if whole is not None else [])
            newest = whole.newest if whole is not None else np.empty(0, np.int64)
            free[name] = newest[: self._free(number, intake, newest)]
            weights.append(intake.size / max(1, intake.rows))
        which = np.repeat(np.arange(len(free)), [len(f) for f in free.values()])
        order = np.lexsort((which, np.concatenate(list(free.values()))))[: self.admission.rows_most]
        room = np.searchsorted(np.cumsum(np.array(weights)[which[order]]), self.admission.bytes_most, "right")
        order = order[: max(1, int(room))]
        counts = np.bincount(which[order], minlength=len(free))
        pieces, places, start = [], [], 0
        for (name, intake), mine, count in zip(self._intakes.items(), free.values(), counts.tolist(), strict=True):
            if count or (intake.source_ended and not intake.rows and not intake.done and self._may_end(intake)):
                pieces.append(self._take(name, intake, count))
            places.append((start, start + count))
            start += len(mine)
        return pieces, _dense(order, places)

    def _free(self, number: int, intake: _Intake, newest: Int64s) -> int:
        """How many of an input's rows no row still to be read can come before.

        Its last row waits until the next one is there, or the end, which stands right behind the last row.
        """
        free = len(newest)
        if free and not intake.source_ended and intake.failure is None:
            free -= 1
        for other, theirs in enumerate(self._intakes.values()):
            if other != number and not theirs.source_ended:
                side: Literal["left", "right"] = "right" if number < other else "left"
                free = min(free, int(np.searchsorted(newest, theirs.entry.cursor.newest, side)))
        return free

    def _may_end(self, intake: _Intake) -> bool:
        """Whether no row still to come goes before the end of an input whose rows are all in trains."""
        mine = intake.entry.cursor.newest
        others = [i for i in self._intakes.values() if i is not intake]
        return all(i.source_ended or i.entry.cursor.newest > mine for i in others)

    def _take(self, name: str, intake: _Intake, count: int) -> _Piece:
        """The next rows of one input, with what stands behind them if they are its last for now."""
        first = intake.take(count) if intake.pending else intake.nothing()
        cut, tail = first.cursor(len(first)), first.tail()
        if not intake.pending:
            tail, intake.idle_tail = (*tail, *intake.idle_tail), []
        if tail:
            cut = replace(cut, boundary=tail[-1], ended=tail[-1] == LAST_TIME)
        if not intake.pending and intake.source_ended and not cut.ended:
            tail += (LAST_TIME,)
            cut = replace(cut, boundary=LAST_TIME, ended=True)
        intake.cut = cut
        return _Piece(name, first, tail)

    # -- writing a train

    def _write(self, pieces: list[_Piece], order: Int64s | None, *, silent: bool, free: bool) -> None:
        number = self._made + 1
        standing = {name: intake.cut.boundary for name, intake in self._intakes.items()}
        for piece in reversed(pieces):
            standing[piece.name] = piece.rows.start.boundary
        events, causes = self._number(pieces, order)
        header: dict[str, Any] = {"train": number, "inputs": {}}
        rows = 0
        for name, intake in self._intakes.items():
            mine = [(p, c) for p, c in zip(pieces, causes, strict=True) if p.name == name]
            bounds = [b for p, c in mine for b in _bounds(p, c)]
            table = _with_cause(mine, intake.schema, late=False)
            late = _with_cause(mine, intake.schema, late=True)
            header["inputs"][name] = {
                "time": intake.entry.spec.time,
                "standing": standing[name],
                "cause": [c for c, _ in bounds],
                "bound": [b for _, b in bounds],
                "rows": self._file(f"{number}.{name}.arrow", table),
                "late": self._file(f"{number}.{name}.late.arrow", late),
            }
            rows += sum(len(p.rows) for p, _ in mine)
        (self.depot / f"{number}.json").write_text(json.dumps(header))
        final = all(i.done for i in self._intakes.values())
        with self._changed:
            self._next_cause += events
            self._trains[number] = Train(
                number, self.cursors(), self._next_cause, rows, final, _passed(pieces), silent, free
            )
            self._made, self._final = number, final
            self._tell()

    def _number(self, pieces: list[_Piece], order: Int64s | None) -> tuple[int, list[Int64s]]:
        """How many events there are, and per piece the causes of its rows followed by those of its tail."""
        weights = [np.concatenate([p.rows.weights(), np.ones(len(p.tail), np.int64)]).astype(np.int64) for p in pieces]
        flat = np.concatenate(weights)
        if order is None:
            cause = self._next_cause + np.cumsum(flat) - 1
        else:
            places = _event_order(pieces, order)
            cause = np.empty(len(flat), np.int64)
            cause[places] = self._next_cause + np.cumsum(flat[places]) - 1
        ends = np.cumsum([len(w) for w in weights])
        return int(flat.sum()), [cause[end - len(w) : end] for end, w in zip(ends, weights, strict=True)]

    def _file(self, name: str, table: pa.Table) -> str | None:
        if not table.num_rows:
            return None
        path = self.depot / name
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        return str(path)


def _passed(pieces: Sequence[_Piece]) -> tuple[Passed, ...]:
    """The places behind the pieces of streams, in their order; only where it changes the input."""
    found: list[Passed] = []
    for piece in pieces:
        if isinstance(piece.rows, Relayed):
            boundary = piece.tail[-1] if piece.tail else piece.rows.cursor(len(piece.rows)).boundary
            place = (piece.name, piece.rows.section.stop, boundary)
            if found and found[-1][0] == piece.name:
                found.pop()
            found.append(place)
    return tuple(found)


def _told(name: str, error: BaseException) -> BaseException:
    if isinstance(error, BorealisError):
        return error
    said = " ".join(str(error).split())[:300] or type(error).__name__
    told = InputError(f"input '{name}' failed: {said}", hint="everything before it is committed")
    told.__cause__ = error
    return told


def _no_room(depot: Path, error: OSError) -> BorealisError:
    told = MachineError(f"cannot write a train to {depot}: {error}", hint="make room there, or make trains smaller")
    told.__cause__ = error
    return told


def _joined(intake: _Intake) -> Admitted | None:
    """All that is pending as one."""
    parts = [part for part in intake.pending if isinstance(part, Admitted)]
    if len(parts) < 2:
        return parts[0] if parts else None
    return Admitted(
        parts[0].start,
        pa.concat_tables([p.rows for p in parts]),
        *(np.concatenate(arrays) for arrays in zip(*(p._arrays() for p in parts), strict=True)),
    )


def _dense(order: Int64s, places: list[tuple[int, int]]) -> Int64s:
    """Places among the rows that are in the train, for places among all rows that could have been."""
    renumber = np.full(max((stop for _, stop in places), default=0), -1)
    at = 0
    for start, stop in places:
        renumber[start:stop] = np.arange(at, at + stop - start)
        at += stop - start
    dense: Int64s = renumber[order]
    return dense


def _event_order(pieces: list[_Piece], order: Int64s) -> Int64s:
    """The order of rows widened to rows and tails: a piece's tail stands right behind its last row."""
    shift = np.cumsum([0] + [len(p.tail) for p in pieces])
    ends = np.cumsum([len(p.rows) for p in pieces])
    piece_of = np.searchsorted(ends, order, "right")
    rows: Int64s = order + shift[piece_of]
    if not shift[-1]:
        return rows
    out: list[Int64s] = []
    at = 0
    tails = []  # (place in the order after which the tail stands, events)
    for i, piece in enumerate(pieces):
        if piece.tail:
            mine = np.flatnonzero(piece_of == i)
            behind = int(mine[-1]) + 1 if len(mine) else 0
            first = int(ends[i] + shift[i])
            tails.append((behind, np.arange(first, first + len(piece.tail))))
    for behind, events in sorted(tails, key=lambda t: t[0]):
        out += [rows[at:behind], events]
        at = behind
    return np.concatenate([*out, rows[at:]])


def _bounds(piece: _Piece, cause: Int64s) -> list[tuple[int, int]]:
    n = len(piece.rows)
    return [*piece.rows.bounds(cause[:n]), *zip(cause[n:].tolist(), piece.tail, strict=True)]


def _with_cause(pieces: list[tuple[_Piece, Int64s]], schema: pa.Schema, *, late: bool) -> pa.Table:
    tables = []
    for piece, causes in pieces:
        mask = piece.rows.late
        if late and not mask.any():
            continue
        rows, cause = piece.rows.rows, causes[: len(piece.rows)]
        if late or mask.any():
            wanted = mask if late else ~mask
            rows, cause = rows.filter(pa.array(wanted)), cause[wanted]
        tables.append(rows.append_column(CAUSE, pa.array(cause)))
    if not tables:
        return schema.append(pa.field(CAUSE, pa.int64())).empty_table()
    return pa.concat_tables(tables)


def cursors_to_json(cursors: dict[str, Cursor]) -> dict[str, Any]:
    """Cursors as they stand in a commit record."""
    return {name: asdict(c) for name, c in cursors.items()}


def cursors_from_json(data: dict[str, Any]) -> dict[str, Cursor]:
    """Cursors from a commit record."""
    return {name: Cursor(**c) for name, c in data.items()}
