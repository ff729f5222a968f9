"""The input manager: one order of events, cut into trains; and it never hangs."""

from __future__ import annotations

import errno
import json
import os
import queue
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from borealis.clock import WallClock
from borealis.connectors.sources import as_source
from borealis.diagram.spec import Input
from borealis.entry.admission import Cursor
from borealis.errors import InputError, MachineError
from borealis.machine import Machine
from borealis.state.delta import from_stream
from borealis.streams.section import Section, section
from borealis.threads import SystemThreads
from borealis.trains import input_manager
from borealis.trains.forking import FORKS, DelayBound
from borealis.trains.input_manager import InputManager
from borealis.trains.intake import Admission
from borealis.trains.line import Line
from borealis.trains.location import read
from borealis.trains.progress import Progress
from borealis.trains.relay import StreamInput
from borealis.trains.train import cursors_from_json, cursors_to_json
from borealis.tuples import CAUSE, FIRST_TIME, LAST_TIME

SECOND = 1_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("s", pa.string())])
WAIT_S = 20  # far beyond what any of this takes


def rows(*times: float | None, text: str = "") -> list[dict[str, Any]]:
    """A row for each time, in seconds; `n` counts them."""
    return [
        {"ts": None if t is None else pa.scalar(int(t * SECOND), SCHEMA.field("ts").type), "n": i, "s": text}
        for i, t in enumerate(times)
    ]


class Live:
    """A source that a test feeds row by row."""

    finite_and_ordered = False

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: list[Any] = []
        self._taken = 0
        self.committed_position = 0

    def give(self, *times: float) -> None:
        self._add([(int(t * SECOND)) for t in times])

    def end(self) -> None:
        self._add(None)

    def fail(self, error: BaseException) -> None:
        self._add(error)

    def _add(self, item: Any) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        position = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._taken < len(self._items))
                item = self._items[self._taken]
                self._taken += 1
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            for time in item:
                if position >= skip:
                    yield pa.record_batch([pa.array([time], schema[0].type), [position], [""]], schema=schema)
                position += 1

    def committed(self, position: int) -> None:
        self.committed_position = position

    def stop(self) -> None:
        self.end()


