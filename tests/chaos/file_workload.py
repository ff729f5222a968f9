"""What the chaos test of files runs: a watched directory, a diagram, two directories. As a program, one durable run."""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from borealis import Diagram, window

END = "_END"
ROWS = 60  # of one file
OUTPUTS = ("sums", "large")
SUFFIXES = ("parquet", "csv", "jsonl", "csv.gz")
BAD = {"csv": b"1970-01-01T00:00:00Z,many,1.0\n", "jsonl": b"{half\n", "csv.gz": b"no,record\n"}


def diagram() -> Diagram:
    d = Diagram("files")
    packets = d.input("packets", "ts TIMESTAMP, k INT, v DOUBLE", slack="300 ms")
    packets.aggregate(by="k", over=window("2 seconds", "500 ms"), n="count(*)", total="sum(v)").output("sums")
    packets.filter("v > 0.5").output("large")
    return d


def rows(number: int) -> pa.Table:
    """What is in the file of this number."""
    chance = np.random.default_rng(number)
    times = (number * ROWS + np.arange(ROWS)) * 20_000 - chance.integers(0, 15, ROWS) * 40_000
    return pa.table(
        {
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "k": pa.array(chance.integers(0, 6, ROWS), pa.int32()),
            "v": pa.array(chance.random(ROWS)),
        }
    )


def file_name(number: int) -> str:
    return f"{number:04}.{SUFFIXES[number % len(SUFFIXES)]}"


def number_of(name: str) -> int:
    return int(name.partition(".")[0])


def write_file(place: Path, number: int) -> None:
    """Put a file in place, whole; those of text have a bad record in their midst."""
    name, table = file_name(number), rows(number)
    kind = SUFFIXES[number % len(SUFFIXES)]
    hidden = place / f".{name}.tmp"
    if kind == "parquet":
        pq.write_table(table, hidden, row_group_size=7)
    elif kind == "jsonl":
        text = table.set_column(0, "ts", table["ts"].cast(pa.string()))
        lines = [json.dumps(row).encode() + b"\n" for row in text.to_pylist()]
        hidden.write_bytes(b"".join([*lines[:20], BAD[kind], *lines[20:]]))
    else:
        sink = pa.BufferOutputStream()
        pa_csv.write_csv(table, sink)
        lines = sink.getvalue().to_pybytes().splitlines(keepends=True)
        data = b"".join([*lines[:20], BAD[kind], *lines[20:]])
        hidden.write_bytes(gzip.compress(data) if kind.endswith(".gz") else data)
    os.rename(hidden, place / name)


def main(home: Path, to: Path, rows_most: int) -> None:
    from borealis import directory, disk, run, watch
    from borealis.spark.session import session
    from borealis.trains.intake import Admission

    # a run that is killed cannot clear it away; here it goes with the test's directory
    disk.scratch = lambda prefix: Path(tempfile.mkdtemp(prefix=prefix, dir=to))
    spark = session("local[1]")
    run(
        diagram(),
        {"packets": watch(home / "incoming", poll="20 ms", settle="50 ms", until=END)},
        {name: directory(to / name, rows=25, seconds=0.2) for name in OUTPUTS},
        state=to / "state",
        admission=Admission(rows_most=rows_most),
        spark=spark,
    )
    (to / "finished").touch()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
