"""What the JVM and Spark's Python workers say goes to a file of its own, not to the user's terminal.

The file is gone when the process ends, unless a user asked to keep it. `BOREALIS_SPARK_LOG=path` chooses the file
(and keeps it); `BOREALIS_SPARK_LOG=-` leaves everything on the terminal, as Spark has it.
"""

from __future__ import annotations

import atexit
import logging
import os
import socketserver
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext, accumulators
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger

VARIABLE = "BOREALIS_SPARK_LOG"

_log: Path | None = None
_kept = False


def quiet(settings: Mapping[str, str]) -> None:
    """Start the JVM with these Spark settings and its words going to the log; does nothing where one runs already."""
    global _log, _kept
    # PySpark prints every refused expression with a stack trace, also those that are caught and become our own errors
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    for server in vars(accumulators).values():
        if isinstance(server, type) and issubclass(server, socketserver.BaseServer):
            server.handle_error = _cut_off  # type: ignore[assignment]
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    chosen = os.environ.get(VARIABLE)
    if chosen == "-":
        return
    if chosen:
        _log, _kept = Path(chosen), True
    else:
        number, name = tempfile.mkstemp(prefix="borealis-spark-", suffix=".log")
        os.close(number)
        _log = Path(name)
        atexit.register(_forget)
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, value)
    with open(_log, "ab", buffering=0) as file:
        # a group of its own: a signal for the whole group of this process would take the JVM from under its last train
        gateway = launch_gateway(conf, {"stdout": file, "stderr": file, "process_group": 0})
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _cut_off(server: Any, request: Any, address: Any) -> None:
    """A task that is ended in the midst of what it reports is no news; PySpark prints a stack trace of it."""
    if not isinstance(sys.exception(), ConnectionError | EOFError):
        socketserver.BaseServer.handle_error(server, request, address)


def log_file() -> Path | None:
    """Where the JVM of this process writes; None if it writes to the terminal, or was not started."""
    return _log


def keep_log() -> Path | None:
    """The log, which from now on outlives the process."""
    global _kept
    _kept = True
    return _log


def _forget() -> None:
    if _log is not None and not _kept:
        _log.unlink(missing_ok=True)
