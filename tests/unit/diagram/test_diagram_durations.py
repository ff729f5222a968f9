"""Durations read as written, and say back what they read."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis.diagram.durations import LONGEST_US, Window, parse, show, window
from borealis.errors import DiagramError


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("10 seconds", 10_000_000),
        ("1 second", 1_000_000),
        ("250 ms", 250_000),
        ("250ms", 250_000),
        ("1.5 s", 1_500_000),
        ("2 minutes", 120_000_000),
        ("5 min", 300_000_000),
        ("1 hour", 3_600_000_000),
        ("3 days", 259_200_000_000),
        ("500 us", 500),
        ("500 µs", 500),
        ("500 microseconds", 500),
        ("  7  Seconds ", 7_000_000),
        ("0 seconds", 0),
    ],
)
def test_parse(text: str, us: int) -> None:
    assert parse(text) == us


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a duration. Hint: write a number and a unit, such as '10 seconds'"),
        ("10", "'10' is not a duration. Hint: write a number and a unit, such as '10 seconds'"),
        ("10 secnds", "'10 secnds': no unit of time 'secnds'. Hint: did you mean 'seconds'?"),
        ("-1 second", "'-1 second' is a negative duration. Hint: durations are zero or more"),
        ("0.5 us", "'0.5 us' is finer than a microsecond. Hint: times are counted in whole microseconds"),
        ("999999999999 days", "'999999999999 days' is too long. Hint: durations go up to ten thousand years"),
    ],
)
def test_parse_refuses(text: str, message: str) -> None:
    with pytest.raises(DiagramError) as e:
        parse(text)
    assert str(e.value) == message


@given(st.integers(0, LONGEST_US))
def test_show_is_the_inverse_of_parse(us: int) -> None:
    assert parse(show(us)) == us


@given(st.text())
def test_parse_raises_nothing_else(text: str) -> None:
    with suppress(DiagramError):
        assert parse(text) >= 0


def test_window() -> None:
    assert window("10 seconds") == Window(10_000_000, 10_000_000)
    assert window("10 seconds", "1 second") == Window(10_000_000, 1_000_000)
    for size, slide in (("0 seconds", None), ("1 second", "0 seconds"), ("1 second", "-1 second")):
        with pytest.raises(DiagramError):
            window(size, slide)
