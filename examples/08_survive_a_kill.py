"""A node dies with `kill -9`, and the results go on, none missing and none twice.

This script starts a small cluster (`borealis up`), deploys a diagram under passive standby with the precise guarantee,
publishes packets in real time, and kills the node that counts them. It prints how long no result came, and compares all
that came with what had to come.

    python examples/08_survive_a_kill.py
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import borealis
from borealis import Diagram, window

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BOREALIS = [sys.executable, "-m", "borealis.cli"]
SECONDS, PER_SECOND, KILL_AFTER = 16, 100, 6


def diagram() -> Diagram:
    """Packets per source, ten times a second."""
    d = Diagram("traffic")
    packets = d.input("packets", "ts TIMESTAMP, src STRING")
    counted = packets.aggregate(by="src", over=window("100 ms"), n="count(*)", name="counted")
    counted.output("per_source")
    d.protect(ha="passive", guarantee="precise", interval="200 ms")
    return d


def publish(cluster: borealis.Client) -> None:
    """A packet every 10 ms, then the end of the stream."""
    with cluster.publisher("packets") as packets:
        for i in range(SECONDS * PER_SECOND):
            packets.send([{"ts": NOON + timedelta(milliseconds=10 * i), "src": "b" if i % 4 == 0 else "a"}])
            time.sleep(1 / PER_SECOND)
        packets.end()


def main() -> None:
    """Start everything, kill a node, look at what came out, and stop it again."""
    folder = tempfile.mkdtemp(prefix="borealis-example-")
    os.environ["BOREALIS_HOME"] = str(Path(folder, "home"))
    subprocess.run([*BOREALIS, "up", "--nodes", "3", "--port", "0"], check=True)
    try:
        with borealis.connect() as cluster:
            cluster.deploy(diagram(), place={"packets": "node1", "counted": "node2"})
            while cluster.status().unprotected or cluster.status().units[0].protection.state != "protected":
                time.sleep(0.1)  # the backup gets its first checkpoint
            threading.Thread(target=publish, args=(cluster,)).start()
            killer = threading.Timer(KILL_AFTER, subprocess.run, ([*BOREALIS, "kill", "node2"],))
            killer.start()
            came, got = [time.monotonic()], Counter[tuple[str, datetime]]()
            for row in cluster.subscribe("per_source", start="oldest", timeout=60).rows():
                came.append(time.monotonic())
                got[row["src"], row["window_end"]] += row["n"]
            silence = max(later - before for before, later in pairwise(came[1:]))
            took_over = cluster.status().units[0].protection.last_takeover
    finally:
        subprocess.run([*BOREALIS, "down"], check=True)
    expected = Counter[tuple[str, datetime]]()
    for i in range(SECONDS * PER_SECOND):
        end = NOON + timedelta(milliseconds=100 * (i // 10 + 1))
        expected["b" if i % 4 == 0 else "a", end] += 1
    print(f"  {len(came) - 1} results; the longest silence was {silence * 1000:.0f} ms, of which")
    print(f"  {took_over.detection_ms:.0f} ms to notice that node2 was dead")
    if got != expected:
        sys.exit("  results are missing, or came twice: this must not happen")
    print("  nothing is missing, nothing came twice")


if __name__ == "__main__":
    main()
