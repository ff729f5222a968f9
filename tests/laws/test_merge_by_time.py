"""Laws of streams that are read by time: everyone who reads them has the same order of events, whatever arrives first,
however it is cut, and wherever he begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import SECOND
from harness import examples
from hypothesis import given
from hypothesis import strategies as st

from borealis.entry.admission import Cursor
from borealis.machine import HERE
from borealis.streams.id_gaps import HOP
from borealis.streams.section import Section, section
from borealis.trains.intake import Admission, Intake
from borealis.trains.merge_order import bounds, numbered
from borealis.trains.merging import ByReplay, ByTime, Replay
from borealis.trains.relay import Relay, StreamInput
from borealis.tuples import FIRST_TIME, KIND, LAST_TIME, Kind

SEEDS = st.integers(0, 2**32 - 1)
SCHEMA = pa.schema([("n", pa.int64()), (KIND, pa.int8()), ("_time", pa.int64())])
BUCKETS = (1, 1000, 100_000, 10 * SECOND)
Event = tuple[str, str, int]  # input; row or bound; its id or its time
Stream = list[Section]  # whole: one section, or several with jumps between


def random_stream(rng: Random, tuples: int) -> Stream:
    """Tuples, some in pairs and some behind the newest, among boundaries; ids may jump; then the end."""
    found, now, bound = [], rng.choice([0, -SECOND, SECOND]), FIRST_TIME
    first = 0
    for _ in range(rng.choice([1, 1, 2])):
        times, kinds, at, bound_times, standing = list[int](), list[int](), list[int](), list[int](), bound
        for _ in range(tuples):
            now += rng.choice([0, 0, 1, 300, 40_000, SECOND])
            for _ in range(rng.choice([0, 0, 1, 2])):
                if (rises := now - rng.choice([0, 20_000])) > bound:
                    bound = rises
                    at.append(first + len(times))
                    bound_times.append(bound)
                now += rng.choice([0, 500])
            pair = [Kind.UPDATE_BEFORE, Kind.UPDATE_AFTER] if rng.random() < 0.2 else [Kind.INSERTION]
            times += [now - rng.choice([0, 0, 10_000]) for _ in pair]
            kinds += pair
        rows = pa.table({"n": pa.array(range(first, first + len(times)), pa.int64()), KIND: pa.array(kinds, pa.int8())})
        stamps = np.array(times, np.int64), np.array(at, np.int64), np.array(bound_times, np.int64)
        found.append(section(first, rows, *stamps, standing))
        first = found[-1].stop + HOP - found[-1].stop % HOP
    last = found[-1]
    ended = np.append(last.at, last.stop), np.append(last.bound, LAST_TIME)
    return [*found[:-1], last.bounded(*ended, last.standing)]


def random_streams(rng: Random, tuples: int, inputs: int) -> dict[str, Stream]:
    return {name: random_stream(rng, rng.choice([tuples, tuples // 3, 0])) for name in "abc"[:inputs]}


def told(streams: Mapping[str, Stream]) -> list[Event]:
    """What the order is, in plain Python: by how far an input had come, then input, then place."""
    found = []
    for number, (name, stream) in enumerate(streams.items()):
        reached, place = FIRST_TIME, 0
        for part in stream:
            stands = list(zip(part.at.tolist(), part.bound.tolist(), strict=True))
            for tuple_id in range(part.first, part.stop + 1):
                for at, bound in stands:
                    if at == tuple_id:
                        reached = max(reached, bound if bound < LAST_TIME else FIRST_TIME)
                        found.append((reached, number, place := place + 1, (name, "bound", bound)))
                if tuple_id == part.stop:
                    continue
                row = tuple_id - part.first
                reached = max(reached, int(part.time[row]))
                if part.rows[KIND][row].as_py() == Kind.UPDATE_AFTER:  # one event with the row before it
                    events = [found.pop()[-1], (name, "row", tuple_id)]
                    found += [(reached, number, place, event) for event in events]
                    continue
                found.append((reached, number, place := place + 1, (name, "row", tuple_id)))
    return [event for *_, event in sorted(found, key=lambda one: one[:3])]


class Reader:
    """The inputs of a unit, and what trains they make."""

    def __init__(self, rng: Random, streams: Mapping[str, Stream], begin: Mapping[str, Cursor] | None = None) -> None:
        self._rng, self.trains = rng, list[tuple[list[Event], dict[str, Cursor], bool]]()
        cursors = {name: (begin or {}).get(name, Cursor()) for name in streams}
        self.left = {name: deque(self._cut(stream, cursors[name])) for name, stream in streams.items()}
        self.intakes = {
            name: Intake(Relay(StreamInput(name), at), None, SCHEMA, at, 0.0, at.ended, HERE.threads.mailbox(2))  # type: ignore[arg-type]
            for name, at in cursors.items()
        }
        admission = Admission(rng.choice([1, 2, 5, 1000]), rng.choice([1, 300, 64 << 20]))
        self.order = ByTime(self.intakes, admission, rng.choice(BUCKETS))
        self.replays = ByReplay(self.intakes, admission, HERE.threads.rlock(), self.order)

    def _cut(self, stream: Stream, at: Cursor) -> Iterator[Section]:
        for part in stream:
            rest = part
            if part.stop < at.position or at.ended:
                continue
            while True:
                rest = rest.since(min(max(rest.first, at.position), rest.stop))
                stop = self._rng.randint(rest.first, rest.stop + 2)
                yield rest.until(stop)
                if stop > rest.stop:
                    break
                rest = rest.since(stop)

    def arrive(self, name: str) -> None:
        intake = self.intakes[name]
        intake.add(intake.entry.admit(self.left[name].popleft()))  # type: ignore[arg-type]
        intake.source_ended = intake.entry.cursor.ended

    def read(self) -> None:
        """All trains that can be made now."""
        while (merged := (self.replays if self.replays.active else self.order).next()).pieces:
            found: list[tuple[int, Event]] = []
            for piece, cause in zip(merged.pieces, numbered(merged.pieces, merged.order, 0), strict=True):
                assert len(cause) == len(piece)
                found += [(at, (piece.name, "bound", bound)) for at, bound in bounds(piece, cause)]
                mine = zip(cause[piece.rows.row_events].tolist(), piece.rows.rows["n"].to_pylist(), strict=True)
                found += [(at, (piece.name, "row", tuple_id)) for at, tuple_id in mine]
                if piece.rows.jumps:  # type: ignore[union-attr]
                    assert cause[0] == 0
            events = [event for _, event in sorted(found, key=lambda one: one[0])]
            self.trains.append((events, {n: i.cut for n, i in self.intakes.items()}, merged.silent))

    def read_all(self) -> None:
        while some := [name for name, sections in self.left.items() if sections]:
            self.arrive(self._rng.choice(some))
            if self._rng.random() < 0.3:
                self.read()
        self.read()

    def events(self, since: int = 0) -> list[Event]:
        return [event for events, *_ in self.trains[since:] for event in events]


@examples(60)
@given(SEEDS, st.integers(0, 25), st.integers(2, 3))
def test_the_order_is_a_function_of_the_streams(seed: int, tuples: int, inputs: int) -> None:
    rng = Random(seed)
    streams = random_streams(rng, tuples, inputs)
    for _ in range(3):
        reader = Reader(rng, streams)
        reader.read_all()
        assert reader.events() == told(streams)


@examples(60)
@given(SEEDS, st.integers(1, 25), st.integers(2, 3))
def test_who_begins_at_a_train_goes_on_with_the_same_events(seed: int, tuples: int, inputs: int) -> None:
    """And one that was further before reads in silence up to there, in the same order."""
    rng = Random(seed)
    streams = random_streams(rng, tuples, inputs)
    first = Reader(rng, streams)
    first.read_all()
    stop = rng.randrange(len(first.trains))
    begin = first.trains[stop][1]
    done = rng.randrange(stop, len(first.trains))
    again = Reader(rng, streams, begin)
    if done > stop:
        places = ((name, cursor.position, cursor.boundary) for name, cursor in first.trains[done][1].items())
        again.replays.add([Replay(tuple(places), silent=True)])
    again.read_all()
    assert again.events() == first.events(stop + 1)
    silent = [event for events, _, silent in again.trains if silent for event in events]
    assert silent == [event for events, *_ in first.trains[stop + 1 : done + 1] for event in events]
    assert not again.replays.active


def stream_of(*events: int | tuple[int], ended: bool = False) -> Section:
    """Numbers are times of tuples, those in brackets of boundaries."""
    times = [one for one in events if isinstance(one, int)]
    at = [sum(isinstance(e, int) for e in events[:n]) for n, one in enumerate(events) if isinstance(one, tuple)]
    bound = [one[0] for one in events if isinstance(one, tuple)] + [LAST_TIME] * ended
    kinds = pa.array([Kind.INSERTION] * len(times), pa.int8())
    rows = pa.table({"n": pa.array(range(len(times)), pa.int64()), KIND: kinds})
    places = np.array(at + [len(times)] * ended, np.int64), np.array(bound, np.int64)
    return section(0, rows, np.array(times, np.int64), *places)


@pytest.mark.parametrize(
    ("other", "free"),
    [((99,), 0), ((100,), 1), (((99,),), 0), (((100,),), 1), ((150, (299,)), 2), (((300,),), 3), ((), 0)],
)
def test_a_bucket_is_read_when_the_others_have_left_it(other: tuple[Any, ...], free: int) -> None:
    """Also by boundaries alone: an input without tuples lets time go on. One that says nothing is waited for."""
    reader = Reader(Random(0), {"a": [stream_of(50, 150, 250, 350)], "b": [stream_of(*other)]})
    reader.order = ByTime(reader.intakes, Admission(), 100)
    reader.left = {"a": deque([stream_of(50, 150, 250, 350)]), "b": deque([stream_of(*other)])}
    for name in "ab":
        reader.arrive(name)
    reader.read()
    assert sum(event[0] == "a" for event in reader.events()) == free


def test_what_fits_in_no_train_does_not_wait_for_the_bucket() -> None:
    """Both inputs have more in a bucket than a train can take: neither reads on, and none would ever leave it."""
    reader = Reader(Random(0), {name: [stream_of(*range(10))] for name in "ab"})
    reader.order = ByTime(reader.intakes, Admission(rows_most=4), SECOND)
    reader.left = {name: deque([stream_of(*range(10))]) for name in "ab"}
    for name in "ab":
        reader.arrive(name)
    reader.read()
    assert reader.events() == told({name: [stream_of(*range(10))] for name in "ab"})[: len(reader.events())]
    assert all(not intake.full(Admission(rows_most=4)) for intake in reader.intakes.values())
