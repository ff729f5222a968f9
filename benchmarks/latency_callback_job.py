"""What `latency_callback.py` starts: a source, a query and a callback in one process, at one rate after the other.

`latency_callback_job.py '{"engine": "borealis", "query": "windowed", "phases": [...], "home": "..."}'`; a line of JSON
for the figures of each phase.
"""

# no package: this file is run by its path

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
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

    rows = spark.readStream.format("clock").option("plan", str(plan)).load()
    begun = iter(phases)

    def give(tick: tuple[int, int, int]) -> None:
        if tick[1] == 0:
            announce(plan, next(begun), tick[0])

    _query(spark_query(query, rows), ticks, give, ages, home)


def micro_batch_socket(query: str, ticks: Ticks, ages: feed.Ages, phases: Sequence[feed.Phase], home: Path) -> None:
    """Spark's own socket source, and `foreachBatch`."""
    from latency_queries import native_session, of_records, spark_query

    spark = native_session("micro-batch")
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as open_:
        server.settimeout(feed.FIRST_S)
        source = spark.readStream.format("socket").option("host", "127.0.0.1")
        lines = source.option("port", server.getsockname()[1]).load()
        line: list[socket.socket] = []

        def give(tick: tuple[int, int, int]) -> None:
            if not line:
                line.append(open_.enter_context(server.accept()[0]))
                line[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line[0].sendall(b"\n".join(feed.records(*tick)) + b"\n")

        _query(spark_query(query, of_records(lines)), ticks, give, ages, home)


def _query(frame: Any, ticks: Ticks, give: Callable[[tuple[int, int, int]], None], ages: feed.Ages, home: Path) -> None:
    """Run it while there are ticks to give."""

    def take(results: Any, _: int) -> None:
        table = results.toArrow()
        feed.take_batch(ages, feed.now_us(), table)

    writer = frame.writeStream.foreachBatch(take).outputMode("append")
    running = writer.option("checkpointLocation", str(home / "checkpoint")).start()
    try:
        for tick in ticks:
            give(tick)
            if tick[0] % feed.SECOND_US == 0 and (failure := running.exception()) is not None:
                raise failure
    finally:
        running.stop()


ENGINES: dict[str, Callable[[str, Ticks, feed.Ages, Sequence[feed.Phase], Path], None]] = {
    "borealis": borealis,
    "micro-batch": micro_batch,
    "micro-batch, socket": micro_batch_socket,
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
