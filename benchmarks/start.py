"""How long `borealis up --nodes 3` takes, beside one plain SparkSession and its first job: `borealis bench start`.

By turns: a plain session in a process of its own (from the start of the process to the end of its first small job),
then `borealis up --nodes 3` (from the start of the command until it says that all are ready). `where` tells what each
part of the cluster was doing when.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from .measuring import Say

QUERIES = ("up",)
ASKED_RATIO = 1.5
PLAIN = """\
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
assert spark.range(1000).selectExpr("sum(id)").collect()[0][0] == 499500
"""


@dataclass(frozen=True)
class Options:
    """How often. `quick` is once."""

    only: tuple[str, ...] = ()
    runs: int = 3
    quick: bool = False


def plain() -> float:
    """Seconds until a plain session has run its first job."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", PLAIN], check=True, capture_output=True)
    return time.perf_counter() - start


def up(nodes: int) -> tuple[float, dict[str, float]]:
    """Seconds until all nodes are ready, and when each part was where."""
    with tempfile.TemporaryDirectory(prefix="borealis-start-") as home:
        environment = os.environ | {"BOREALIS_HOME": home}
        command = [sys.executable, "-m", "borealis.cli"]
        try:
            start = time.perf_counter()
            done = subprocess.run(
                [*command, "up", "--nodes", str(nodes), "--port", "0"],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            took = time.perf_counter() - start
            if done.returncode:
                raise RuntimeError(done.stderr.strip())
        finally:
            subprocess.run([*command, "down"], env=environment, capture_output=True, check=False)
        steps = re.findall(r"^\s*([\d.]+) s\s+(\S+): (.+)$", done.stderr, re.MULTILINE)
        return took, {f"{part}: {what}": float(at) for at, part, what in steps}


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """All figures."""
    runs = 1 if options.quick else options.runs
    plains, ups, where = [], [], {}
    for number in range(runs):
        plains.append(plain())
        took, where = up(3)
        ups.append(took)
        say(f"run {number + 1}: plain session {plains[-1]:.1f} s, up --nodes 3 {took:.1f} s")
    ratio = statistics.median(ups) / statistics.median(plains)
    return [
        {
            "query": "up",
            "nodes": 3,
            "cores": len(os.sched_getaffinity(0)),
            "plain_session_s": round(statistics.median(plains), 2),
            "up_s": round(statistics.median(ups), 2),
            "ratio": round(ratio, 2),
            "asked_ratio_most": ASKED_RATIO,
            "met": ratio <= ASKED_RATIO,
            "runs": runs,
            "all_plain_s": [round(t, 2) for t in plains],
            "all_up_s": [round(t, 2) for t in ups],
            "where": where,
        }
    ]
