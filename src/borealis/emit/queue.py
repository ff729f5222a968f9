"""Output queues: what a stream has produced, kept until nobody needs it, and served from any id that is still held.

A reader's place in a stream is a pair: the id of the next tuple, and the boundary it knows of. Sections are held in the
order of the places behind them, so finding what follows a place is one bisection. Boundaries at the oldest held id stay
when the tuples before it go: whoever takes the stream up there gets all of them.
"""

from __future__ import annotations

import json
import struct
import threading
import uuid
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa

from borealis.errors import GoneError, StateError, StreamError, did_you_mean
from borealis.section import NOTHING, Section, empty_rows, joined, wire_schema
from borealis.tuples import FIRST_TIME, LAST_TIME, Int64s
from borealis.wire.messages import QueueStatus

HELD_BYTES = 1024  # what holding a section costs beside its values: Python's and Arrow's objects
COLUMN_BYTES = 256  # the same for each column
BOUNDARIES_MOST = 1 << 16  # without a tuple between them; older ones melt, so that an idle stream stays small
_SMALL_BYTES = 64 << 10
_SHED_LEAST = 1024  # entries of gone sections before the lists are cut
_GONE = Section(0, empty_rows(pa.schema([])), NOTHING, NOTHING, NOTHING)


class MovedError(StreamError):
    """The stream is served elsewhere from now on: go to `moved_to` and take it up where you are."""

    def __init__(self, message: str, *, hint: str = "", moved_to: str = "") -> None:
        super().__init__(message, hint=hint)
        self.moved_to = moved_to


@dataclass(frozen=True)
class QueueLimits:
    """How much a queue holds, and what happens when it is full."""

    bytes_most: int = 64 << 20  # held for readers; the append that crosses it is the last that does not wait
    full: Literal["wait", "drop"] = "wait"  # slow the writer down, or lose the oldest
    keep_bytes: int = 8 << 20  # that nobody waits for, kept for latecomers


@dataclass
class _Reader:
    """A reader's acknowledgements, and how many tuples were dropped before it had them."""

    received: int  # level 0
    done: int  # level 1
    lost: int = 0


