"""What is made once, so that sessions need not: `python -m borealis.spark.archive` (the Makefile's set-up does).

A class-data archive for the node's JVM halves the time that a session takes to start. Sessions use it when it is there
and fits this Java and this Spark; when it does not, the JVM quietly does without. Compiled loops make corrections
cheaper (`kernels.compiled`); without them kernels give the same.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from borealis.clock import WALL
from borealis.kernels.compiled import caches, loops, make_loops

LIMIT_S = 180


def archive_path() -> Path:
    """Where the archive for this Java and this Spark lies; a name of its own for each pair."""
    java = os.environ.get("JAVA_HOME", "") or os.path.realpath(shutil.which("java") or "java")
    pair = f"{java}|{pyspark.__version__}|{pyspark.__file__}"
    return caches() / f"classes-{hashlib.sha256(pair.encode()).hexdigest()[:16]}.jsa"


def archive_flags() -> str:
    """JVM flags that use the archive, if there is one."""
    path = archive_path()
    return f"-XX:SharedArchiveFile={path} -Xlog:cds=off -Xlog:cds+dynamic=off" if path.exists() else ""


def make_archive() -> Path | None:
    """Run a small diagram in a JVM that notes the classes it loads; None when this Java cannot."""
    path = archive_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch) / path.name
        done = subprocess.run(
            [sys.executable, "-c", _WARM, str(fresh)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            cwd=scratch,
        )
        deadline = WALL.now() + LIMIT_S  # the JVM writes it while it ends, after Python has
        while done.returncode == 0 and WALL.now() < deadline and not _whole(fresh):
            WALL.sleep(0.2)
        if not _whole(fresh):
            return None
        partial = path.with_suffix(".tmp")
        partial.write_bytes(fresh.read_bytes())
        partial.replace(path)
    return path


def _whole(path: Path) -> bool:
    if not path.exists():
        return False
    size = path.stat().st_size
    WALL.sleep(0.5)
    return size > 0 and path.stat().st_size == size


_WARM = """
import datetime, sys
from borealis import Diagram, run, window
from borealis.spark.session import JVM_FLAGS, session

spark = session("local[2, 3]", {"spark.driver.extraJavaOptions": f"{JVM_FLAGS} -XX:ArchiveClassesAtExit={sys.argv[1]}"})
d = Diagram("warm")
s = d.input("rows", "ts TIMESTAMP, k STRING, v INT", time="ts").map(k="upper(k)", v="v / 3.0")
s.aggregate(by="k", over=window("1 second"), n="count(*)", s="sum(v)").output("out")
start = datetime.datetime(2024, 1, 1)
run(d, {"rows": [(start + datetime.timedelta(seconds=i), "k", i) for i in range(10)]})
spark.stop()
"""


def main() -> None:
    start = WALL.now()
    path = archive_path()
    if path.exists():
        print(f"class archive: {path}")
    elif make_archive() is not None:
        print(f"class archive: {path} ({path.stat().st_size >> 20} MB, made in {WALL.now() - start:.0f} s)")
    else:
        print("class archive: this Java makes none; sessions start without it")
    start = WALL.now()
    if loops() is not None:
        print("compiled loops: there")
    elif (made := make_loops()) is not None:
        print(f"compiled loops: {made} (made in {WALL.now() - start:.0f} s)")
    else:
        print("compiled loops: there is no numba; corrections do without")


if __name__ == "__main__":
    main()