class AheadClock(WallClock):
    """The wall's time and more: threads wait by the wall's."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        return super().now() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds


class Harness:
    """Takes trains as a unit does."""

    def __init__(
        self, depot: Path, sources: dict[str, Any], specs: dict[str, dict[str, Any]] | None = None, **more: Any
    ):
        options = specs or {}
        inputs = [
            Input.model_validate({"name": n, "columns": "ts TIMESTAMP, n BIGINT, s STRING"} | options.get(n, {}))
            for n in sources
        ]
        self.manager = InputManager(
            inputs,
            {n: as_source(s) for n, s in sources.items()},
            dict.fromkeys(sources, SCHEMA),
            dict.fromkeys(sources, SECOND),
            depot,
            **more,
        )
        self.number = self.manager._trunk.made
        self.cursors = {name: Cursor() for name in sources}  # after the last train that was taken
        self.events: list[tuple[int, str, str, int]] = []  # cause, input, what, value
        self.sizes: list[int] = []
        self.manager.start()

    def take(self, wait: float = WAIT_S) -> bool:
        """The next train, committed at once; False if there is none."""
        number = self.manager.next_train(self.number, wait)
        if number is None:
            return False
        header = self.manager.header(number)
        for name, one in header["inputs"].items():
            for cause, bound in zip(one["cause"], one["bound"], strict=True):
                self.events.append((cause, name, "bound", bound))
            for what in ("rows", "late"):
                if one[what] is not None:
                    for row in from_stream(read(one[what])).to_pylist():
                        self.events.append((row[CAUSE], name, what, row["n"]))
        self.train = self.manager.train(number)
        self.cursors = self.train.cursors
        self.sizes.append(self.train.rows)
        self.number = number
        self.manager.release(number)
        return True

    def take_until(self, condition: Callable[[], bool]) -> None:
        """Take trains until something is so; fails rather than hangs."""
        until = threading.Event()
        timer = threading.Timer(WAIT_S, until.set)
        timer.start()
        try:
            while not condition():
                assert not until.is_set(), f"never came: {self.events}"
                self.take(0.02)
        finally:
            timer.cancel()

    def take_all(self) -> list[tuple[str, str, int]]:
        """All trains to the end, and the events in order of their causes."""
        while not self.manager.finished or self.number < self.manager._trunk.made:
            assert self.take(), f"no train, and no end: {self.manager.failure!r}"
        return self.ordered()

    def ordered(self) -> list[tuple[str, str, int]]:
        self.events.sort(key=lambda e: e[0])
        causes = [e[0] for e in self.events]
        assert causes == list(range(causes[0], causes[0] + len(causes))) if causes else True
        return [e[1:] for e in self.events]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def make(sources: dict[str, Any], specs: dict[str, dict[str, Any]] | None = None, **more: Any) -> Harness:
        made.append(Harness(tmp_path / str(len(made)), sources, specs, **more))
        return made[-1]

    yield make
    for one in made:
        one.manager.stop()


Make = Callable[..., Harness]


def small(rows_most: int, bytes_most: int = 1 << 30) -> Admission:
    return Admission(rows_most=rows_most, bytes_most=bytes_most)


# -- files, merged by time


def test_one_input_in_order_with_its_boundaries_and_its_end(harness: Make) -> None:
    one = harness({"a": rows(1, 1.5, 3)}, {"a": {"slack": "1 second"}})
    assert one.take_all() == [
        ("a", "bound", 0),
        ("a", "rows", 0),
        ("a", "rows", 1),
        ("a", "bound", 2 * SECOND),
        ("a", "rows", 2),
        ("a", "bound", LAST_TIME),
    ]
    assert one.train.final


@pytest.mark.parametrize("rows_most", [1, 2, 3, 7, 1000])
def test_two_files_merge_by_time_however_they_are_cut(harness: Make, rows_most: int) -> None:
    chance = random.Random(5)
    sources = {n: rows(*sorted(chance.randrange(20) / 2 for _ in range(30))) for n in ("a", "b")}
    truth = harness(sources, admission=small(10_000)).take_all()
    assert harness(sources, admission=small(rows_most)).take_all() == truth
    assert sum(what == "rows" for _, what, _ in truth) == 60


@pytest.mark.parametrize("rows_most", [1, 2, 5, 19, 20])
def test_more_rows_of_one_time_than_a_train_holds_do_not_block(harness: Make, rows_most: int) -> None:
    """Ties go by input, then position; no input may wait for a later time of the other for ever."""
    sources = {"a": rows(*[7] * 20), "b": rows(*[7] * 20, 8), "c": rows(*[7] * 20)}
    one = harness(sources, admission=small(rows_most))
    found = [(name, n) for name, what, n in one.take_all() if what == "rows"]
    assert found == [(name, n) for name in "abc" for n in range(20 + (name == "b"))] or found == [
        *(("a", n) for n in range(20)),
        *(("b", n) for n in range(20)),
        *(("c", n) for n in range(20)),
        ("b", 20),
    ]
    assert max(one.sizes) <= rows_most


def test_a_restart_from_any_train_gives_the_rest_of_the_same_events(harness: Make) -> None:
    chance = random.Random(11)
    sources = {n: rows(*(t + chance.random() for t in range(25))) for n in ("a", "b", "c")}
    first = harness(sources, {"b": {"slack": "2 seconds"}}, admission=small(8))
    at = {}
    while not first.manager.finished or first.number < first.manager._trunk.made:
        assert first.take()
        at[first.number] = (len(first.events), first.train)
    truth = [e[1:] for e in sorted(first.events)]
    for number, (_, train) in at.items():
        cursors = cursors_from_json(json.loads(json.dumps(cursors_to_json(train.cursors))))
        again = harness(
            sources,
            {"b": {"slack": "2 seconds"}},
            admission=small(5),
            cursors=cursors,
            next_cause=train.next_cause,
            trains=number,
        )
        assert again.take_all() == truth[train.next_cause :]


def test_empty_sources_end_at_once(harness: Make) -> None:
    one = harness({"a": [], "b": []})
    assert one.take_all() == [("a", "bound", LAST_TIME), ("b", "bound", LAST_TIME)]
    assert one.sizes == [0]


@pytest.mark.parametrize("live", [False, True])
def test_an_empty_source_beside_one_with_rows(harness: Make, live: bool) -> None:
    one = harness({"a": (lambda: iter(())) if live else [], "b": rows(1, 2, 3)})
    found = one.take_all()
    assert [e for e in found if e[1] == "rows"] == [("b", "rows", n) for n in range(3)]
    assert ("a", "bound", LAST_TIME) in found
    if not live:
        assert found[0] == ("a", "bound", LAST_TIME)  # before all rows: it had ended before they came


def test_a_finished_run_has_nothing_to_do(harness: Make) -> None:
    first = harness({"a": rows(1), "b": rows(2)})
    first.take_all()
    cursors = first.manager.cursors()
    assert all(c.ended for c in cursors.values())
    again = harness({"a": rows(1), "b": rows(2)}, cursors=cursors, trains=first.number, next_cause=9)
    assert again.manager.finished
    assert again.manager.next_train(first.number, 0.05) is None


def test_idleness_does_not_touch_files(harness: Make) -> None:
    """A file is slow, never silent: its boundaries would depend on the clock."""
    clock = AheadClock()
    gate = threading.Event()

    class Slow:
        finite_and_ordered = True

        def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
            yield from as_source(rows(1)).batches(schema, 0, 1)
            gate.wait(WAIT_S)
            yield from as_source(rows(2)).batches(schema, 0, 1)

    one = harness({"a": Slow()}, {"a": {"idle": "1 second"}}, machine=Machine(clock))
    one.take_until(lambda: bool(one.events))
    clock.advance(100)
    assert not one.take(0.2)
    gate.set()
    assert ("a", "late", 0) not in one.take_all()


# -- size


@pytest.mark.parametrize("names", ["a", "ab"])
@pytest.mark.parametrize("live", [False, True])
def test_huge_rows_make_short_trains(harness: Make, names: str, live: bool) -> None:
    text = "x" * 10_000
    data = rows(*range(50), text=text)
    sources: dict[str, Any] = {n: (lambda: iter(data)) if live else data for n in names}
    one = harness(sources, admission=small(1000, bytes_most=105_000))
    found = one.take_all()
    assert sum(what == "rows" for _, what, _ in found) == 50 * len(names)
    assert max(one.sizes) <= 10


def test_rows_larger_than_a_train_go_one_by_one(harness: Make) -> None:
    data = rows(*range(6), text="x" * 10_000)
    one = harness({"a": data, "b": data}, admission=small(1000, bytes_most=100))
    assert sum(what == "rows" for _, what, _ in one.take_all()) == 12
    assert max(one.sizes) == 1


def test_sources_are_not_read_far_ahead(harness: Make) -> None:
    drawn = 0

    def endless() -> Iterator[dict[str, Any]]:
        nonlocal drawn
        while True:
            drawn += 1
            yield from rows(drawn)

    one = harness({"a": endless}, admission=small(10))
    for _ in range(5):
        assert one.take()
    assert drawn < 5 * 10 + 200


def test_a_fast_live_input_does_not_starve_another(harness: Make) -> None:
    def endless() -> Iterator[dict[str, Any]]:
        n = 0
        while True:
            n += 1
            yield from rows(n)

    slow = Live()
    one = harness({"a": endless, "b": slow}, admission=small(4))
    one.take_until(lambda: len(one.events) > 20)
    slow.give(1)
    one.take_until(lambda: any(e[1] == "b" and e[2] in ("rows", "late") for e in one.events))


# -- late tuples


def test_late_tuples_go_aside_counted_and_none_is_lost(harness: Make) -> None:
    times = [10, 12, 8, 13, 9.5, 14]
    one = harness({"a": rows(*times)}, {"a": {"slack": "1 second"}}, admission=small(2))
    found = one.take_all()
    assert [n for _, what, n in found if what == "late"] == [2, 4]
    assert sorted(n for _, what, n in found if what in ("rows", "late")) == list(range(6))
    assert one.train.cursors["a"].late == 2
    assert one.train.cursors["a"].lateness == 3 * SECOND
    assert sum(one.sizes) == 6


# -- live inputs and idleness


def test_an_idle_input_lets_the_boundary_go_on(harness: Make) -> None:
    clock = AheadClock()
    a, b = Live(), Live()
    one = harness({"a": a, "b": b}, {"b": {"idle": "5 seconds"}}, machine=Machine(clock))
    progress = Progress("u1")

    def boundary(name: str) -> int:
        return one.cursors[name].boundary

    b.give(10)
    one.take_until(lambda: boundary("b") == 10 * SECOND)
    a.give(30)
    one.take_until(lambda: boundary("a") == 30 * SECOND)
    progress.note(1, 1.0, one.train.cursors, 0)
    assert progress.held_by == "b"
    assert not one.take(0.15)  # not idle yet: its boundary stays
    clock.advance(6)
    one.take_until(lambda: boundary("b") == 30 * SECOND)
    assert one.train.rows == 0
    assert one.train.cursors["b"].position == 1
    b.give(20, 31)  # wakes up: what is older than its boundary is late
    one.take_until(lambda: one.cursors["b"].position == 3)
    assert one.train.cursors["b"].late == 1
    found = one.ordered()
    assert found.index(("b", "bound", 30 * SECOND)) < found.index(("b", "late", 1))
    a.end()
    b.end()
    one.take_all()


def test_an_input_that_never_said_anything_follows_the_others(harness: Make) -> None:
    clock = AheadClock()
    a, b = Live(), Live()
    one = harness({"a": a, "b": b}, {"b": {"idle": "5 seconds"}}, machine=Machine(clock))
    a.give(100)
    one.take_until(lambda: one.cursors["a"].position == 1)
    assert one.cursors["b"].boundary == FIRST_TIME
    clock.advance(5)
    one.take_until(lambda: one.cursors["b"].boundary == 100 * SECOND)


def test_an_input_alone_goes_on_with_the_clock(harness: Make) -> None:
    clock = AheadClock()
    a = Live()
    one = harness({"a": a}, {"a": {"idle": "5 seconds", "slack": "2 seconds"}}, machine=Machine(clock))
    a.give(10)
    one.take_until(lambda: one.cursors["a"].position == 1)
    clock.advance(7)
    one.take_until(lambda: one.cursors["a"].boundary >= 15 * SECOND)


def test_an_idle_boundary_survives_a_restart(harness: Make) -> None:
    cursor = Cursor(position=1, newest=10 * SECOND, boundary=30 * SECOND)
    a = Live()
    one = harness({"a": a}, cursors={"a": cursor}, trains=4)
    a.give(10, 20, 31)
    one.take_until(lambda: one.cursors["a"].position == 3)
    assert [e[1:] for e in sorted(one.events)][:1] == [("a", "late", 1)]


def test_committed_positions_are_told_to_the_source(harness: Make) -> None:
    a = Live()
    one = harness({"a": a})
    a.give(1, 2, 3)
    one.take_until(lambda: a.committed_position == 3)


# -- failures


def failed(one: Harness) -> BaseException:
    """Take all trains there are; then the failure must be there."""
    one.take_until(lambda: one.manager.failure is not None)
    while one.take(0):
        pass
    assert one.manager.failure is not None
    return one.manager.failure


@pytest.mark.parametrize("rows_most", [1, 3, 100])
def test_rows_before_a_null_time_are_in_trains_before_the_error(harness: Make, rows_most: int) -> None:
    one = harness({"a": rows(1, 2, 3, None, 5)}, admission=small(rows_most))
    error = failed(one)
    assert isinstance(error, InputError)
    assert "row 4 has no time" in str(error)
    assert [e[3] for e in sorted(one.events) if e[2] == "rows"] == [0, 1, 2]
    assert not one.manager.finished


@pytest.mark.parametrize("rows_most", [1, 3, 100])
def test_late_fail(harness: Make, rows_most: int) -> None:
    one = harness({"a": rows(1, 9, 3)}, {"a": {"late": "fail"}}, admission=small(rows_most))
    assert "row 3 is late by 6 seconds" in str(failed(one))
    assert sum(one.sizes) == 2


def test_rows_before_a_raise_are_in_trains_before_the_error(harness: Make) -> None:
    def bad() -> Iterator[dict[str, Any]]:
        yield from rows(1, 2, 3)
        raise RuntimeError("the sensor\nbroke")

    one = harness({"a": bad})
    error = failed(one)
    assert isinstance(error, InputError)
    assert "RuntimeError: the sensor" in str(error)
    assert sum(one.sizes) == 3


def test_an_alien_error_becomes_one_line(harness: Make) -> None:
    a = Live()
    one = harness({"a": a})
    a.give(1)
    a.fail(ValueError("two\nlines"))
    assert str(failed(one)) == "input 'a' failed: two lines. Hint: everything before it is committed"
    assert sum(one.sizes) == 1


@pytest.mark.parametrize("rows_most", [1, 4, 100])
def test_one_of_two_files_fails_and_all_that_came_before_it_is_in_trains(harness: Make, rows_most: int) -> None:
    one = harness({"a": rows(1, 3, 5, None), "b": rows(2, 4, 6, 8)}, admission=small(rows_most))
    assert "input 'a': row 4" in str(failed(one))
    found = [(name, n) for name, what, n in one.ordered() if what == "rows"]
    assert found == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2)]


def test_an_endless_input_does_not_hide_the_failure_of_another(harness: Make) -> None:
    def endless() -> Iterator[dict[str, Any]]:
        n = 0
        while True:
            n += 1
            yield from rows(n)

    broken = Live()
    broken.give(1)
    broken.fail(OSError("unplugged"))
    one = harness({"a": endless, "b": broken}, admission=small(5))
    assert "unplugged" in str(failed(one))
    assert any(e[1] == "b" and e[2] in ("rows", "late") for e in one.events)


def test_a_full_depot_is_told(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Line, "_payload", no_room)
    error = failed(harness({"a": rows(1)}))
    assert isinstance(error, MachineError)
    assert "No space left" in str(error)
    assert "\n" not in str(error)


def test_asking_after_a_failure_or_a_stop_does_not_wait(harness: Make) -> None:
    one = harness({"a": rows(None)})
    failed(one)
    assert one.manager.next_train(one.number, 3600) is None
    live = harness({"a": Live()})
    asked = threading.Thread(target=live.manager.next_train, args=(0, 3600), daemon=True)
    asked.start()
    live.manager.stop()
    asked.join(WAIT_S)
    assert not asked.is_alive()


# -- threads


def test_stop_returns_while_readers_block(harness: Make) -> None:
    class Deaf(Live):
        def stop(self) -> None:
            """It waits for its next row, whatever we wish."""

    full, silent = Live(), Deaf()
    one = harness({"a": full, "b": silent}, admission=small(2))
    full.give(*range(100))  # blocks on its queue
    assert one.take()
    stopping = threading.Thread(target=one.manager.stop, daemon=True)
    stopping.start()
    stopping.join(WAIT_S)
    assert not stopping.is_alive()
    assert one.manager._maker is not None
    assert not one.manager._maker.is_alive()
    assert [reader.is_alive() for reader in one.manager._readers] == [False, True]


def test_stop_tells_sources_that_can_be_stopped(harness: Make) -> None:
    class Stoppable(Live):
        stopped = False

        def stop(self) -> None:
            self.stopped = True
            super().stop()

    source = Stoppable()
    one = harness({"a": source})
    one.manager.stop()
    assert source.stopped


def test_no_wakeup_is_lost(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come one at a time, each only after the one before is committed: a lost wake-up would take 5 s."""
    monkeypatch.setattr(input_manager.InputManager, "_patience", lambda _: 3600.0)
    a, b = Live(), Live()
    one = harness({"a": a, "b": b})
    for n in range(1, 200):
        (a if n % 3 else b).give(n)
        before = sum(one.sizes)
        one.take_until(lambda before=before: sum(one.sizes) > before)  # type: ignore[misc]
    a.end()
    b.end()
    one.take_all()
    assert sum(one.sizes) == 199


