"""The diagrams of the matrix, each of three units in a row; the rows they are fed, and what must come of them.

Row n of an input has time n * 2 ms, so that to know how many rows were published is to know all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

START_US = 1_700_000_000_000_000
STEP_US = 2_000
KEYS = 5
WITHIN_ROWS = 5  # 10 ms
CUTS = ("second", "third")

Row = tuple[int, ...]
Counts = Mapping[str, int]  # rows published to each input

_INPUT = "{columns: 'ts TIMESTAMP, n BIGINT, k INT, v INT', time: ts}"
_OTHER = "{columns: 'ts TIMESTAMP, m BIGINT, g INT', time: ts}"
_FIRST = "first: {filter: {from: left, predicate: v <> 0}}"


def _key(n: int) -> int:
    return n % KEYS


def _value(n: int) -> int:
    return n % 7


def _passed(count: int) -> list[int]:
    """Rows of `left` that the first box lets through."""
    return [n for n in range(count) if _value(n) != 0]


def _chain(counts: Counts) -> list[Row]:
    return [(n, _value(n) + 1) for n in _passed(counts["left"]) if _value(n) != 3]


def _windows(count: int, size: int, slide: int) -> Counter[tuple[int, int]]:
    """Rows by key and end of window, both in rows."""
    found: Counter[tuple[int, int]] = Counter()
    for n in _passed(count):
        for end in range(n // slide * slide + slide, n + size + 1, slide):
            found[_key(n), end] += 1
    return found


def _aggregate(counts: Counts) -> list[Row]:
    found = _windows(counts["left"], 200, 100)
    return sorted(((k, START_US + end * STEP_US, n) for (k, end), n in found.items()), key=lambda row: row[1])


def _two(counts: Counts) -> list[Row]:
    totals: Counter[int] = Counter()
    for (_, end), n in _windows(counts["left"], 50, 50).items():
        totals[end // 200 * 200 + 200] += n  # a result of the first has the time of its window's end
    return [(START_US + (end - 200) * STEP_US, START_US + end * STEP_US, n) for end, n in sorted(totals.items())]


def _join(counts: Counts) -> list[Row]:
    found = []
    for n in _passed(counts["left"]):
        near = range(max(0, n - WITHIN_ROWS + 1), min(counts["right"], n + WITHIN_ROWS))
        found += [(n, m) for m in near if _key(n) == _right_key(m)]
    return found


def _union(counts: Counts) -> list[Row]:
    return [(n,) for n in _passed(counts["left"])] + [(-1 - m,) for m in range(counts["right"])]


def _right_key(m: int) -> int:
    return m * 3 % KEYS


@dataclass(frozen=True)
class Shape:
    """A diagram: the YAML of its boxes, and what it gives, told in plain Python."""

    inputs: tuple[str, ...]
    boxes: tuple[str, ...]
    truth: Callable[[Counts], list[Row]]
    order: int | None = None  # the column by which results come in order, if anything is known of it
    key: int | None = None  # columns before this one tell a result from others, the rest of it grows with its input
    arbitrary: bool = False  # its second unit merges streams as they arrive

    @property
    def windows(self) -> bool:
        """Whether a result may be smaller than it should be."""
        return self.key is not None


SHAPES = {
    "chain": Shape(
        ("left",),
        ("second: {map: {from: first, exprs: {n: n, w: v + 1}}}", "third: {filter: {from: second, predicate: w <> 4}}"),
        _chain,
        order=0,
    ),
    "aggregate": Shape(
        ("left",),
        (
            "second: {aggregate: {from: first, by: [k], size: 400 ms, slide: 200 ms, exprs: {n: count(*)}}}",
            "third: {map: {from: second, exprs: {k: k, e: unix_micros(window_end), n: n}}}",
        ),
        _aggregate,
        order=1,
        key=2,
    ),
    "join": Shape(
        ("left", "right"),
        (
            "second: {join: {from: [first, right], 'on': left.k = right.g, within: 10 ms}}",
            "third: {map: {from: second, exprs: {n: n, m: m}}}",
        ),
        _join,
        arbitrary=True,
    ),
    "union": Shape(
        ("left", "right"),
        (
            "second: {union: {from: [first, right]}}",
            "third: {map: {from: second, exprs: {n: n}}}",
        ),
        _union,
        arbitrary=True,
    ),
    "two": Shape(
        ("left",),
        (
            "second: {aggregate: {from: first, by: [k], size: 100 ms, exprs: {n: count(*)}}}",
            "third: {aggregate: {from: second, size: 400 ms, exprs: {n: sum(n)}}}",
        ),
        _two,
        order=1,
        key=2,
    ),
}


def text(shape: str, name: str, approach: str, guarantee: str) -> str:
    """The YAML file of a diagram."""
    one = SHAPES[shape]
    inputs = "".join(f"  {i}: {_OTHER if shape == 'join' and i == 'right' else _INPUT}\n" for i in one.inputs)
    boxes = "".join(f"  {box}\n" for box in (_FIRST, *one.boxes))
    protection = f"{{approach: {approach}, guarantee: {guarantee}, patience: 1 second}}"
    return (
        f"borealis: 1\nname: {name}\ninputs:\n{inputs}boxes:\n{boxes}outputs:\n  out: third\nprotection: {protection}\n"
    )


def rows(shape: str, name: str, first: int, stop: int) -> pa.RecordBatch:
    """Rows `first` to before `stop` of an input; in a union, those from the right have negative numbers."""
    n = np.arange(first, stop)
    times = pa.array(START_US + n * STEP_US).cast(pa.timestamp("us", "UTC"))
    if name == "right" and shape == "join":
        columns = {"m": n, "g": (n * 3 % KEYS).astype(np.int32)}
    else:
        columns = {"n": n if name == "left" else -1 - n} | {
            "k": (n % KEYS).astype(np.int32),
            "v": (n % 7).astype(np.int32),
        }
    return pa.record_batch({"ts": times} | {column: pa.array(values) for column, values in columns.items()})
