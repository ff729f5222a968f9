"""A unit as a Structured Streaming query: each micro-batch is a train, and what it yields goes to the commit."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from borealis.clock import WALL
from borealis.compile.lowering import CatalystStep
from borealis.compile.types import first_line
from borealis.compile.unit import Compiled
from borealis.errors import BorealisError, GivenUpError, MachineError, TrainError
from borealis.spark.depot import Loan, lend
from borealis.spark.lanes import CORES, Lanes, failure_of
from borealis.spark.plan import frame_of, level_schema
from borealis.spark.quiet import keep_log
from borealis.spark.source import FORMAT, TrainServer, TrainSource
from borealis.trains.header import Lane
from borealis.trains.results import Arrived
from borealis.trains.unit import UnitRun

WHOLE_STAGE = "spark.sql.codegen.wholeStage"
COMMON_PARTS = "spark.sql.subexpressionElimination.enabled"
ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_REGISTERING = threading.Lock()  # Spark looks whether the name is free, then takes it
_STARTING = threading.Lock()  # a query takes the session's settings as they are when it starts
WRAPPERS = ("STREAM_FAILED", "FAILED_EXECUTE", "FOREACH_BATCH")  # what Spark says of any failure
REPORT_LINES_MOST = 30
FIRST_ASKED_S = 10.0  # Spark gives up a query whose Python process has not come by then
LOOK_S = 0.2
LAST_TRAIN_S = 1.0  # for a train that is under way when lanes are closed


class Query:
    """Runs trains until stopped. `commit` gets the rows that came out of a train; if it raises, the train never was."""

    def __init__(
        self,
        spark: SparkSession,
        compiled: Compiled,
        trains: UnitRun,
        commit: Callable[[pa.Table | Arrived], None],
        scratch: Path,
    ) -> None:
        self.spark, self.compiled, self.trains, self.scratch = spark, compiled, trains, scratch
        self._commit = commit
        self._query: Any = None
        self._server: TrainServer | None = None
        self._lanes: Lanes | None = None
        self.hinders = compiled.hinders  # what keeps it from running in lanes
        self._loan: Loan | None = None
        self._refused: BorealisError | None = None
        self._never: BorealisError | None = None  # why it could not be started

    def start(self) -> None:
        """Start the query; trains come as soon as there are any."""
        self.trains.reason = self.reason
        try:
            self._loan = lend(self.spark, self.scratch)
            self._serve()
            with self._settings():
                writer = self.plan().writeStream
                writer = writer.foreachBatch(self._take) if self._lanes is None else writer.format("noop")
                writer = writer.option("checkpointLocation", f"file://{self.scratch}/checkpoint")  # not Hadoop's place
                self._query = writer.start()
                self._wait_asked()
        except BaseException as error:
            self._never = error if isinstance(error, BorealisError) else explain_failure(error)
            self.stop()
            if isinstance(error, Py4JError | OSError) and is_dead(self.spark):
                self._never = spark_died(error)
                raise self._never from error
            if isinstance(error, PySparkException):
                raise self._never from error
            raise

    def _serve(self) -> None:
        """Be there for those who ask for trains."""
        path = self.scratch / "trains.sock"
        outward = None if self._loan is None else self._loan.for_remote
        if self.compiled.one_level:
            self.hinders = CORES.take(self.spark, self, self.compiled.program.buckets)
        if not self.compiled.one_level or self.hinders is not None:
            self._server = TrainServer(path, self.trains, outward)
            return
        self._lanes = Lanes(
            self.trains, self._commit, self.compiled.program.buckets, outward, machine=self.trains.machine
        )
        here: Lane = {"lane": str(path), "program": str(self.scratch / "program.json")}
        where = here if self._loan is None else self._loan.open_lanes(self._lanes.turn)
        self._server = TrainServer(path, self.trains, outward, self._lanes, where)

    def _wait_asked(self) -> None:
        """Wait for the query's Python process: many that start at once are slow, and Spark is impatient."""
        assert self._server is not None
        until = WALL.now() + FIRST_ASKED_S
        while not self._server.asked.wait(LOOK_S) and self._query.isActive and WALL.now() < until:
            continue

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """A query keeps the settings it was started with. Code for a whole stage pays off only where rows pass it.

        Where no rows pass it, a row is a piece of a result, and from executors elsewhere up to 4 MB large.
        """
        ours = {} if self.compiled.catalyst else {WHOLE_STAGE: "false"}
        if ours and self._lanes is None and self._loan is not None:
            ours[ROWS_PER_BATCH] = "4"
        if self.compiled.catalyst and self.compiled.program.aside:
            ours[COMMON_PARTS] = "false"  # they would be computed outside of the attempt
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
        with _REGISTERING:
            self.spark.dataSource.register(TrainSource)
        source = (
            self.spark.readStream.format(FORMAT)
            .schema(level_schema(self.compiled, 0))
            .option("socket", str(self.scratch / "trains.sock"))
            .option("buckets", str(self.compiled.program.buckets))
            .option("lanes", "" if self._lanes is None else "yes")
            .load()
        )
        return frame_of(self.compiled, source)

    def _take(self, frame: DataFrame, _: int) -> None:
        try:
            self._commit(frame.toArrow())
        except BorealisError as error:
            self._refused = error
            raise

    def failure(self) -> BorealisError | None:
        if self._query is None:
            return self._never
        if self._lanes is not None and self._lanes.failure is not None:
            return failure_of(self._lanes.failure)
        try:
            if self._query.isActive:
                return None
            error = self._query.exception()
        except (Py4JError, OSError) as gone:
            if not is_dead(self.spark):
                raise
            return spark_died(gone)
        if error is None:
            return TrainError("the unit's query was stopped from outside", hint="start the run again")
        return self._refused or explain_failure(error, self._steps())

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
        if self._lanes is not None:
            self._lanes.close()
            self._lanes.wait_idle(LAST_TRAIN_S)
            self._lanes = None
            CORES.give_back(self)
        if self._query is not None:
            try:
                self._query.stop()
            except (Py4JError, OSError):
                if not is_dead(self.spark):  # a query dies with its JVM
                    raise
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._loan is not None:
            self._loan.close()
            self._loan = None
        shutil.rmtree(self.scratch / "checkpoint", ignore_errors=True)


