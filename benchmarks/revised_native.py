"""What plain Structured Streaming does about late rows: it waits for them before it gives a result."""

from __future__ import annotations

import statistics
from datetime import datetime
from pathlib import Path
from typing import Any

from batches import batches_of
from native import _start, start_session
from pyspark.sql import functions as f

WAIT = "1 hour"


def late(inputs: list[str], home: str, master: str, flavour: str) -> dict[str, Any]:
    """The query with an hour's watermark; and how far results are behind the newest time, batch by batch."""
    spark = start_session(master, flavour)
    rows = spark.readStream.schema("k INT, n BIGINT, ts TIMESTAMP").option("maxFilesPerTrigger", 1).parquet(inputs[0])
    over = f.window("ts", "1 minute")
    found = rows.withWatermark("ts", WAIT).groupBy("k", over).agg(f.count("*"), f.sum("n"))
    running = _start(found, Path(home))
    running.processAllAvailable()
    done = batches_of(running)
    seen = [p.eventTime for p in running.recentProgress if "max" in p.eventTime]
    behind = [(_time(one["max"]) - _time(one["watermark"])).total_seconds() for one in seen[1:]]
    running.stop()
    return {"batches": done, "behind_s": statistics.median(behind), "refused": 0}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
