"""Laws of mirrored queues: a backup that is fed with increments can take over for every reader at any moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from harness import examples
from hypothesis import example, given
from hypothesis import strategies as st
from streams import SCHEMA, Events, events, events_of, section_of

from borealis.errors import StateError
from borealis.streams.id_gaps import above
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.streams.snapshot import QueueSnapshot
from borealis.tuples import FIRST_TIME

LEAST = 2000  # bytes: about what a small section takes
NAMES = ["a", "b", "~c"]
SHAPES = st.lists(st.integers(0, 300) | st.integers(0, 1), min_size=1, max_size=6)
NAME = st.sampled_from(NAMES)
STEPS = st.one_of(
    st.tuples(st.just("append"), SHAPES),
    st.tuples(st.just("append"), SHAPES),
    st.tuples(st.just("append"), st.just([0])),
    st.tuples(st.just("ack"), NAME, st.sampled_from([0, 1, 1, 1]), st.floats(0, 1)),
    st.tuples(st.just("register"), NAME, st.floats(0, 1)),
    st.tuples(st.just("forget"), NAME),
    st.tuples(st.just("jump")),
    st.tuples(st.just("mirror"), st.booleans()),
    st.tuples(st.just("mirror"), st.booleans()),
    st.tuples(st.just("again")),
)


def read_all(queue: OutputQueue, start: int, boundary: int, most_bytes: int) -> Events:
    """Everything behind a place."""
    got: Events = []
    while (one := queue.read(start, boundary, 0, most_bytes)) is not None:
        assert queue.lost_between(start, one.first) == 0
        assert (one.stop, one.final) > (start, boundary)
        got += events_of(one)
        start, boundary = one.stop, one.final
    return got


def ids(queue: OutputQueue) -> list[int]:
    """The ids of all tuples that are held."""
    return [n for s in queue.snapshot().sections for n in range(s.first, s.stop)]


@dataclass
class Pair:
    """A queue and its mirror."""

    queue: OutputQueue
    mirror: OutputQueue
    place: tuple[int, int] = (0, FIRST_TIME)
    sent: list[QueueSnapshot] = field(default_factory=list)

    def append(self, shape: list[int]) -> None:
        queue = self.queue
        if queue.has_room():  # or it would wait
            queue.append(section_of(events(shape, queue.next_id, queue.boundary), queue.next_id, queue.boundary))

    def send(self, as_bytes: bool) -> None:
        """Bring the mirror up to the queue."""
        news = self.queue.since(self.place)
        self.sent.append(QueueSnapshot.from_bytes(news.to_bytes()) if as_bytes else news)
        self.mirror.apply(self.sent[-1])
        self.place = (news.next_id, news.boundary)
        self.check()

    def check(self) -> None:
        """The mirror is like the queue was when the last increment was made."""
        queue, mirror = self.queue, self.mirror
        assert (mirror.next_id, mirror.boundary, mirror.acks()) == (queue.next_id, queue.boundary, queue.acks())
        assert mirror.lost_between(queue.first_id, mirror.first_id) == 0
        held, mirrored = ids(queue), ids(mirror)
        assert mirrored[len(mirrored) - len(held) :] == held
        assert len(mirrored) == len(held)  # and no more
        assert mirror.status().held_rows == len(held)

    def take_over(self, rng: Random) -> None:
        """Every reader goes on at the mirror from any id that the queue kept for it."""
        self.mirror.release()
        needs = [self.queue.first_id, *(done for name, done in self.queue.status().readers.items())]
        for start in {*needs, rng.choice([*ids(self.queue), self.queue.next_id])}:
            if start < self.queue.first_id:
                continue
            known, most = rng.choice([FIRST_TIME, self.queue.boundary, 10]), rng.choice([1, LEAST, 1 << 20])
            expected = read_all(self.queue, start, known, 1 << 20)
            assert read_all(self.mirror, start, known, most) == expected


@examples(150)
@given(
    st.lists(STEPS, max_size=40),
    st.sampled_from([LEAST, 4 * LEAST, 1 << 20]),
    st.sampled_from([0, 2 * LEAST, 1 << 20]),
    st.integers(0, 2**32 - 1),
)
def test_a_mirror_can_go_on_for_every_reader(steps: list[Any], bytes_most: int, keep_bytes: int, seed: int) -> None:
    limits = QueueLimits(bytes_most, "wait", keep_bytes, memory_bytes=seed % 2 * 2 * LEAST or 64 << 20)
    queue = OutputQueue("d/x", SCHEMA, limits, readers=["a"], incarnation=1)
    mirror = OutputQueue("d/x", SCHEMA, limits, readers=["a"], incarnation=1, epoch=queue.epoch)
    mirror.hold()
    pair = Pair(queue, mirror)
    for step in steps:
        first, stop = queue.first_id, queue.next_id
        places = [n for n in ids(queue) if n >= first] + [stop]
        match step:
            case ("append", shape):
                pair.append(shape)
            case ("ack", name, level, part):
                queue.ack(name, level, places[round(part * (len(places) - 1))])
            case ("register", name, part):
                queue.register(name, places[round(part * (len(places) - 1))])
            case ("forget", name):
                queue.forget(name)
            case ("jump",):
                queue.jump_to(above(stop))
            case ("mirror", as_bytes):
                pair.send(as_bytes)
            case ("again",) if pair.sent:
                before = mirror.snapshot().to_bytes()
                mirror.apply(Random(seed).choice(pair.sent[:-1] or pair.sent))  # an old one
                if (pair.sent[-1].next_id, pair.sent[-1].boundary) == (mirror.next_id, mirror.boundary):
                    assert ids(OutputQueue.restore(QueueSnapshot.from_bytes(before))) == ids(mirror)
        assert mirror.read(0, FIRST_TIME, 0) is None
    pair.send(True)
    pair.take_over(Random(seed))


@examples(50)
@given(st.lists(SHAPES, min_size=2, max_size=6), st.integers(0, 2**32 - 1))
def test_a_hole_is_noticed_and_changes_nothing(shapes: list[list[int]], seed: int) -> None:
    queue = OutputQueue("d/x", SCHEMA, QueueLimits(), readers=["a"], incarnation=1)
    mirror = OutputQueue("d/x", SCHEMA, QueueLimits(), incarnation=1, epoch=queue.epoch)
    pair = Pair(queue, mirror)
    for shape in shapes:
        pair.append(shape)
    whole = ids(queue)
    if len(whole) < 2:
        return
    beyond = Random(seed).choice(whole[1:])
    before = mirror.snapshot().to_bytes()
    with pytest.raises(StateError, match=f"tuples 0 to {beyond} of stream d/x are missing"):
        mirror.apply(queue.since((beyond, FIRST_TIME)))
    assert mirror.snapshot().to_bytes() == before
    mirror.apply(queue.snapshot())
    assert ids(mirror) == whole


@examples(100)
@given(st.lists(SHAPES, min_size=1, max_size=8), st.lists(st.floats(0, 1), max_size=8), st.integers(0, 2**32 - 1))
@example([[0], [0], [0]], [0.5], 160)  # boundaries alone between two jumps
def test_readers_get_what_is_released_and_no_more(shapes: list[list[int]], parts: list[float], seed: int) -> None:
    rng = Random(seed)
    queue = OutputQueue("d/x", SCHEMA, QueueLimits(), readers=["a"], incarnation=1)
    queue.hold()
    places = [(0, FIRST_TIME)]
    for shape in shapes:
        if rng.random() < 0.2:
            queue.jump_to(above(queue.next_id))
        queue.append(section_of(events(shape, queue.next_id, queue.boundary), queue.next_id, queue.boundary))
        places.append((queue.next_id, queue.boundary))
    whole: Events = []
    for section in queue.snapshot().sections:
        whole += events_of(section)
    at, got = (0, FIRST_TIME), []
    for part in sorted(parts):
        limit = places[round(part * (len(places) - 1))]
        queue.release(limit)
        while (one := queue.read(*at, 0, rng.choice([1, 1 << 20]))) is not None:
            got += events_of(one)
            at = (one.stop, one.final)
        assert at == limit
        assert queue._limit == limit
        assert got == whole[: len(got)]
        assert all(getattr(e, "id", -1) >= limit[0] or getattr(e, "time", 0) > limit[1] for e in whole[len(got) :])
    queue.release()
    assert got + read_all(queue, *at, 1 << 20) == whole
