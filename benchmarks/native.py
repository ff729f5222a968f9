"""The queries in plain Structured Streaming: the same PySpark, the same cores, the same rows, results thrown away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from batches import KEPT, Batch, batches_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from workload import drop_files

from borealis.spark.session import JVM_FLAGS

COLUMNS = "k INT, v DOUBLE, ts TIMESTAMP"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FLAVOURS = {
    "JVM defaults": {},
    "our JVM flags": {"spark.driver.extraJavaOptions": JVM_FLAGS},
    "RocksDB": {"spark.sql.streaming.stateStore.providerClass": ROCKSDB},
}
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "4g",  # four times ours: the join's state must not be what slows it down
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
}
PATIENCE_S = 120.0  # for the first micro-batches


def start_session(master: str, flavour: str) -> SparkSession:
    """A session with Spark's own settings, and what the flavour adds."""
    builder: Any = SparkSession.builder.appName("native").master(master)
    for name, value in (SETTINGS | KEPT | FLAVOURS[flavour]).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def q1(rows: DataFrame) -> DataFrame:
    """Filter and map."""
    return rows.filter("v > 0.5").selectExpr("k", "v * 2 AS w", "ts")


def q2(rows: DataFrame) -> DataFrame:
    """Count and sum per key over sliding windows."""
    over = f.window("ts", "10 seconds", "1 second")
    return rows.withWatermark("ts", "0 seconds").groupBy("k", over).agg(f.count("*"), f.sum("v"))


def q3(left: DataFrame, right: DataFrame) -> DataFrame:
    """Join on the key, less than 10 ms apart."""
    a = left.withWatermark("ts", "0 seconds").alias("a")
    b = right.withWatermark("ts", "0 seconds").alias("b")
    near = "a.ts > b.ts - INTERVAL 10 MILLISECONDS AND a.ts < b.ts + INTERVAL 10 MILLISECONDS"
    return a.join(b, f.expr(f"a.k = b.k AND {near}"))


QUERIES: dict[str, Callable[..., DataFrame]] = {"q1": q1, "q2": q2, "q3": q3}


def throughput(query: str, inputs: list[str], home: str, master: str, flavour: str) -> list[Batch]:
    """One file of each input to a micro-batch, as fast as it goes."""
    spark = start_session(master, flavour)
    running = _start(QUERIES[query](*(_files(spark, path, 1) for path in inputs)), Path(home))
    running.processAllAvailable()
    done = batches_of(running)
    running.stop()
    return done


def live(rows_per_s: int, seconds: float, cold: int, home: str, master: str, flavour: str) -> list[Batch]:
    """Q2 over files that appear in a watched directory; all that is there goes into the next micro-batch.

    Ends so many seconds after the first `cold` micro-batches.
    """
    spark = start_session(master, flavour)
    watched, stop = Path(home, "watched"), threading.Event()
    watched.mkdir(parents=True)
    feed = threading.Thread(target=drop_files, args=(watched, rows_per_s, stop), daemon=True)
    running = _start(q2(_files(spark, str(watched))), Path(home))
    feed.start()
    _wait_for(running, cold)
    time.sleep(seconds)
    done = batches_of(running)
    stop.set()
    feed.join()
    running.stop()
    return done


def _files(spark: SparkSession, path: str, most: int | None = None) -> DataFrame:
    reader = spark.readStream.schema(COLUMNS)
    return (reader if most is None else reader.option("maxFilesPerTrigger", most)).parquet(path)


def _start(frame: DataFrame, home: Path) -> Any:
    writer = frame.writeStream.format("noop").outputMode("append")
    return writer.option("checkpointLocation", str(home / "checkpoint")).start()


def _wait_for(running: Any, batches: int) -> None:
    for _ in range(int(PATIENCE_S / 0.1)):
        if len(batches_of(running)) >= batches:
            return
        time.sleep(0.1)
    raise TimeoutError(f"no {batches} micro-batches within {PATIENCE_S:.0f} s")
