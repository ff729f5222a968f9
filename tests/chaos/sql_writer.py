"""A durable run that writes to a database. As a program it can stop for ever at a moment its test has chosen.

`python sql_writer.py HOME DATABASE [N]`: with N, it halts in its N-th commit, when the train is in the database and not
yet on disk, and makes the file `halted`.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from borealis import Diagram, run
from borealis.trains.intake import Admission
from borealis.trains.unit import UnitRun

ROWS = 300
ROWS_MOST = 50  # in a train
TABLE = "CREATE TABLE written (n BIGINT CHECK (n % 50 <> 7), src TEXT, at {time})"


def diagram(database: str) -> Diagram:
    d = Diagram("chaos_sql")
    a = d.input("a", "ts TIMESTAMP, n BIGINT, src STRING")
    kept = a.filter("n >= 0").sql_write("INSERT INTO written (n, src, at) VALUES (:n, :src, :ts)", database=database)
    kept.output("kept")
    kept.bad.output("bad")
    return d


def write_input(home: Path) -> None:
    n = np.arange(ROWS)
    rows = {"ts": pa.array(n * 1000, pa.timestamp("us", "UTC")), "n": n, "src": [f"host {i % 9}" for i in range(ROWS)]}
    pq.write_table(pa.table(rows), home / "a.parquet")


def outputs(home: Path) -> dict[str, str]:
    return {name: str(home / f"{name}.parquet") for name in ("kept", "bad")}


def halt_in_commit(home: Path, number: int) -> None:
    """From here on, the so-many-th commit of a train of this process never comes back."""
    commit, seen = UnitRun._commit, [0]

    def halting(self: UnitRun, arrived: Any) -> None:
        seen[0] += 1
        if seen[0] == number:
            (home / "halted").touch()
            threading.Event().wait()
        commit(self, arrived)

    UnitRun._commit = halting  # type: ignore[method-assign]


if __name__ == "__main__":
    where = Path(sys.argv[1])
    if len(sys.argv) > 3:
        halt_in_commit(where, int(sys.argv[3]))
    files = {"a": str(where / "a.parquet")}
    run(diagram(sys.argv[2]), files, outputs(where), state=where / "state", admission=Admission(rows_most=ROWS_MOST))
