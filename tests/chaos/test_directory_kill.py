"""`kill -9` of a run from a watched directory to directories of Parquet: every row once, in order, and no half file.

Failures print the seed; `BOREALIS_CHAOS_SEED=n` replays its choices. `BOREALIS_CHAOS=full` kills 15 times.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import file_workload as work
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from test_kill import SEED, Victim

from borealis import run
from borealis.ingest.sources.taken import FilesTaken

ROWS_MOST = 25
KILLS = 15 if os.environ.get("BOREALIS_CHAOS") == "full" else 3


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
    assert victim.kill_in_start(chance)
    for _ in range(KILLS):
        more(chance.randrange(4, 8))  # it never has to wait for work before it is killed
        assert victim.kill_while_running(chance)
        seen.append({name: shown(victim.to / name) for name in work.OUTPUTS})
    more(3)
    (incoming / work.END).touch()
    victim.finish()

    taken = FilesTaken(incoming, victim.to / "state" / "packets.files")
    assert sorted(one.name for one in taken.files) == [work.file_name(n) for n in range(written)]
    assert [one.rows for one in taken.files] == [work.ROWS] * written
    rows = pa.concat_tables([work.rows(work.number_of(one.name)) for one in taken.files])
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
