"""A simulated node that runs programs of several levels as well: what is left to Catalyst, Spark does at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from harness import Luck, _later_levels
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from borealis.sim.programs import Programs
from borealis.spark import worker
from borealis.spark.plan import level_schema
from borealis.spark.query import Query

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from simulated import Simulated


class Levels(Query):
    """One train after the other, in a thread of the simulation, as in a micro-batch."""

    def _run_in_batches(self) -> None:
        self._over, self._thread = False, self.trains.machine.threads.start("trains", self._run)

    def stop(self) -> None:
        super().stop()
        if not self.compiled.one_level:
            self._over = True
            self._thread.join()

    def failure(self) -> Any:
        return super().failure() if self.compiled.one_level else None

    def _run(self) -> None:
        schema, spark = to_arrow_schema(level_schema(self.compiled, 0), timezone="UTC"), self.spark.spark()
        while not self._over:
            number = self.trains.next_train(self.trains.committed(), 0.05)
            if number is not None:
                plan = json.loads(json.dumps(self.trains.plan(number)))
                table = pa.Table.from_batches(list(worker.read_train(plan, 0, schema)), schema)
                self._commit(_later_levels(self.compiled, table, Luck(), spark))


@contextmanager
def in_levels(spark: SparkSession) -> Iterator[Simulated]:
    with patch("borealis.node.building.Query", Levels), Simulated(Programs(spark), 1) as town:
        yield town
