"""Count windows by example: tuples of a group in order of time, so many at a time."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from window_flows import CALLS, SCHEMA, Feed, sizes, told

from borealis.kernels import open_windows
from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.count_windows import CountWindows
from borealis.tuples import LAST_TIME


def kernel(size: int, slide: int | None = None, timeout: int | None = None) -> CountWindows:
    return CountWindows(SCHEMA, ["k"], size, slide or size, timeout, CALLS, ["v"])


def test_a_window_closes_when_the_boundary_has_passed_its_last_tuple() -> None:
    k, feed = kernel(2), Feed()
    out, _ = k.step(feed.train((10, "a", 1), (12, "a", 2), (11, "b", 3), 12))
    assert told(out) == []  # another tuple could still have the time 12, and come before it
    out, _ = k.step(feed.train(13))
    assert told(out) == [(4, 12, "a", 10, 12, 2, 3, 2)]
    out, _ = k.step(feed.train((20, "b", 4), (14, "b", 5), 30))
    assert told(out) == [(7, 14, "b", 11, 14, 2, 8, 5)]
    out, _ = k.step(feed.train(LAST_TIME))
    assert told(out) == []  # 20 is alone, and the stream has ended


def test_the_order_is_that_of_time_and_then_of_values_not_of_arrival() -> None:
    rows = [(5, "a", v) for v in (7, None, 3, 3)] + [(4, "a", 9)]
    seen = set()
    for seed in range(20):
        k, feed = kernel(2), Feed()
        out, _ = k.step(feed.train(*Random(seed).sample(rows, len(rows)), 6))
        seen.add(tuple(row[1:] for row in told(out)))
    assert seen == {((5, "a", 4, 5, 2, 9, None), (5, "a", 5, 5, 2, 6, 3))}


@pytest.mark.parametrize("entries", [1, 3, 1 << 20])
def test_windows_slide_overlap_and_leave_gaps(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_windows, "ENTRIES_MOST", entries)
    rows = [(t, "a", t) for t in range(8)]
    out, _ = kernel(3, 1).step(Feed().train(*rows, 99))
    assert [row[3:6] for row in told(out)] == [(t, t + 2, 3) for t in range(6)]
    assert [row[6] for row in told(out)] == [t + t + 1 + t + 2 for t in range(6)]
    out, _ = kernel(3, 2).step(Feed().train(*rows, 99))
    assert [row[3:5] for row in told(out)] == [(0, 2), (2, 4), (4, 6)]
    out, _ = kernel(2, 5).step(Feed().train(*rows, 99))
    assert [row[3:5] for row in told(out)] == [(0, 1), (5, 6)]


def test_results_of_one_time_are_in_the_order_of_their_groups() -> None:
    out, _ = kernel(1).step(Feed().train((5, "b", 1), (5, "a", 1), (4, "c", 1), (5, None, 1), 6, (7, "a", 1), 8))
    assert [(row[0], row[1], row[2]) for row in told(out)] == [
        (4, 4, "c"),
        (4, 5, None),
        (4, 5, "a"),
        (4, 5, "b"),
        (6, 7, "a"),
    ]


def test_a_timeout_closes_a_window_with_what_it_has() -> None:
    k, feed = kernel(3, timeout=10), Feed()
    out, _ = k.step(feed.train((5, "a", 1), (14, "a", 2), (15, "a", 4), 14))
    assert told(out) == []
    out, _ = k.step(feed.train(15))
    assert told(out) == [(4, 14, "a", 5, 15, True, 2, 3, 2)]  # the tuple at 15 was not in time
    # it has the number 2 nevertheless: the next window begins with number 3
    out, _ = k.step(feed.train((30, "a", 8), (31, "a", 16), (31, "a", 32), 32))
    assert told(out) == [(8, 31, "a", 30, 31, False, 3, 56, 32)]


def test_a_window_that_fills_in_time_does_not_time_out() -> None:
    k, feed = kernel(2, timeout=10), Feed()
    out, _ = k.step(feed.train((0, "a", 1), (9, "a", 2), (20, "b", 1), (30, "b", 2), LAST_TIME))
    assert told(out) == [(4, 9, "a", 0, 9, False, 2, 3, 2), (4, 29, "b", 20, 30, True, 1, 1, 1)]


def test_windows_that_overlap_time_out_one_by_one() -> None:
    k, feed = kernel(3, 1, timeout=10), Feed()
    out, _ = k.step(feed.train((0, "a", 1), (8, "a", 2), (12, "a", 4), (13, "a", 8), 14, 18, 99))
    assert told(out) == [
        (4, 9, "a", 0, 10, True, 2, 3, 2),
        (4, 13, "a", 8, 13, False, 3, 14, 8),
        (6, 21, "a", 12, 22, True, 2, 12, 8),
        (6, 22, "a", 13, 23, True, 1, 8, 8),
    ]


def test_a_result_never_lies_before_the_boundary_that_stands() -> None:
    k, feed = kernel(2, timeout=3), Feed()
    for events in [((5, "a", 1), 5), (6,), (7,), (8,), ((8, "b", 1), (8, "b", 2), 9)]:
        flow = feed.train(*events)
        out, _ = k.step(flow)
        assert all(flow.bounds.standing <= time < flow.bounds.final for time in out.time.tolist())


def test_what_is_kept_is_rows_that_wait_open_windows_and_one_count_for_each_group() -> None:
    k, feed = kernel(3), Feed()
    _, delta = k.step(feed.train((1, "a", 1), (2, "a", 2), (9, "b", 3), 5))
    assert sizes(k) == {"groups": 2, "waiting": 1, "open": 1, "counts": 1}
    assert {name: change.put.num_rows for name, change in delta.items()} == sizes(k)
    _, delta = k.step(feed.train(6))
    assert delta == {}
    _, delta = k.step(feed.train((7, "a", 3), 8))
    assert sizes(k) == {"groups": 2, "waiting": 1, "open": 0, "counts": 1}
    assert delta["open"].cut.to_pylist() == [{"group": 0, "window": 0}]
    assert "waiting" not in delta  # it came and was counted within one train
    assert delta["counts"].put.to_pylist() == [{"group": 0, "count": 3}]
    k.step(feed.train(LAST_TIME))
    assert sizes(k) == {"groups": 2, "waiting": 0, "open": 1, "counts": 2}


def test_without_a_key_and_without_arguments() -> None:
    k = CountWindows(SCHEMA, [], 3, 3, None, [Call("count", None, pa.int64())], [])
    out, _ = k.step(Feed().train((3, "a", 1), (1, "b", 2), (2, None, None), (4, "a", 1), 9))
    assert told(out) == [(4, 3, 1, 3, 3)]
    assert "x0" not in k.tables_now()["waiting"].column_names
