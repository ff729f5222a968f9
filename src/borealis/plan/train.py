"""A unit as a Structured Streaming query: each micro-batch is a train, and what it yields goes to the commit."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from borealis.errors import BorealisError, GivenUpError, TrainError
from borealis.plan.compile import Compiled
from borealis.plan.depot import Loan, lend
from borealis.plan.source import FORMAT, Trains, TrainServer, TrainSource

WHOLE_STAGE = "spark.sql.codegen.wholeStage"
ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_REGISTERING = threading.Lock()  # Spark looks whether the name is free, then takes it
_STARTING = threading.Lock()  # a query takes the session's settings as they are when it starts
FIRST_ASKED_S = 10.0  # Spark gives up a query whose Python process has not come by then
LOOK_S = 0.2


class Query:
    """Runs trains until stopped. `commit` gets the rows that came out of a train; if it raises, the train never was."""

    def __init__(
        self, spark: SparkSession, compiled: Compiled, trains: Trains, commit: Callable[[pa.Table], None], scratch: Path
    ) -> None:
        self.spark, self.compiled, self.trains, self.scratch = spark, compiled, trains, scratch
        self._commit = commit
        self._query: Any = None
        self._server: TrainServer | None = None
        self._loan: Loan | None = None
        self._refused: BaseException | None = None
        self._never: BorealisError | None = None  # why it could not be started

    def start(self) -> None:
        """Start the query; trains come as soon as there are any."""
        try:
            self._loan = lend(self.spark, self.scratch)
            outward = None if self._loan is None else self._loan.abroad
            self._server = TrainServer(self.scratch / "trains.sock", self.trains, outward)
            with self._settings():
                self._query = (
                    self.plan()
                    .writeStream.foreachBatch(self._take)
                    .option("checkpointLocation", f"file://{self.scratch}/checkpoint")  # not where Hadoop has its files
                    .start()
                )
                self._wait_asked()
        except BaseException as error:
            self._never = error if isinstance(error, BorealisError) else explain_failure(error)
            self.stop()
            raise

    def _wait_asked(self) -> None:
        """Wait for the query's Python process: many that start at once are slow, and Spark is impatient."""
        assert self._server is not None
        until = time.monotonic() + FIRST_ASKED_S
        while not self._server.asked.wait(LOOK_S) and self._query.isActive and time.monotonic() < until:
            continue

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """A query keeps the settings it was started with. Code for a whole stage pays off only where rows pass it.

        Where no rows pass it, a row is a piece of a result, and from executors elsewhere up to 4 MB large.
        """
        ours = {} if self.compiled.catalyst else {WHOLE_STAGE: "false"}
        if ours and self._loan is not None:
            ours[ROWS_PER_BATCH] = "4"
        with _STARTING:
            before = {name: self.spark.conf.get(name) for name in ours}
            try:
                for name, value in ours.items():
                    self.spark.conf.set(name, value)
                yield
            finally:
                for name, value in before.items():
                    self.spark.conf.set(name, value)

    def plan(self) -> DataFrame:
        """The streaming DataFrame that the query runs."""
        with _REGISTERING:
            self.spark.dataSource.register(TrainSource)
        source = (
            self.spark.readStream.format(FORMAT)
            .schema(self.compiled.first_schema)
            .option("socket", str(self.scratch / "trains.sock"))
            .option("buckets", str(self.compiled.program.buckets))
            .load()
        )
        return self.compiled.frame(source)

    def _take(self, frame: DataFrame, _: int) -> None:
        try:
            self._commit(frame.toArrow())
        except BorealisError as error:
            self._refused = error
            raise

    def failure(self) -> BorealisError | None:
        """Why the query died, if it did."""
        if self._query is None:
            return self._never
        if self._query.isActive:
            return None
        error = self._query.exception()
        if error is None:
            return TrainError("the unit's query was stopped from outside", hint="start the run again")
        return self._refused if isinstance(self._refused, BorealisError) else explain_failure(error)

    def durations(self) -> list[dict[str, int]]:
        """What Spark says of the last micro-batches, in milliseconds."""
        return [p.durationMs for p in self._query.recentProgress if p.numInputRows > 0] if self._query else []

    def wait(self, seconds: float) -> None:
        """Sleep, but not longer than the query lives."""
        try:
            self._query.awaitTermination(seconds)
        except StreamingQueryException:
            return  # told by `failure`

    def stop(self) -> None:
        """Stop after the current train."""
        if self._query is not None:
            self._query.stop()
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._loan is not None:
            self._loan.close()
            self._loan = None
        shutil.rmtree(self.scratch / "checkpoint", ignore_errors=True)


def explain_failure(error: BaseException) -> BorealisError:
    """One sentence out of what Spark reports of a failed train."""
    text = str(error)
    ours = re.findall(r"borealis\.errors\.(\w+): ([^\n]*)", text)
    if ours:
        kind = GivenUpError if any(name == GivenUpError.__name__ for name, _ in ours) else TrainError
        message, _, hint = ours[-1][1].partition(". Hint: ")
        failure: BorealisError = kind(message, hint=hint)
    else:
        spark = re.findall(r"\[([A-Z][A-Z0-9_.]+)\] ([^\n]*?)(?: SQLSTATE[^\n]*)?(?=\n|$)", text)
        inner = [m for code, m in spark if not code.startswith(("STREAM_FAILED", "FAILED_EXECUTE", "FOREACH_BATCH"))]
        python = re.findall(r"^(\w*(?:Error|Exception): [^\n]*)", text, re.MULTILINE)
        said = (inner or python or [text.splitlines()[0]])[-1]
        failure = TrainError(f"a train failed: {said.strip()}", hint="everything before it is committed")
    failure.__cause__ = error
    return failure
