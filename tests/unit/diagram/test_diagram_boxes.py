"""Each box says what comes out of it, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from borealis import compile as compiling
from borealis.diagram import boxes as folder
from borealis.diagram.boxes import BOXES
from borealis.diagram.boxes.aggregate import Aggregate
from borealis.diagram.boxes.base import CLASSES, Box
from borealis.diagram.boxes.filter import Filter
from borealis.diagram.boxes.join import Join
from borealis.diagram.boxes.map import Map
from borealis.diagram.boxes.union import Union
from borealis.errors import DiagramError

AB = ["a", "b"]


def aggregate(**fields: Any) -> Aggregate:
    return Aggregate(**({"name": "x", "sources": ("s",), "size": "10 seconds", "exprs": {"n": "count(*)"}} | fields))


def join(on: str = "left.a = right.a", within: str = "10 ms") -> Join:
    return Join(name="x", sources=("s", "t"), on=on, within=within)


def test_every_file_is_a_box() -> None:
    files = {path.stem for path in Path(folder.__file__).parent.glob("*.py")} - {"__init__", "base"}
    assert set(BOXES) == files
    assert {path.stem for path in (Path(compiling.__file__).parent / "boxes").glob("*.py")} - {"__init__"} == files


def test_classes_are_hwangs() -> None:
    boxes: list[Box] = [
        Filter(name="x", sources=("s",), predicate="a"),
        Map(name="x", sources=("s",), exprs={"a": "a"}),
        join(),
        aggregate(),
        Union(name="x", sources=("s", "t")),
    ]
    assert [box.operator_class for box in boxes] == [CLASSES[i] for i in (0, 0, 0, 1, 3)]
    assert all("\n" not in box.describe() for box in boxes)


def test_aggregate() -> None:
    box = aggregate(by="a", slide="4 s", exprs={"n": "count(*)", "m": "sum(b) / COUNT(*)", "o": "max(b)"})
    assert (box.by, box.size, box.slide, box.size_us, box.slide_us) == (
        ("a",),
        "10 seconds",
        "4 seconds",
        10_000_000,
        4_000_000,
    )
    assert [call.text for call in box.calls] == ["count(*)", "sum(b)", "max(b)"]
    assert box.finals == {"n": "__a0", "m": "__a1 / __a0", "o": "__a2"}
    assert box.columns([AB]) == ["a", "window_start", "window_end", "n", "m", "o"]
    assert aggregate().slide == "10 seconds"
    box.check([AB])


def test_join_names_both_sides() -> None:
    box = join("left.a = right.a AND left.b > right.c")
    assert (box.keys, box.residual, box.within_us) == ([("left.a", "right.a")], "left.b > right.c", 10_000)
    assert box.output_names(AB, ["A", "c"]) == [
        ("left", "a", "a"),
        ("left", "b", "b"),
        ("right", "A", "A_right"),
        ("right", "c", "c"),
    ]


WRONG: list[tuple[Box, list[list[str]], str]] = [
    (Filter(name="x", sources=("s",), predicate=" "), [AB], "box 'x': the predicate is empty. Hint: give a condition"),
    (Filter(name="x", sources=("s",), predicate="a ("), [AB], "box 'x': a ')' is missing in 'a ('"),
    (Filter(name="x", sources=("s", "t"), predicate="a"), [AB, AB], "box 'x': a filter takes 1 input, not 2"),
    (Map(name="x", sources=("s",), exprs={}), [AB], "box 'x': a map without columns"),
    (Map(name="x", sources=("s",), exprs={"_cause": "a"}), [AB], "box 'x': column name '_cause' is reserved"),
    (
        Map(name="x", sources=("s",), exprs={"a": "a", "A": "b"}),
        [AB],
        "box 'x': columns 'a' and 'A' differ only in case",
    ),
    (Map(name="x", sources=("s",), exprs={"a": "-- nothing"}), [AB], "box 'x': the expression of 'a' is empty"),
    (Union(name="x", sources=("s",)), [AB], "box 'x': a union takes at least 2 inputs, not 1"),
    (
        Union(name="x", sources=("s", "t")),
        [AB, ["b", "a"]],
        "box 'x': 't' has the same columns in another order (b, a)",
    ),
    (Union(name="x", sources=("s", "t")), [AB, ["a"]], "box 'x': 't' has other columns (a) than 's' (a, b)"),
    (aggregate(by=("c",)), [["ts", "cc"]], "box 'x': no column 'c' (has: ts, cc). Hint: did you mean 'cc'?"),
    (aggregate(by=("A",)), [AB], "box 'x': no column 'A' (has: a, b). Hint: did you mean 'a'?"),
    (aggregate(by=("a", "a")), [AB], "box 'x': column 'a' appears twice"),
    (aggregate(by=("window_end",)), [["window_end"]], "box 'x': column 'window_end' is the window's own"),
    (aggregate(exprs={"Window_Start": "count(*)"}), [AB], "box 'x': column 'Window_Start' is the window's own"),
    (aggregate(by=("a",), exprs={"A": "sum(b)"}), [AB], "box 'x': 'A' is both a group column and an aggregate"),
    (aggregate(exprs={}), [AB], "box 'x': an aggregate without expressions"),
    (aggregate(exprs={"__n": "sum(b)"}), [AB], "box 'x': column name '__n' is reserved"),
    (aggregate(exprs={"n": "b"}), [AB], "box 'x': 'n': no aggregate in 'b'"),
    (join("left.a = right.bb"), [AB, AB], "box 'x': right side: no column 'bb' (has: a, b). Hint: did you mean 'b'?"),
    (join(" "), [AB, AB], "box 'x': the condition is empty"),
    (join(), [["a", "a_right"], ["a"]], "box 'x': two output columns would be called 'a_right'"),
    (join(), [["a"], ["a", "a_right"]], "box 'x': two output columns would be called 'a_right'"),
]


@pytest.mark.parametrize(("box", "inputs", "start"), WRONG, ids=[start for _, _, start in WRONG])
def test_check_refuses(box: Box, inputs: list[list[str]], start: str) -> None:
    with pytest.raises(DiagramError) as e:
        box.check(inputs)
    assert str(e.value).startswith(start)
    assert e.value.hint


def test_boxes_are_frozen_and_tell_their_own_mistakes() -> None:
    with pytest.raises(Exception, match="frozen"):
        join().on = "true"
    with pytest.raises(DiagramError, match="box 'x': 'soon' is not a duration"):
        join(within="soon")
    with pytest.raises(DiagramError, match=r"box 'x': 'exprs\.n' must be text, not 1"):
        aggregate(exprs={"n": 1})
