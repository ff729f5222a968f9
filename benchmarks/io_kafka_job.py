"""What `io_kafka.py` starts: Q2 from topic to topic, once. `io_kafka_job.py ours|native BROKER FROM TO HOME`."""

# no `from __future__ import annotations`, and no package: this file is run by its path

import sys
from typing import Any

MASTER = "local[2]"
BATCH_ROWS = 500_000  # of a micro-batch, native and ours


def ours(broker: str, come: str, go: str, home: str) -> None:
    """As a user has it: a durable run from topic to topic."""
    import ours as queries

    from borealis import kafka, run
    from borealis.spark.session import session
    from borealis.trains.intake import Admission

    spark = session(master=MASTER)
    source, sink = kafka.source(come, broker, until="now"), kafka.sink(go, broker, key="k")
    admission = Admission(rows_most=BATCH_ROWS)
    run(queries.q2("kafka"), {"in": source}, {"out": sink}, state=home, spark=spark, admission=admission)


def native(broker: str, come: str, go: str, home: str) -> None:
    """The same with Spark's own connector."""
    import native as queries
    from kafka_broker import connector
    from pyspark.sql import SparkSession

    jars = {"spark.jars": connector()}
    builder: Any = SparkSession.builder.appName("native").master(MASTER)
    for name, value in (queries.SETTINGS | jars).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker)
        .option("subscribe", come)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH_ROWS)
        .load()
    )
    rows = records.selectExpr(f"from_json(CAST(value AS STRING), '{queries.COLUMNS}') AS r").select("r.*")
    counted = queries.q2(rows).toDF("k", "window", "n", "total")
    out = counted.selectExpr(
        "CAST(k AS STRING) AS key",
        "to_json(struct(k, window.start AS window_start, window.end AS window_end, n, total)) AS value",
    )
    writer = out.writeStream.format("kafka").option("kafka.bootstrap.servers", broker).option("topic", go)
    running = writer.option("checkpointLocation", f"{home}/checkpoint").outputMode("append").start()
    running.processAllAvailable()
    running.stop()


if __name__ == "__main__":
    {"ours": ours, "native": native}[sys.argv[1]](*sys.argv[2:])
