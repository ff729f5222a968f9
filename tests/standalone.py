"""Spark's own standalone cluster on this machine, from the PySpark distribution: a master and two workers."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from borealis.spark.archive import archive_flags

SPARK_HOME = Path(pyspark.__file__).parent
START_S_MOST = 120  # a slow machine that starts a JVM


def own_shm() -> list[str]:
    """Words before a command that give it a /dev/shm of its own, empty; none where this machine does not allow it."""
    inside = ["sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]
    for way in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        if shutil.which("unshare") and not subprocess.run([*way, *inside, "true"], capture_output=True).returncode:
            return [*way, *inside]
    return []


@dataclass
class Cluster:
    """A master and two workers with one core each, all on loopback; ended with all their children."""

    home: Path
    apart: list[str] = field(default_factory=own_shm)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> str:
        master = self._launch("master", "org.apache.spark.deploy.master.Master", [])
        url = _said(master, r"Starting Spark master at (spark://\S+)")
        limits = ["--cores", "1", "--memory", "600m"]
        logs = [
            self._launch(f"worker{n}", "org.apache.spark.deploy.worker.Worker", [*limits, url], self.apart)
            for n in range(2)
        ]
        for log in logs:
            _said(log, r"Successfully registered with master (\S+)")
        return url

    def _launch(self, name: str, kind: str, more: list[str], before: list[str] | None = None) -> Path:
        home = self.home / name
        home.mkdir()
        env = os.environ | {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {archive_flags()}",
        }
        command = [str(SPARK_HOME / "bin" / "spark-class"), kind, "--host", "127.0.0.1", "--port", "0"]
        log = home / "said.txt"
        with open(log, "wb") as said:
            self.processes.append(
                subprocess.Popen(
                    [*(before or []), *command, "--webui-port", "0", *more],
                    env=env,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                )
            )
        return log

    @property
    def workers(self) -> list[int]:
        return [p.pid for p in self.processes[1:]]

    def stop(self) -> None:
        for process in self.processes:
            end(process)


def executors(workers: list[int]) -> list[psutil.Process]:
    """The executor JVMs that Spark's workers have started."""
    found = []
    for worker in workers:
        for process in psutil.Process(worker).children(recursive=True):
            try:
                if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in process.cmdline():
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that came of it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()


def _said(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + START_S_MOST
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(log.read_text())
