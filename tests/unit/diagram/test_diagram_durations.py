"""Durations read as written, and say back what they read."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis.diagram import Diagram
from borealis.diagram.durations import LONGEST_US, UNITS, Window, parse, show, window
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
        ("1m", 60_000_000),
        ("1 hr", 3_600_000_000),
        (timedelta(days=1, microseconds=7), 86_400_000_007),
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
def test_parse(text: str | timedelta, us: int) -> None:
    assert parse(text) == us


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (10, "10 is not a duration. Hint: write its unit, too, as in '10 seconds', or give a timedelta"),
        (None, "None is not a duration. Hint: write its unit, too, as in '10 seconds', or give a timedelta"),
        (timedelta(-1), "'-86400000000 microseconds' is a negative duration. Hint: durations are zero or more"),
        ("1 x", f"'1 x': no unit of time 'x'. Hint: units are {UNITS}"),
        ("", "'' is not a duration. Hint: write a number and a unit, such as '10 seconds', or give a timedelta"),
        ("10", "'10' is not a duration. Hint: write a number and a unit, such as '10 seconds', or give a timedelta"),
        ("10 secnds", "'10 secnds': no unit of time 'secnds'. Hint: did you mean 'seconds'?"),
        ("-1 second", "'-1 second' is a negative duration. Hint: durations are zero or more"),
        ("0.5 us", "'0.5 us' is finer than a microsecond. Hint: times are counted in whole microseconds"),
        ("999999999999 days", "'999999999999 days' is too long. Hint: durations go up to ten thousand years"),
    ],
)
def test_parse_refuses(text: object, message: str) -> None:
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


def test_a_timedelta_is_a_duration_wherever_there_is_one() -> None:
    d = Diagram("spans")
    s = d.input("s", "ts TIMESTAMP, n INT", slack=timedelta(seconds=2), idle="1m")
    s.aggregate(over=timedelta(minutes=1), n="count(*)").output("per_minute")
    s.join(s, on="left.n = right.n", within=timedelta(seconds=5)).output("pairs")
    assert (d.spec.inputs[0].slack, d.spec.inputs[0].idle) == ("2 seconds", "1 minute")
    assert Diagram.from_yaml(d.to_yaml()).spec == d.spec
    with pytest.raises(DiagramError, match=r"input 'x': 5 is not a duration. Hint: write its unit, too, as in '5 sec"):
        d.input("x", "ts TIMESTAMP", slack=5)  # type: ignore[arg-type]
    with pytest.raises(DiagramError, match="10 is not a duration"):
        window(10)  # type: ignore[arg-type]
