"""Lengths of time as people write them ("10 seconds", "250 ms"), and as the engine counts them: microseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from functools import lru_cache
from typing import Annotated

from pydantic import BeforeValidator

from borealis.errors import DiagramError, brief, did_you_mean

UNITS_US = {
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
SHORT = {"d": "day", "h": "hour", "hr": "hour", "m": "minute", "min": "minute", "s": "second", "sec": "second"}
SHORT |= {"ms": "millisecond", "milli": "millisecond", "micro": "microsecond"}
SHORT |= {"us": "microsecond", "µs": "microsecond", "μs": "microsecond"}  # micro sign and Greek mu

UNITS = "days (d), hours (h), minutes (m, min), seconds (s), milliseconds (ms), microseconds (us)"
ALSO = "give a timedelta"

LONGEST_US = 10_000 * 365 * UNITS_US["day"]  # ten thousand years: times plus durations stay far inside int64
MOST_TUPLES = 1_000_000_000  # of a count window: numbers of tuples and of windows stay far inside int64

_DURATION = re.compile(r"\s*(-?)([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([^\W\d_]+)\s*")


def parse(text: object) -> int:
    """The microseconds in a duration: a text or a timedelta. Zero is a duration, less is not.

    >>> parse("1.5 s"), parse("2m"), parse(timedelta(milliseconds=250))
    (1500000, 120000000, 250000)
    """
    if isinstance(text, timedelta):
        text = f"{(text.days * 86_400 + text.seconds) * 1_000_000 + text.microseconds} microseconds"
    if not isinstance(text, str):
        example = f"'{text} seconds'" if isinstance(text, int | float) else "'10 seconds'"
        raise DiagramError(f"{brief(text)} is not a duration", hint=f"write its unit, too, as in {example}, or {ALSO}")
    return _parsed(text)


@lru_cache(1024)
def _parsed(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if not match:
        raise DiagramError(
            f"'{text}' is not a duration", hint=f"write a number and a unit, such as '10 seconds', or {ALSO}"
        )
    sign, number, word = match.groups()
    unit = word.lower()
    unit = SHORT.get(unit) or SHORT.get(unit.removesuffix("s")) or unit.removesuffix("s")
    if unit not in UNITS_US:
        near = did_you_mean(word.lower(), [f"{name}s" for name in UNITS_US])
        raise DiagramError(f"'{text}': no unit of time '{word}'", hint=near or f"units are {UNITS}")
    if sign:
        raise DiagramError(f"'{text}' is a negative duration", hint="durations are zero or more")
    exact = Fraction(number) * UNITS_US[unit]
    if exact.denominator != 1:
        raise DiagramError(f"'{text}' is finer than a microsecond", hint="times are counted in whole microseconds")
    if exact > LONGEST_US:
        raise DiagramError(f"'{text}' is too long", hint="durations go up to ten thousand years")
    return int(exact)


def show(us: int) -> str:
    """The text of a duration, in the largest unit that needs no fraction.

    >>> show(10_000_000), show(250_000), show(0)
    ('10 seconds', '250 milliseconds', '0 seconds')
    """
    if us == 0:
        return "0 seconds"
    unit = next(name for name, length in UNITS_US.items() if us % length == 0)
    count = us // UNITS_US[unit]
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def about(us: int) -> str:
    """A duration that was measured, as people read it: rounded, where no unit fits it.

    >>> about(10_000_000), about(22_972_620), about(1_500), about(5_430_000_000), about(90_061_000_000)
    ('10 seconds', '22.97 seconds', '1.5 milliseconds', '1.51 hours', '1.04 days')
    """
    unit = next((name for name, length in UNITS_US.items() if us >= length), "second")
    if us % UNITS_US[unit] == 0:
        return show(us)
    return f"{us / UNITS_US[unit]:.2f}".rstrip("0").rstrip(".") + f" {unit}s"


def _canonical(text: str | timedelta) -> str:
    return show(parse(text))


Duration = Annotated[str, BeforeValidator(_canonical)]  # a field of a model: kept in the words of `show`


@dataclass(frozen=True)
class Window:
    """A span of time that slides: `[start, start + size)`, starts being the multiples of the slide."""

    size_us: int
    slide_us: int
    timeout_us: int | None = None

    def __post_init__(self) -> None:
        for what, us in (("size", self.size_us), ("slide", self.slide_us), ("timeout", self.timeout_us)):
            _check_span(what, us)


def window(
    size: str | timedelta, slide: str | timedelta | None = None, *, timeout: str | timedelta | None = None
) -> Window:
    """A sliding window, or a tumbling one when the slide is left out; each a text such as "10 seconds", or a timedelta.

    With a timeout a window is closed so long after its first tuple at the latest; tuples after that open it again.

    >>> window("10 seconds", "1 second")
    Window(size_us=10000000, slide_us=1000000, timeout_us=None)
    """
    size_us = parse(size)
    return Window(size_us, size_us if slide is None else parse(slide), None if timeout is None else parse(timeout))


@dataclass(frozen=True)
class CountWindow:
    """So many tuples of a group, in order of time; the next window begins `slide` tuples after this one."""

    size: int
    slide: int
    timeout_us: int | None = None

    def __post_init__(self) -> None:
        _check_tuples("size", self.size)
        _check_tuples("slide", self.slide)
        _check_span("timeout", self.timeout_us)


def _check_span(what: str, us: int | None) -> None:
    if us is not None and us <= 0:
        raise DiagramError(f"a window's {what} must be more than zero", hint=f"give a {what} such as '1 second'")


def _check_tuples(what: str, n: object) -> None:
    if isinstance(n, bool) or not isinstance(n, int):
        hint = "for a span of time say window(...)"
        raise DiagramError(f"a count window's {what} is a number of tuples, not {brief(n)}", hint=hint)
    if not 0 < n <= MOST_TUPLES:
        hint = f"give a {what} such as 100, at most {MOST_TUPLES}"
        raise DiagramError(f"a count window's {what} cannot be {n} tuples", hint=hint)


def count_window(size: int, slide: int | None = None, *, timeout: str | timedelta | None = None) -> CountWindow:
    """A window of `size` tuples that slides by `slide` of them, or tumbles when the slide is left out.

    Without a timeout a window waits for its last tuple, for ever if none comes.

    >>> count_window(100, 10)
    CountWindow(size=100, slide=10, timeout_us=None)
    """
    return CountWindow(size, size if slide is None else slide, None if timeout is None else parse(timeout))
