"""The persistent form of a queue: records on disk, in segments, for an entry point that logs before it acknowledges.

The protocol:

1. A record (JSON head, blobs) goes to the end of the newest segment. It says up to where the segment was synced then.
2. The segment is synced. A publisher's batch is acknowledged after that, and not before.
3. When the newest segment has grown large, it is synced, and a new one is written whole beside it, with a record of the
   facts so far as its first, and takes its name. So only the newest segment can be torn, and never its first record.
4. What is not needed any more goes in whole segments, the oldest first. The facts outlive it.

A start reads every record up to the first that is torn or damaged. If a record behind it says that it had been synced,
or a later segment exists, that is damage and not a torn tail, and is refused; otherwise the tail is cut off: it
was not acknowledged. Files: `segment-<number>.bin`, `log.json` (what the log belongs to), `lock`.
"""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from borealis.errors import FullError, StateError
from borealis.machine import HERE, Machine
from borealis.state.directory_lock import DirectoryKind
from borealis.state.records import Blobs, Head, RecordFile, RecordLog

VERSION = 2
SEGMENT_BYTES = 16 << 20  # a segment that has grown beyond this is the last but one


class SegmentLog(RecordLog):
    """An entry point's records on disk. Read `open` to the end before anything else; one process at a time.

    Every head has the ids of the record's tuples as `first` and `stop`; each begins where the one before it ended. What
    must outlive the records goes into a head's `facts`, a mapping: later facts take the place of earlier ones of the
    same name, None takes one away. The facts of all records that are gone come first when the log is opened, with no
    blobs: a reader that notes the facts of each head knows all of them.

        log = SegmentLog(Path("entry"), {"stream": "traffic/packets"})
        for head, blobs in log.open():
            ...
        log.append({"first": 0, "stop": 10, "facts": {"publisher:ann": 7}}, blobs)
        log.trim(10)
    """

    kind = DirectoryKind("log", "log.json", "process", "segment-[0-9]*.bin")
    mark = b"BSG2"
    what, again = "the log", "try again"

    def __init__(
        self, root: Path, belongs: Mapping[str, Any], *, segment_bytes: int = SEGMENT_BYTES, machine: Machine = HERE
    ) -> None:
        super().__init__(root, {"version": VERSION, **belongs}, machine)
        self.segment_bytes = segment_bytes
        self.facts: dict[str, Any] = {}
        self.next_id = 0
        self.torn = False  # something behind the last record was cut off by `open`
        self.segments: list[RecordFile] = []  # the oldest first; only the last one grows
        self._number = 0  # of the last one
        self._stops: list[int] = []  # the id behind the last tuple of each
        self._lock = machine.threads.lock()

    @property
    def held_bytes(self) -> int:
        """On disk."""
        return sum(segment.length for segment in self.segments)

    # -- start

    def open(self) -> Iterator[tuple[Head, list[bytes]]]:
        """Every record that is there, oldest first; then the log is ready to append. After an error it is closed."""
        try:
            if self.segments:
                raise ValueError("the log is open already")
            yield from self._recover()
        except BaseException:
            self.close()
            raise

    def _recover(self) -> Iterator[tuple[Head, list[bytes]]]:
        self.sweep()
        found = self.found("segment")
        for i, (number, segment) in enumerate(found):
            if number != found[0][0] + i:
                raise StateError(f"segment {found[0][0] + i} is missing from {self.root}", hint=self.kind.start_over)
            for n, (head, blobs) in enumerate(segment.read()):
                self._take(segment.path, head, begins=not n, oldest=not i)
                if n or not i:
                    yield head, [blob.to_pybytes() for blob in blobs]  # a segment may go while some are held
            self.torn |= segment.mend(newest=i == len(found) - 1)
            self.segments.append(segment)
            self._stops.append(self.next_id)
            self._number = number
        if found:
            segment.resume()
        else:
            self._roll()

    def _take(self, path: Path, head: Head, *, begins: bool, oldest: bool) -> None:
        """Note what a record says. The first of a segment says how things stood before the others."""
        if begins and oldest:
            self.next_id = head["first"]
        elif head["first"] != self.next_id or (begins and head["facts"] != self.facts):
            raise StateError(
                f"{path} goes on with tuple {head['first']}, but tuple {self.next_id} or facts before it are missing",
                hint=self.kind.start_over,
            )
        self._note(head["stop"], head.get("facts", {}))

    # -- records

    def append(self, head: Mapping[str, Any], blobs: Blobs, sync: bool = True) -> None:
        """Add a record. With `sync` it will survive when this returns; without, when `sync` does.

        When the disk is full this raises, and the log is as it was before. After any other error it takes nothing more,
        before `go_on` succeeds.
        """
        facts = json.loads(json.dumps(head.get("facts", {})))
        with self._lock:
            segment = self._newest()
            if head["first"] != self.next_id or head["stop"] < head["first"]:
                raise ValueError(f"tuples {head['first']} to {head['stop']} cannot follow {self.next_id}")
            if segment.length >= self.segment_bytes:
                segment = self._roll()
            segment.append(head, blobs, sync=False)
            before = {name: self.facts.get(name) for name in facts}
            self._note(head["stop"], facts)
            self._stops[-1] = self.next_id
        if sync:
            try:
                segment.sync(alone=True)
            except StateError as error:
                with self._lock:
                    if isinstance(error, FullError):
                        segment.retract()
                    self._note(head["first"], before)
                    self._stops[-1] = self.next_id
                raise

    @property
    def unsure(self) -> bool:
        """Whether it is not known which records survive, so that it cannot `go_on`."""
        return any(segment.unsure for segment in self.segments[-1:])

    def go_on(self) -> None:
        """After an error that may have passed: cut off what is unsure, and go on in a new segment, or raise again."""
        with self._lock:
            for segment in self.segments[-1:]:
                if not segment.takes:
                    segment.give_up()
                    self._roll()

    def sync(self) -> None:
        """Wait until all that was appended survives. Threads that come together share one sync."""
        with self._lock:
            segment = self._newest()
        segment.sync()

    def trim(self, upto: int) -> None:
        """Tuples before `upto` are not needed any more: delete the segments that hold nothing else.

        Boundaries at `upto` stay, save very many of them: of segments that hold nothing else, the last stays.
        """
        with self._lock:
            self._newest()
            gone = bisect_right(self._stops[:-1], upto)
            if gone and self._stops[gone - 1] == upto:
                gone -= 1
            if not gone:
                return
            with self._disk():
                for segment in self.segments[:gone]:
                    self.machine.disk.remove(segment.path)
                    self.segments.pop(0)
                    self._stops.pop(0)
                self.machine.disk.sync_directory(self.root)

    def close(self) -> None:
        """Sync, and let go of the directory."""
        with contextlib.suppress(StateError, ValueError):
            self.sync()
        with self._lock:
            for segment in self.segments[-1:]:
                segment.close()
            super().close()

    # -- inside, under the lock

    def _newest(self) -> RecordFile:
        """The segment that grows; an error if the log takes nothing."""
        if not self.segments:
            raise ValueError(f"the log in {self.root} is closed, or was not opened to the end")
        self.segments[-1].ready()
        return self.segments[-1]

    def _note(self, stop: int, facts: Mapping[str, Any]) -> None:
        self.next_id = stop
        for name, fact in facts.items():
            if fact is None:
                self.facts.pop(name, None)
            else:
                self.facts[name] = fact

    def _roll(self) -> RecordFile:
        """Begin a new segment with the facts so far; everything before it is synced."""
        head = {"first": self.next_id, "stop": self.next_id, "facts": self.facts}
        for old in self.segments[-1:]:
            old.sync()
        number = self._number + 1 if self.segments else 0
        segment = self.created("segment", number, head)
        for old in self.segments[-1:]:
            old.close()
        self._number = number
        self.segments.append(segment)
        self._stops.append(self.next_id)
        return segment
