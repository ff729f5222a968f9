"""A durable run: killed in the middle, started again, and the result is as if nothing had happened.

With `state=` every train that was committed is on disk. This script starts itself as a child process, kills the child
with SIGKILL once it has written something, and starts it again: it goes on after its last committed train.

    python examples/05_durable_run.py
"""

import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from borealis import Diagram, replay, run, window
from borealis.trains.input_manager import Admission

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROWS = 20_000
ROWS_PER_TRAIN = 200  # small trains, so that there is a middle to be killed in


def diagram() -> Diagram:
    """A count per second and kind."""
    d = Diagram("durable")
    events = d.input("events", "ts TIMESTAMP, kind STRING")
    events.aggregate(by="kind", over=window("1 second"), n="count(*)").output("counts")
    return d


def child(folder: Path) -> None:
    """The run that gets killed. The second time it finds its state and goes on."""
    result = run(
        diagram(),
        inputs={"events": replay(folder / "events.jsonl")},
        outputs={"counts": folder / "counts.csv"},
        state=folder / "state",
        admission=Admission(rows_most=ROWS_PER_TRAIN),
    )
    [unit] = result.units
    print(f"  goes on after train {unit.resumed_after}, commits {unit.trains} more" if unit.resumed_after else "  done")


def main() -> None:
    """Start, kill, start again, and count."""
    folder = Path(tempfile.mkdtemp(prefix="borealis-example-"))
    with (folder / "events.jsonl").open("w") as file:
        for i in range(ROWS):
            at = NOON + timedelta(milliseconds=10 * i)
            file.write(json.dumps({"ts": at.isoformat(), "kind": "abc"[i % 3]}) + "\n")
    command = [sys.executable, __file__, str(folder)]
    counts = folder / "counts.csv"

    print("the first start is killed:", flush=True)
    first = subprocess.Popen(command)
    while first.poll() is None and (not counts.exists() or counts.stat().st_size < 2_000):
        time.sleep(0.01)
    first.kill()
    first.wait()
    print(f"  {len(counts.read_text().splitlines()) - 1} results so far")

    print("the second start:", flush=True)
    subprocess.run(command, check=True)
    lines = counts.read_text().splitlines()[1:]
    total = sum(int(line.rsplit(",", 1)[1]) for line in lines)
    print(f"  {len(lines)} results; they count {total:,} of {ROWS:,} events, none twice")
    assert total == ROWS
    assert len(set(lines)) == len(lines)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(Path(sys.argv[1]))
    else:
        main()
