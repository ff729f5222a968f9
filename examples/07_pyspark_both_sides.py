"""PySpark on both sides: a job of its own reads what a running diagram computes, and writes into one of its inputs.

This script starts a small cluster (`borealis up`), deploys a diagram to it, and starts itself as another process: an
ordinary PySpark job that knows of the cluster only where it is. The job runs twice; its checkpoint and its name at the
stream make the second run go on where the first one ended.

    python examples/07_pyspark_both_sides.py
"""

import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import borealis
from borealis import Diagram, window

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BOREALIS = [sys.executable, "-m", "borealis.cli"]


def diagram() -> Diagram:
    """Packets per source, and an input for those who think that there are too many."""
    d = Diagram("traffic")
    packets = d.input("packets", "ts TIMESTAMP, src STRING")
    packets.aggregate(by="src", over=window("10 seconds"), n="count(*)").output("per_source")
    alarms = d.input("alarms", "ts TIMESTAMP, src STRING, n BIGINT")
    alarms.aggregate(by="src", over=window("1 minute"), alarms="count(*)", most="max(n)").output("per_minute")
    return d


def packets(first: int, seconds: int) -> list[dict[str, object]]:
    """One packet every 100 ms; most come from `a`."""
    times = [NOON + timedelta(milliseconds=100 * i) for i in range(10 * first, 10 * (first + seconds))]
    return [{"ts": at, "src": "b" if i % 4 == 0 else "a"} for i, at in enumerate(times)]


def job(folder: str) -> None:
    """The PySpark job."""
    from pyspark.sql import SparkSession

    import borealis.spark

    spark = SparkSession.builder.master("local[1]").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    borealis.spark.register(spark)
    per_source = spark.readStream.format("borealis").option("stream", "per_source").option("reader", "watcher").load()
    query = (
        per_source.where("n > 50")
        .selectExpr("window_start AS ts", "src", "n")  # an alarm belongs to the minute of its window
        .writeStream.format("borealis")
        .option("stream", "alarms")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    read = sum(progress["numInputRows"] for progress in query.recentProgress)
    held = spark.read.format("borealis").option("stream", "alarms").load().count()
    print(f"  the job has read {read} rows; there are {held} alarms now", flush=True)


def main() -> None:
    """Start everything, feed it, look at what comes out, and stop it again."""
    folder = tempfile.mkdtemp(prefix="borealis-example-")
    os.environ["BOREALIS_HOME"] = str(Path(folder, "home"))
    subprocess.run([*BOREALIS, "up", "--nodes", "1", "--port", "0"], check=True)
    try:
        with borealis.connect() as cluster:
            cluster.deploy(diagram())
            results = cluster.subscribe("per_source", start="oldest", timeout=60).rows()
            for first, seconds in ((0, 61), (61, 60)):
                cluster.publish("packets", packets(first, seconds))
                for _ in range(12):  # two sources, six windows
                    next(results)
                subprocess.run([sys.executable, __file__, folder], check=True)
            for row in cluster.subscribe("per_minute", start="oldest", timeout=60).rows():
                print(f"  {row['src']}: {row['alarms']} alarms until {row['window_end']:%H:%M}, {row['most']} at most")
                break
    finally:
        subprocess.run([*BOREALIS, "down"], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        job(sys.argv[1])
    else:
        main()
