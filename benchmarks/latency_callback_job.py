"""What `latency_callback.py` starts: a source, a query and a callback in one process, at one rate after the other.

`latency_callback_job.py '{"engine": "borealis", "query": "windowed", "phases": [...], "home": "..."}'`; a line of JSON
for the figures of each phase.
"""

# no package: this file is run by its path

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import latency_feed as feed
from measuring import meter

Ticks = Iterator[tuple[int, int, int]]


def borealis(query: str, ticks: Ticks, ages: feed.Ages, phases: Sequence[feed.Phase], home: Path) -> None:
    """A generator of record batches, and a function that takes them: as a user has it."""
    from latency_queries import diagram

    from borealis import rows, run

    def take(batch: Any) -> None:
        feed.take_batch(ages, feed.now_us(), batch)

    run(diagram(query), {"rows": rows(feed.batch(*tick) for tick in ticks)}, {"out": take})


def micro_batch(query: str, ticks: Ticks, ages: feed.Ages, phases: Sequence[feed.Phase], home: Path) -> None:
    """A Python data source that makes the rows as they are due, and `foreachBatch`."""
    from latency_clock_source import ClockSource, announce
    from latency_queries import native_session, spark_query

    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))  # for the workers
    plan = home / "plan.jsonl"
    plan.touch()
    spark = native_session("micro-batch")
    spark.dataSource.register(ClockSource)

    def take(frame: Any, _: int) -> None:
        table = frame.toArrow()
        feed.take_batch(ages, feed.now_us(), table)

    rows = spark.readStream.format("clock").option("plan", str(plan)).load()
    writer = spark_query(query, rows).writeStream.foreachBatch(take).outputMode("append")
    running = writer.option("checkpointLocation", str(home / "checkpoint")).start()
    begun = iter(phases)
    try:
        for born_us, first, _ in ticks:
            if first == 0:
                announce(plan, next(begun), born_us)
            if born_us % feed.SECOND_US == 0 and (failure := running.exception()) is not None:
                raise failure
    finally:
        running.stop()


ENGINES: dict[str, Callable[[str, Ticks, feed.Ages, Sequence[feed.Phase], Path], None]] = {
    "borealis": borealis,
    "micro-batch": micro_batch,
}


def main() -> None:
    """What libraries print goes to standard error."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    given = json.loads(sys.argv[1])
    ages = feed.Ages()

    def tell(one: dict[str, Any]) -> None:
        print(json.dumps(one), file=answer, flush=True)

    phases = [feed.Phase(**one) for one in given["phases"]]
    ticks = feed.feed(phases, ages, given["query"] == "windowed", lambda: meter([os.getpid()]), tell)
    ENGINES[given["engine"]](given["query"], ticks, ages, phases, Path(given["home"]))
    answer.close()


if __name__ == "__main__":
    main()
