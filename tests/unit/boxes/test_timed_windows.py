"""Time windows with a timeout by example: closed early, opened again, and nothing lost."""

from __future__ import annotations

import pytest
from window_flows import CALLS, SCHEMA, Feed, sizes, told

from borealis.kernels import open_windows
from borealis.kernels.timed_windows import TimedWindows
from borealis.tuples import LAST_TIME


def kernel(size: int, slide: int | None = None, timeout: int = 10) -> TimedWindows:
    return TimedWindows(SCHEMA, ["k"], size, slide or size, timeout, CALLS)


@pytest.mark.parametrize("entries", [1, 2, 1 << 20])
def test_a_window_is_closed_by_its_timeout_and_opened_again(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_windows, "ENTRIES_MOST", entries)
    k, feed = kernel(100), Feed()
    out, _ = k.step(feed.train((20, "a", 1), (29, "a", 2), (30, "a", 4), (97, "a", 8), 29, 30, 98, LAST_TIME))
    assert told(out) == [
        (5, 29, "a", 0, 100, True, 2, 3, 2),
        (6, 39, "a", 0, 100, True, 1, 4, 4),
        (7, 99, "a", 0, 100, False, 1, 8, 8),  # its end comes before its timeout
    ]
    assert sizes(k) == {"groups": 0, "waiting": 0, "open": 0}


def test_a_timeout_at_the_end_is_no_timeout() -> None:
    out, _ = kernel(100, timeout=50).step(Feed().train((50, "a", 1), (49, "b", 1), LAST_TIME))
    assert told(out) == [(2, 98, "b", 0, 100, True, 1, 1, 1), (2, 99, "a", 0, 100, False, 1, 1, 1)]


def test_tuples_of_one_time_count_as_they_came() -> None:
    """As in windows without a timeout: what else the box computes changes no `last`."""
    k, feed = kernel(100), Feed()
    first = k.step(feed.train((20, "a", 7), (20, "a", 1), 20))[0]
    then = k.step(feed.train((20, "a", 4), (20, "a", 2), LAST_TIME))[0]
    assert told(first) + told(then) == [(5, 29, "a", 0, 100, True, 4, 14, 2)]


def test_windows_that_overlap_have_parts_of_their_own() -> None:
    k, feed = kernel(20, 10), Feed()
    out, _ = k.step(feed.train((8, "a", 1), (12, "a", 2), (19, "a", 4), LAST_TIME))
    assert [row[1:-1] for row in told(out)] == [
        (9, "a", -10, 10, False, 1, 1),
        (17, "a", 0, 20, True, 2, 3),
        (19, "a", 0, 20, False, 1, 4),
        (21, "a", 10, 30, True, 2, 6),
    ]


def test_parts_go_on_from_train_to_train() -> None:
    k, feed = kernel(100), Feed()
    assert told(k.step(feed.train((20, "a", 1), 21))[0]) == []
    assert sizes(k) == {"groups": 1, "waiting": 0, "open": 1}
    out, delta = k.step(feed.train((35, "a", 2), (29, "a", 4), 36))
    assert told(out) == [(4, 29, "a", 0, 100, True, 2, 5, 4)]
    assert delta["open"].put["opened"].to_pylist() == [35]
    assert delta["open"].cut is None  # the new part stands in place of the old one
    out, delta = k.step(feed.train(45))
    assert told(out) == [(5, 44, "a", 0, 100, True, 1, 2, 2)]
    assert delta["groups"].cut.to_pylist() == [{"group": 0}]


def test_a_result_never_lies_before_the_boundary_that_stands() -> None:
    k, feed = kernel(10, 5, timeout=3), Feed()
    for events in [((5, "a", 1), 5), (6,), (7,), (8,), ((9, "b", 1), (14, "b", 2), 14), (15,), (16,), (17,)]:
        flow = feed.train(*events)
        out, _ = k.step(flow)
        assert all(flow.bounds.standing <= time < flow.bounds.final for time in out.time.tolist())


def test_tuples_between_windows_are_not_even_kept() -> None:
    k, feed = kernel(2, 10), Feed()
    _, delta = k.step(feed.train((5, "a", 1), 3))
    assert delta == {}
    assert sizes(k) == {"groups": 0, "waiting": 0, "open": 0}
