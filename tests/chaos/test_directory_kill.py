"""`kill -9` of a run from a watched directory to directories of Parquet: every row once, in order, and no half file.

First at steps that touch the disk, without Spark; then of a whole run at random moments. Failures print the seed;
`BOREALIS_CHAOS_SEED=n` replays its choices. `BOREALIS_CHAOS=full` takes every step, and kills 15 times.
"""

from __future__ import annotations

import json
import os
import random
import traceback
from pathlib import Path

import file_workload as work
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from test_crash_points import Steps, chosen, crash, steps_of
from test_kill import SEED, Victim

from borealis import directory, disk, run, watch
from borealis.connectors import dead_letters
from borealis.connectors.files.ledger import FilesTaken

ROWS_MOST = 25
FULL = os.environ.get("BOREALIS_CHAOS") == "full"
KILLS = 15 if FULL else 1


def shown(directory: Path) -> pa.Table | None:
    """What a reader sees who lists the directory now; each file must be whole."""
    names = sorted(n for n in os.listdir(directory) if not n.startswith(".")) if directory.exists() else []
    tables = []
    for name in names:
        table = pq.read_table(directory / name)
        _, first, count = name.removesuffix(".parquet").split("-")
        assert table.num_rows == int(count)
        assert int(first) == sum(t.num_rows for t in tables)
        tables.append(table)
    return pa.concat_tables(tables) if tables else None


class Pump:
    """A run without Spark: from the watched directory to the sink, with a commit after each batch."""

    def __init__(self, incoming: Path) -> None:
        self.incoming = incoming

    def __call__(self, to: Path) -> None:
        try:
            self._run(to)
        except BaseException:  # a forked one would be silent
            traceback.print_exc()
            raise

    def _run(self, to: Path) -> None:
        state, schema = to / "state", work.rows(0).schema
        state.mkdir(parents=True, exist_ok=True)
        commit = state / "commit.json"
        known = json.loads(commit.read_text()) if commit.exists() else {"in": 0, "out": None}
        source = watch(self.incoming, poll="1 ms", settle="0 seconds", until=work.END)
        source.begin("packets", "ts", state)
        sink = directory(to / "out", rows=50, seconds=1e9).keep(state / "out.journal")
        sink.open(schema, known["out"])
        position = known["in"]
        for batch in source.batches(schema, position, 23):
            sink.write(pa.table(batch))
            rows = sink.flush(True)
            position += batch.num_rows
            disk.write_whole(commit, json.dumps({"in": position, "out": rows}).encode())
            sink.committed(rows)
        sink.close(complete=True)


def test_a_crash_at_any_step_changes_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    incoming = home / "incoming"
    incoming.mkdir()
    for number in range(5):
        work.write_file(incoming, number)
    (incoming / work.END).touch()
    pump, everything = Pump(incoming), pa.concat_tables([work.rows(n) for n in range(5)])
    plain_watch = Steps.watch

    def watch_all(steps: Steps) -> None:
        plain_watch(steps)
        dead_letters.open = disk.open  # type: ignore[attr-defined]

    monkeypatch.setattr(Steps, "watch", watch_all)
    count = steps_of(pump, home / "counted")
    assert count > 100
    died = 0
    for fatal in chosen(count):
        to = home / f"crash-{fatal}"
        died += crash(pump, to, fatal, (None, 0.0, 0.5, 1.0)[fatal % 4])
        before = shown(to / "out")
        assert before is None or before.equals(everything.slice(0, before.num_rows)), f"step {fatal} of {count}"
        pump(to)
        found = shown(to / "out")
        assert found is not None
        assert found.equals(everything), f"killed at step {fatal} of {count}"
        letters = (to / "state" / "packets.dead.jsonl").read_text().splitlines()
        assert [json.loads(line)["place"].partition(",")[0] for line in letters] == [
            work.file_name(n) for n in (1, 2, 3)
        ]
    assert died == len(list(chosen(count)))


@pytest.mark.timeout(1800)  # some starts of Spark, on a machine that may be busy
def test_from_directory_to_directories(spark: SparkSession, home: Path) -> None:
    incoming = home / "incoming"
    incoming.mkdir()
    victim, chance = Victim(home, ROWS_MOST, program="file_workload.py"), random.Random(SEED)
    print(f"seed {SEED}")
    written = 0

    def more(files: int) -> None:
        nonlocal written
        for _ in range(files):
            work.write_file(incoming, written)
            written += 1

    more(4)
    seen: list[dict[str, pa.Table | None]] = []
    assert not FULL or victim.kill_in_start(chance)
    for _ in range(KILLS):
        more(chance.randrange(4, 8))  # it never has to wait for work before it is killed
        assert victim.kill_while_running(chance)
        seen.append({name: shown(victim.to / name) for name in work.OUTPUTS})
    more(3)
    (incoming / work.END).touch()
    victim.finish()

    ledger = FilesTaken(incoming, victim.to / "state" / "packets.files")
    assert sorted(one.name for one in ledger.files.values()) == [work.file_name(n) for n in range(written)]
    assert [one.rows for one in ledger.files.values()] == [work.ROWS] * written
    rows = pa.concat_tables([work.rows(work.number_of(one.name)) for one in ledger.files.values()])
    truth = run(work.diagram(), {"packets": rows}, spark=spark)
    for name in work.OUTPUTS:
        found = shown(victim.to / name)
        assert found is not None
        assert found.to_pylist() == truth[name].to_pylist(), name
        for before in seen:  # whatever a reader saw in between was the beginning of this
            part = before[name]
            assert part is None or part.to_pylist() == truth[name].slice(0, part.num_rows).to_pylist()
    assert any(part is not None for before in seen for part in before.values())
    letters = [json.loads(line) for line in (victim.to / "state" / "packets.dead.jsonl").read_text().splitlines()]
    bad = [work.file_name(n) for n in range(written) if not work.file_name(n).endswith(".parquet")]
    assert sorted(one["place"].partition(",")[0] for one in letters) == bad
