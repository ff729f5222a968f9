"""A simulated node that runs programs of several levels as well: what is left to Catalyst, Spark does at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from harness import Luck, _later_levels
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from borealis.compile.unit import Compiled
from borealis.sim.kernel import Process
from borealis.sim.programs import Programs
from borealis.sim.query import SimQuery
from borealis.spark import worker
from borealis.spark.plan import level_schema
from borealis.trains.unit import UnitRun

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from simulated import Simulated


class Levels(SimQuery):
    """One train after the other, in a thread of the simulation, as in a micro-batch."""

    def __init__(
        self,
        process: Process,
        chance: Random,
        train_s: float,
        start_s: float,
        programs: Programs,
        compiled: Compiled,
        trains: UnitRun,
        commit: Callable[[Any], None],
        scratch: Path,
    ) -> None:
        self._in_lanes = compiled.one_level
        self._spark, self._compiled, self._trains, self._commit = programs.spark(), compiled, trains, commit
        if self._in_lanes:
            super().__init__(process, chance, train_s, start_s, programs, compiled, trains, commit, scratch)
        else:
            self.hinders, self._process, self._over, self._threads = compiled.hinders, process, False, []

    def start(self) -> None:
        if self._in_lanes:
            super().start()
        else:
            self._threads.append(self._process.start("trains", self._run))

    def stop(self) -> None:
        if self._in_lanes:
            super().stop()
        else:
            self._over = True
            self._threads[0].join()

    def failure(self) -> Any:
        return super().failure() if self._in_lanes else None

    def _run(self) -> None:
        schema = to_arrow_schema(level_schema(self._compiled, 0), timezone="UTC")
        while not self._over:
            number = self._trains.next_train(self._trains.committed(), 0.05)
            if number is not None:
                plan = json.loads(json.dumps(self._trains.plan(number)))
                table = pa.Table.from_batches(list(worker.read_train(plan, 0, schema)), schema)
                self._commit(_later_levels(self._compiled, table, Luck(), self._spark))


@contextmanager
def in_levels(spark: SparkSession) -> Iterator[Simulated]:
    with patch("borealis.sim.cluster.SimQuery", Levels), Simulated(Programs(spark), 1) as town:
        yield town
