"""What runs a unit's trains: lanes that are dressed as the unit, or micro-batches of a query of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from borealis.compile.lowering import CatalystStep
from borealis.compile.types import first_line
from borealis.compile.unit import Compiled
from borealis.errors import BorealisError, TrainError
from borealis.spark.depot import Loan, lend
from borealis.spark.lane_query import LaneQuery, TooFewCoresError, start_one
from borealis.spark.plan import frame_of, level_schema
from borealis.spark.source import answer_with_trains
from borealis.spark.streaming import WHOLE_STAGE, StreamingQuery, death_told, explain_failure, frames_from
from borealis.trains.results import Arrived
from borealis.trains.unit import UnitRun

COMMON_PARTS = "spark.sql.subexpressionElimination.enabled"
ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"

LOOK_S = 0.2  # between looks whether a rehearsal can still come

Get = Callable[[int], LaneQuery]  # a started query with so many lanes


class Query:
    """Runs trains until stopped. `commit` gets the rows that came out of a train; if it raises, the train never was.

    `get` says where a query with lanes comes from; without it, one is started.
    """

    def __init__(
        self,
        spark: SparkSession,
        compiled: Compiled,
        trains: UnitRun,
        commit: Callable[[pa.Table | Arrived], None],
        scratch: Path,
        get: Get | None = None,
    ) -> None:
        self.spark, self.compiled, self.trains, self.scratch = spark, compiled, trains, scratch
        self._commit = commit
        self._get = get or partial(start_one, spark)
        self._lanes: LaneQuery | None = None
        self._batches: StreamingQuery | None = None
        self.hinders = compiled.hinders  # what keeps it from running in lanes
        self._loan: Loan | None = None
        self._refused: BorealisError | None = None
        self._never: BorealisError | None = None  # why it could not be started
        self._stopped = False

    def start(self) -> None:
        """Start the query; trains come as soon as there are any."""
        self.trains.reason = self.reason
        try:
            with death_told(self.spark):
                if not self._run_in_lanes():
                    self._run_in_batches()
        except BaseException as error:
            self._never = error if isinstance(error, BorealisError) else explain_failure(error)
            self.stop()
            raise

    def _run_in_lanes(self) -> bool:
        """Whether it can."""
        if not self.compiled.one_level:
            return False
        try:
            self._lanes = self._get(self.compiled.program.buckets)
        except TooFewCoresError as error:
            self.hinders = error.message
            return False
        if self._stopped:  # meanwhile
            raise TrainError("the unit was stopped before its query was there")
        if not self._lanes.dress(self.trains, self._commit, self.scratch):
            raise self._lanes.failure() or TrainError("the unit's query died before its first train", hint="try again")
        return True

    def fit(self, lanes: LaneQuery, seconds: float) -> bool:
        """Rehearse once in lanes that may have to run its trains; says whether these are as good as before."""
        rehearsals, now = self.trains.rehearsals, self.trains.machine.clock.now
        before, until = rehearsals.count, now() + seconds
        if not lanes.dress(self.trains, self._commit, self.scratch, fitting=True):
            return False
        self.trains.rehearse()
        while rehearsals.count == before and now() < until and not self._stopped and lanes.failure() is None:
            rehearsals.wait(before, LOOK_S)
        idle = lanes.undress(max(LOOK_S, until - now()))
        return idle and lanes.failure() is None and (rehearsals.count > before or self._stopped)

    def _run_in_batches(self) -> None:
        self._loan = lend(self.spark, self.scratch)
        outward = None if self._loan is None else self._loan.for_remote
        self._batches = StreamingQuery(self.spark, self.scratch, answer_with_trains(self.trains, outward))
        self._batches.start(self._settings(), lambda: self.plan().writeStream.foreachBatch(self._take))

    def _settings(self) -> dict[str, str]:
        """Code for a whole stage pays off only where rows pass it.

        Where no rows pass it, a row is a piece of a result, and from executors elsewhere up to 4 MB large.
        """
        ours = {} if self.compiled.catalyst else {WHOLE_STAGE: "false"}
        if ours and self._loan is not None:
            ours[ROWS_PER_BATCH] = "4"
        if self.compiled.catalyst and self.compiled.program.aside:
            ours[COMMON_PARTS] = "false"  # they would be computed outside of the attempt
        return ours

    def plan(self) -> DataFrame:
        """Of its micro-batches."""
        schema, buckets = level_schema(self.compiled, 0), self.compiled.program.buckets
        return frame_of(self.compiled, frames_from(self.spark, self.scratch, schema, buckets, lanes=False))

    def _take(self, frame: DataFrame, _: int) -> None:
        try:
            self._commit(frame.toArrow())
        except BorealisError as error:
            self._refused = error
            raise

    def failure(self) -> BorealisError | None:
        """Why it does not run, if it should and cannot."""
        if self._lanes is not None:
            return self._lanes.failure()
        if self._batches is None:
            return self._never
        failure = self._batches.failure(self._steps())
        return failure and (self._refused or failure)

    def reason(self, box: str, expression: str, row: str) -> str:
        """Why a row, given as JSON, fails in an expression that Spark computes."""
        step = next((s for s in self._steps() if s.box == box and expression in s.texts), None)
        if step is not None:
            frame = self.spark.range(1).select(F.from_json(F.lit(row), step.schema).alias("r")).select("r.*")
            try:
                frame.select(F.expr(expression)).collect()
            except PySparkException as error:
                return first_line(error).split(". ")[0]
        return "it fails in Spark"

    def _steps(self) -> list[CatalystStep]:
        return [step for steps, _ in self.compiled.catalyst.values() for step in steps]

    def stop(self) -> None:
        """Stop after the current train."""
        self._stopped = True
        lanes, self._lanes = self._lanes, None
        if lanes is not None:
            lanes.stop()
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.stop()
        if self._loan is not None:
            self._loan.close()
            self._loan = None
