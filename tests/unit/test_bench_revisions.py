"""The rows that `bench revisions` feeds: each is corrected once at most, and nothing that never came."""

from __future__ import annotations

import numpy as np
from benchmarks import workload
from benchmarks.revisions import judged

ROWS, FILES = 6_000, 9


def test_corrections_are_of_rows_that_came_and_of_each_once() -> None:
    come: set[int] = set()
    corrected: list[int] = []
    for number in range(FILES):
        table = workload.keyed_rows(number, ROWS, 0.1)
        kinds, ids = table["_kind"].to_pylist(), table["id"].to_pylist()
        fresh = [one for one, kind in zip(ids, kinds, strict=True) if kind == "+I"]
        assert fresh == sorted(fresh)
        mine = [one for one, kind in zip(ids, kinds, strict=True) if kind != "+I"]
        assert set(mine) <= come
        assert len(mine) == ROWS // 10 // workload.LAGS * min(number, workload.LAGS)
        come.update(fresh)
        corrected += mine
    assert len(corrected) == len(set(corrected)) > 0
    assert workload.keyed_rows(3, ROWS).column_names == workload.KEYED.names


def test_one_row_in_twenty_is_late_and_by_less_than_an_hour() -> None:
    tables = [workload.late_rows(number, ROWS, FILES, 3.0) for number in range(FILES)]
    ts = np.concatenate([table["ts"].to_numpy().astype(np.int64) for table in tables])
    behind = np.maximum.accumulate(ts) - ts
    late = behind > 0
    assert 0.02 < late.mean() < 0.05
    assert behind.max() < workload.HOUR_US


def test_a_ratio_is_held_against_what_is_asked() -> None:
    assert judged(0.8, 0.8)["met"]
    assert not judged(0.79, 0.8)["met"]