def test_trains_are_forgotten_when_they_are_committed(harness: Make) -> None:
    one = harness({"a": rows(*range(100))}, admission=small(7))
    one.take_all()
    assert not list(one.manager.depot.iterdir())


# -- waiting for company


def _same_second(now: dict[str, int], then: dict[str, int]) -> bool:
    return now["a"] // SECOND == then["a"] // SECOND


def test_rows_of_which_nothing_comes_wait_for_company_until_something_does(harness: Make) -> None:
    source, admission = Live(), Admission(company_s=3600.0)
    one = harness({"a": source}, gives_nothing=_same_second, admission=admission)
    source.give(1.0)
    assert one.take()  # the first boundary of all
    source.give(1.1, 1.2, 1.3)
    assert not one.take(0.2)
    assert one.manager.waiting() == 3
    source.give(2.5)
    assert one.take()
    assert one.sizes == [1, 4]


def test_rows_wait_for_company_only_a_moment(harness: Make) -> None:
    source = Live()
    one = harness({"a": source}, gives_nothing=lambda now, then: True, admission=Admission(company_s=0.05))
    source.give(1.0)
    assert one.take()
    assert one.sizes == [1]


@pytest.mark.parametrize("news", ["late", "end", "failure", "many"])
def test_what_must_not_wait_does_not(harness: Make, news: str) -> None:
    source, admission = Live(), Admission(company_s=3600.0, company_rows=10)
    one = harness({"a": source}, gives_nothing=lambda now, then: True, admission=admission)
    source.give(5.0)
    assert not one.take(0.1)
    match news:
        case "late":
            source.give(1.0)
        case "end":
            source.end()
        case "failure":
            source.fail(InputError("torn"))
        case "many":
            source.give(*[5.0] * 12)
    one.take_until(lambda: bool(one.sizes))


