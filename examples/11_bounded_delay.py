"""One of two sites is cut off: counts go on without it, marked as tentative, and are corrected when it is back.

This script starts a small cluster (`borealis up`), deploys a diagram with a bound of two seconds on delay, and
publishes rows of two sites in real time. Then it cuts the node that counts off from one of them (`borealis cut`), and
some seconds later lets it read both again (`borealis heal`). A reader that asks for tentative tuples gets counts of one
site meanwhile; then one undo, and the counts of both. In the end it compares what is stable with what had to come.

    python examples/11_bounded_delay.py
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import borealis
from borealis import Diagram, window
from borealis.client.subscriber import Subscription

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BOREALIS = [sys.executable, "-m", "borealis.cli"]
PER_SECOND, CUT_AFTER, CUT_FOR, GO_ON_FOR = 10, 3, 5, 2  # rows of each site; seconds


def diagram() -> Diagram:
    """Rows of both sites together, per second."""
    d = Diagram("sites")
    both = d.input("north", "ts TIMESTAMP, host INT").union(d.input("south", "ts TIMESTAMP, host INT"))
    both.aggregate(over=window("1 second"), n="count(*)", name="counted").output("per_second")
    d.protect(ha="amnesia", delay="2 s")
    return d


def publish(cluster: borealis.Client, enough: threading.Event, sent: list[datetime]) -> None:
    """A row of each site every 100 ms until it is enough, then the end of both streams."""
    with cluster.publisher("north") as north, cluster.publisher("south") as south:
        while not enough.wait(1 / PER_SECOND):
            sent.append(NOON + timedelta(seconds=len(sent) / PER_SECOND))
            for site in (north, south):
                site.send([{"ts": sent[-1], "host": len(sent) % 3}])
        north.end()
        south.end()


def strike(enough: threading.Event) -> None:
    """Cut node2 off from the south, and heal that."""
    time.sleep(CUT_AFTER)
    subprocess.run([*BOREALIS, "cut", "south", "node2"], check=True)
    time.sleep(CUT_FOR)
    subprocess.run([*BOREALIS, "heal", "south", "node2"], check=True)
    time.sleep(GO_ON_FOR)
    enough.set()


def follow(results: Subscription) -> tuple[dict[datetime, int], int]:
    """Show what comes; the stable counts, and how many tentative ones were void."""
    stable: dict[datetime, int] = {}
    void = tentative = 0
    for section in results.sections():
        if section.undo:
            print(f"  undo: {tentative} tentative counts are void", flush=True)
            void, tentative = void + tentative, 0
        for row in section.rows.to_pylist():
            print(f"  {row['window_start']:%H:%M:%S} {row['n']}{'' if section.stable else ' tentative'}", flush=True)
            if section.stable:
                stable[row["window_start"]] = row["n"]
            else:
                tentative += 1
    return stable, void


def main() -> None:
    """Start everything, cut a site off, look at what comes, and stop it again."""
    folder = tempfile.mkdtemp(prefix="borealis-example-")
    os.environ["BOREALIS_HOME"] = str(Path(folder, "home"))
    subprocess.run([*BOREALIS, "up", "--nodes", "2", "--port", "0", "--allow-faults"], check=True)
    enough, sent = threading.Event(), list[datetime]()
    try:
        with borealis.connect() as cluster:
            cluster.deploy(diagram(), place={"north": "node1", "south": "node1", "counted": "node2"})
            results = cluster.subscribe("per_second", start="oldest", tentative=True, timeout=60)
            threading.Thread(target=publish, args=(cluster, enough, sent)).start()
            threading.Thread(target=strike, args=(enough,)).start()
            stable, void = follow(results)
    finally:
        enough.set()
        subprocess.run([*BOREALIS, "down"], check=True)
    expected: dict[datetime, int] = {}
    for ts in sent:
        second = ts.replace(microsecond=0)
        expected[second] = expected.get(second, 0) + 2
    if stable != expected:
        sys.exit("  a stable count is wrong or missing: this must not happen")
    if not void:
        sys.exit("  nothing was tentative: the unit has waited, or the node was not cut off")
    print(f"  {void} counts were tentative; all {len(stable)} are right in the end")


if __name__ == "__main__":
    main()
