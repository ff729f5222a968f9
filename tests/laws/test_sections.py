"""Laws of sections: however a section is cut and joined, no tuple and no boundary is lost, moved or repeated."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from harness import examples
from hypothesis import given
from hypothesis import strategies as st
from streams import SCHEMA, Boundary, events, events_of, section_of, since, standing_at

from borealis.streams.section import Section, joined, section
from borealis.tuples import FIRST_TIME

SHAPES = st.lists(st.integers(0, 3), max_size=12)
STANDINGS = st.sampled_from([FIRST_TIME, 0, 50])
FIRSTS = st.sampled_from([0, 5, 2**40])


@examples(200)
@given(SHAPES, FIRSTS, STANDINGS, st.lists(st.integers(0, 12), max_size=4))
def test_cut_anywhere_and_joined_is_the_same(shape: list[int], first: int, standing: int, cuts: list[int]) -> None:
    whole = events(shape, first, standing)
    rest = section_of(whole, first, standing)
    parts: list[Section] = []
    for cut in sorted(first + min(c, len(rest)) for c in cuts):
        parts.append(rest.until(cut))
        rest = rest.since(cut)
        assert (rest.first, rest.standing) == (parts[-1].stop, parts[-1].final) == (cut, rest.standing)
    again = joined([*parts, rest])
    assert events_of(again) == whole
    assert (again.first, again.standing) == (first, standing)


@examples(200)
@given(SHAPES, FIRSTS, STANDINGS, st.integers(0, 12))
def test_each_half_of_a_cut_stands_alone(shape: list[int], first: int, standing: int, at: int) -> None:
    whole = events(shape, first, standing)
    one = section_of(whole, first, standing)
    cut = first + min(at, len(one))
    early, late = one.until(cut), one.since(cut)
    assert events_of(early) == whole[: len(whole) - len(since(whole, cut))]
    assert early.final == late.standing
    assert events_of(late) == since(whole, cut)
    assert late.standing == max(standing, standing_at(whole, cut))
    assert late.final == one.final


@examples(200)
@given(SHAPES, FIRSTS, STANDINGS, st.integers(-1, 100))
def test_above_leaves_out_what_is_known(shape: list[int], first: int, standing: int, known: int) -> None:
    whole = events(shape, first, standing)
    told = section_of(whole, first, standing).above(known)
    assert events_of(told) == [e for e in whole if not (isinstance(e, Boundary) and e.time <= known)]
    assert told.standing == max(standing, known)


@examples(100)
@given(st.lists(st.integers(1, 3), max_size=12), st.lists(st.integers(0, 12), max_size=3))
def test_rows_in_any_number_of_chunks(shape: list[int], cuts: list[int]) -> None:
    whole = section_of(events(shape), 0, FIRST_TIME)
    edges = [0, *sorted(min(c, len(whole)) for c in cuts), len(whole)]
    chunks = [whole.rows.slice(a, b - a) for a, b in pairwise(edges)]
    table = pa.Table.from_batches(chunks, schema=SCHEMA)
    again = section(0, table, whole.time, whole.at, whole.bound)
    assert events_of(again) == events_of(whole)
