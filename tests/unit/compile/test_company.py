"""Which trains can wait for company: of a program's boxes, and of windows' ends."""

from __future__ import annotations

from typing import Any

import pytest

from borealis.compile.company import gives_nothing
from borealis.kernels.program import Level, Port, Program
from borealis.kernels.step import Step


def program(
    *steps: tuple[str, str, tuple[str, ...]], leave: tuple[str, ...], levels: int = 1, **windows: Any
) -> Program:
    """Steps as (op, out, sources); windows by the flow that has them."""
    inputs = {s: "" for _, _, sources in steps for s in sources if s[0] == "i"}
    made = tuple(
        Step(op, out, sources, out, False, "", dict(zip(("size", "slide"), windows.get(out, ()), strict=False)))
        for op, out, sources in steps
    )
    level = Level([], made, [Port(n, flow) for n, flow in enumerate(leave)])
    return Program(1, False, inputs, (), (level,) * levels)


FILTERED = ("filter", "f", ("i",))


def test_windows_end_where_their_slide_says() -> None:
    asked = gives_nothing(program(FILTERED, ("aggregate", "a", ("f",)), leave=("a",), a=(100, 25)))
    assert asked is not None
    assert asked({"i": 100}, {"i": 124})
    assert asked({"i": 101}, {"i": 101})
    assert not asked({"i": 124}, {"i": 125})
    assert not asked({"i": -(2**63)}, {"i": 3})
    assert not asked({"i": 124}, {"i": 2**63 - 1})


def test_the_input_that_is_furthest_back_decides() -> None:
    both = program(("union", "u", ("i", "i2")), ("aggregate", "a", ("u",)), leave=("a",), a=(100, 100))
    asked = gives_nothing(both)
    assert asked is not None
    assert asked({"i": 150, "i2": 120}, {"i": 450, "i2": 199})
    assert not asked({"i": 450, "i2": 199}, {"i": 450, "i2": 200})


def test_every_aggregate_has_its_say() -> None:
    two = program(("aggregate", "a", ("i",)), ("aggregate", "b", ("a",)), leave=("b", "a"), a=(100, 100), b=(200, 30))
    asked = gives_nothing(two)
    assert asked is not None
    assert not asked({"i": 219}, {"i": 231})


@pytest.mark.parametrize(
    "made",
    [
        program(FILTERED, leave=("f",)),
        program(FILTERED, ("aggregate", "a", ("f",)), leave=("a", "f"), a=(100, 100)),
        program(("aggregate", "a", ("i",)), ("union", "u", ("a", "i")), leave=("u",), a=(100, 100)),
        program(("aggregate", "a", ("i",)), ("bsort", "b", ("a",)), leave=("b",), a=(100, 100)),
        program(("aggregate", "a", ("i",)), leave=("a",), levels=2, a=(100, 100)),
    ],
    ids=["nothing but a filter", "what is filtered goes out, too", "beside the windows", "another box", "two levels"],
)
def test_of_other_programs_something_may_always_come(made: Program) -> None:
    assert gives_nothing(made) is None


def test_late_tuples_are_asked_about_elsewhere() -> None:
    made = program(("aggregate", "a", ("i",)), ("map", "m", ("i.late",)), leave=("a", "m"), a=(100, 100))
    asked = gives_nothing(made)
    assert asked is not None
    assert asked({"i": 101}, {"i": 150})
