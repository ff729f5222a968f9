"""A streaming query of Spark's that asks this process what to do: started, looked after, and what it died of."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from borealis.clock import WALL
from borealis.compile.lowering import CatalystStep
from borealis.errors import BorealisError, GivenUpError, MachineError, TrainError
from borealis.spark.quiet import keep_log
from borealis.spark.source import FORMAT, Answer, TrainServer, TrainSource

SOCKET = "trains.sock"  # under a query's directory
WHOLE_STAGE = "spark.sql.codegen.wholeStage"
_REGISTERING = threading.Lock()  # Spark looks whether the name is free, then takes it
_STARTING = threading.Lock()  # a query takes the session's settings as they are when it starts
WRAPPERS = ("STREAM_FAILED", "FAILED_EXECUTE", "FOREACH_BATCH")  # what Spark says of any failure
REPORT_LINES_MOST = 30
FIRST_ASKED_S = 10.0  # Spark gives up a query whose Python process has not come by then
LOOK_S = 0.2


class StreamingQuery:
    """One of Spark's, whose source asks a `TrainServer`; both have their files in `home`."""

    def __init__(
        self, spark: SparkSession, home: Path, answer: Answer, behind: Callable[[], None] | None = None
    ) -> None:
        self._spark, self._home = spark, home
        self._query: Any = None
        self._server: TrainServer | None = TrainServer(home / SOCKET, answer, behind)

    def start(self, settings: Mapping[str, str], writer: Callable[[], Any]) -> None:
        """Start what `writer` has drawn. Raises what is to be said to a user; nothing is left of it then."""
        try:
            with death_told(self._spark), _settings(self._spark, settings):
                # not at Hadoop's place
                self._query = writer().option("checkpointLocation", f"file://{self._home}/checkpoint").start()
                self._wait_asked()
        except BaseException as error:
            self.stop()
            if isinstance(error, PySparkException):
                raise explain_failure(error) from error
            raise

    def _wait_asked(self) -> None:
        """Wait for the query's Python process: many that start at once are slow, and Spark is impatient."""
        assert self._server is not None
        until = WALL.now() + FIRST_ASKED_S
        while not self._server.asked.wait(LOOK_S) and self._query.isActive and WALL.now() < until:
            continue

    def failure(self, steps: Sequence[CatalystStep] = ()) -> BorealisError | None:
        """What it died of, if it did; `steps` are those that Spark computes."""
        try:
            if self._query.isActive:
                return None
            error = self._query.exception()
        except (Py4JError, OSError) as gone:
            if not is_dead(self._spark):
                raise
            return spark_died(gone)
        if error is None:
            return TrainError("the unit's query was stopped from outside", hint="start the run again")
        return explain_failure(error, steps)

    def stop(self) -> None:
        """Stop after the current train."""
        if self._query is not None:
            try:
                self._query.stop()
            except (Py4JError, OSError):
                if not is_dead(self._spark):  # a query dies with its JVM
                    raise
        if self._server is not None:
            self._server.close()
            self._server = None
        shutil.rmtree(self._home / "checkpoint", ignore_errors=True)


def frames_from(spark: SparkSession, home: Path, schema: StructType, buckets: int, *, lanes: bool) -> DataFrame:
    """What the source yields, for a query whose files are in `home`."""
    with _REGISTERING:
        spark.dataSource.register(TrainSource)
    source = spark.readStream.format(FORMAT).schema(schema).option("socket", str(home / SOCKET))
    return source.option("buckets", str(buckets)).option("lanes", "yes" if lanes else "").load()


@contextmanager
def _settings(spark: SparkSession, ours: Mapping[str, str]) -> Iterator[None]:
    """A query keeps the settings it was started with."""
    with _STARTING:
        before = {name: spark.conf.get(name) for name in ours}
        try:
            for name, value in ours.items():
                spark.conf.set(name, value)
            yield
        finally:
            for name, value in before.items():
                spark.conf.set(name, value)


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


@contextmanager
def death_told(spark: SparkSession) -> Iterator[None]:
    """Whatever fails because the JVM is gone is told as that."""
    try:
        yield
    except (Py4JError, OSError) as error:
        if is_dead(spark):
            raise spark_died(error) from error
        raise


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
