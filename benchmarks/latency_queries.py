"""The two queries of `bench latency`, as diagrams and in plain Structured Streaming.

stateless: filter and map, a result for each row that is left; windowed: filter, map, and a count by key over tumbling
windows of a tenth of a second. The result is the count when the window has closed (append mode). Spark's real-time mode
has no append mode, only the running count after each row (update mode).
"""

# no package: jobs that are run by their path use it

from __future__ import annotations

from typing import Any

import latency_feed as feed

MASTER = "local[2]"
PARTITIONS = "1"  # of a shuffle: as many as the topic has, and with the source's one as many tasks as there are cores


def diagram(query: str) -> Any:
    """As a user writes it."""
    from borealis import Diagram, window

    d = Diagram(query)
    kept = d.input("rows", feed.COLUMNS, time="ts").filter(feed.FILTER).map(born="born", k="k", w="v * 2")
    if query == "windowed":
        kept = kept.aggregate(by="k", over=window(feed.WINDOW), n="count(*)")
    kept.output("out")
    return d


def native_session(engine: str) -> Any:
    """Spark's own settings; state in RocksDB for the real-time mode, which wants it."""
    import native
    from kafka_broker import connector
    from pyspark.sql import SparkSession

    settings = native.SETTINGS | {"spark.sql.shuffle.partitions": PARTITIONS}
    if jars := connector():
        settings |= {"spark.jars": jars}
    if engine != "micro-batch":
        settings |= native.FLAVOURS["RocksDB"]
    builder: Any = SparkSession.builder.appName("native").master(MASTER)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def of_records(lines: Any) -> Any:
    """JSON in a column `value` as rows."""
    return lines.selectExpr(f"from_json(CAST(value AS STRING), '{feed.COLUMNS}') AS r").select("r.*")


def spark_query(query: str, rows: Any, running: bool = False) -> Any:
    """The same in Structured Streaming; `running` counts have the birth of the newest row as well."""
    from pyspark.sql import functions as f

    kept = rows.filter(feed.FILTER).selectExpr("born", "k", "v * 2 AS w", "ts")
    if query == "stateless":
        return kept.select("born", "k", "w")
    counted = kept.withWatermark("ts", "0 seconds").groupBy("k", f.window("ts", feed.WINDOW))
    counted = counted.agg(f.count("*").alias("n"), *([f.max("born").alias("running")] if running else []))
    return counted.selectExpr("k", "window.end AS window_end", "n", *(["running"] if running else []))
