"""Sections: cutting, joining, and what of them someone knows already."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from borealis.streams.section import (
    NOTHING,
    Section,
    boundary_only,
    empty_rows,
    from_batch,
    joined,
    section,
    wire_schema,
)
from borealis.tuples import FIRST_TIME, KIND, LAST_TIME, Int64s, Kind

SCHEMA = pa.schema([("v", pa.int64())])


def ints(*values: int) -> Int64s:
    return np.array(values, np.int64)


def some(first: int, n: int, *bounds: tuple[int, int], standing: int = FIRST_TIME) -> Section:
    """Tuples with their ids as values, and boundaries as (at, time)."""
    ids = np.arange(first, first + n, dtype=np.int64)
    rows = pa.record_batch([pa.array(ids)], schema=SCHEMA)
    return Section(first, rows, ids * 10, ints(*(a for a, _ in bounds)), ints(*(b for _, b in bounds)), standing)


def told(one: Section) -> tuple[int, list[int], list[tuple[int, int]], int]:
    bounds = list(zip(one.at.tolist(), one.bound.tolist(), strict=True))
    assert one.time.tolist() == [10 * v for v in one.rows["v"].to_pylist()]
    return one.first, one.rows["v"].to_pylist(), bounds, one.standing


def test_what_a_section_says() -> None:
    one = some(4, 3, (4, 1), (7, 9), standing=0)
    assert (len(one), one.stop, one.final, one.ended) == (3, 7, 9, False)
    assert some(4, 3, standing=5).final == 5
    assert some(4, 0, (4, LAST_TIME)).ended
    assert one.nbytes >= 3 * 8 + 3 * 8 + 2 * 16


def test_boundaries_at_the_cut_go_with_what_follows() -> None:
    one = some(0, 4, (0, 1), (2, 3), (2, 5), (4, 7))
    assert told(one.until(2)) == (0, [0, 1], [(0, 1)], FIRST_TIME)
    assert told(one.since(2)) == (2, [2, 3], [(2, 3), (2, 5), (4, 7)], 1)
    assert told(one.until(4)) == (0, [0, 1, 2, 3], [(0, 1), (2, 3), (2, 5)], FIRST_TIME)
    assert told(one.since(4)) == (4, [], [(4, 7)], 5)
    assert one.since(0) is one
    assert one.until(5) is one


def test_there_is_nothing_beyond_the_ends() -> None:
    with pytest.raises(ValueError, match="behind 5"):
        some(0, 4).since(5)
    with pytest.raises(ValueError, match="before 2"):
        some(3, 4).until(2)


def test_known_boundaries_are_left_out() -> None:
    one = some(0, 2, (0, 1), (1, 3), (2, 5), standing=0)
    assert told(one.above(3)) == (0, [0, 1], [(2, 5)], 3)
    assert told(one.above(9)) == (0, [0, 1], [], 9)
    assert one.above(0) is one


def test_joined_keeps_boundaries_apart() -> None:
    parts = [some(0, 2, (2, 3)), some(2, 0, (2, 4), standing=3), some(2, 1, (2, 5), (3, 6), standing=4)]
    assert told(joined(parts)) == (0, [0, 1, 2], [(2, 3), (2, 4), (2, 5), (3, 6)], FIRST_TIME)
    assert joined(parts[:1]) is parts[0]
    assert told(joined([some(5, 0, (5, 1)), some(5, 0, (5, 2), standing=1)])) == (5, [], [(5, 1), (5, 2)], FIRST_TIME)


def test_sections_apart_cannot_be_joined() -> None:
    with pytest.raises(ValueError, match="do not follow"):
        joined([some(0, 2), some(3, 1)])


def test_rows_of_a_table() -> None:
    table = pa.table({"v": pa.chunked_array([[0], [1, 2], []], pa.int64())})
    assert told(section(0, table, ints(0, 10, 20), NOTHING, NOTHING)) == (0, [0, 1, 2], [], FIRST_TIME)
    assert told(section(7, table.slice(0, 0), NOTHING, ints(7), ints(1))) == (7, [], [(7, 1)], FIRST_TIME)


def test_boundaries_alone() -> None:
    assert told(boundary_only(3, SCHEMA, ints(4, 6), 2)) == (3, [], [(3, 4), (3, 6)], 2)
    assert empty_rows(SCHEMA).schema == SCHEMA


def test_time_travels_behind_the_columns() -> None:
    assert wire_schema(SCHEMA).names == ["v", "_time"]


# -- stability, undo


def tentative(first: int, n: int, *bounds: tuple[int, int], fork: str = "f", undo: bool = False) -> Section:
    return replace(some(first, n, *bounds), fork=fork, undo=undo)


@pytest.mark.parametrize("fork", ["", "f"])
@pytest.mark.parametrize("at", [10, 12, 14])
def test_a_cut_keeps_stability_and_leaves_the_undo_in_front(at: int, fork: str) -> None:
    one = tentative(10, 4, (11, 3), (12, 5), fork=fork, undo=True)
    early, late = one.until(at), one.since(at)
    assert [early.fork, late.fork] == [fork, fork]
    assert early.undo
    assert late.undo == (at == 10)
    whole = late if at == 10 else joined([early, late])
    assert told(whole) == told(one)
    assert (whole.fork, whole.undo) == (fork, True)


def test_only_what_is_alike_becomes_one() -> None:
    assert some(0, 2).is_continued_by(some(2, 1))
    for other in (
        some(3, 1),
        replace(some(2, 1), fork="f"),
        replace(some(2, 1), undo=True),
        replace(some(2, 1), done=True),
    ):
        assert not some(0, 2).is_continued_by(other)
        with pytest.raises(ValueError, match="do not follow"):
            joined([some(0, 2), other])


@pytest.mark.parametrize("one", [some(3, 2, (4, 9)), tentative(3, 6, (5, 1))])
def test_a_section_comes_back_from_its_batch(one: Section) -> None:
    batch = one.batch()
    assert batch.schema == wire_schema(SCHEMA)
    bounds = (one.at, one.bound, one.standing)
    for data, begin in ((batch, 0), (pa.concat_batches([batch, batch]).slice(len(one)), 0), (batch.slice(1), 1)):
        back = from_batch(data, SCHEMA, one.first, bounds)
        assert back.rows.equals(one.rows.slice(begin))
        assert back.time.tolist() == one.time[begin:].tolist()


def test_users_see_kinds_by_the_names_they_know() -> None:
    one = tentative(7, 4)
    kinds = pa.array([Kind.INSERTION, Kind.DELETION, Kind.UPDATE_BEFORE, Kind.UPDATE_AFTER], pa.int8())
    seen = replace(one, rows=one.rows.append_column(KIND, kinds)).with_header().to_pydict()
    assert seen["_kind"] == ["+I", "-D", "-U", "+U"]
    assert list(seen) == ["_id", "_time", "_kind", "_stable", "v"]
    assert seen["_stable"] == [False] * 4
    assert some(7, 2).with_header().to_pylist()[1] == {"_id": 8, "_time": 80, "_kind": "+I", "_stable": True, "v": 8}