# -- streams that are read by time


class Told:
    """A stream whose sections come one by one, as the test says."""

    def __init__(self) -> None:
        self.coming: queue.Queue[Section | None] = queue.Queue()
        self.told = 0

    def tell(self, times: list[int], bounds: list[int]) -> None:
        rows = pa.table({"n": pa.array(times, pa.int64())})
        first, self.told = self.told, self.told + len(times)
        at = np.full(len(bounds), self.told)
        self.coming.put(section(first, rows, np.array(times, np.int64), at, np.array(bounds, np.int64)))

    def sections(self, start: int, boundary: int) -> Iterator[Section]:
        return iter(self.coming.get, None)

    def stop(self) -> None:
        self.coming.put(None)


def test_it_is_told_which_stream_the_others_wait_for(tmp_path: Path) -> None:
    feeds, clock = {"a": Told(), "b": Told()}, AheadClock()
    schemas, paces = dict.fromkeys(feeds, pa.schema([("n", pa.int64())])), dict.fromkeys(feeds, 1)
    inputs = [StreamInput(name) for name in feeds]
    manager = InputManager(inputs, feeds, schemas, paces, tmp_path, bucket_us=10, machine=Machine(clock))
    manager.start()
    try:
        feeds["a"].tell(list(range(30)), [])
        while not manager.waiting():
            assert manager.next_train(0, 0.01) is None
        assert manager.held_up() is None  # not for long
        clock.advance(100.0)
        held = manager.held_up()
        assert held is not None
        assert held[0] == "for b, behind a (merge: time)"
        assert held[1] >= 100.0
        feeds["b"].tell([], [20])
        assert manager.next_train(0, 10.0) == 1
        assert (manager.train(1).rows, manager.held_up()) == (20, None)
    finally:
        manager.stop()