class OutputQueue:
    """A stream's tuples until every reader has acknowledged them. Thread-safe; one thread appends.

    A reader that never acknowledges stops the writer (`wait`) or loses tuples (`drop`): forget those that are gone.
    """

    def __init__(
        self,
        stream: str,
        schema: pa.Schema,
        limits: QueueLimits | None = None,
        *,
        readers: Iterable[str] = (),
        epoch: str | None = None,
        next_id: int = 0,
        standing: int = FIRST_TIME,
    ) -> None:
        self.stream, self.schema = stream, schema
        self.limits = limits or QueueLimits()
        self.epoch = epoch or uuid.uuid4().hex[:16]
        self._first = self._next = next_id
        self._boundary = standing
        self._readers = {name: _Reader(next_id, next_id) for name in readers}
        self._dropped = 0
        self._none = empty_rows(schema)
        self._overhead = HELD_BYTES + COLUMN_BYTES * len(schema)
        self._closed = False
        self._moved_to: str | None = None
        # What is held, oldest first, behind `_head` entries that are gone. For each section: the place behind it, and
        # the bytes of all sections ever held up to and with it; `_base` are those before the first that is held.
        self._held: list[Section] = []
        self._places: list[tuple[int, int]] = []
        self._ends: list[int] = []
        self._head = 0
        self._base = 0
        lock = threading.Lock()
        self._more = threading.Condition(lock)  # something to read
        self._room = threading.Condition(lock)  # something was let go of

    # -- how it stands

    @property
    def next_id(self) -> int:
        """The id of the next tuple to be appended."""
        return self._next

    @property
    def first_id(self) -> int:
        """The oldest id from which the stream can be read."""
        return self._first

    @property
    def boundary(self) -> int:
        """The boundary in force at the end."""
        return self._boundary

    @property
    def dropped(self) -> int:
        """Tuples lost to a reader that was too slow (policy `drop`)."""
        return self._dropped

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self._boundary == LAST_TIME

    @property
    def held_bytes(self) -> int:
        """About how much memory the held sections take."""
        with self._more:
            return self._total() - self._base

    def status(self) -> QueueStatus:
        """All of it at one moment."""
        with self._more:
            return QueueStatus(
                stream=self.stream,
                epoch=self.epoch,
                first_id=self._first,
                next_id=self._next,
                boundary=self._boundary,
                held_rows=self._next - self._first,
                held_bytes=self._total() - self._base,
                dropped=self._dropped,
                readers={name: reader.done for name, reader in self._readers.items()},
            )

    # -- writing

    def append(self, section: Section) -> None:
        """Add what follows. Under `wait` this blocks while readers leave the queue full, until `close`."""
        _check_inside(section)
        with self._room:
            self._check_fits(section)
            if self.limits.full == "wait" and self._is_full():
                self._room.wait_for(lambda: self._closed or not self._is_full())
                self._check_fits(section)
            if not len(section) and not len(section.bound):
                return
            self._push(section)
            self._next, self._boundary = section.stop, section.final
            if not len(section):
                self._merge_boundaries()
            self._trim()
            if self.limits.full == "drop":
                self._drop()
            self._more.notify_all()

    def has_room(self) -> bool:
        """Whether an append would not wait now."""
        with self._room:
            return self.limits.full == "drop" or not self._is_full()

    def wait_for_room(self, seconds: float) -> bool:
        """Wait until an append would not wait, at most so long; says whether it would not."""
        if self.limits.full == "drop":
            return True
        with self._room:
            self._room.wait_for(lambda: self._closed or not self._is_full(), seconds)
            self._check_open()
            return not self._is_full()

    def close(self, moved_to: str | None = None) -> None:
        """End all reading and writing here, at once; with an address, tell everybody to go there."""
        with self._more:
            self._closed = True
            self._moved_to = moved_to or self._moved_to
            self._more.notify_all()
            self._room.notify_all()

    # -- reading

    def read(self, start: int, boundary: int, wait: float, most_bytes: int = 1 << 20) -> Section | None:
        """What follows id `start` for someone who knows of `boundary`; None when nothing came for `wait` seconds.

        Small sections are joined and large ones cut to about `most_bytes`. Where tuples were dropped the section begins
        behind `start`: `section.first - start` of them are lost.
        """
        with self._more:
            if not self._is_news(start, boundary):
                self._more.wait_for(lambda: self._is_news(start, boundary), wait)
            self._check_open()
            if start > self._next:
                raise self._unknown(start)
            if start < self._first:
                start = self._behind(start)
            if start == self._next and boundary >= self._boundary:
                return None
            parts = self._parts(start, boundary, most_bytes)
            standing = self._boundary
        if not parts:  # only a boundary before `start` is news
            return Section(start, self._none, NOTHING, NOTHING, NOTHING, standing)
        parts[0] = parts[0].since(start)
        if len(parts) == 1:
            parts[0] = _cut(parts[0], most_bytes)
        return joined(parts).above(boundary)

    def _is_news(self, start: int, boundary: int) -> bool:
        return self._closed or start != self._next or boundary < self._boundary

    def _behind(self, start: int) -> int:
        """Where to go on for someone who wants what is no longer held."""
        if self.limits.full == "drop":
            return self._first
        raise GoneError(
            f"stream {self.stream} is held from id {self._first} on: {start} is gone",
            hint=f"subscribe from {self._first}, or from 'oldest'",
        )

    def _unknown(self, start: int) -> GoneError:
        return GoneError(
            f"stream {self.stream} has no tuple {start} yet: the next is {self._next}",
            hint="these ids are of another stream, or of an earlier life of this one",
        )

    def _parts(self, start: int, boundary: int, most_bytes: int) -> list[Section]:
        """The sections behind a place, as many as fit; the first of them may begin before it and be too large."""
        at = bisect_right(self._places, (start, boundary), self._head)
        if at == len(self._held):
            return []
        here = self._held[at]
        size = self._ends[at] - self._before(at)
        if start > here.first:  # about what is left of it
            size = size * (here.stop - start) // len(here)
        end = bisect_right(self._ends, self._ends[at] + max(0, most_bytes - size), at + 1)
        return self._held[at:end]

    # -- readers

    def register(self, reader: str, start: int | None = None) -> int:
        """Keep for this reader what it has not acknowledged; returns where it is to read from.

        Without `start`: where its acknowledgements stand, or at the oldest tuple if it is new. A known reader that goes
        back to an earlier `start` needs everything from there on again.
        """
        with self._more:
            self._check_open()
            known = self._readers.get(reader)
            if start is None:
                start = known.done if known else self._first
            elif start > self._next:
                raise self._unknown(start)
            elif start < self._first:
                self._behind(start)
            if known is None:
                self._readers[reader] = _Reader(start, start)
            elif start < known.done:
                known.done = known.received = start
            return start

    def forget(self, reader: str) -> None:
        """Keep nothing for this reader any more; harmless if there is none."""
        with self._room:
            if self._readers.pop(reader, None) is not None:
                self._trim()
                self._room.notify_all()

    def ack(self, reader: str, level: int, upto: int) -> None:
        """A reader has all tuples before `upto` (level 0), or needs them no more, whatever happens (level 1)."""
        with self._room:
            if upto > self._next:
                raise StreamError(
                    f"reader {reader} of stream {self.stream} acknowledged {upto}, but the next tuple is {self._next}",
                    hint="these ids are of another stream, or of an earlier life of this one",
                )
            known = self._readers.get(reader)
            if known is None:
                known = self._readers[reader] = _Reader(self._first, self._first)
            known.received = max(known.received, upto)
            if level == 1 and upto > known.done:
                known.done = upto
                self._trim()
                self._room.notify_all()

    def acked(self, reader: str, level: int) -> int:
        """The id up to which a reader has acknowledged."""
        known = self._known(reader)
        return known.done if level == 1 else known.received

    def lost_before(self, reader: str) -> int:
        """How many tuples were dropped before this reader had acknowledged them, since it is known."""
        return self._known(reader).lost

    def _known(self, reader: str) -> _Reader:
        with self._more:
            if reader in self._readers:
                return self._readers[reader]
            raise StreamError(f"stream {self.stream} has no reader {reader}", hint=did_you_mean(reader, self._readers))

    # -- moving

    def snapshot(self) -> QueueSnapshot:
        """All of it at one moment, also of a closed queue; passing readers (`~...`) stay behind."""
        with self._more:
            return QueueSnapshot(
                self.stream,
                self.schema,
                self.epoch,
                self._first,
                self._next,
                self._boundary,
                self._dropped,
                {n: (r.received, r.done, r.lost) for n, r in self._readers.items() if not n.startswith("~")},
                tuple(self._held[self._head :]),
            )

    @classmethod
    def restore(cls, snapshot: QueueSnapshot, limits: QueueLimits | None = None) -> OutputQueue:
        """The queue as it was, with the same epoch."""
        queue = cls(
            snapshot.stream,
            snapshot.schema,
            limits,
            epoch=snapshot.epoch,
            next_id=snapshot.next_id,
            standing=snapshot.boundary,
        )
        queue._first, queue._dropped = snapshot.first_id, snapshot.dropped
        queue._readers = {name: _Reader(*facts) for name, facts in snapshot.readers.items()}
        for section in snapshot.sections:
            queue._push(section)
            if not len(section):
                queue._merge_boundaries()
        return queue

    # -- inside, under the lock

    def _check_open(self) -> None:
        if self._moved_to:
            where = f"stream {self.stream} has moved to {self._moved_to}"
            raise MovedError(where, hint="subscribe there", moved_to=self._moved_to)
        if self._closed:
            raise StreamError(f"stream {self.stream} is closed here")

    def _check_fits(self, section: Section) -> None:
        self._check_open()
        if section.first != self._next or section.standing != self._boundary:
            raise ValueError(
                f"a section from ({section.first}, {section.standing}) cannot follow "
                f"({self._next}, {self._boundary}) in stream {self.stream}"
            )
        if len(section) and self.ended:
            raise ValueError(f"stream {self.stream} has ended: no tuple can follow")
        if not section.rows.schema.equals(self.schema):
            raise ValueError(f"a section of {section.rows.schema} in stream {self.stream} of {self.schema}")

    def _total(self) -> int:
        ends = self._ends
        return ends[-1] if ends else self._base

    def _before(self, at: int) -> int:
        """The bytes of all sections before one."""
        return self._base if at <= self._head else self._ends[at - 1]

    def _low(self) -> int:
        """All tuples before this one are acknowledged by everybody."""
        if not self._readers:
            return self._next
        return min(reader.done for reader in self._readers.values())

    def _needed(self) -> int:
        """Where the sections begin that some reader has not acknowledged to the end."""
        return bisect_right(self._places, (self._low(), LAST_TIME), self._head)

    def _is_full(self) -> bool:
        needed = self._needed()
        return needed < len(self._held) and self._total() - self._before(needed) >= self.limits.bytes_most

    def _push(self, section: Section) -> None:
        end = self._total() + self._cost(section)
        self._held.append(section)
        self._places.append((section.stop, section.final))
        self._ends.append(end)

    def _cost(self, section: Section) -> int:
        """About how much memory it takes to hold a section. Arrow counts slices slowly: not done for small ones."""
        values = section.rows.get_total_buffer_size()
        if values > _SMALL_BYTES:
            values = section.rows.nbytes
        return int(values) + 8 * len(section.time) + 16 * len(section.at) + self._overhead

    def _pop(self) -> Section:
        self._places.pop()
        self._ends.pop()
        return self._held.pop()

    def _merge_boundaries(self) -> None:
        """Join boundaries without tuples between them, two of a size at a time: many heartbeats are few sections."""
        held = self._held
        while len(held) - self._head >= 2 and not len(held[-2]) and len(held[-2].bound) <= len(held[-1].bound):
            late = self._pop()
            early = self._pop()
            bound, standing = np.concatenate([early.bound, late.bound]), early.standing
            if len(bound) > BOUNDARIES_MOST:
                melted = len(bound) - BOUNDARIES_MOST // 2
                bound, standing = bound[melted:].copy(), int(bound[melted - 1])
            at = np.full(len(bound), late.first, np.int64)
            self._push(Section(late.first, late.rows, NOTHING, at, bound, standing))

    def _trim(self) -> None:
        """Let go of what nobody needs, beyond what is kept for latecomers."""
        while True:
            needed = self._needed()
            spare = self._before(needed) - self._base
            excess = max(spare - self.limits.keep_bytes, self._total() - self._base - self.limits.bytes_most)
            if excess <= 0 or not self._let_go(excess, needed):
                return

    def _drop(self) -> None:
        """Lose the oldest for the newest; the newest tuples themselves always have room."""
        first, low = self._first, self._low()
        while (excess := self._total() - self._base - self.limits.bytes_most) > 0:
            if not self._let_go(excess, bisect_left(self._places, (self._next, FIRST_TIME), self._head)):
                break
        if self._first > first:
            self._dropped += max(0, self._first - max(first, low))
            for reader in self._readers.values():
                reader.lost += max(0, self._first - max(first, reader.done))

    def _let_go(self, excess: int, most: int) -> bool:
        """Forget so many bytes of the oldest sections, whole ones, all before `most`; says whether a tuple went.

        The boundaries at the new edge stay, in front of the section behind it.
        """
        if most <= self._head or self._places[most - 1][0] == self._first:  # boundaries alone cannot go
            return False
        by_bytes = bisect_left(self._ends, self._base + excess, self._head, most - 1)
        edge = max(self._places[by_bytes][0], self._first + 1)
        last = bisect_left(self._places, (edge, FIRST_TIME), self._head)  # the section with the last tuple to go
        edge = self._places[last][0]
        tail = self._held[last].since(edge)
        self._first, self._base = edge, self._ends[last]
        self._held[self._head : last + 1] = [_GONE] * (last + 1 - self._head)
        self._head = last + 1
        if len(tail.bound):
            self._keep_boundaries(tail.bound, tail.standing)
        if self._head > _SHED_LEAST and 2 * self._head > len(self._held):
            del self._held[: self._head], self._places[: self._head], self._ends[: self._head]
            self._head = 0
        return True

    def _keep_boundaries(self, bound: Int64s, standing: int) -> None:
        """Put boundaries in front of the first section that is held; alone if there is none."""
        at = np.full(len(bound), self._first, np.int64)
        if self._head == len(self._held):
            self._push(Section(self._first, self._none, NOTHING, at, bound, standing))
            return
        old = self._held[self._head]
        self._base -= at.nbytes + bound.nbytes
        at, bound = np.concatenate([at, old.at]), np.concatenate([bound, old.bound])
        self._held[self._head] = Section(old.first, old.rows, old.time, at, bound, standing)


