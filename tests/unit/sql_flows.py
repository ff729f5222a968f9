"""Flows for the SQL kernels, and databases to run them on."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.kernels.flow import Bounds, Flow, rank_within
from borealis.trains.notices import NoticeFile
from borealis.tuples import KIND, KIND_NAMES

TRAIN = {"diagram": "d", "writer_id": "first"}
NOWHERE = NoticeFile("/no/such/directory/w.0", 0)  # to tell a trouble that nobody reads


def flow(columns: dict[str, Any], start: int = 0, sub: list[int] | None = None) -> Flow:
    """Rows whose causes count from `start`; with `sub`, all of that one cause."""
    rows = pa.table(columns)
    n = len(rows)
    cause = np.arange(start, start + n) if sub is None else np.full(n, start)
    subs = np.zeros(n, np.int64) if sub is None else np.array(sub, np.int64)
    return Flow(rows, cause * 10, cause, subs, Bounds())


def slices(whole: Flow, *places: int) -> list[Flow]:
    """A flow cut into trains."""
    ends = [0, *places, len(whole)]
    return [whole.take(np.arange(a, b)) for a, b in pairwise(ends)]


Signed = tuple[int, str, Any]  # cause, kind, values


def signed(names: str, changes: list[Signed], bounds: Bounds | None = None, times: list[int] | None = None) -> Flow:
    """Rows that come and go, with these columns of whole numbers; without `times` the time of each is 0."""
    cause = np.array([one for one, _, _ in changes], np.int64)
    columns = [pa.array([values[i] for _, _, values in changes], pa.int64()) for i in range(len(names))]
    kinds = pa.array([KIND_NAMES.index(kind) for _, kind, _ in changes], pa.int8())
    time = np.zeros(len(cause), np.int64) if times is None else np.array(times, np.int64)
    rows = pa.table([*columns, kinds], [*names, KIND])
    return Flow(rows, time, cause, rank_within(cause), bounds or Bounds())


def trains(changes: list[Signed], *causes: int) -> list[list[Signed]]:
    """Changes cut into trains before these causes."""
    ends = [0, *causes, 1 << 40]
    return [[one for one in changes if a <= one[0] < b] for a, b in pairwise(ends)]