def test_while_trunk_and_fork_take_turns_trains_are_short(tmp_path: Path) -> None:
    feeds, clock = {"a": Told(), "b": Told()}, AheadClock()
    schemas, paces = dict.fromkeys(feeds, pa.schema([("n", pa.int64())])), dict.fromkeys(feeds, 1)
    inputs, admission = [StreamInput(name) for name in feeds], Admission(turn_rows=10)
    how = {"admission": admission, "bucket_us": 10, "bound": DelayBound(60.0), "machine": Machine(clock)}
    manager = InputManager(inputs, feeds, schemas, paces, tmp_path, **how)
    sizes: dict[bool, list[int]] = {True: [], False: []}  # of trains of the fork, and of the trunk

    def run(rows: int, *, fork: bool) -> None:
        while sum(sizes[fork]) < rows:
            if (number := manager.next_train(0, 0.01, forks=True)) is not None and number % FORKS:
                sizes[number >= FORKS].append(manager.train(number).rows)
                manager.release(number)

    manager.start()
    try:
        feeds["a"].tell(list(range(100)), [])
        while not manager.waiting():
            assert manager.next_train(0, 0.01, forks=True) is None
        clock.advance(100.0)
        run(100, fork=True)
        for name in feeds:
            feeds[name].tell([], [100])
        run(100, fork=False)
        assert max(sizes[True] + sizes[False]) <= 10
        manager.end_fork()
        feeds["a"].tell(list(range(100, 200)), [])  # nothing waits from before: no fork begins again
        feeds["b"].tell([], [200])
        run(190, fork=False)
        assert max(sizes[False]) > 50  # all that is free by then, in one
    finally:
        manager.stop()


