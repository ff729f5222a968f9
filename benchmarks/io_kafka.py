"""Kafka to Kafka: Q2 of the engine's benchmark from topic to topic, beside plain Structured Streaming on one broker.

Both read the same JSON records from a topic of two partitions, all of them there at the start, count and sum per key
over sliding windows, and write JSON records to a topic of their own; both could go on after a crash (a state directory,
a checkpoint). Each job is a process and a JVM of its own, by turns.

The broker stamps every record that it takes. A rate is over the last two thirds of the stream: of outputs that belong
to them, the stream time between the first and the last, in input rows, over the time between their stamps. What Spark
needs to start, and what was read ahead meanwhile, counts for nobody. The whole time of each job, from the start of its
process to its last output, is told as well. Windows that end behind the last input row are left out, and so are those
that native does not give out any more.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from borealis.errors import BorealisError

from . import workload
from .kafka_broker import Broker, connector, missing

JOB = Path(__file__).with_name("io_kafka_job.py")
JOB_S_MOST = 900.0
PARTITIONS = 2
ROWS_PER_S = workload.ROWS_PER_MS * 1000  # of stream time
BURST_MS = 150  # windows that are written within this are of one micro-batch, which takes far longer
SHARE = 1e-6  # how far sums of doubles may be apart: the engines add in different orders

Windows = dict[tuple[int, int], tuple[int, float]]  # (end in seconds, key) to count and sum


def measure(rows: int = 6_000_000, runs: int = 3) -> dict[str, Any]:
    """Medians of alternating runs, in input rows per second, both held to the same results."""
    with running_broker() as broker, tempfile.TemporaryDirectory(prefix="borealis-io-", dir=_memory()) as home:
        come = broker.topic(f"come-{uuid4().hex[:8]}", PARTITIONS, retention_ms="-1")
        fill(broker, come, rows)
        rates: dict[str, list[float]] = {"ours": [], "native": []}
        took: dict[str, list[float]] = {"ours": [], "native": []}
        equal = True
        for turn in range(runs):
            results: dict[str, Windows] = {}
            for engine in ("native", "ours") if turn % 2 else ("ours", "native"):
                go = broker.topic(f"go-{uuid4().hex[:8]}", PARTITIONS, message_timestamp_type="LogAppendTime")
                began = time.time()
                _job(engine, broker.address, come, go, Path(home) / f"{engine}-{turn}")
                results[engine], stamps = _outputs(broker, go, rows)
                rates[engine].append(rate(stamps))
                took[engine].append(max(stamps.values()) / 1000 - began)
                shutil.rmtree(Path(home) / f"{engine}-{turn}", ignore_errors=True)
            equal = equal and same(results["ours"], results["native"])
        ours, native = (statistics.median(rates[engine]) for engine in ("ours", "native"))
        return {
            "experiment": "kafka to kafka",
            "rows": rows,
            "partitions": PARTITIONS,
            "runs": runs,
            "ours_rows_per_s": round(ours),
            "native_rows_per_s": round(native),
            "ratio": round(ours / native, 2),
            "equal_results": equal,
            "ours": [round(one) for one in rates["ours"]],
            "native": [round(one) for one in rates["native"]],
            "ours_whole_s": [round(seconds, 1) for seconds in took["ours"]],
            "native_whole_s": [round(seconds, 1) for seconds in took["native"]],
        }


def fill(broker: Broker, topic: str, rows: int) -> None:
    """The workload's rows as JSON records, in the partitions by turns."""
    from borealis.connectors.files.text import JsonLines, render

    for first in range(0, rows, workload.FILE_ROWS):
        batch = workload.rows_at(first, min(workload.FILE_ROWS, rows - first))
        values = [v for piece in render(pa.table(batch), JsonLines()) for v in bytes(piece).split(b"\n")[:-1]]
        for p in range(PARTITIONS):
            broker.put(topic, values[p::PARTITIONS], p)


def same(ours: Windows, native: Windows) -> bool:
    """Whether native's windows are ours, too; ours may have some more at the end."""
    last = max((end for end, _ in native), default=0)
    mine = {key: value for key, value in ours.items() if key[0] <= last}
    return mine.keys() == native.keys() and all(
        count == native[key][0] and abs(total - native[key][1]) <= SHARE * max(1.0, abs(total))
        for key, (count, total) in mine.items()
    )


def _outputs(broker: Any, topic: str, rows: int) -> tuple[Windows, dict[int, int]]:
    """What a job wrote, and when (in ms) each window (by its end, in seconds) was there."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    reader = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "look",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    reader.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    begin, end = workload.EPOCH_US // 10**6, workload.EPOCH_US // 10**6 + rows // ROWS_PER_S
    windows: Windows = {}
    stamps: dict[int, list[int]] = {}
    left = PARTITIONS
    while left:
        for message in reader.consume(10_000, 1.0):
            if message.error() is not None:
                left -= 1
                continue
            row = json.loads(message.value())
            at = round(datetime.fromisoformat(row["window_end"]).timestamp())
            if (at, row["k"]) in windows:
                raise RuntimeError(f"window {at} of key {row['k']} came twice")
            windows[at, row["k"]] = (row["n"], row["total"])
            if begin < at <= end:
                stamps.setdefault(at, []).append(message.timestamp()[1])
    reader.close()
    return windows, {at: max(some) for at, some in stamps.items()}


def rate(stamps: dict[int, int]) -> float:
    """Input rows per second, from the stamps (in ms) of windows (by their ends, in seconds), without the first third.

    A micro-batch writes all its windows in one go: the span is counted from the last window of such a burst.

    >>> rate({1: 0, 2: 10, 3: 1000, 4: 1010, 5: 2000, 6: 2010}) / ROWS_PER_S
    2.0
    """
    ends = sorted(stamps)
    third = ends[0] + (ends[-1] - ends[0]) / 3
    first = next((a for a, b in pairwise(ends) if a >= third and stamps[b] - stamps[a] > BURST_MS), ends[0])
    seconds = (stamps[ends[-1]] - stamps[first]) / 1000
    if not seconds:
        raise BorealisError("all windows came at once: there is no rate to be had", hint="give it more rows")
    return (ends[-1] - first) * ROWS_PER_S / seconds


# -- jobs


def _job(engine: str, broker: str, come: str, go: str, home: Path) -> None:
    command = [sys.executable, str(JOB), engine, broker, come, go, str(home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_S_MOST, check=False)
    if done.returncode:
        raise RuntimeError(f"the {engine} job failed: {done.stderr[-2000:]}")


# -- the broker


@contextmanager
def running_broker() -> Iterator[Broker]:
    """A broker of its own, or the one that tests run; Spark's connector is wanted, too."""
    why = missing() or ("" if connector() else "Spark's Kafka connector is not there")
    if why:
        raise BorealisError(why, hint="fetch what is missing: python benchmarks/kafka_broker.py fetch")
    running = os.environ.get("BOREALIS_TEST_BROKER")
    with tempfile.TemporaryDirectory(prefix="borealis-kafka-", dir=_memory()) as made:
        broker = Broker(Path(made) / "kafka", int(running or 0))
        if not running:
            broker.start()
        try:
            yield broker
        finally:
            broker.kill()


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