def is_dead(spark: SparkSession) -> bool:
    """Whether its JVM is gone: ended, where this process has started it, or out of reach."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None and process.poll() is not None:
        return True
    try:
        spark.sparkContext._jvm.System.nanoTime()
    except (Py4JError, OSError):
        return True
    return False


def spark_died(error: BaseException) -> MachineError:
    log = keep_log()
    where = "" if log is None else f"; Spark's log is {log}"
    died = MachineError(f"Spark died: its JVM does not answer any more{where}", hint="start it again")
    died.__cause__ = error
    return died


def explain_failure(error: BaseException, steps: Sequence[CatalystStep] = ()) -> BorealisError:
    """One sentence out of what Spark reports of a failed train: box, expression and the innermost reason.

    The whole report is the `__cause__`; a traceback shows it only to who asks.
    """
    text = str(error)
    ours = re.findall(r"borealis\.errors\.(\w+): ([^\n]*)", text)
    if ours:
        kind = GivenUpError if any(name == GivenUpError.__name__ for name, _ in ours) else TrainError
        message, _, hint = ours[-1][1].partition(". Hint: ")
        failure: BorealisError = kind(message, hint=hint)
    else:
        reason = _innermost(text)
        fragment = re.search(r"== SQL[^\n]*==\n(.*?)\n\s*\^", text, re.DOTALL)
        part = fragment[1].strip() if fragment else ""
        box, whole = next(((s.box, t) for s in steps for t in s.texts if part and part in t), ("", part))
        where = f"box '{box}': " if box else "a train failed: "
        about = f" in `{' '.join(whole.split())}`" if whole else ""
        hint = "everything before this train is committed; `errors: aside` in the diagram sets such tuples aside"
        failure = TrainError(
            f"{where}{reason.rstrip('.')}{about}", hint=hint if box else "everything before it is committed"
        )
    failure.__cause__ = SparkReportError(text)
    return failure


class SparkReportError(Exception):
    """What Spark said of a failed train, without the plan and the frames of its own stack."""

    def __init__(self, text: str) -> None:
        report = text.partition("=== Streaming Query ===")[0]
        lines = [line for line in report.splitlines() if line.strip() and not line.startswith(("\tat ", "\t... "))]
        super().__init__("\n".join(lines[-REPORT_LINES_MOST:]))


def _innermost(text: str) -> str:
    """The last line of the innermost exception that a report holds: Spark's own, else Python's."""
    spark = re.findall(r"\[([A-Z][A-Z0-9_.]+)\] ([^\n]*?)(?: SQLSTATE[^\n]*)?(?=\n|$)", text)
    inner = [m for code, m in spark if not code.startswith(WRAPPERS)]
    if inner:
        return str(inner[-1]).strip()
    python = re.findall(
        r"^(?:\w+\.)*(\w+: [^\n]+)", text.partition("Traceback (most recent call last):")[2], re.MULTILINE
    )
    java = re.findall(r"^Caused by: (?:[\w$]+\.)*([\w$]+(?:: [^\n]+)?)", text, re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return str((python or java or lines[:1] or [type(text).__name__])[-1]).strip()
