"""The query of `bench revisions late` in Pathway: `python pathway_job.py DIRECTORY` prints rows, changes and seconds.

It runs in a Python that has Pathway, and needs nothing of this project. Windows give what they have and take it back
when a row comes; there is no watermark. All rows are one minibatch per file, as ours are one train.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pathway as pw
import pyarrow.parquet as pq

MINUTE_US = 60_000_000


class Rows(pw.Schema):
    k: int
    n: int
    ts: int


class Files(pw.io.python.ConnectorSubject):
    """File after file, each committed as one minibatch."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.directory, self.rows = directory, 0

    def run(self) -> None:
        for path in sorted(Path(self.directory).iterdir()):
            table = pq.read_table(path, columns=["k", "n", "ts"])
            k, n = table["k"].to_pylist(), table["n"].to_pylist()
            ts = table["ts"].cast("int64").to_pylist()
            for row in zip(k, n, ts, strict=True):
                self.next(k=row[0], n=row[1], ts=row[2])
            self.rows += len(k)
            self.commit()


def main() -> None:
    changes = 0

    def count(key: object, row: object, time: int, is_addition: bool) -> None:
        nonlocal changes
        changes += 1

    files = Files(sys.argv[1])
    rows = pw.io.python.read(files, schema=Rows, autocommit_duration_ms=None)
    found = rows.windowby(rows.ts, window=pw.temporal.tumbling(duration=MINUTE_US), instance=rows.k).reduce(
        k=pw.this._pw_instance, end=pw.this._pw_window_end, rows=pw.reducers.count(), total=pw.reducers.sum(pw.this.n)
    )
    pw.io.subscribe(found, on_change=count)
    began = time.perf_counter()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    print(json.dumps({"rows": files.rows, "changes": changes, "seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main()
