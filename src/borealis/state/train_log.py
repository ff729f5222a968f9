"""Records of trains on disk, and now and then all there is: what a run goes on from that was killed.

1. `append` adds a record to the end of the newest segment and syncs it. When it returns, the record will survive.
2. A base has everything as of a train. It is written in the background, in pieces; records that come meanwhile go to
   a segment of their own. It counts from its last piece on.
3. Older bases, and the segments before that one, are deleted behind it.

A start takes the newest whole base and every record behind it, up to the first that is torn or damaged; the log is cut
there. Only the newest segment with records can be torn by a crash, so damage before it, or trains that are missing
altogether, are refused. Files: `base-<train>.bin`, `log-<first train>.bin`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from borealis.disk import one_line
from borealis.errors import StateError
from borealis.state.records import Blobs, Head, RecordFile, RecordLog
from borealis.threads import Event, Task

BASE_BYTES_LEAST = 64 << 20  # log this much before a new base is worth writing
MORE = "more"  # in the head of each piece of a base but the last
Pieces = Iterable[tuple[Mapping[str, Any], Blobs]]


class TrainRecord(NamedTuple):
    """One that was read."""

    head: Head
    blobs: Sequence[Any]


@dataclass(frozen=True)
class BasePace:
    """So long a base is written at a time, and then no more until the period is over; without a period, to its end."""

    work_s: float = 0.0
    period_s: float = 0.0


@dataclass
class Found:
    """What a start goes on from: the pieces of the newest whole base, the records behind it, the last train."""

    base: list[TrainRecord] = field(default_factory=list)
    records: list[TrainRecord] = field(default_factory=list)
    train: int = 0


class TrainLog(RecordLog):
    """A directory of bases and segments."""

    _segment: RecordFile | None = None
    _last = 0  # the last train
    _logged = 0  # bytes of records since the base
    _base_bytes = 0
    _base_train: int | None = None  # of the newest whole base; it is not written again: what there is must stay whole
    _writer: Task[None] | None = None
    _failure: BaseException | None = None
    _ended: Event | None = None  # set when a base that is being written is not wanted any more

    @staticmethod
    @abstractmethod
    def stretch(head: Head) -> tuple[int, int]:
        """The train that a record follows, and the last that is in it."""

    @property
    def last(self) -> int:
        """The last train there is a record of."""
        return self._last

    # -- start

    def read(self, since: int = 0, upto: int | None = None, *, mend: bool = True) -> Found:
        """What is there, after what is known up to a train. What is torn is cut off, to `mend` it; damage is refused.

        What was written behind the train `upto` counts for nothing.
        """
        if mend:
            self.sweep()
        found, damaged = self._read_base(upto)
        base = found.train = max(since, found.train)
        segments = [one for one in self.found("log") if upto is None or one[0] <= upto + 1]
        for i, (first, segment) in enumerate(segments):
            if first > found.train + 1:
                raise self._gap(found.train + 1, first - 1)
            for head, blobs in segment.read():
                begin, train = self.stretch(head)
                if (train <= base and found.base) or (upto is not None and train > upto):
                    continue
                if begin > found.train or train < found.train:
                    raise self._gap(found.train + 1, begin)
                found.records.append(TrainRecord(head, blobs))
                found.train = train
            self._logged += segment.length
            if segment.is_torn:  # segments behind it must hold nothing, or more than a tail is damaged
                later = [other for _, other in segments[i + 1 :]]
                if any(True for other in later for _ in other.read()):
                    raise StateError(f"{segment.path} is damaged in the midst of the state", hint=self.kind.start_over)
                for other in reversed(later) if mend else ():
                    self.machine.disk.remove(other.path)
                if mend:
                    segment.cut()
                break
        if found.train < damaged:
            raise StateError(f"the base of train {damaged} in {self.root} is damaged", hint=self.kind.start_over)
        self._last = found.train
        return found

    def begin(self) -> None:
        """Be ready to append behind what was read."""
        self._segment = self.created("log", self._last + 1)

    def _gap(self, first: int, last: int) -> StateError:
        some = f"train {first}" if first >= last else f"trains {first} to {last}"
        gone = f"{some} missing from the {self.what} in {self.root}: files are gone or damaged"
        return StateError(gone, hint=self.kind.start_over)

    def _read_base(self, upto: int | None) -> tuple[Found, int]:
        """The newest whole base, and the train of the newest one that is not: the log must reach as far as that."""
        damaged = 0
        for train, base in reversed(self.found("base")):
            if upto is not None and train > upto:
                continue
            pieces = [TrainRecord(*one) for one in base.read()]
            if pieces and not base.is_torn and MORE not in pieces[-1].head:
                self._base_bytes, self._base_train = base.length, train
                return Found(pieces, train=train), damaged
            damaged = max(damaged, train)
        return Found(), damaged

    # -- records

    def append(self, head: Mapping[str, Any], blobs: Blobs) -> None:
        """Keep a record: when this returns, it will survive. A FullError leaves the log as it was before."""
        if self._failure is not None:
            raise StateError(f"cannot write the {self.what}: {one_line(self._failure)}", hint="make room on the disk")
        assert self._segment is not None
        before = self._segment.length
        self._segment.append(head, blobs)
        self._logged += self._segment.length - before
        self._last = self.stretch(dict(head))[1]

    def wants_base(self, extent: float = 2.0) -> bool:
        """Whether a start would rather read a base: the records are so many times as long as the last one."""
        return not self.writes_base and self._logged > max(BASE_BYTES_LEAST, extent * self._base_bytes)

    @property
    def writes_base(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def begin_with(self, train: int, pieces: Pieces, spare: Callable[[], bool]) -> None:
        """Begin, or begin again, with all there is as of a train; see `write_base`."""
        self._abandon()
        self._last = train
        if self._base_train is None:
            self._read_base(None)  # of an earlier attempt
        self.begin()
        self._write_base(train, pieces, BasePace(), self.machine.threads.event())
        if spare():
            self.drop(train, train + 1)

    def write_base(
        self,
        train: int,
        pieces: Callable[[], Pieces],
        spare: Callable[[], bool] = lambda: True,
        pace: BasePace = BasePace(),
    ) -> None:
        """Write all there is as of a train in the background, at this pace.

        When it is whole, what it makes needless is deleted, unless that is not to `spare`.
        """
        assert self._segment is not None
        self._segment.close()
        begin = self._last + 1
        self._segment = self.created("log", begin)
        self._logged = 0
        ended = self._ended = self.machine.threads.event()

        def write() -> None:
            try:
                if self._write_base(train, pieces(), pace, ended) and spare():
                    self.drop(train, begin)
            except BaseException as error:
                self._failure = error

        self._writer = self.machine.threads.start("state-base", write)

    def _write_base(self, train: int, pieces: Pieces, pace: BasePace, ended: Event) -> bool:
        """Whether it came to its end."""
        if train == self._base_train:
            return True
        clock, began = self.machine.clock, self.machine.clock.now()
        base, size, rest = self._file(self.root / f"base-{train}.bin"), 0, iter(pieces)
        base.create()
        try:
            head, blobs = next(rest)
            for further in rest:
                base.append({**head, MORE: True}, blobs, sync=False)
                head, blobs = further
                if pace.period_s and clock.now() - began >= pace.work_s:
                    base.sync()
                    if ended.wait(max(0.0, began + pace.period_s - clock.now())):
                        return False
                    began = clock.now()
            base.append(head, blobs)
            size = base.length
        finally:
            base.close()
        self._base_bytes, self._base_train = size, train
        return True

    def drop(self, train: int, first: int) -> None:
        """Delete bases before a train, and segments before the one that begins with another."""
        older = [base for n, base in self.found("base") if n < train]
        older += [segment for n, segment in self.found("log") if n < first]
        for file in older:
            self.machine.disk.remove(file.path)

    def _abandon(self) -> None:
        """Write no more of a base that is being written; one that is not made to rest is written to its end."""
        if self._ended is not None:
            self._ended.set()
        if self._writer is not None:
            self._writer.join()

    def close(self) -> None:
        self._abandon()
        if self._segment is not None:
            self._segment.close()
        super().close()
