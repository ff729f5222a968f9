"""The SparkSession of a node: the settings that a train's time was measured with, and a check for Java."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from borealis.errors import MachineError
from borealis.hosts import LOOPBACK
from borealis.spark.archive import archive_flags
from borealis.spark.interpreter import VARIABLE as PYTHON
from borealis.spark.interpreter import names_another, worker_python
from borealis.spark.quiet import quiet

JAVA_LEAST = 17
# a serial collector and the first compiler tier only: a micro-batch is too short for anything that pays off later;
# without the larger stack, the stream thread can die in a deep regular expression; without the metaspace, a session's
# first seconds go into full collections
JVM_FLAGS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss16m -XX:MetaspaceSize=256m"
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

DEFAULT_MASTER = "local[*, 3]"  # all cores of this machine; a failed task is tried three times before its train fails
LANES_MOST = 256  # of a local master: they sleep in a read, so they are threads beside its cores

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.variable.substitute": "false",  # what is in an expression is no variable of the process
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "8",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.authenticate.socketTimeout": "120s",  # a new worker on a machine that is busy may take its time
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
}

# where executors are processes of their own: they die, and a train must outlive several of them
CLUSTER_SETTINGS = {
    "spark.executor.extraJavaOptions": JVM_FLAGS,
    "spark.task.maxFailures": "8",
    "spark.stage.maxConsecutiveAttempts": "8",
    "spark.executor.maxNumFailures": "32",  # YARN and Kubernetes give an application up after so many,
    "spark.executor.failuresValidityInterval": "10m",  # and would otherwise count them all its life
    "spark.executor.heartbeatInterval": "2s",
    "spark.network.timeout": "30s",  # for a machine that is gone without a word
    "spark.network.timeoutInterval": "5s",
    "spark.locality.wait": "0s",  # a train is over before it pays to wait for a place near the data
    "spark.shuffle.io.retryWait": "200ms",  # what a dead executor held is asked for three times, five seconds apart
}
DRIVER_HOST = "BOREALIS_DRIVER_HOST"


def session(master: str | None = None, settings: dict[str, str] | None = None) -> SparkSession:
    """The session to run units in: the one that is active, or a new one with this project's settings.

    Executors on other machines must reach this one: BOREALIS_DRIVER_HOST, or `spark.driver.host` in the settings, says
    where.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    check_java()
    master = master or DEFAULT_MASTER
    ours = settings_for(master, settings or {})
    if (bind := ours["spark.driver.bindAddress"]) not in ("0.0.0.0", "::"):
        os.environ.setdefault("SPARK_LOCAL_IP", bind)
    if not names_another():
        os.environ[PYTHON] = worker_python() if is_local(master) else sys.executable
    quiet(ours)
    builder: Any = SparkSession.builder
    for name, value in ours.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def settings_for(master: str, settings: dict[str, str]) -> dict[str, str]:
    """All settings of a session for this master; what is given goes before what we would choose."""
    wide, cores = widened(master)
    ours = {"spark.app.name": "borealis", "spark.master": wide} | SETTINGS
    if cores is not None:
        ours["spark.default.parallelism"] = str(cores)
    ours["spark.driver.extraJavaOptions"] = f"{JVM_FLAGS} {archive_flags()}"
    host = settings.get("spark.driver.host") or _driver_host(master)
    if not is_local(master):
        ours |= CLUSTER_SETTINGS
        if host == LOOPBACK:  # executors can be on this machine only
            ours["spark.executor.extraJavaOptions"] = f"{JVM_FLAGS} {archive_flags()}"
    return ours | {"spark.driver.host": host, "spark.driver.bindAddress": host} | settings


def widened(master: str) -> tuple[str, int | None]:
    """A local master with threads for lanes beside those for its cores, and how many cores it was asked for.

    >>> widened("local[2, 3]")
    ('local[258, 3]', 2)
    >>> widened("spark://there:7077")
    ('spark://there:7077', None)
    """
    asked = re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*(\d+)\s*)?\])?", master)
    if asked is None:
        return master, None
    n = os.cpu_count() or 1 if asked[1] == "*" else int(asked[1] or 1)
    return f"local[{n + LANES_MOST}{f', {asked[2]}' if asked[2] else ''}]", n


def cores(spark: SparkSession) -> int:
    """How many tasks a session's executors can run at the same time."""
    context = spark.sparkContext
    return widened(context.master)[1] or int(context.defaultParallelism)


def is_local(master: str) -> bool:
    """Whether a master's executors are threads of the driver's own JVM, so that they see the node's files."""
    return re.match(r"local($|\[)", master) is not None


def _driver_host(master: str) -> str:
    """Where executors reach this process: here, unless they are elsewhere."""
    if is_local(master):
        return LOOPBACK
    if host := os.environ.get(DRIVER_HOST):
        return host
    machines = re.findall(r"(?:spark://|,)(\[[^]]*\]|[^:,/]*)", master)
    if master.startswith("local-cluster") or (
        machines and all(m.startswith("127.") or m in ("localhost", "[::1]") for m in machines)
    ):
        return LOOPBACK
    raise MachineError(
        f"executors of {master} are on other machines, and nothing says where they reach this one",
        hint=f"set {DRIVER_HOST} to an address of this machine that they can connect to",
    )


def require(spark: SparkSession) -> SparkSession:
    """The session, if what it computes is what a diagram means: times in UTC, and SQL in ANSI mode."""
    for name, wanted in (("spark.sql.session.timeZone", "UTC"), ("spark.sql.ansi.enabled", "true")):
        found = spark.conf.get(name)
        if found != wanted:
            raise MachineError(
                f"this SparkSession has {name}={found}; a diagram needs {wanted}",
                hint=f"spark.conf.set('{name}', '{wanted}') before the run, or let Borealis make the session",
            )
    return spark


def check_java() -> None:
    """Refuse clearly when there is no Java, or one too old for Spark."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    packages = "Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17"
    hint = f"install Java {JAVA_LEAST} or newer ({packages})"
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no java on the PATH"
        raise MachineError(f"Spark needs Java: {where}", hint=hint)
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if answer.returncode or found is None:
        raise MachineError(f"cannot run {java}: {answer.stderr.strip().splitlines()[-1:]}", hint=hint)
    if int(found[1]) < JAVA_LEAST:
        raise MachineError(f"{java} is Java {found[1]}; Spark needs {JAVA_LEAST} or newer", hint=hint)
