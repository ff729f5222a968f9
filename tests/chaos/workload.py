"""What the chaos tests run: aggregate, join and late tuples in one diagram. As a program, it is one durable run."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from borealis import Diagram, window

SECOND = 1_000_000


def diagram() -> Diagram:
    d = Diagram("chaos")
    left = d.input("left", "ts TIMESTAMP, k INT, v DOUBLE, s STRING", slack="300 ms")
    right = d.input("right", "ts TIMESTAMP, k INT, w INT", slack="1 second")
    sums = left.filter("k <> 3").aggregate(
        by="k", over=window("2 seconds", "500 ms"), n="count(*)", total="sum(v)", top="max(s)"
    )
    sums.output("sums")
    sums.output("sums_text")
    left.join(right, on="left.k = right.k", within="200 ms").output("pairs")
    left.filter("v > 0.5").output("large")
    return d


def write_inputs(home: Path, rows: int, seed: int = 1) -> None:
    """Two Parquet files, out of order within and beyond the slack, with ties across the files."""
    chance = np.random.default_rng(seed)
    for name, more in (("left", {"v": chance.random(rows)}), ("right", {"w": chance.integers(0, 99, rows, np.int32)})):
        times = np.arange(rows) * 20_000 - chance.integers(0, 15, rows) * 40_000  # 50 rows a second, up to 600 ms back
        columns: dict[str, Any] = {
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "k": pa.array(chance.integers(0, 6, rows), pa.int32()),
            **{n: pa.array(a) for n, a in more.items()},
        }
        if name == "left":
            columns["s"] = pa.array([None if i % 7 == 0 else f"ü{i % 13}" for i in range(rows)])
        pq.write_table(pa.table(columns), home / f"{name}.parquet", row_group_size=max(1, rows // 5))


def inputs(home: Path) -> dict[str, str]:
    return {"left": str(home / "left.parquet"), "right": str(home / "right.parquet")}


def outputs(to: Path) -> dict[str, str]:
    files = {"sums": "parquet", "sums_text": "csv", "pairs": "arrow", "large": "jsonl", "left.late": "csv"}
    return {name: str(to / f"{name}.{suffix}") for name, suffix in files.items()}


def contents(to: Path) -> dict[str, Any]:
    """Everything in the outputs: text byte for byte, tables by content and order."""
    found: dict[str, Any] = {}
    for name, path in outputs(to).items():
        if path.endswith(".parquet"):
            found[name] = pq.read_table(path).to_pylist()
        elif path.endswith(".arrow"):
            with pa.ipc.open_file(path) as reader:
                found[name] = reader.read_all().to_pylist()
        else:
            found[name] = Path(path).read_bytes()
    return found


def main(home: Path, to: Path, rows_most: int) -> None:
    from borealis import disk, run
    from borealis.spark.session import session
    from borealis.trains.intake import Admission

    # a run that is killed cannot clear it away; here it goes with the test's directory
    disk.scratch = lambda prefix: Path(tempfile.mkdtemp(prefix=prefix, dir=to))
    spark = session("local[1]")
    run(
        diagram(),
        inputs(home),
        outputs(to),
        state=to / "state",
        admission=Admission(rows_most=rows_most),
        spark=spark,
    )
    (to / "finished").touch()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
