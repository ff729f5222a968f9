"""`kill -9` of a whole run, Spark and all, at random moments: the outputs are those of a run never killed.

Failures print the seed; `BOREALIS_CHAOS_SEED=n` replays its choices. `BOREALIS_CHAOS=full` kills 25 times, also at the
start and while outputs are put in place.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from borealis import run
from programs import kill_session

START_S_MOST = 90  # a slow machine that starts Spark
SEED = int(os.environ.get("BOREALIS_CHAOS_SEED", "20240501"))


@dataclass
class Victim:
    """A durable run in processes of its own, killed and started again."""

    home: Path
    rows_most: int
    program: str = "workload.py"
    to: Path = field(init=False)
    starts: int = 0

    def __post_init__(self) -> None:
        self.to = self.home / "killed"
        self.to.mkdir()

    def start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        program = Path(__file__).with_name(self.program)
        with open(self.home / f"said-{self.starts}.txt", "wb") as said:
            return subprocess.Popen(
                [sys.executable, str(program), str(self.home), str(self.to), str(self.rows_most)],
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # to be killed with its JVM and Python workers
            )

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        kill_session(process.pid)
        process.wait()

    def await_(self, process: subprocess.Popen[bytes], what: Callable[[], bool]) -> bool:
        """Wait until something is so; False if the run ended before."""
        until = time.monotonic() + START_S_MOST
        while not what():
            if process.poll() is not None:
                assert process.returncode == 0, (self.home / f"said-{self.starts}.txt").read_text()
                return False
            assert time.monotonic() < until, (self.home / f"said-{self.starts}.txt").read_text()
            time.sleep(0.002)
        return True

    def logged(self) -> int:
        """Bytes of commits on disk."""
        return sum(p.stat().st_size for p in (self.to / "state" / "u1").glob("log-*.bin"))

    def kill_in_start(self, chance: random.Random) -> bool:
        process = self.start()
        try:
            process.wait(chance.uniform(0.1, 8))
        except subprocess.TimeoutExpired:
            self.kill(process)
            return True
        assert process.returncode == 0
        return False

    def kill_while_running(self, chance: random.Random) -> bool:
        before = self.logged()
        process = self.start()
        if not self.await_(process, lambda: self.logged() > before + 200):
            return False
        try:
            process.wait(chance.uniform(0, 1.2))
        except subprocess.TimeoutExpired:
            self.kill(process)
            return True
        assert process.returncode == 0
        return False

    def kill_in_close(self, _: random.Random) -> bool:
        process = self.start()
        closing = (self.to / ".sums.parquet.part", self.to / ".pairs.arrow.part", self.to / "sums.parquet")
        if not self.await_(process, lambda: any(p.exists() for p in closing)):
            return False
        self.kill(process)
        return True

    def finish(self) -> None:
        process = self.start()
        assert process.wait(10 * START_S_MOST) == 0, (self.home / f"said-{self.starts}.txt").read_text()
        assert (self.to / "finished").exists()


def check(workload: ModuleType, spark: SparkSession, home: Path, rows: int, rows_most: int, kinds: list[str]) -> Victim:
    workload.write_inputs(home, rows)
    truth = home / "never-killed"
    truth.mkdir()
    run(workload.diagram(), workload.inputs(home), workload.outputs(truth), spark=spark)
    victim, chance = Victim(home, rows_most), random.Random(SEED)
    kills = [kind for kind in kinds if getattr(victim, f"kill_{kind}")(chance)]
    print(f"killed {kills}, seed {SEED}")
    victim.finish()
    assert kills == kinds, "the run ended before it could be killed: give it more rows"
    assert workload.contents(victim.to) == workload.contents(truth)
    return victim


@pytest.mark.timeout(900)  # some starts of Spark, on a machine that may be busy
def test_killed_once(workload: ModuleType, spark: SparkSession, home: Path) -> None:
    """In the midst; while the outputs are put in place is for `test_crash_points`."""
    check(workload, spark, home, 6_000, 30, ["while_running"])


@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.environ.get("BOREALIS_CHAOS") != "full", reason="takes minutes: set BOREALIS_CHAOS=full")
def test_killed_many_times(workload: ModuleType, spark: SparkSession, home: Path) -> None:
    kinds = random.Random(SEED).choices(["in_start", "while_running"], [1, 3], k=23)
    check(workload, spark, home, 20_000, 25, [*kinds, "in_close", "in_close"])
