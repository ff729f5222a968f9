"""The entry point: boundaries are a function of the tuples, lateness of the boundaries."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from borealis.diagram.spec import Input
from borealis.entry.admission import Admitted, Cursor, EntryPoint
from borealis.kernels.expr import Call, Column
from borealis.kernels.time_of import TimeOf, note_in, noted
from borealis.tuples import FIRST_TIME, LAST_TIME

SECOND = 1_000_000


def entry(slack: str = "2 seconds", late: str = "keep", cursor: Cursor | None = None) -> EntryPoint:
    spec = Input.model_validate({"name": "in", "columns": "ts TIMESTAMP, n INT", "slack": slack, "late": late})
    return EntryPoint(spec, SECOND, cursor or Cursor())


def table(*seconds: float | None) -> pa.Table:
    times = [None if s is None else int(s * SECOND) for s in seconds]
    return pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC")), "n": pa.array(range(len(times)), pa.int32())})


def raw(microseconds: int) -> pa.Table:
    time = pa.array([microseconds], pa.int64()).view(pa.timestamp("us", "UTC"))
    return pa.table({"ts": time, "n": pa.array([0], pa.int32())})


def bounds(admitted: Admitted) -> list[float | None]:
    """The boundary before each row, in seconds."""
    found: list[float | None] = [None] * len(admitted)
    for at, bound in zip(admitted.at.tolist(), admitted.bound.tolist(), strict=True):
        found[at] = bound / SECOND
    return found


def test_a_boundary_stands_before_the_tuple_that_lifts_it() -> None:
    one = entry()
    admitted = one.admit(table(10, 10.5, 11.9, 12, 11, 15.2))
    assert bounds(admitted) == [8, None, 9, 10, None, 13]
    assert one.cursor == Cursor(position=6, newest=15_200_000, boundary=13 * SECOND)
    assert not admitted.late.any()


def test_times_before_1970_round_down() -> None:
    admitted = entry(slack="0 seconds").admit(table(-3.5, -3, -0.1))
    assert bounds(admitted) == [-4, -3, -1]


@pytest.mark.parametrize("slack", ["0 seconds", "1 second"])
@pytest.mark.parametrize("first", [FIRST_TIME, FIRST_TIME + 5, FIRST_TIME + SECOND // 2])
def test_a_time_at_the_beginning_of_time_makes_nothing_late(slack: str, first: int) -> None:
    one = entry(slack)
    assert bounds(one.admit(raw(first))) == [None]
    assert one.cursor.boundary == FIRST_TIME
    assert not one.admit(table(1_700_000_000)).late.any()
    assert one.admit(raw(first)).late.tolist() == [True]
    assert one.cursor.lateness == min(one.cursor.boundary - first, LAST_TIME)


@pytest.mark.parametrize("slack", [0, 1, SECOND, 3 * SECOND + 7])
def test_boundaries_near_the_beginning_of_time_are_as_integers_of_any_size_have_them(slack: int) -> None:
    times = [FIRST_TIME + n for n in range(0, 6 * SECOND, SECOND // 5)]
    one = entry(f"{slack} microseconds")
    for time in times:
        one.admit(raw(time))
        held = time - slack
        assert one.cursor.boundary == max(held - held % SECOND, FIRST_TIME)
    assert one.cursor.late == 0


def test_late_tuples_are_marked_counted_and_kept() -> None:
    one = entry(slack="1 second")
    admitted = one.admit(table(10, 8.5, 9, 20, 4, 18.9))
    assert admitted.late.tolist() == [False, True, False, False, True, True]
    assert len(admitted) == admitted.rows.num_rows == 6
    assert one.cursor.late == 3
    assert one.cursor.lateness == 15 * SECOND


@pytest.mark.parametrize("cuts", [[3], [1, 2, 5], [0, 6], [1, 2, 3, 4, 5]])
def test_cuts_change_nothing(cuts: list[int]) -> None:
    rows = table(10, 8.5, 9, 20, 4, 18.9)
    whole = entry(slack="1 second")
    at_once = whole.admit(rows)
    parts = entry(slack="1 second")
    pieces = [parts.admit(rows.slice(a, b - a)) for a, b in zip([0, *cuts], [*cuts, 6], strict=True)]
    for name in ("time", "newest", "late"):
        assert np.concatenate([getattr(p, name) for p in pieces]).tolist() == getattr(at_once, name).tolist()
    assert [bound for p in pieces for bound in bounds(p)] == bounds(at_once)
    assert parts.cursor == whole.cursor
    for stop in range(7):
        again = entry(slack="1 second", cursor=at_once.cursor(stop))
        assert bounds(again.admit(rows.slice(stop))) == bounds(at_once)[stop:]
        assert again.cursor == whole.cursor
        head, tail = at_once.split(stop)
        assert head.cursor(len(head)) == tail.start == at_once.cursor(stop)
        assert tail.cursor(len(tail)) == whole.cursor


@pytest.mark.parametrize("seconds", [3, 50, 5_000])  # few boundaries are looked for one by one, many row by row
def test_a_batch_has_the_boundaries_that_its_rows_have_one_by_one(seconds: int) -> None:
    chance = np.random.default_rng(seconds)
    times = np.cumsum(chance.exponential(seconds / 400, 400)) + chance.normal(0, 2, 400)
    rows, alone, cursor = table(*times), entry(), Cursor(newest=SECOND, boundary=SECOND // 2)
    whole = entry(cursor=cursor).admit(rows)
    alone.cursor = cursor
    single = [alone.admit(rows.slice(i, 1)) for i in range(len(times))]
    assert bounds(whole) == [bound for one in single for bound in bounds(one)]
    assert whole.late.tolist() == [bool(one.late[0]) for one in single]
    assert whole.cursor(len(times)) == alone.cursor


def test_a_null_time_is_refused_by_its_row_and_rows_before_it_are_admitted() -> None:
    one = entry(cursor=Cursor(position=100, newest=SECOND))
    admitted = one.admit(table(10, 11, None, 12, None))
    assert len(admitted) == admitted.rows.num_rows == 2
    assert one.cursor.position == 102
    assert "input 'in': row 103 has no time (column 'ts' is null)" in str(one.refused)


def test_a_null_time_in_the_first_row() -> None:
    one = entry()
    assert len(one.admit(table(None, 1))) == 0
    assert one.cursor == Cursor()
    assert "row 1 has no time" in str(one.refused)


def test_late_fail_refuses_the_first_late_row() -> None:
    one = entry(slack="1 second", late="fail")
    admitted = one.admit(table(10, 9, 20, 4, 18.9))
    assert len(admitted) == admitted.rows.num_rows == 3
    assert not admitted.late.any()
    assert one.cursor == Cursor(position=3, newest=20 * SECOND, boundary=19 * SECOND)
    assert "row 4 is late by 15 seconds" in str(one.refused)


def test_late_fail_and_a_null_behind_it_tell_of_the_first() -> None:
    one = entry(slack="0 seconds", late="fail")
    assert len(one.admit(table(10, 2, None))) == 1
    assert "row 2 is late" in str(one.refused)


def test_idleness_lifts_the_boundary_to_the_pace_and_never_lowers_it() -> None:
    one = entry()
    one.admit(table(10))
    assert one.idle(9_700_000) == 9 * SECOND
    assert one.idle(9_900_000) is None
    assert one.idle(SECOND) is None
    admitted = one.admit(table(8.5, 11))
    assert admitted.late.tolist() == [True, False]
    assert bounds(admitted) == [None, None]  # 11 - 2 is no more than what idleness said
    one.end()
    assert one.idle(99 * SECOND) is None
    assert one.cursor.boundary == LAST_TIME
    assert one.cursor.ended


def made(text: str, function: str, kind: str) -> TimeOf:
    return TimeOf(text, Call(function, (Column("t", kind),), "timestamp"))


def test_a_time_may_be_made_of_a_number() -> None:
    spec = Input(name="in", columns="t BIGINT, n INT", time="timestamp_seconds(t)", slack="2 seconds")
    one = EntryPoint(spec, SECOND, Cursor(), made(spec.time, "timestamp_seconds", "long"))
    admitted = one.admit(pa.table({"t": [10, 12, None, 13], "n": [1, 2, 3, 4]}))
    assert admitted.time.tolist() == [10 * SECOND, 12 * SECOND]
    assert bounds(admitted) == [8, 10]
    assert str(one.refused).startswith("input 'in': row 3 has no time (`timestamp_seconds(t)` is null)")


@pytest.mark.parametrize("bad", [0, 3, 7])
def test_text_that_is_no_time_is_refused_and_what_comes_before_it_is_admitted(bad: int) -> None:
    spec = Input(name="in", columns="t STRING", time="to_timestamp(t)")
    one = EntryPoint(spec, SECOND, Cursor(position=100), made(spec.time, "to_timestamp", "string"))
    texts = [f"2024-05-01 12:00:0{i}" for i in range(8)]
    admitted = one.admit(pa.table({"t": [*texts[:bad], "noon", *texts[bad:], "never"]}))
    assert len(admitted) == bad
    assert str(one.refused).startswith(
        f"input 'in': row {101 + bad} has no time ('noon' is no time in `to_timestamp(t)`)"
    )


def test_all_rows_without_a_time_are_found() -> None:
    time = made("to_timestamp(t)", "to_timestamp", "string")
    rows = pa.table({"t": ["2024", "a", None, "2025", "b"]})
    whys = ["'a' is no time in `to_timestamp(t)`", "`to_timestamp(t)` is null", "'b' is no time in `to_timestamp(t)`"]
    assert time.faults(rows) == list(zip([1, 2, 4], whys, strict=True))
    assert TimeOf.from_text(time.to_text()) == time
    assert note_in(noted(rows.schema, time)) == time
    assert note_in(rows.schema) is None
