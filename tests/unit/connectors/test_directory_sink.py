"""A directory of Parquet files: whole when they can be seen, in order, and exactly once across crashes."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from borealis.clock import ManualClock
from borealis.connectors.files.directory import DirectorySink, directory
from borealis.connectors.sink import FollowingSink
from borealis.connectors.sinks import as_sink
from borealis.connectors.sources import replay
from borealis.errors import OutputError

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])
NEVER_S = 1e9
WAIT_S = 20.0


def rows(first: int, stop: int) -> pa.Table:
    return pa.table({"n": range(first, stop), "word": [f"ü{n}" for n in range(first, stop)]}, SCHEMA)


def names(target: Path) -> list[str]:
    return sorted(name for name in os.listdir(target) if not name.startswith("."))


def shown(target: Path) -> list[int]:
    """The rows of all files, in the order of their names."""
    return [n for name in names(target) for n in pq.read_table(target / name)["n"].to_pylist()]


def train(sink: DirectorySink, first: int, stop: int, *, commit: bool = True) -> int:
    sink.write(rows(first, stop))
    position = sink.flush(True)
    if commit:
        sink.committed(position)
    return position


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state" / "big.journal"


def a_sink(target: Path, journal: Path | None = None, rows: int = 100, seconds: float = NEVER_S) -> DirectorySink:
    return directory(target, rows=rows, seconds=seconds).keep(journal)


def test_a_path_that_ends_in_a_slash_or_is_there_is_a_directory(tmp_path: Path) -> None:
    assert isinstance(as_sink(f"{tmp_path}/new/"), DirectorySink)
    assert isinstance(as_sink(tmp_path), DirectorySink)
    with pytest.raises(OutputError, match="a directory ends in a slash"):
        as_sink(tmp_path / "new")
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(OutputError, match="is a directory"):
        as_sink(tmp_path / "d.csv")  # whoever named it so did not think of Parquet
    sink = as_sink(directory(tmp_path, rows=5), tmp_path / "j")
    assert isinstance(sink, FollowingSink)
    assert sink.durable
    assert not directory(tmp_path).durable


def test_files_appear_when_there_are_enough_committed_rows(target: Path, journal: Path) -> None:
    sink = a_sink(target, journal)
    sink.open(SCHEMA, None)
    train(sink, 0, 60)
    assert names(target) == []
    train(sink, 60, 130, commit=False)
    assert names(target) == []  # enough, but nobody has committed them
    sink.committed(130)
    assert names(target) == [f"part-{0:020d}-{100:012d}.parquet", f"part-{100:020d}-{30:012d}.parquet"]
    train(sink, 130, 140)
    sink.close(complete=True)
    assert shown(target) == list(range(140))
    assert sorted(os.listdir(target)) == names(target)


def test_bytes_are_enough_as_well(target: Path) -> None:
    sink = directory(target, bytes=1_000, seconds=NEVER_S)
    sink.open(SCHEMA, None)
    train(sink, 0, 10)
    assert names(target) == []
    train(sink, 10, 200)
    assert len(names(target)) == 1
    sink.close(complete=True)


def test_rows_that_have_waited_long_enough_are_shown_although_no_more_come(target: Path) -> None:
    sink = a_sink(target, seconds=0.05)
    sink.open(SCHEMA, None)
    train(sink, 0, 3)
    until = threading.Event()
    for _ in range(2_000):
        if names(target):
            break
        until.wait(0.01)
    assert shown(target) == [0, 1, 2]
    train(sink, 3, 5, commit=False)
    until.wait(0.2)  # far beyond the age: rows that are not committed must not appear, however long they wait
    assert shown(target) == [0, 1, 2]
    sink.close(complete=False)
    assert shown(target) == [0, 1, 2]


def test_age_counts_from_the_first_row_that_waits(target: Path) -> None:
    clock = ManualClock()
    sink = DirectorySink(target, rows=100, bytes=10**9, seconds=60.0, clock=clock)
    sink.open(SCHEMA, None)
    clock.advance(1_000)
    train(sink, 0, 3)
    clock.advance(59)
    train(sink, 3, 5)
    assert names(target) == []
    clock.advance(1)
    train(sink, 5, 6)  # whoever sees first that they are old enough, this train or the sink by itself
    assert shown(target)[:5] == list(range(5))
    sink.close(complete=True)
    assert shown(target) == list(range(6))


def test_the_files_are_one_table_for_pyarrow_and_a_source_for_us(target: Path) -> None:
    sink = a_sink(target, rows=7)
    sink.open(SCHEMA, None)
    for first in range(0, 45, 5):
        train(sink, first, first + 5)
    (target / ".hidden.parquet.part").write_bytes(b"half")
    so_far = ds.dataset(target).to_table()
    assert so_far.num_rows == 40
    assert so_far == rows(0, so_far.num_rows)
    sink.close(complete=True)
    assert ds.dataset(target).to_table() == rows(0, 45)
    read = pa.Table.from_batches(replay(target).batches(SCHEMA, 0, 1_000))
    assert read["n"].to_pylist() == list(range(45))


def test_an_output_without_rows_still_tells_its_columns(target: Path, journal: Path) -> None:
    sink = a_sink(target, journal)
    sink.open(SCHEMA, None)
    sink.close(complete=True)
    assert pq.read_table(target).schema.equals(SCHEMA)
    sink.open(SCHEMA, 0)  # started again after its end
    sink.close(complete=True)
    assert len(names(target)) == 1


def test_a_fresh_start_wants_an_empty_directory(target: Path) -> None:
    target.mkdir()
    (target / "_SUCCESS").touch()
    a_sink(target).open(SCHEMA, None)
    (target / "notes.txt").touch()
    with pytest.raises(OutputError, match=r"not empty: it holds notes.txt\. Hint: empty it"):
        a_sink(target).open(SCHEMA, None)


def test_what_it_refuses(tmp_path: Path, target: Path, journal: Path) -> None:
    for wrong in ({"rows": 0}, {"bytes": 0}, {"seconds": -1}):
        with pytest.raises(OutputError, match=next(iter(wrong))):
            directory(target, **wrong)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a file"):
        a_sink(tmp_path / "file").open(SCHEMA, None)
    with pytest.raises(OutputError, match="mkdir -p"):
        a_sink(tmp_path / "no" / "where").open(SCHEMA, None)
    with pytest.raises(OutputError, match="not open"):
        a_sink(target).write(rows(0, 1))
    with pytest.raises(OutputError, match="not in the journal"):
        a_sink(target, journal).open(SCHEMA, 10)


def test_a_copy_of_an_old_state_is_refused(target: Path, journal: Path) -> None:
    sink = a_sink(target, journal, rows=10)
    sink.open(SCHEMA, None)
    train(sink, 0, 30)
    sink.close(complete=True)
    with pytest.raises(OutputError, match="holds rows up to 30, but only 20 were committed"):
        a_sink(target, journal).open(SCHEMA, 20)


def test_other_columns_are_refused(target: Path, journal: Path) -> None:
    sink = a_sink(target, journal)
    sink.open(SCHEMA, None)
    train(sink, 0, 30)
    with pytest.raises(OutputError, match="other columns"):
        a_sink(target, journal).open(pa.schema([("n", pa.int64())]), 30)


def test_files_may_be_taken_away_by_whoever_has_read_them(target: Path, journal: Path) -> None:
    sink = a_sink(target, journal, rows=10)
    sink.open(SCHEMA, None)
    train(sink, 0, 30)
    train(sink, 30, 33)
    for name in names(target):
        (target / name).unlink()
    again = a_sink(target, journal, rows=10)
    again.open(SCHEMA, 33)
    train(again, 33, 35)
    again.close(complete=True)
    assert shown(target) == list(range(30, 35))


def test_half_a_file_of_a_killed_run_is_cleared_away(target: Path, journal: Path) -> None:
    sink = a_sink(target, journal)
    sink.open(SCHEMA, None)
    train(sink, 0, 5)
    half = target / f".part-{0:020d}-{5:012d}.parquet.part"
    half.write_bytes(b"PAR1 half")
    again = a_sink(target, journal)
    again.open(SCHEMA, 5)
    assert not half.exists()
    again.close(complete=True)
    assert shown(target) == list(range(5))


@pytest.mark.parametrize("seed", range(8))
def test_a_crash_between_any_two_calls_loses_and_repeats_nothing(tmp_path: Path, journal: Path, seed: int) -> None:
    """The sink is left as it is, sometimes with a torn journal behind the commit, and another one goes on."""
    chance = random.Random(seed)
    target = tmp_path / "out"
    committed: int | None = None
    written = 0
    while written < 80:
        sink = a_sink(target, journal, rows=chance.choice([2, 7, 30]))
        sink.open(SCHEMA, committed)
        written = committed or 0
        for _ in range(chance.randrange(6)):
            stop = written + chance.randrange(1, 9)
            sink.write(rows(written, stop))
            if chance.random() < 0.2:
                break  # crash before the flush
            position = sink.flush(True)
            if chance.random() < 0.2:
                break  # before the commit
            committed, written = position, stop
            if chance.random() < 0.2:
                break  # before the sink hears of it
            sink.committed(position)
        if chance.random() < 0.5 and committed is not None:
            newest = sorted(p for p in journal.parent.iterdir() if p.name.startswith("big.journal-"))[-1]
            with open(newest, "ab") as file:
                file.write(b"\xff\xff\xff\xff torn")
        counts = [int(name[len("part-") + 21 : -len(".parquet")]) for name in names(target)]
        assert sum(counts) <= (committed or 0)
        sink._stop_watching()
    last = a_sink(target, journal)
    last.open(SCHEMA, committed)
    last.close(complete=True)
    assert shown(target) == list(range(committed or 0))


def test_a_run_that_fails_shows_what_it_had_committed(target: Path, journal: Path) -> None:
    """As a unit does it: the sink is opened again at the last commit, then closed."""
    sink = a_sink(target, journal)
    sink.open(SCHEMA, None)
    position = train(sink, 0, 5)
    train(sink, 5, 9, commit=False)
    sink.open(SCHEMA, position)
    sink.close(complete=False)
    assert shown(target) == list(range(5))
    again = a_sink(target, journal)
    again.open(SCHEMA, position)
    train(again, 5, 7)
    again.close(complete=True)
    assert shown(target) == list(range(7))


def test_a_part_that_cannot_be_written_is_told_and_nothing_is_lost(
    target: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = a_sink(target, journal, rows=3)
    sink.open(SCHEMA, None)
    real = os.replace
    calls = 0

    def second_fails(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(28, "No space left on device")
        real(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", second_fails)
        with pytest.raises(OutputError, match="make room"):
            train(sink, 0, 8)
    assert shown(target) == [0, 1, 2]
    sink.open(SCHEMA, 8)
    sink.close(complete=False)
    assert shown(target) == list(range(8))
