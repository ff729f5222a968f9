"""Laws of output queues: whatever was appended, acknowledged, dropped or moved, a reader gets exactly what follows.

The twin is the stream written down event by event (`streams.py`), and for each reader the set of tuples that it needs.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from harness import examples
from hypothesis import given
from hypothesis import strategies as st
from streams import SCHEMA, Boundary, Events, events, events_of, section_of, since, standing_at

from borealis.errors import StateError, StreamError
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.streams.section import Section
from borealis.streams.snapshot import QueueSnapshot
from borealis.tuples import FIRST_TIME

LEAST = 2000  # bytes: about what a small section takes
NAMES = ["a", "b", "c", "~d"]


@dataclass
class Twin:
    """The queue as a list of events, with what each reader needs and has lost."""

    queue: OutputQueue
    events: Events = field(default_factory=list)
    needs: dict[str, set[int]] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    sizes: list[tuple[int, int]] = field(default_factory=list)  # of each append: the id behind it, bytes

    def append(self, shape: list[int]) -> Section:
        one = section_of(
            events(shape, self.queue.next_id, self.queue.boundary), self.queue.next_id, self.queue.boundary
        )
        before = self.queue.first_id
        self.queue.append(one)
        self.events += events_of(one)
        for needed in self.needs.values():
            needed.update(range(one.first, one.stop))
        gone = set(range(before, self.queue.first_id))
        self.dropped += len(gone & set().union(*self.needs.values()))
        for name, needed in self.needs.items():
            self.lost[name] += len(gone & needed)
            needed -= gone
        self.sizes.append((one.stop, self.queue._held.cost(one)))
        return one

    def register(self, name: str, start: int | None) -> None:
        known = name in self.needs
        acked = self.queue.status().readers.get(name)
        at = self.queue.register(name, start)
        assert at == (start if start is not None else acked if known else self.queue.first_id)
        if not known:
            self.lost[name] = 0
            self.needs[name] = set()
        self.needs[name] |= set(range(max(at, self.queue.first_id), self.queue.next_id))

    def ack(self, name: str, level: int, upto: int) -> None:
        self.queue.ack(name, level, upto)
        if level == 1 and name in self.needs:  # of others nothing is known, and nothing is kept for them
            self.needs[name] = {i for i in self.needs[name] if i >= upto}

    def forget(self, name: str) -> None:
        self.queue.forget(name)
        self.needs.pop(name, None)
        self.lost.pop(name, None)

    def move(self) -> None:
        """To another place, as bytes."""
        data = self.queue.snapshot().to_bytes()
        again = QueueSnapshot.from_bytes(data)
        assert again.to_bytes() == data
        self.queue = OutputQueue.restore(again, self.queue.limits)
        if not self.queue.limits.disk_bytes:  # others make one of small ones
            assert self.queue.snapshot().to_bytes() == data
        for name in [n for n in self.needs if n.startswith("~")]:
            del self.needs[name], self.lost[name]
        self.queue.register("nobody")
        self.queue.forget("nobody")  # lets go of what was held for those who stayed behind

    def read_all(self, start: int, boundary: int, most_bytes: int) -> Events:
        """Everything behind a place, read piece by piece."""
        got: Events = []
        while (one := self.queue.read(start, boundary, 0, most_bytes)) is not None:
            assert one.first == start
            assert one.standing == max(boundary, standing_at(self.events, start)) or not len(one)
            assert len(one) or one.final > boundary
            got += events_of(one)
            start, boundary = one.stop, one.final
        assert (start, boundary) == (self.queue.next_id, max(boundary, self.queue.boundary))
        return got

    def check(self, rng: Random) -> None:
        """Everything that must hold at any moment."""
        queue, limits = self.queue, self.queue.limits
        first, stop = queue.first_id, queue.next_id
        assert all(i >= first for needed in self.needs.values() for i in needed)  # what is needed is held
        assert (queue.dropped, {n: queue._readers.get(n).lost for n in self.needs}) == (self.dropped, self.lost)
        status = queue.status()
        assert (status.first_id, status.next_id, status.held_rows) == (first, stop, stop - first)
        assert set(status.readers) == set(self.needs)
        # bounds: beyond the limit there is at most the last append, and boundaries at the edges; few sections hold many
        at_edge = [e for e in self.events if isinstance(e, Boundary) and e.at in (first, stop)]
        edge = 16 * len(at_edge) + (queue._held.overhead + 64) * len(at_edge).bit_length()
        largest = max((size for _, size in self.sizes), default=0)
        assert queue.status().held_bytes <= limits.bytes_most + limits.disk_bytes + largest + edge
        if not any(self.needs.values()):
            assert queue.status().held_bytes <= limits.keep_bytes + edge
        held = queue.snapshot().sections
        low = min((i for needed in self.needs.values() for i in needed), default=stop)
        if limits.disk_bytes:
            have = min((queue._readers.get(name).received for name in self.needs), default=stop)
            lacking, needed = queue._held.needed_bytes(have), queue._held.needed_bytes(low)
            fits = lacking < limits.bytes_most and needed < limits.bytes_most + limits.disk_bytes
            assert queue.has_room() == (limits.full == "drop" or fits)
            if limits.full == "wait":  # memory is bounded by itself; of an edge, boundaries stay
                assert queue._held.in_memory < limits.memory_bytes + largest + edge
                on_disk = sum(queue._held.cost(one) for one in held if one.on_disk)
                assert queue.status().held_bytes <= queue._held.in_memory + on_disk + edge
        else:
            assert queue.status().held_bytes == sum(map(queue._held.cost, held))
            size = sum(queue._held.cost(s) for s in held if s.stop > low)
            assert queue.has_room() == (limits.full == "drop" or not size or size < limits.bytes_most)
        # nobody lets go of more than it must: the last section that went would not have fit
        if first and self.sizes and not limits.disk_bytes:  # small ones become one there
            went = sum(size for end, size in self.sizes if end == first) + 2 * LEAST  # and boundaries before it
            assert queue.status().held_bytes + went + edge > min(limits.keep_bytes, limits.bytes_most)
        # replay
        for start in {first, stop, rng.randint(first, stop)}:
            known = rng.choice([FIRST_TIME, standing_at(self.events, start), queue.boundary, 10])
            most = rng.choice([1, 200, LEAST, 3 * LEAST, 1 << 20])
            assert self.read_all(start, known, most) == since(self.events, start, known)
        with pytest.raises(StreamError, match=f"{stop + 1}"):
            queue.read(stop + 1, FIRST_TIME, 0)
        if first and limits.full == "wait":
            with pytest.raises(StreamError, match=f"from id {first} on"):
                queue.read(first - 1, FIRST_TIME, 0)
        if first and limits.full == "drop":
            jumped = queue.read(rng.randrange(first), FIRST_TIME, 0)
            assert jumped is None or jumped.first == first


SHAPES = st.lists(st.integers(0, 300) | st.integers(0, 1), min_size=1, max_size=6)
STEPS = st.one_of(
    st.tuples(st.just("append"), SHAPES),
    st.tuples(st.just("append"), SHAPES),
    st.tuples(st.just("append"), st.just([0])),
    st.tuples(st.just("ack"), st.sampled_from(NAMES), st.sampled_from([0, 1, 1, 1]), st.floats(0, 1)),
    st.tuples(st.just("register"), st.sampled_from(NAMES), st.none() | st.floats(0, 1)),
    st.tuples(st.just("forget"), st.sampled_from(NAMES)),
    st.tuples(st.just("move")),
)


@examples(150)
@given(
    st.lists(STEPS, max_size=40),
    st.sampled_from(["wait", "drop"]),
    st.integers(1, 8 * LEAST),
    st.integers(0, 5 * LEAST),
    st.sampled_from([0, 5 * LEAST]),
    st.integers(0, 2**32 - 1),
)
def test_a_reader_gets_exactly_what_follows(
    steps: list[Any], full: Any, bytes_most: int, keep_bytes: int, disk_bytes: int, seed: int
) -> None:
    rng = Random(seed)
    limits = QueueLimits(bytes_most, full, keep_bytes, memory_bytes=rng.choice([1, LEAST]), disk_bytes=disk_bytes)
    twin = Twin(OutputQueue("d/x", SCHEMA, limits, readers=["a"]), needs={"a": set()}, lost={"a": 0})
    for step in steps:
        first, stop = twin.queue.first_id, twin.queue.next_id
        match step:
            case ("append", shape):
                if twin.queue.has_room():  # or it would wait
                    twin.append(shape)
            case ("ack", name, level, part):
                twin.ack(name, level, round(part * stop))
            case ("register", name, None):
                twin.register(name, None)
            case ("register", name, part):
                twin.register(name, first + round(part * (stop - first)))
            case ("forget", name):
                twin.forget(name)
            case ("move",):
                twin.move()
        twin.check(rng)


@examples(10)
@given(st.integers(0, 2**32 - 1))
def test_slow_readers_lose_nothing_and_hold_up_the_writer(seed: int) -> None:
    rng = Random(seed)
    most, keep, memory = rng.choice([1, 3 * LEAST, 10 * LEAST]), rng.choice([0, LEAST, 1 << 20]), rng.choice([1, LEAST])
    limits = QueueLimits(most, "wait", keep, memory)  # they acknowledge what they have: it is as full as without a disk
    queue = OutputQueue("d/x", SCHEMA, limits, readers=NAMES)
    story: list[Events] = []
    place = (0, FIRST_TIME)
    for _ in range(rng.choice([30, 120])):
        shape = [rng.choice([0, 1, 1, 50]) for _ in range(rng.randint(1, 5))]
        story.append(events(shape, *place))
        place = (section_of(story[-1], *place).stop, section_of(story[-1], *place).final)
    got: dict[str, Events] = {name: [] for name in NAMES}
    problems: list[BaseException] = []

    def read(name: str, mine: Random) -> None:
        try:
            at = (queue.register(name), FIRST_TIME)
            while at != place:
                most = mine.choice([1, 500, 1 << 20])
                one = queue.read(*at, 0, most)
                if one is None:  # the writer may be waiting for what this reader owes
                    queue.ack(name, 1, at[0])
                    one = queue.read(*at, 30, most)
                assert one is not None
                got[name] += events_of(one)
                at = (one.stop, one.final)
                if mine.random() < 0.6:
                    queue.ack(name, 1, one.stop)
            queue.ack(name, 1, place[0])
        except BaseException as error:
            problems.append(error)
            queue.close()

    threads = [threading.Thread(target=read, args=(name, Random(f"{seed}{name}"))) for name in NAMES]
    for thread in threads:
        thread.start()
    largest = 0
    for piece in story:
        one = section_of(piece, queue.next_id, queue.boundary)
        largest = max(largest, queue._held.cost(one))
        queue.append(one)
        edge = 8 * LEAST  # for boundaries
        assert queue.status().held_bytes <= limits.bytes_most + largest + edge
    for thread in threads:
        thread.join()
    assert not problems
    assert all(events == [e for piece in story for e in piece] for events in got.values())
    assert queue.dropped == 0


@examples(100)
@given(st.lists(SHAPES, max_size=5), st.data())
def test_damaged_snapshots_are_refused(shapes: list[list[int]], data: Any) -> None:
    twin = Twin(OutputQueue("d/x", SCHEMA, readers=["a"]), needs={"a": set()}, lost={"a": 0})
    for shape in shapes:
        twin.append(shape)
    good = twin.queue.snapshot().to_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    flipped = bytearray(good)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for bad in (bytes(flipped), good[:at], good + b"x"):
        with pytest.raises(StateError, match="not a queue of this version, or damaged"):
            QueueSnapshot.from_bytes(bad)
