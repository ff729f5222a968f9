"""The query in plain Structured Streaming, as a job that a supervisor starts: `python recovery_native_job.py '{...}'`.

Reads files that appear in a folder, checkpoints on local disk, and prints each micro-batch's results as a JSON line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

COLUMNS = "ts TIMESTAMP, src INT, bytes INT"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",  # the fastest for so few keys
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",  # no job to list a folder of this machine
    "spark.sql.files.openCostInBytes": "0",  # many small files make one task, not one each
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "false",  # a few dozen rows
}


def session(flags: str) -> SparkSession:
    """On two cores, with what the supervisor gives the JVM."""
    builder: Any = SparkSession.builder.appName("native").master("local[2]")
    for name, value in (SETTINGS | ({"spark.driver.extraJavaOptions": flags} if flags else {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def query(rows: DataFrame, size: str, slide: str) -> DataFrame:
    """Packets that are not empty, counted by source."""
    over = f.window("ts", size, slide)
    counts = rows.filter("bytes > 0").withWatermark("ts", "0 seconds").groupBy("src", over).agg(f.count("*").alias("n"))
    return counts.selectExpr("src", "unix_micros(window.end) AS window_end", "n")


def main() -> None:
    """Until it is killed."""
    given = json.loads(sys.argv[1])
    answer = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print goes to standard error

    def show(results: DataFrame, number: int) -> None:
        found = [list(row) for row in results.collect()]
        print(json.dumps({"batch": number, "results": found}), file=answer, flush=True)

    spark = session(given["flags"])
    rows = spark.readStream.schema(COLUMNS).parquet(given["input"])
    writer = query(rows, given["size"], given["slide"]).writeStream.outputMode("append").foreachBatch(show)
    writer.option("checkpointLocation", str(Path(given["home"], "checkpoint"))).start().awaitTermination()


if __name__ == "__main__":
    main()
