"""Windows: how many packets each source sent in the last ten seconds, every five seconds.

A window's result comes when the *boundary* reaches its end: from then on no tuple can belong to it any more. Here the
input is a Parquet file and so is the output; the diagram is saved, to be run from the command line as well.

    python examples/02_windows.py
"""

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from borealis import Diagram, replay, run, window

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def main() -> None:
    """From a file to a file."""
    folder = Path(tempfile.mkdtemp(prefix="borealis-example-"))
    packets = pa.table(
        {
            "ts": pa.array([NOON + timedelta(milliseconds=250 * i) for i in range(100)], pa.timestamp("us", "UTC")),
            "src": [("ann", "bob", "ann", "cid")[i % 4] for i in range(100)],
            "bytes": pa.array([100 + i for i in range(100)], pa.int32()),
        }
    )
    pq.write_table(packets, folder / "packets.parquet")

    d = Diagram("busy")
    stream = d.input("packets", "ts TIMESTAMP, src STRING, bytes INT")
    stream.aggregate(by="src", over=window("10 seconds", "5 seconds"), n="count(*)", mean="avg(bytes)").output("busy")
    run(d, inputs={"packets": replay(folder / "packets.parquet")}, outputs={"busy": folder / "busy.parquet"})

    for row in pq.read_table(folder / "busy.parquet").slice(0, 6).to_pylist():
        print(
            f"{row['window_start']:%H:%M:%S} to {row['window_end']:%H:%M:%S}  {row['src']}  {row['n']:2}  {row['mean']}"
        )
    d.save(folder / "busy.yaml")
    print(f"the same again: borealis run {folder}/busy.yaml -i packets={folder}/packets.parquet -o busy=-")


if __name__ == "__main__":
    main()
