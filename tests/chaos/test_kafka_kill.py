"""`kill -9` of a run from topic to topic, Spark and all, with a real broker: nothing is lost, nothing comes twice.

The first start kills itself within a transaction; with `BOREALIS_CHAOS=full` others do so before one and behind one,
when the broker has committed and nobody here knows. What readers of committed records see in the end is what was put
in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from benchmarks.kafka_broker import Broker

JOB = Path(__file__).with_name("kafka_job.py")
JOB_S_MOST = 300.0
BLOWS = [("within", 2)]
if os.environ.get("BOREALIS_CHAOS") == "full":
    BLOWS += [("behind", 1), ("before", 2), ("behind", 2)]
COUNT = 3000


def start(broker: Broker, come: str, go: str, home: Path, blow: str, count: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(JOB), broker.address, come, go, str(home / "state"), blow, str(count)],
        capture_output=True,
        text=True,
        timeout=JOB_S_MOST,
        env=os.environ | {"PYTHONPATH": str(JOB.parents[1])},  # where `programs` is
        start_new_session=True,  # to be killed with its JVM and Python workers
        check=False,
    )


@pytest.mark.timeout(1500)  # five starts of Spark, on a machine that may be busy
def test_killed_around_transactions(broker: Broker, home: Path) -> None:
    name = uuid4().hex[:8]
    come, go = broker.topic(f"come-{name}", 3), broker.topic(f"go-{name}")
    for p in range(3):
        rows = [
            {"ts": f"2026-01-01T12:{i // 60 % 60:02}:{i % 60:02}Z", "src": "abc"[i % 3], "bytes": i}
            for i in range(p, COUNT, 3)
        ]
        broker.put(come, [json.dumps(row).encode() for row in rows], p)
    for blow, count in BLOWS:
        killed = start(broker, come, go, home, blow, count)
        assert killed.returncode == -9, f"{blow} {count}: {killed.stdout}{killed.stderr}"
    ended = start(broker, come, go, home, "never", 0)
    assert ended.returncode == 0, ended.stderr
    found = [json.loads(value or b"") for *_, value in broker.get(go)]
    assert sorted(row["bytes"] for row in found) == list(range(COUNT))
    sums = [json.loads(line) for line in Path(f"{home / 'state'}.sums.jsonl").read_text().splitlines()]
    assert sum(row["n"] for row in sums) == COUNT
    assert len({(row["window_end"], row["src"]) for row in sums}) == len(sums)