@pytest.mark.timeout(60)
def test_who_waits_since_before_the_start_is_woken_when_trains_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read at once is there before a train can be made of it, and no more may come."""
    looks, found = threading.Semaphore(0), list[int | None]()

    class ReadsAtOnce(SystemThreads):
        def start(self, name: str, work: Callable[[], Any]) -> Any:
            if not name.startswith("read-"):
                return super().start(name, work)
            work()
            assert looks.acquire(timeout=20)  # who waits has heard of it, in vain
            return super().start(name, lambda: None)

    feed, inputs = {"a": Told()}, [StreamInput("a")]
    feed["a"].tell([1, 2], [])
    feed["a"].stop()
    schemas, paces = {"a": pa.schema([("n", pa.int64())])}, {"a": 1}
    manager = InputManager(inputs, feed, schemas, paces, tmp_path, machine=Machine(threads=ReadsAtOnce()))
    work_on, waits = manager._work_on, threading.Event()

    def watched(**how: bool) -> bool:
        did = work_on(**how)
        if waits.is_set():
            looks.release()
        waits.set()
        return did

    monkeypatch.setattr(manager, "_work_on", watched)
    monkeypatch.setattr(manager, "_patience", lambda: 40.0)
    waiting = threading.Thread(target=lambda: found.append(manager.next_train(0, 30.0)), daemon=True)
    waiting.start()
    assert waits.wait(20)
    manager.start()
    waiting.join(25)
    assert found == [1]
    manager.stop()
