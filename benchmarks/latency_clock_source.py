"""The rows of `bench latency` as a Python streaming data source of Spark: it makes them itself, by the clock.

So nothing lies between the rows' birth and Spark: an offset is a time, and the latest is that of the last tick that is
due. Which ticks there are stands in a file, a line for each phase, that the measuring process writes as a phase begins.
"""

# no package: Spark's Python workers import it by the folder that it stands in

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import latency_feed as feed
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition


def announce(plan: Path, phase: feed.Phase, start_us: int) -> None:
    """A phase begins."""
    with plan.open("a") as out:
        out.write(json.dumps([start_us, phase.given()]) + "\n")


class ClockSource(DataSource):
    """`spark.readStream.format("clock").option("plan", FILE)`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._plan = Path(options["plan"])

    @classmethod
    def name(cls) -> str:
        """As the format is called."""
        return "clock"

    def schema(self) -> str:
        """The columns."""
        return feed.COLUMNS

    def streamReader(self, schema: Any) -> ClockReader:  # noqa: N802 - Spark's name
        """A reader of all phases."""
        return ClockReader(self._plan)


class ClockReader(DataSourceStreamReader):
    """One partition, from time to time."""

    def __init__(self, plan: Path) -> None:
        self._path = plan

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Before all rows."""
        return {"born": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The birth of the last rows that are due."""
        due = [start["born"]]
        for begin, phase in self._phases():
            gone = min(feed.now_us(), begin + phase.whole_us - feed.TICK_US) - begin
            if gone >= 0:
                due.append(begin + gone // feed.TICK_US * feed.TICK_US)
        return {"born": max(due)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """All in one."""
        return [InputPartition((start["born"], end["born"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows born after the first and up to the second time."""
        after, upto = partition.value
        for begin, phase in self._phases():
            first = max(0, (after - begin) // feed.TICK_US + 1)
            last = min((upto - begin) // feed.TICK_US, phase.whole_us // feed.TICK_US - 1)
            count = phase.rows_per_s * feed.TICK_US // feed.SECOND_US
            for number in range(first, last + 1):
                yield feed.batch(begin + number * feed.TICK_US, number * count, count)

    def _phases(self) -> list[tuple[int, feed.Phase]]:
        lines = self._path.read_text().splitlines()
        return [(begin, feed.Phase(**phase)) for begin, phase in map(json.loads, lines)]
