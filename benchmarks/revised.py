"""Q2 and Q3 whose inputs can be corrected, run as a user runs them; and single corrections, kernel by kernel."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import workload
from batches import Batch
from ours import OUT, Trace, _scratch_in

from borealis import Diagram, replay, run, window
from borealis.kernels.accumulators import AggregateCall
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.history import SIGN, HistoryKernel
from borealis.kernels.revised_panes import RevisedPanes
from borealis.kernels.revised_windows import RevisedWindows
from borealis.kernels.undone_windows import UndoneWindows
from borealis.spark.session import session
from borealis.state.delta import pack
from borealis.trains.intake import Admission
from borealis.trains.progress import Progress
from borealis.tuples import KIND

HISTORY = "1 hour"
SECOND_US = 1_000_000
ROWS_PER_WINDOW = 100  # of one group: what a single correction touches is the same in any history
SAMPLES, WARM = 60, 10


def make(to: str, files: int, rows: int, share: float = 0.0, hours: float = 0.0) -> int:
    """Input files: with rising ids and a share of corrections, or of some hours, in which every twentieth is late."""
    Path(to).mkdir(parents=True)
    for i in range(files):
        table = workload.late_rows(i, rows, files, hours) if hours else workload.keyed_rows(i, rows, share)
        pq.write_table(table, Path(to, f"{i:05}.parquet"), row_group_size=-(-rows // workload.ROW_GROUPS))
    return files


def q2(total: str, history: str | None, replays: bool = False) -> Diagram:
    """Count and sum per key over sliding windows; `total` is the column that is added up. With `replays` the aggregate
    keeps no rows: those that it needs come again."""
    d = Diagram("q2")
    kind = "DOUBLE" if total == "v" else "BIGINT"
    key = {} if history is None else {"key": "id", "history": history}
    rows = d.input("in", f"id BIGINT, k INT, {total} {kind}, ts TIMESTAMP", **key)
    over = window("10 seconds", "1 second")
    at = "in" if replays else None
    rows.aggregate(by="k", over=over, n="count(*)", total=f"sum({total})", history_at=at).output("out")
    return d


def throughput(
    inputs: list[str], home: str, master: str, rows_most: int, total: str, history: str | None, replays: bool
) -> list[Batch]:
    """Files replayed as fast as it goes, in trains of at most so many rows."""
    _scratch_in(home)
    trace = Trace()
    admission = Admission(rows_most=rows_most)
    run(q2(total, history, replays), {"in": replay(inputs[0])}, OUT, spark=session(master=master), admission=admission)
    return trace.batches


def late(inputs: list[str], home: str, master: str, rows_most: int) -> dict[str, Any]:
    """Rows of which some are nearly an hour late; and how far results are behind the newest time, train by train."""
    _scratch_in(home)
    trace, behind = Trace(), []
    note = Progress.note

    def noted(progress: Progress, rows_in: int, ms: float, cursors: Any, *others: Any) -> None:
        note(progress, rows_in, ms, cursors, *others)
        if not cursors["in"].ended:
            behind.append((cursors["in"].newest - cursors["in"].boundary) / SECOND_US)

    Progress.note = noted  # type: ignore[method-assign]
    d = Diagram("late")
    rows = d.input("in", "k INT, n BIGINT, ts TIMESTAMP", history=HISTORY, late="revise")
    rows.aggregate(by="k", over=window("1 minute"), n="count(*)", total="sum(n)").output("out")
    done = run(
        d, {"in": replay(inputs[0])}, OUT, spark=session(master=master), admission=Admission(rows_most=rows_most)
    )
    refused = sum(done.to_json()["refused"].values())
    return {"batches": trace.batches, "behind_s": statistics.median(behind), "refused": refused}


# -- one correction


def one(rows: int, function: str) -> dict[str, float]:
    """How long the kernels take for one replacement behind so many rows of history, in milliseconds: the median."""
    size = SECOND_US
    windows = rows // ROWS_PER_WINDOW
    schema = pa.schema([("id", pa.int64()), ("k", pa.int32()), ("n", pa.int64()), (KIND, pa.string())])
    signed = pa.schema([*list(schema)[:-1], (KIND, pa.int8())])
    calls = [AggregateCall("count", None, pa.int64()), AggregateCall(function, "n", pa.int64())]
    boxes: dict[str, Callable[..., RevisedPanes]] = {"sum": UndoneWindows, "max": RevisedWindows}
    history = HistoryKernel(schema, ["id"], (windows + 10) * size, ["k", "n"])
    aggregate = boxes[function](pa.schema(list(signed)[:-1]), ["k"], size, size, calls, (windows + 10) * size)

    def train(ids: np.ndarray, n: np.ndarray, kind: str, cause: int, bounds: Bounds) -> float:
        names = pa.nulls(len(ids), pa.string()) if kind == "+I" else pa.array([kind] * len(ids))
        table = pa.table([pa.array(ids), pa.array(np.zeros(len(ids), np.int32)), pa.array(n), names], schema=schema)
        causes = cause + np.arange(len(ids))
        times = ids * (size // ROWS_PER_WINDOW)
        flow = Flow(table, times, causes, np.zeros(len(ids), np.int64), bounds)
        began = time.perf_counter()
        changes, held = history.step(flow)
        columns = [*changes.rows.select(["id", "k", "n"]).columns, changes.rows[SIGN]]
        _, delta = aggregate.step(changes.with_rows(pa.table(columns, schema=signed)))
        pack(held), pack(delta)
        return (time.perf_counter() - began) * 1000

    ids = np.arange(rows)
    end = windows * size
    train(ids, ids % 1000, "+I", 0, Bounds(cause=np.array([rows]), time=np.array([end])))
    chance, times = np.random.default_rng(workload.SEED), []
    for i in range(WARM + SAMPLES):
        target = chance.integers(0, rows, 1)
        times.append(train(target, target % 1000 + 1 + i, "+U", rows + 1 + i, Bounds(end)))
    return {"ms": statistics.median(times[WARM:])}