def _cut(section: Section, most_bytes: int) -> Section:
    """The beginning of a section, about so large; one tuple at least."""
    while len(section) > 1 and (size := section.nbytes) > most_bytes:
        n = min(len(section) - 1, max(1, len(section) * most_bytes // size))
        section = section.until(section.first + n)
    return section


def _check_inside(section: Section) -> None:
    """Whether a section is one at all."""
    if section.rows.num_rows != len(section.time):
        raise ValueError(f"a section with {section.rows.num_rows} rows and {len(section.time)} times")
    at, bound = section.at, section.bound
    if len(at) != len(bound):
        raise ValueError(f"a section with {len(bound)} boundaries at {len(at)} ids")
    if not len(at):
        return
    if at[0] < section.first or at[-1] > section.stop or (len(at) > 1 and (at[1:] < at[:-1]).any()):
        raise ValueError(f"boundaries out of place: {at} in tuples {section.first} to {section.stop}")
    if bound[0] <= section.standing or (len(bound) > 1 and (bound[1:] <= bound[:-1]).any()):
        raise ValueError(f"boundaries do not rise: {bound} after {section.standing}")


# -- snapshots

_MAGIC = b"BQS1"
_HEAD = struct.Struct("<4sII")  # mark, checksum of what follows, size of the JSON head
_BOUNDARIES = pa.schema([pa.field("at", pa.int64(), nullable=False), pa.field("bound", pa.int64(), nullable=False)])


@dataclass(frozen=True)
class QueueSnapshot:
    """A queue at one moment: what it held, and how far its readers were.

    As bytes: a mark with the version, a checksum, the size of a JSON head, the head, then two Arrow streams: one batch
    of tuples per section, and one of boundaries per section.
    """

    stream: str
    schema: pa.Schema
    epoch: str
    first_id: int
    next_id: int
    boundary: int
    dropped: int
    readers: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)  # level 0, level 1, lost
    sections: tuple[Section, ...] = ()

    def to_bytes(self) -> bytes:
        """All of it, for another node or for a disk."""
        tuples, boundaries = pa.BufferOutputStream(), pa.BufferOutputStream()
        schema = wire_schema(self.schema)
        with pa.ipc.new_stream(tuples, schema) as rows, pa.ipc.new_stream(boundaries, _BOUNDARIES) as bounds:
            for s in self.sections:
                columns = [*s.rows.columns, pa.array(s.time, pa.int64())]
                rows.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
                pair = [pa.array(s.at, pa.int64()), pa.array(s.bound, pa.int64())]
                bounds.write_batch(pa.RecordBatch.from_arrays(pair, schema=_BOUNDARIES))
        blobs = [tuples.getvalue(), boundaries.getvalue()]
        head = {
            "stream": self.stream,
            "epoch": self.epoch,
            "first_id": self.first_id,
            "next_id": self.next_id,
            "boundary": self.boundary,
            "dropped": self.dropped,
            "readers": self.readers,
            "standing": [s.standing for s in self.sections],
            "sizes": [b.size for b in blobs],
        }
        text = json.dumps(head).encode()
        body = b"".join([text, *blobs])
        return _HEAD.pack(_MAGIC, zlib.crc32(body), len(text)) + body

    @classmethod
    def from_bytes(cls, data: bytes | pa.Buffer) -> QueueSnapshot:
        """The queue in these bytes, checked; a StateError if they are something else or damaged."""
        try:
            return cls._parse(pa.py_buffer(data))
        except (ValueError, KeyError, TypeError, struct.error, pa.ArrowException, OSError) as error:
            what = " ".join(str(error).split())
            raise StateError(f"these bytes are not a queue of this version, or damaged: {what}") from error

    @classmethod
    def _parse(cls, buffer: pa.Buffer) -> QueueSnapshot:
        mark, checksum, size = _HEAD.unpack_from(buffer)
        if mark != _MAGIC:
            raise ValueError(f"they begin with {mark!r}")
        if zlib.crc32(buffer.slice(_HEAD.size)) != checksum:
            raise ValueError("wrong checksum")
        at = _HEAD.size + size
        head = json.loads(bytes(buffer.slice(_HEAD.size, size)))
        batches = []
        for length in head["sizes"]:
            with pa.ipc.open_stream(buffer.slice(at, length)) as reader:
                batches.append((reader.schema, list(reader)))
            at += length
        (schema, tuples), (_, boundaries) = batches
        sections, first = [], int(head["first_id"])
        user = pa.schema(list(schema)[:-1], schema.metadata)
        for rows, bounds, standing in zip(tuples, boundaries, head["standing"], strict=True):
            one = Section(
                first,
                pa.RecordBatch.from_arrays(rows.columns[:-1], schema=user),
                rows.columns[-1].to_numpy(),
                bounds.column("at").to_numpy(),
                bounds.column("bound").to_numpy(),
                standing,
            )
            _check_inside(one)
            sections.append(one)
            first = one.stop
        if first != head["next_id"]:
            raise ValueError(f"tuples up to {first}, not {head['next_id']}")
        return cls(
            head["stream"],
            user,
            head["epoch"],
            head["first_id"],
            head["next_id"],
            head["boundary"],
            head["dropped"],
            {name: (int(a), int(b), int(lost)) for name, (a, b, lost) in head["readers"].items()},
            tuple(sections),
        )
