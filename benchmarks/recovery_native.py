"""Kills of a plain Structured Streaming job: a supervisor starts it again from its checkpoint, at once.

What is done for it: a JVM with our flags (C1 only, serial collector: faster to start), one shuffle partition, the state
store in memory, files of 100 ms that each appear whole, listed by the driver itself and read in one task, and
old ones taken away, so that listing the folder stays quick.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from borealis.spark.session import JVM_FLAGS

from .measuring import Say
from .recovery_packets import Feed, Packets, counted
from .recovery_sums import TOLD_NATIVE, Arrivals, check, gaps_ms, line, silence_ms

JOB = Path(__file__).with_name("recovery_native_job.py")
FILE_S = 0.1
KEPT_FILES = 1200  # two minutes' worth: far more than a restart reads again
FIRST_S = 180.0  # for the first results
WARM_S = 15.0
CALM_S = 5.0
SETTLED_S = 8.0  # after a restart, until it is no longer catching up


class Folder:
    """Files that appear in a watched folder, each whole."""

    def __init__(self, home: Path) -> None:
        self.path, self._aside = home / "watched", home / "aside"
        self.path.mkdir()
        self._aside.mkdir()
        self._files: deque[Path] = deque()
        self._number = 0

    def __call__(self, rows: pa.RecordBatch | None, until_us: int) -> None:
        """The rows of a tick as a file; a tick without rows has none."""
        if rows is None:
            return
        fresh, to = self._aside / "next", self.path / f"{self._number:07}.parquet"
        pq.write_table(pa.Table.from_batches([rows]), fresh, compression="none")
        os.rename(fresh, to)
        self._files.append(to)
        self._number += 1
        if len(self._files) > KEPT_FILES:
            self._files.popleft().unlink(missing_ok=True)


class Supervisor:
    """Starts the job, reads what it prints, kills it, starts it again."""

    def __init__(self, home: Path, watched: Path, size: str, slide: str) -> None:
        self.arrivals = Arrivals()
        self.boundary_us = 0  # windows up to here were given
        given = {"input": str(watched), "home": str(home), "size": size, "slide": slide, "flags": JVM_FLAGS}
        self._command = [sys.executable, str(JOB), json.dumps(given)]
        self._log = (home / "job.log").open("wb")
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        """The job, in a session of its own."""
        environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=self._log, env=environment, start_new_session=True
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def kill(self) -> float:
        """SIGKILL to the driver, its JVM and its workers; when that was."""
        assert self._process is not None
        at = time.monotonic()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return at

    def end(self) -> None:
        """Kill it, and take what it has printed."""
        self.kill()
        assert self._reader is not None
        self._reader.join(FIRST_S)

    def wait_new(self, after: float, seconds: float) -> None:
        """Until something new has come after a moment."""
        deadline = time.monotonic() + seconds
        while not self.arrivals.when or self.arrivals.when[-1] <= after:
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = Path(str(self._log.name)).read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the native job gave nothing new within {seconds:.0f} s:\n{said}")
            time.sleep(0.02)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for text in process.stdout:
            at = time.monotonic()
            with suppress(ValueError):  # the last line of a killed job may be half a line
                results = [((src, end), n) for src, end, n in json.loads(text)["results"]]
                self.arrivals.add(at, results)
                self.boundary_us = max(self.boundary_us, *(end for (_, end), _ in results), 0)


def native(diagram: str, kills: int, data: Packets, size: tuple[str, int], slide: tuple[str, int], say: Say) -> Any:
    """All kills of the native job."""
    home = Path(tempfile.mkdtemp(prefix="borealis-native-"))
    folder = Folder(home)
    feed, supervisor = Feed(data, [folder], tick_s=FILE_S), Supervisor(home, folder.path, size[0], slide[0])
    say("native: starting the job ...")
    try:
        feed.start()
        supervisor.start()
        found = _kills(supervisor, kills, say)
        feed.stop()
        supervisor.end()
        boundary = supervisor.boundary_us  # what lies behind it would have come later
        expected = {key: n for key, n in counted(*feed.given(), size[1], slide[1]).items() if key[1] <= boundary}
        checked = check(supervisor.arrivals, expected)
    finally:
        feed.abandon()
        supervisor.kill()
        shutil.rmtree(home, ignore_errors=True)
    found |= {"duplicates": checked.duplicates, "lost": checked.lost, "wrong": checked.wrong}
    found |= {"results": len(supervisor.arrivals.seen), "data": data.where_from}
    found["note"] = "foreachBatch is at least once: the batch at the kill may come again"
    return line(TOLD_NATIVE, "no-loss", diagram, found)


def _kills(supervisor: Supervisor, kills: int, say: Say) -> dict[str, Any]:
    supervisor.wait_new(0.0, FIRST_S)
    time.sleep(WARM_S)
    chance = random.Random("native")
    found: dict[str, Any] = {"silences": [], "gaps": []}
    for number in range(kills):
        calm = time.monotonic()
        time.sleep(CALM_S + chance.random())
        killed = supervisor.kill()
        supervisor.start()
        found["gaps"] += gaps_ms(supervisor.arrivals.when, calm, killed)
        supervisor.wait_new(killed + 0.5, FIRST_S)
        found["silences"].append(silence_ms(supervisor.arrivals.when, killed))
        say(f"native: kill {number + 1}: silence {found['silences'][-1]:.0f} ms")
        time.sleep(SETTLED_S)
    return found
