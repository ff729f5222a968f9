"""What an entry point does while it is the peer of another: it follows the other one's records, and waits."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from borealis.entry.admission import Cursor
from borealis.entry.log import Step, cursor_in, facts_of, marks_in, note_ends, publishers_in, written_anew
from borealis.entry.mirror import Following, Mirrored, Record, Sides, Whole
from borealis.errors import FullError, StateError
from borealis.state.disk import has_room
from borealis.streams import id_gaps as jumps
from borealis.streams.queue import MovedError, OutputQueue
from borealis.streams.segments import SegmentLog
from borealis.streams.snapshot import QueueSnapshot

SLACK_BYTES = 1 << 16  # for what a log needs beside the tuples


class Follower:
    """Holds what the other one holds. Not thread-safe: the entry point's lock is held around all of it."""

    def __init__(
        self,
        queues: tuple[OutputQueue, OutputQueue],
        log: SegmentLog | None,
        cursor: Cursor,
        publishers: Mapping[str, int],
        marks: Mapping[str, str],
        counted: Mirrored,
    ) -> None:
        self.queues, self.log = queues, log
        self.cursor, self.publishers, self.marks = cursor, dict(publishers), dict(marks)
        self.silent = 0.0  # seconds without a batch, when the last record was sent
        self._counted = counted
        self._following = Following()
        for queue in queues:
            queue.hold()

    @property
    def loaded(self) -> bool:
        """Whether everything has come."""
        return bool(self._following.source)

    @property
    def _schema(self) -> pa.Schema:
        return self.queues[0].schema

    def apply(self, data: bytes | pa.Buffer) -> None:
        """Take a record; see Entry.apply."""
        try:
            record = Record.from_bytes(data, self._schema)
            self._check_incarnation(record.sides.incarnation)
            if self._following.is_old(record):
                return
            ends = [(q.next_id, q.boundary) for q in self.queues]
            self._following.check(record, ends, [q.epoch for q in self.queues])
            if isinstance(record.news, Whole):
                self._check_belongs(record.news)
        except StateError:
            self._counted.discarded += 1
            raise
        if isinstance(record.news, Whole):
            self._check_room(len(data))
            self._become(record.news)
        else:
            self._follow(record.news, record.sides)
        for queue in self.queues:
            queue.incarnation = record.sides.incarnation
        self.silent = record.sides.silent
        self._following.took(record)
        self._counted.count(isinstance(record.news, Whole), len(data))

    def _check_incarnation(self, incarnation: int) -> None:
        queue = self.queues[0]
        if incarnation < queue.incarnation:
            raise MovedError(f"stream {queue.stream} has incarnation {queue.incarnation} by now", hint="step down")

    def _check_belongs(self, whole: Whole) -> None:
        for queue, snapshot in zip(self.queues, whole.queues, strict=True):
            if snapshot.stream != queue.stream or not snapshot.schema.equals(self._schema):
                raise StateError(f"a record of {snapshot.stream} ({snapshot.schema}) came to {queue.stream}")

    def _check_room(self, count: int) -> None:
        """A FullError where a log of so many bytes cannot take the place of the one that is there: that one stays."""
        if self.log is None:
            return
        root = self.log.root
        held = sum(file.stat().st_size for file in root.glob("segment-*"))
        if not has_room(root, max(0, count - held) + SLACK_BYTES):
            raise FullError(f"cannot write the log in {root} anew: there is no room for {count:,} bytes")

    def _become(self, whole: Whole) -> None:
        """Hold what the other one holds, and nothing else."""
        if self.log is not None:
            self.log.close()
            self._following.lose()  # until the log is whole again
            self.log = written_anew(self.log.root, self.queues[0].stream, self._schema, whole.queues, whole.facts)
        for queue, snapshot in zip(self.queues, whole.queues, strict=True):
            queue.reset_to(snapshot)
        self.cursor, self.publishers = cursor_in(whole.facts), publishers_in(whole.facts)
        self.marks = marks_in(whole.facts)

    def _follow(self, step: Step, sides: Sides) -> None:
        if self.log is not None:
            self.log.append(*step.record, sync=False)  # the other one syncs its own before it answers
        both = zip(self.queues, step.sections, sides.acks, sides.first, strict=True)
        for queue, part, acks, first in both:
            news = (part,) if len(part) or len(part.bound) else ()
            readers = {name: (received, done, 0) for name, (received, done) in acks.items()}
            end = (part.stop, part.final)
            queue.apply(
                QueueSnapshot(queue.stream, self._schema, queue.epoch, first, *end, queue.dropped, readers, news)
            )
        self.cursor = cursor_in(step.facts)
        self.publishers |= publishers_in(step.facts)
        self.marks |= marks_in(step.facts)

    def jump(self, above: int) -> None:
        """Let ids go on beyond this one and any that a reader has acknowledged here."""
        for queue in self.queues:
            received = [received for received, _ in queue.acks().values()]
            queue.jump_to(jumps.above(max([above, queue.next_id, *received])))
        if self.log is not None:
            facts = facts_of([q.epoch for q in self.queues], self.cursor, {})
            facts["jumps"] = [q.snapshot().jumps for q in self.queues]
            note_ends(self.log, [(q.next_id, q.boundary) for q in self.queues], facts, self._schema)

    def open(self, incarnation: int) -> None:
        """Let readers in."""
        if self.log is not None:
            self.log.sync()
        for queue in self.queues:
            queue.incarnation = incarnation
            queue.release(None)
