"""Law: whatever dies when, a stream that goes on at the backup is what an entry point alone would have given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from harness import examples
from hypothesis import given
from hypothesis import strategies as st

from borealis.clock import ManualClock
from borealis.diagram.spec import Input
from borealis.entry.point import Entry, StreamConfig
from borealis.machine import Machine
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.tuples import FIRST_TIME
from borealis.wire.messages import BatchHead
from entry_pair import DeathError, guard_of, protect, take_over

SECOND = 1_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int32())])
SPEC = Input.model_validate({"name": "a", "columns": "ts TIMESTAMP, n INT", "slack": "2 seconds", "idle": "3 seconds"})
LIMITS = QueueLimits(keep_bytes=0)
READERS = ["r", "s"]
PLACE = StreamConfig("d/a", SCHEMA, LIMITS, READERS, READERS, epoch="e")


@dataclass
class Reader:
    """Reads both sides of the stream, wherever it is served, and keeps what it has got."""

    name: str
    places: list[tuple[int, int]] = field(default_factory=lambda: [(0, FIRST_TIME), (0, FIRST_TIME)])
    tuples: list[tuple[int, int, int, int]] = field(default_factory=list)
    bounds: list[tuple[int, int, int]] = field(default_factory=list)

    def read(self, entry: Entry, most_bytes: int = 1 << 20) -> None:
        for which, queue in enumerate((entry.queue, entry.late)):
            while (part := queue.read(*self.places[which], 0, most_bytes)) is not None:
                assert part.first == self.places[which][0]
                rows = zip(range(part.first, part.stop), part.rows["n"].to_pylist(), part.time.tolist(), strict=True)
                self.tuples += [(which, *row) for row in rows]
                self.bounds += [(which, int(a), int(b)) for a, b in zip(part.at, part.bound, strict=True)]
                self.places[which] = (part.stop, part.final)
                if most_bytes == 1:
                    break

    def ack(self, entry: Entry, level: int, share: float) -> None:
        for queue, (upto, _) in zip((entry.queue, entry.late), self.places, strict=True):
            queue.ack(self.name, level, int(share * upto))


class Town:
    """An entry point with its backup, and one that is alone and never dies."""

    def __init__(self) -> None:
        self.clock, self.alone_clock = ManualClock(), ManualClock()
        place = StreamConfig("d/a", SCHEMA, LIMITS, ["all"], ["all"])
        self.alone = Entry(SPEC, SECOND, place, machine=Machine(self.alone_clock))
        self.entry = Entry(SPEC, SECOND, PLACE, machine=Machine(self.clock))
        self.guard = guard_of(self.entry)
        self.numbers: dict[str, int] = {}
        self.count = 0
        self.readers = {name: Reader(name) for name in READERS}
        self.step_times: dict[int, float] = {}
        self.protect()

    def protect(self) -> None:
        host: Any = self.guard._host
        host.coming.clear()  # what dies before its backup has all of it is lost
        self.backup = Entry(SPEC, SECOND, PLACE, standby=True, machine=Machine(self.clock))
        self.host = protect(self.guard, self.backup)

    def die(self) -> None:
        self.guard = take_over(self.host)
        self.entry = self.backup
        unheard_s = self.clock.now() - self.step_times.get(self.entry.state.steps, self.clock.now())
        self.alone_clock.advance(-unheard_s)  # there was no one to publish to: that was no silence
        self.protect()

    def sure(self, call: Callable[[], object]) -> None:
        """Try until it works, at whatever node it is by then."""
        while True:
            try:
                call()
                while self.guard.policy._acked < self.guard.policy.last.train:
                    self.guard._converse()
                self.step_times.setdefault(self.entry.state.steps, self.clock.now())
                return
            except DeathError:
                self.die()

    def publish(self, publisher: str, seconds: list[int], heartbeat: int | None) -> None:
        number = self.numbers[publisher] = self.numbers.get(publisher, -1) + 1
        batch = self.batch(seconds)
        head = BatchHead(number=number, heartbeat=None if heartbeat is None else heartbeat * SECOND)
        self.sure(lambda: self.entry.take(publisher, head, batch))
        self.alone.take(publisher, head, batch)
        assert self.entry.known(publisher).number == number

    def publish_together(self, publisher: str, parts: list[list[int]], seen: int) -> None:
        """Batches as one; a moment ago the first few of them arrived as one, and the publisher does not know."""
        first = self.numbers.get(publisher, -1) + 1
        batches = [self.batch(seconds) for seconds in parts]
        for count in (seen, len(parts)):
            head = BatchHead(number=first + count - 1, parts=[len(p) for p in parts[:count]])
            rows = pa.concat_batches(batches[:count])
            self.sure(lambda head=head, rows=rows: self.entry.take(publisher, head, rows))  # type: ignore[misc]
        for number, batch in enumerate(batches, first):
            self.alone.take(publisher, BatchHead(number=number), batch)
        self.numbers[publisher] = first + len(parts) - 1
        assert self.entry.known(publisher).number == self.numbers[publisher]

    def batch(self, seconds: list[int]) -> pa.RecordBatch:
        times = pa.array([s * SECOND // 2 for s in seconds], SCHEMA.field(0).type)
        self.count += len(seconds)
        return pa.record_batch([times, pa.array(range(self.count - len(seconds), self.count), pa.int32())], SCHEMA)

    def tick(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.alone_clock.advance(seconds)
        self.sure(lambda: self.entry.tick())
        self.alone.tick()

    def act(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("publish", publisher, seconds, heartbeat):
                self.publish(publisher, seconds, heartbeat)
            case ("together", publisher, parts, seen):
                self.publish_together(publisher, parts, 1 + seen % len(parts))
            case ("tick", seconds):
                self.tick(seconds)
            case ("read", name, most_bytes):
                self.readers[name].read(self.entry, most_bytes)
            case ("ack", name, level, share):
                self.readers[name].ack(self.entry, level, share)
            case ("line", *coming):
                self.host.coming += coming
            case ("die",):
                self.die()
            case ("new backup",):
                self.protect()


SECONDS = st.lists(st.integers(0, 60), max_size=5)
TROUBLE = st.sampled_from(["lost", "no answer", "damaged", "twice", "died before", "died after"])
STEP = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from("pqx"), SECONDS, st.none() | st.integers(0, 40)),
    st.tuples(st.just("publish"), st.sampled_from("pqx"), SECONDS, st.none()),
    st.tuples(
        st.just("together"), st.sampled_from("pqx"), st.lists(SECONDS, min_size=1, max_size=4), st.integers(0, 3)
    ),
    st.tuples(st.just("tick"), st.integers(0, 8)),
    st.tuples(st.just("read"), st.sampled_from(READERS), st.sampled_from([1, 1 << 20])),
    st.tuples(st.just("ack"), st.sampled_from(READERS), st.sampled_from([0, 1]), st.floats(0, 1)),
    st.tuples(st.just("line"), TROUBLE),
    st.just(("die",)),
    st.just(("new backup",)),
)


@examples(150)
@given(st.lists(STEP, max_size=60))
def test_a_stream_goes_on_at_the_backup_as_if_nothing_had_happened(steps: list[tuple[Any, ...]]) -> None:
    town = Town()
    for step in steps:
        town.act(step)
    town.die()
    everything = Reader("all")
    everything.read(town.alone)
    for reader in town.readers.values():
        reader.read(town.entry)
        for which in (0, 1):
            assert _of(reader.tuples, which) == _of(everything.tuples, which)
            assert _of(reader.bounds, which) == _of(everything.bounds, which)
    for mine, lone in ((town.entry.queue, town.alone.queue), (town.entry.late, town.alone.late)):
        assert (mine.next_id, mine.boundary) == (lone.next_id, lone.boundary)
        _check_holds_no_more(mine)


def _of(found: list[Any], which: int) -> list[Any]:
    return [one for one in found if one[0] == which]


def _check_holds_no_more(queue: OutputQueue) -> None:
    """What every reader had done with before the last record is not held for long."""
    assert queue.first_id <= min(place.done for place in queue.acks().values())
