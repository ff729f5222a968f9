"""The diagrams of the matrix of failures, the rows they are fed, and what must come of them, in plain Python.

Two diagrams hold the five shapes, each in three units in a row: to start a unit takes seconds, so shapes share them.

    single:  left | filter | map (chain), aggregate | aggregate (two)       each unit reads one stream
    merging: left | filter | union with right, join with other | map        the second merges streams as they arrive

Row n of an input has time n * 2 ms, so that to know how many rows were published is to know all of them.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.kernels.xxhash import xxhash64
from borealis.sim.history import Counts, Row, Shape
from borealis.tuples import KIND, Kind

START_US = 1_700_000_000_000_000
STEP_US = 2_000
KEYS = 5
NAMES = {0: 100, 1: 101, 3: 103}  # what a database knows of keys
ZERO_EVERY = 7  # rows of `left` that the filter takes out
WITHIN_ROWS = 5  # 10 ms
SIZE_ROWS, SLIDE_ROWS = 200, 100  # 400 ms every 200 ms

WRITE = "INSERT INTO seen (n) VALUES (:n)"
READ = "SELECT m FROM names WHERE k = :k"

ROWS = "{columns: 'ts TIMESTAMP, n BIGINT, k INT', time: ts}"
OTHERS = "{columns: 'ts TIMESTAMP, m BIGINT, g INT', time: ts}"
FIXED = "{columns: 'ts TIMESTAMP, n BIGINT, k INT', time: ts, key: [n], history: 120 ms, late: revise}"
TARDY = "{columns: 'ts TIMESTAMP, n BIGINT, k INT', time: ts, history: 120 ms, late: revise}"
FIXED_ROWS = 90  # so far back corrections reach: some of them beyond the history
LATE_EVERY, LATE_ROWS = 29, 45  # rows that come late, and by how much
FIRST = "first: {filter: {from: left, predicate: n % 7 <> 0}}"


def _passed(count: int) -> list[int]:
    """Rows of `left` that the filter lets through."""
    return [n for n in range(count) if n % ZERO_EVERY != 0]


def _chain(counts: Counts) -> list[Row]:
    return [(n, n % KEYS) for n in _passed(counts["left"])]


def _windows(count: int) -> Counter[tuple[int, int]]:
    """Rows by end of window, in rows, and key."""
    found: Counter[tuple[int, int]] = Counter()
    for n in _passed(count):
        for end in range(n // SLIDE_ROWS * SLIDE_ROWS + SLIDE_ROWS, n + SIZE_ROWS + 1, SLIDE_ROWS):
            found[end, n % KEYS] += 1
    return found


def _window(end: int) -> tuple[int, int]:
    return START_US + (end - SIZE_ROWS) * STEP_US, START_US + end * STEP_US


def _aggregate(counts: Counts) -> list[Row]:
    return [(k, *_window(end), n) for (end, k), n in sorted(_windows(counts["left"]).items())]


def _two(counts: Counts) -> list[Row]:
    totals: Counter[int] = Counter()
    for (end, _), n in _windows(counts["left"]).items():
        totals[-(-end // SIZE_ROWS) * SIZE_ROWS] += n  # the time of a result is the last instant of its window
    return [(*_window(end), n) for end, n in sorted(totals.items())]


def _union(counts: Counts) -> list[Row]:
    left = [(n, n % KEYS) for n in _passed(counts["left"])]
    return left + [(-1 - n, n % KEYS) for n in range(counts["right"])]


def _join(counts: Counts) -> list[Row]:
    found = []
    for n, k in _union(counts):
        at = n if n >= 0 else -1 - n
        near = range(max(0, at - WITHIN_ROWS + 1), min(counts["other"], at + WITHIN_ROWS))
        found += [(n, m) for m in near if m * 3 % KEYS == k]
    return found


def _routed(counts: Counts) -> list[Row]:
    return [(n, n % KEYS) for n in _passed(counts["left"]) if n % 2 == 0]


def _fewer(counts: Counts) -> list[Row]:
    """Drop's choice is Spark's xxhash64 of n and the seed; what that is, Spark says in a law of its own."""
    passed = np.array(_passed(counts["left"]), np.int64)
    hashed = xxhash64([pa.array(passed), pa.scalar(7, pa.int64())], len(passed)).to_numpy()
    stay = (hashed & (2**63 - 1)) % 1_000_000 >= 500_000
    return [(n, n % KEYS) for n in passed[stay].tolist()]


def _resampled(counts: Counts) -> list[Row]:
    """For each even number the odd one before it, if that is less than 20 ms away."""
    odd = [n for n in _passed(counts["left"]) if n % 2]
    found = []
    for n, _ in _routed(counts):
        at = bisect(odd, n) - 1
        near = at >= 0 and (n - odd[at]) * STEP_US < 20_000
        found.append((n, odd[at] if near else -1))
    return found


def _named(counts: Counts) -> list[Row]:
    return [(n, NAMES[n % KEYS]) for n in _passed(counts["left"]) if n % KEYS in NAMES]


def _tens(counts: Counts) -> list[Row]:
    """Each key's tuples, ten at a time."""
    found = []
    for k in range(KEYS):
        mine = [n for n in _passed(counts["left"]) if n % KEYS == k]
        found += [(k, mine[i], 10) for i in range(0, len(mine) - 9, 10)]
    return found


