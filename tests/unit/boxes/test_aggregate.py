"""The windows an aggregate can have: how they are drawn, written, refused, and what recovery they allow."""

from __future__ import annotations

from typing import Any

import pytest

from borealis.diagram import CountWindow, Diagram, Stream, Window, count_window, window
from borealis.diagram.boxes.aggregate import Aggregate
from borealis.diagram.cut import cut
from borealis.diagram.protection import Protection
from borealis.errors import DiagramError
from borealis.ha.classes import classify
from borealis.ha.guarantees import check_guarantee, recovery_of

SECOND = 1_000_000
OVER: list[tuple[Window | CountWindow, dict[str, Any], str]] = [
    (window("10 s"), {"size": "10 seconds", "slide": "10 seconds"}, "10 seconds"),
    (
        window("10 s", "1 s", timeout="2 s"),
        {"size": "10 seconds", "slide": "1 second", "timeout": "2 seconds"},
        "10 seconds every 1 second, timeout 2 seconds",
    ),
    (count_window(100), {"count": 100, "every": 100}, "100 tuples"),
    (count_window(100, 10), {"count": 100, "every": 10}, "100 tuples every 10"),
    (
        count_window(5, timeout="2 s"),
        {"count": 5, "every": 5, "timeout": "2 seconds"},
        "5 tuples, timeout 2 seconds",
    ),
]


def drawn(over: Window | CountWindow) -> tuple[Diagram, Stream, Aggregate]:
    d = Diagram("one")
    stream = d.input("s", "ts TIMESTAMP, k STRING, v DOUBLE").aggregate(by="k", over=over, n="count(*)", name="g")
    stream.output("out")
    box = d.validate().box("g")
    assert isinstance(box, Aggregate)
    return d, stream, box


def made(**fields: Any) -> Aggregate:
    return Aggregate(**({"name": "x", "sources": ("s",), "exprs": {"n": "count(*)"}} | fields))


@pytest.mark.parametrize(("over", "written", "said"), OVER, ids=[said for *_, said in OVER])
def test_a_window_is_drawn_written_and_read_back(
    over: Window | CountWindow, written: dict[str, Any], said: str
) -> None:
    d, stream, box = drawn(over)
    assert box.over == over
    assert box.plain() == {"aggregate": {"from": "s", "by": ["k"], **written, "exprs": {"n": "count(*)"}}}
    assert Diagram.from_yaml(d.to_yaml()).spec == d.spec
    assert box.describe() == f"aggregate by k over {said}: n = count(*)"
    flag = [] if over.timeout_us is None else ["timed_out"]
    assert stream.columns == ["k", "window_start", "window_end", *flag, "n"]


def test_in_yaml_numbers_are_numbers_and_every_may_be_left_out() -> None:
    text = """
borealis: 1
name: one
inputs: {s: {columns: ts TIMESTAMP}}
boxes: {g: {aggregate: {from: s, count: 100, timeout: 5 s, exprs: {n: count(*)}}}}
outputs: {out: g}
"""
    box = Diagram.from_yaml(text).spec.box("g")
    assert isinstance(box, Aggregate)
    assert box.over == CountWindow(100, 100, 5 * SECOND)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "box 'x': 'size' is missing. Hint: an aggregate needs a window"),
        ({"slide": "1 s"}, "box 'x': 'size' is missing"),
        ({"every": 3}, "box 'x': 'count' is missing"),
        ({"sise": "1 s"}, "box 'x': unknown key 'sise'. Hint: did you mean 'size'?"),
        ({"size": "1 s", "count": 3}, "box 'x': 'size' and 'count': a window cannot be both"),
        ({"size": "1 s", "every": 3}, "box 'x': 'size' and 'every': a window cannot be both"),
        ({"count": 0}, "box 'x': a count window's size cannot be 0 tuples"),
        ({"count": 3, "every": -1}, "box 'x': a count window's slide cannot be -1 tuples"),
        ({"count": 10**12}, "box 'x': a count window's size cannot be 1000000000000 tuples"),
        ({"count": "many"}, "box 'x': 'count': input should be a valid integer"),
        ({"count": 3, "timeout": "soon"}, "box 'x': 'soon' is not a duration"),
    ],
)
def test_a_window_that_cannot_be_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(DiagramError) as e:
        made(**fields)
    assert str(e.value).startswith(says)
    assert e.value.hint


def test_a_timeout_must_be_more_than_zero() -> None:
    with pytest.raises(DiagramError, match="'timeout' must be more than zero"):
        made(size="1 s", timeout="0 s").check_spans()
    for wrong in (lambda: window("1 s", timeout="0 s"), lambda: count_window(3, timeout="0 s")):
        with pytest.raises(DiagramError, match="timeout must be more than zero"):
            wrong()
    for size in ("10 seconds", 2.5, True):
        with pytest.raises(DiagramError, match="is a number of tuples, not"):
            count_window(size)  # type: ignore[arg-type]


def test_timed_out_is_taken_only_where_there_is_a_timeout() -> None:
    made(size="1 s", exprs={"timed_out": "count(*)"}).check([["ts"]])
    with pytest.raises(DiagramError, match="column 'timed_out' is the window's own"):
        made(size="1 s", timeout="1 s", exprs={"timed_out": "count(*)"}).check([["ts"]])


def test_boundaries_come_as_often_as_windows_may_close() -> None:
    for over, pace in [
        (count_window(5), SECOND),
        (count_window(5, timeout="200 ms"), SECOND // 5),
        (window("3 s", timeout="2 s"), 3 * SECOND // 2),
        (window("3 s", timeout="1 minute"), 3 * SECOND),
    ]:
        d, _, _ = drawn(over)
        assert d.spec.paces() == {"s": pace}


@pytest.mark.parametrize("over", [over for over, *_ in OVER])
def test_windows_of_time_can_be_built_again_and_counts_cannot(over: Window | CountWindow) -> None:
    d, _, _ = drawn(over)
    found = classify(d.spec, cut(d.spec, ())[0])
    counted = isinstance(over, CountWindow)
    assert found.kind == ("deterministic" if counted else "convergent-capable")
    assert found.retention == {"s": None if counted else 10 * SECOND}
    assert ("counted from the first tuple" if counted else "aligned to the clock") in found.why["g"][1]
    for approach in ("passive", "active"):
        asked = Protection(ha=approach, guarantee="precise")
        check_guarantee(asked, found)
        assert recovery_of(asked, found).kind == "precise"
    for guarantee, reason in (
        ("precise", "'g' cannot be built again exactly"),
        ("no-loss", "all that ever came from s"),
    ):
        asked = Protection(ha="upstream-backup", guarantee=guarantee)
        if counted:
            with pytest.raises(DiagramError, match=reason):
                check_guarantee(asked, found)
        else:
            check_guarantee(asked, found)
