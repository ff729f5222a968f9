"""SQL-write to PostgreSQL beside a bare COPY of the same rows from the same process.

In turn, each run into an empty table; what counts is the median, and the ratio to the faster COPY. The box writes
trains as the engine would hand them to it, with its ledger; a COPY is one transaction for each of the same trains, with
psycopg, once of Python values row by row, as most programs do it, and once of text that Arrow makes of them. It
starts a server of its own, or takes that in BOREALIS_BENCH_POSTGRES (a URL).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from borealis.databases.database import Database
from borealis.errors import MachineError
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.sql_write import SqlWriteKernel
from borealis.trains.notices import NoticeFile

from .postgres_server import Server, binaries

ROWS = 200_000
RUNS = 5
TRAIN_ROWS = 5_000
ASKED_ROWS_PER_SECOND = 20_000
ASKED_RATIO = 0.8  # of COPY
TABLE = "borealis_bench"
COLUMNS = ("id", "src", "bytes", "at")
INSERT = f"INSERT INTO {TABLE} (id, src, bytes, at) VALUES (:id, :src, :bytes, :at)"


def measure(rows: int = ROWS, runs: int = RUNS) -> dict[str, Any]:
    """Rows per second of both, medians of so many runs in turn."""
    with _server() as url:
        trains = [_train(start, min(TRAIN_ROWS, rows - start)) for start in range(0, rows, TRAIN_ROWS)]
        found: dict[str, list[float]] = {"sql_write": [], "copy_rows": [], "copy_text": []}
        for number in range(runs + 1):  # the first is not counted: it opens connections and files
            ways = {"sql_write": _box(url, number), "copy_rows": _copy(url, _rows), "copy_text": _copy(url, _text)}
            for name, write in ways.items():
                _empty(url)
                took = _timed(write, trains)
                _check(url, rows)
                if number:
                    found[name].append(rows / took)
    box, copy = median(found["sql_write"]), max(median(found["copy_rows"]), median(found["copy_text"]))
    asked = min(ASKED_ROWS_PER_SECOND, ASKED_RATIO * copy)
    return {
        "rows": rows,
        "rows_per_train": TRAIN_ROWS,
        "runs": runs,
        "sql_write_rows_per_second": round(box),
        "copy_rows_per_second": round(copy),
        "ratio": round(box / copy, 3),
        "asked_rows_per_second": round(asked),
        "met": box >= asked,
        "all": {name: [round(rate) for rate in rates] for name, rates in found.items()},
    }


def _train(start: int, count: int) -> Flow:
    ids = np.arange(start, start + count)
    rows = pa.table(
        {
            "id": ids,
            "src": pa.array([f"host-{i % 997}" for i in ids.tolist()]),
            "bytes": pa.array((ids % 1500).astype(np.int32)),
            "at": pa.array(ids * 1000).view(pa.timestamp("us", "UTC")),
        }
    )
    return Flow(rows, ids, ids, np.zeros(count, np.int64), Bounds())


def _box(url: str, number: int) -> Callable[[Flow], object]:
    kernel = SqlWriteKernel("bench", INSERT, Database("bench", url, 60_000_000))
    train = {"diagram": "bench", "writer_id": f"{os.getpid()}-{time.time_ns()}-{number}"}
    kernel.begin(train, 0, NoticeFile(f"{tempfile.gettempdir()}/borealis-troubles/bench.0", 0))
    return kernel.step


def _copy(url: str, send: Callable[[Any, Flow], None]) -> Callable[[Flow], object]:
    import psycopg

    connection = psycopg.connect(url.replace("+psycopg", ""))

    def write(flow: Flow) -> None:
        with connection.transaction(), connection.cursor() as cursor:
            send(cursor, flow)

    return write


def _rows(cursor: Any, flow: Flow) -> None:
    columns = [flow.rows[name].to_pylist() for name in COLUMNS]
    with cursor.copy(f"COPY {TABLE} ({', '.join(COLUMNS)}) FROM STDIN") as copy:
        for row in zip(*columns, strict=True):
            copy.write_row(row)


def _text(cursor: Any, flow: Flow) -> None:
    text = BytesIO()
    csv.write_csv(flow.rows.select(COLUMNS), text, csv.WriteOptions(include_header=False))
    with cursor.copy(f"COPY {TABLE} ({', '.join(COLUMNS)}) FROM STDIN WITH (FORMAT csv)") as copy:
        copy.write(text.getbuffer())


def _timed(write: Callable[[Flow], object], trains: list[Flow]) -> float:
    began = time.perf_counter()
    for train in trains:
        write(train)
    return time.perf_counter() - began


def _empty(url: str) -> None:
    _run(url, f"DROP TABLE IF EXISTS {TABLE}")
    _run(url, f"CREATE TABLE {TABLE} (id BIGINT, src TEXT, bytes INT, at TIMESTAMPTZ)")


def _check(url: str, rows: int) -> None:
    [(count,)] = _run(url, f"SELECT count(*) FROM {TABLE}")
    if count != rows:
        raise RuntimeError(f"{count} rows of {rows} are in the table")


def _run(url: str, statement: str) -> list[tuple[Any, ...]]:
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@contextmanager
def _server() -> Iterator[str]:
    given = os.environ.get("BOREALIS_BENCH_POSTGRES")
    if given:
        yield given
        return
    if binaries() is None:
        raise MachineError("PostgreSQL is not installed", hint="apt-get install postgresql, or name a server")
    with tempfile.TemporaryDirectory(prefix="borealis-bench-") as root:
        server = Server(Path(root), settings={"fsync": "on"})
        server.start()
        try:
            yield server.url
        finally:
            server.stop()