def _sorted(counts: Counts) -> list[Row]:
    """Through a buffer of twenty, by the remainder of eight, the greatest first."""
    buffer: list[tuple[int, int]] = []
    found = []
    for n in _passed(counts["left"]):
        heappush(buffer, (-(n % 8), n))
        if len(buffer) == 20:
            found.append(heappop(buffer)[1])
    found += [n for _, n in sorted(buffer)]
    return [(n, n % KEYS) for n in found]


def _again(counts: Counts) -> list[Row]:
    """Windows of the rows that stand at the end."""
    stands: dict[int, tuple[int, int]] = {}  # number to place and key
    for row in _corrections(np.arange(counts["fixed"])).to_pylist():
        if row[KIND] == "+I" or row["n"] in stands:
            stands.pop(row["n"], None)
            if row[KIND] != "-D":
                stands[row["n"]] = (round((row["ts"].timestamp() * 1e6 - START_US) / STEP_US), row["k"])
    found: Counter[tuple[int, int]] = Counter()
    for at, k in stands.values():
        if k != 4:
            for end in range(at // SLIDE_ROWS * SLIDE_ROWS + SLIDE_ROWS, at + SIZE_ROWS + 1, SLIDE_ROWS):
                found[end, k] += 1
    return [(k, *_window(end), n, Kind.INSERTION) for (end, k), n in sorted(found.items())]


SHAPES = {
    "chain": Shape(_chain, ("n", "k"), order=0, stateless=True),
    "aggregate": Shape(_aggregate, ("k", "window_start", "window_end", "n"), order=2, windows=True),
    "two": Shape(_two, ("window_start", "window_end", "n"), order=1, windows=True),
    "union": Shape(_union, ("n", "k"), stateless=True, arbitrary=True),
    "join": Shape(_join, ("n", "m"), arbitrary=True),
    "routed": Shape(_routed, ("n", "k"), order=0, stateless=True),
    "fewer": Shape(_fewer, ("n", "k"), order=0, stateless=True),
    "written": Shape(_fewer, ("n", "k"), order=0, stateless=True),
    "named": Shape(_named, ("n", "m"), order=0, stateless=True),
    "resampled": Shape(_resampled, ("n", "m"), order=0, plausible=lambda row: row[1] == -1 or 0 < row[0] - row[1] < 10),
    "tens": Shape(_tens, ("k", "least", "n"), plausible=lambda row: row[1] % KEYS == row[0] and row[2] == 10),
    "sorted": Shape(_sorted, ("n", "k")),
    "again": Shape(_again, ("k", "window_start", "window_end", "n", KIND), kinds=True),
}


@dataclass(frozen=True)
class Group:
    """A diagram: inputs, boxes, which unit each box is in, and which arrow each output shows."""

    inputs: dict[str, str]
    boxes: tuple[str, ...]
    units: tuple[tuple[str, ...], ...]
    outputs: dict[str, str]


GROUPS = {
    "single": Group(
        {"left": ROWS},
        (
            FIRST,
            "second: {map: {from: first, exprs: {n: n, k: k}}}",
            "counted: {aggregate: {from: second, by: [k], size: 400 ms, slide: 200 ms, exprs: {n: count(*)}}}",
            "third: {aggregate: {from: counted, size: 400 ms, exprs: {n: sum(n)}}}",
        ),
        (("first",), ("second", "counted"), ("third",)),
        {"chain": "second", "aggregate": "counted", "two": "third"},
    ),
    "merging": Group(
        {"left": ROWS, "right": ROWS, "other": OTHERS},
        (
            FIRST,
            "second: {union: {from: [first, right]}}",
            "paired: {join: {from: [second, other], 'on': left.k = right.g, within: 10 ms}}",
            "third: {map: {from: paired, exprs: {n: n, m: m}}}",
        ),
        (("first",), ("second", "paired"), ("third",)),
        {"union": "second", "join": "third"},
    ),
}


# Boxes that the matrix does not have, in one unit: all of them, and those that any approach can recover, as their state
# does not depend on where they began.
_LIGHT = Group(
    {"left": ROWS},
    (
        FIRST,
        "ways: {route: {from: first, branches: {even: n % 2 = 0}, otherwise: odd}}",
        "fewer: {drop: {from: first, rate: 0.5, seed: 7, key: [n]}}",
        "at: {resample: {from: [ways.even, ways.odd], value: n, how: previous, window: 20 ms}}",
        "pairs: {map: {from: at, exprs: {n: n, m: 'coalesce(n_right, -1L)'}}}",
        "written: {sql_write: {from: fewer, statement: '@write', database: '@database'}}",
        "named: {sql_read: {from: first, statement: '@read', gives: m BIGINT, database: '@database', stable: yes}}",
    ),
    (("first", "ways", "fewer", "at", "pairs", "written", "named"),),
    {"routed": "ways.even", "fewer": "fewer", "resampled": "pairs", "written": "written", "named": "named"},
)
_ALL = Group(
    _LIGHT.inputs,
    (
        *_LIGHT.boxes,
        "tens: {aggregate: {from: first, by: [k], count: 10, exprs: {least: min(n), n: count(*)}}}",
        "sorted: {bsort: {from: first, value: 0 - n % 8, buffer: 20}}",
    ),
    ((*_LIGHT.units[0], "tens", "sorted"),),
    _LIGHT.outputs | {"tens": "tens", "sorted": "sorted"},
)
BOXES = {"all": _ALL, "light": _LIGHT}
CORRECTED = Group(
    {"fixed": FIXED.replace("120 ms", "10 minutes")},  # so that all that is there can be corrected
    (
        "kept: {filter: {from: fixed, predicate: k <> 4}}",
        "again: {aggregate: {from: kept, by: [k], size: 400 ms, slide: 200 ms, exprs: {n: count(*)}}}",
    ),
    (("kept", "again"),),
    {"again": "again"},
)
ALL_GROUPS = GROUPS | BOXES | {"corrected": CORRECTED}


def text(group: Group, name: str, protection: str = "", database: str = "") -> str:
    """The YAML file of a diagram; its SQL boxes read and write in this database."""
    inputs = "".join(f"  {name}: {columns}\n" for name, columns in group.inputs.items())
    boxes = "".join(f"  {box}\n" for box in group.boxes)
    for place, words in (("@write", WRITE), ("@read", READ), ("@database", database)):
        boxes = boxes.replace(place, words)
    outputs = "".join(f"  {output}: {arrow}\n" for output, arrow in group.outputs.items())
    ending = f"protection: {protection}\n" if protection else ""
    return f"borealis: 1\nname: {name}\ninputs:\n{inputs}boxes:\n{boxes}outputs:\n{outputs}{ending}"


def rows(name: str, first: int, stop: int) -> pa.RecordBatch:
    """Rows `first` to before `stop` of an input; those of `right` have negative numbers, those of `fixed` kinds."""
    n = np.arange(first, stop)
    if name == "fixed":
        return _corrections(n)
    at = np.where(n % LATE_EVERY == 0, n - LATE_ROWS, n) if name == "tardy" else n
    times = pa.array(START_US + at * STEP_US).cast(pa.timestamp("us", "UTC"))
    if name == "other":
        columns = {"m": n, "g": (n * 3 % KEYS).astype(np.int32)}
    else:
        columns = {"n": -1 - n if name == "right" else n, "k": (n % KEYS).astype(np.int32)}
    return pa.record_batch({"ts": times} | {column: pa.array(values) for column, values in columns.items()})


def _corrections(i: np.ndarray[Any, np.dtype[np.int64]]) -> pa.RecordBatch:
    """Insertions, and among them deletions, replacements and late rows. Not all fit what is there."""
    goes, comes, late = i % 6 == 5, i % 7 == 3, i % LATE_EVERY == 0
    old = np.maximum(i - 1 - i * 13 % FIXED_ROWS, 0)
    n = np.where(goes | comes, old, i)
    at = np.where(comes, old + i % 3, np.where(late, i - LATE_ROWS, i))
    times = pa.array(START_US + at * STEP_US, mask=goes).cast(pa.timestamp("us", "UTC"))
    k = pa.array((np.where(comes, i * 3, i) % KEYS).astype(np.int32), mask=goes)
    kinds = pa.array(np.where(goes, "-D", np.where(comes, "+U", "+I")))
    return pa.record_batch({"ts": times, "n": pa.array(n), "k": k, KIND: kinds})
