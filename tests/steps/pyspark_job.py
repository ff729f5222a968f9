"""What the test runs as a user's own PySpark job: `python pyspark_job.py <coordinator> <home>`.

It copies a stream into another one, and files it as Parquet, until it has what was there when it started.
"""

from __future__ import annotations

import sys
from pathlib import Path

import borealis.spark
from borealis.plan.session import session

IN_MICRO_BATCH = 150
PART_BYTES = 1500  # so that a micro-batch is some parts


def main(coordinator: str, home: Path) -> None:
    spark = session("local[2, 3]", {"spark.sql.shuffle.partitions": "2"})
    borealis.spark.register(spark)
    source = (
        spark.readStream.format("borealis")
        .option("coordinator", coordinator)
        .option("stream", "kept")
        .option("headers", "true")
        .option("maxTuplesPerTrigger", str(IN_MICRO_BATCH))
    )
    copy = (
        source.option("reader", "copier")
        .load()
        .selectExpr("_id AS id", "ts", "n")
        .repartition(2)  # partitions that have no order among them
        .writeStream.format("borealis")
        .option("coordinator", coordinator)
        .option("stream", "copied")
        .option("publisher", "copier")
        .option("partBytes", str(PART_BYTES))
        .option("checkpointLocation", str(home / "copier"))
    )
    filed = (
        source.option("reader", "archive")
        .option("partitions", "2")
        .load()
        .writeStream.format("parquet")
        .option("path", str(home / "filed"))
        .option("checkpointLocation", str(home / "archive"))
    )
    queries = [q.trigger(availableNow=True).start() for q in (copy, filed)]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
