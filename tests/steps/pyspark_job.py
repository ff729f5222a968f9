"""What the test runs as a user's own PySpark job: `python pyspark_job.py <coordinator> <checkpoint> <tuples>`.

It copies a stream into another one, so many tuples in a micro-batch, until it has what was there when it started.
"""

from __future__ import annotations

import sys

import borealis.spark
from borealis.spark.session import session

PART_BYTES = 1500  # so that a micro-batch is some parts


def main(coordinator: str, checkpoint: str, tuples: str) -> None:
    spark = session("local[1, 3]", {"spark.sql.shuffle.partitions": "2"})
    borealis.spark.register(spark)
    query = (
        spark.readStream.format("borealis")
        .option("coordinator", coordinator)
        .option("stream", "kept")
        .option("reader", "copier")
        .option("headers", "true")
        .option("maxTuplesPerTrigger", tuples)
        .option("partitions", "2")
        .load()
        .selectExpr("_id AS id", "ts", "n")
        .repartition(2)  # among which the rows have no order
        .writeStream.format("borealis")
        .option("coordinator", coordinator)
        .option("stream", "copied")
        .option("publisher", "copier")
        .option("partBytes", str(PART_BYTES))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
