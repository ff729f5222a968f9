"""Flows for the SQL kernels, and databases to run them on."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.kernels.flow import Bounds, Flow
from borealis.trains.notices import NoticeFile

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
