"""A watched directory: every complete file once, in order, exactly once across restarts; bad records told apart."""

from __future__ import annotations

import gzip
import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from borealis.cli.watching import summary
from borealis.connectors.dead_letters import DeadLetters
from borealis.connectors.files.formats import csv as csv_format
from borealis.connectors.files.ledger import MARK, FilesTaken
from borealis.connectors.files.watch import WatchSource
from borealis.connectors.source import LiveSource
from borealis.connectors.sources import as_source, watch
from borealis.errors import DiagramError, InputError, StateError
from borealis.trains.progress import Progress

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int32()), ("word", pa.string())])
END = "_END"
WAIT_S = 30.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "incoming"
    made.mkdir()
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "state"
    made.mkdir()
    return made


def table(first: int, stop: int) -> pa.Table:
    times = pa.array([n * 1_000_000 for n in range(first, stop)], SCHEMA.field("ts").type)
    return pa.table([times, pa.array(range(first, stop), pa.int32()), [f"w{n}" for n in range(first, stop)]], SCHEMA)


def parquet(place: Path, name: str, first: int, stop: int, **options: Any) -> None:
    pq.write_table(table(first, stop), place / name, **options)


def csv(place: Path, name: str, first: int, stop: int, *more: str) -> None:
    lines = [f"1970-01-01T00:{n // 60:02}:{n % 60:02}Z,{n},w{n}" for n in range(first, stop)]
    (place / name).write_text("\n".join(["ts,n,word", *lines, *more]) + "\n")


def jsonl(place: Path, name: str, first: int, stop: int, *more: str) -> None:
    lines = [json.dumps({"ts": f"1970-01-01T00:00:{n:02}Z", "n": n, "word": f"w{n}"}) for n in range(first, stop)]
    (place / name).write_text("\n".join([*lines, *more]) + "\n")


def a_watch(place: Path, home: Path | None = None, **options: Any) -> WatchSource:
    source = watch(place, **{"poll": "5 ms", "settle": "0 seconds", "until": END} | options)
    source.begin("packets", "ts", home)
    return source


def read(source: WatchSource, skip: int = 0, most_rows: int = 1_000) -> list[int]:
    """All rows; someone must have said that there are no more."""
    return [n for batch in source.batches(SCHEMA, skip, most_rows) for n in batch["n"].to_pylist()]


def letters(home: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home / "packets.dead.jsonl").read_text().splitlines()]


# -- which files, and in which order


def test_every_format_is_read_once_in_the_order_of_names(place: Path) -> None:
    parquet(place, "d.parquet", 30, 40)
    csv(place, "b.csv", 10, 20)
    jsonl(place, "a.jsonl", 0, 10)
    (place / "c.csv.gz").write_bytes(gzip.compress(b"n,ts,word\n25,1970-01-01T00:00:25Z,w\n"))
    (place / END).touch()
    source = a_watch(place)
    assert isinstance(source, LiveSource)
    batches = list(source.batches(SCHEMA, 0, 4))
    assert [n for b in batches for n in b["n"].to_pylist()] == [*range(20), 25, *range(30, 40)]
    assert all(b.schema == SCHEMA and b.num_rows <= 4 for b in batches)
    assert source.dead_letters.count == 0
    assert source.warnings() == []


def test_by_time_of_change(place: Path) -> None:
    for name, at in (("a.csv", 300), ("b.csv", 100), ("c.csv", 200)):
        csv(place, name, at, at + 2)
        os.utime(place / name, (at, at))
    (place / END).touch()
    assert read(a_watch(place, order="time")) == [100, 101, 200, 201, 300, 301]
    assert read(a_watch(place, order="name")) == [300, 301, 100, 101, 200, 201]


def test_names_of_unfinished_and_foreign_files_are_left_alone(place: Path) -> None:
    csv(place, "a.csv", 0, 2)
    for name in (".b.csv", "_c.csv", "d.csv.tmp", "e.csv.part", "f.txt", "g.parquet.TMP"):
        csv(place, name, 10, 12)
    (place / "sub.csv").mkdir()
    (place / END).touch()
    assert read(a_watch(place)) == [0, 1]
    csv(place, "b.csv", 2, 4)
    assert read(a_watch(place, pattern="b*")) == [2, 3]
    assert read(a_watch(place, pattern="f.*", format="csv")) == [10, 11]


def test_links_that_lead_nowhere_are_left_alone(place: Path, tmp_path: Path) -> None:
    csv(place, "z.csv", 0, 2)
    csv(tmp_path, "real.csv", 2, 4)
    (place / "circle.csv").symlink_to("circle.csv")
    (place / "gone.csv").symlink_to("nothing")
    (place / "through.csv").symlink_to("z.csv/a.csv")
    (place / "long.csv").symlink_to("n" * 300)
    (place / "a.csv").symlink_to(tmp_path / "real.csv")
    (place / END).touch()
    assert read(a_watch(place)) == [2, 3, 0, 1]


def test_files_that_come_later_are_read_later(place: Path) -> None:
    csv(place, "b.csv", 10, 12)
    source = a_watch(place, poll="1 hour")  # only a stop may wake it
    batches = source.batches(SCHEMA, 0, 100)
    assert next(batches)["n"].to_pylist() == [10, 11]
    csv(place, "a.csv", 0, 2)
    assert next(batches)["n"].to_pylist() == [0, 1]
    ended = threading.Event()

    def rest() -> None:
        assert list(batches) == []
        ended.set()

    threading.Thread(target=rest, daemon=True).start()
    source.stop()
    assert ended.wait(WAIT_S)


def test_a_parquet_file_is_taken_when_its_footer_is_there(place: Path) -> None:
    parquet(place, "whole.parquet", 5, 7)
    data = (place / "whole.parquet").read_bytes()
    (place / "half.parquet").write_bytes(data[: len(data) // 2])
    (place / END).touch()
    source = a_watch(place)
    batches = source.batches(SCHEMA, 0, 100)
    assert next(batches)["n"].to_pylist() == [5, 6]
    assert list(batches) == []  # nobody writes it any more
    assert "half.parquet is no whole Parquet file" in source.warnings()[0]
    (place / "half.parquet").write_bytes(data)
    assert read(a_watch(place)) == [5, 6, 5, 6]


class StepClock:
    """Each look is a tenth of a second after the last one."""

    def __init__(self) -> None:
        self.looks = 0

    def now(self) -> float:
        self.looks += 1
        return self.looks / 10


def test_a_text_file_is_taken_when_it_has_settled(place: Path) -> None:
    csv(place, "a.csv", 0, 2)
    source = a_watch(place, settle="1 second", poll="1 ms")
    batches = source.batches(SCHEMA, 0, 100)
    growing = iter(range(2, 5))

    class Growing(StepClock):
        def now(self) -> float:
            if self.looks and self.looks % 7 == 0 and (n := next(growing, None)) is not None:
                with open(place / "a.csv", "a") as file:
                    file.write(f"1970-01-01T00:00:00Z,{n},w\n")
            return super().now()

    source._clock = slow = Growing()
    assert next(batches)["n"].to_pylist() == [0, 1, 2, 3, 4]  # never a part of it
    assert slow.looks > 3 * 7 + 10
    source.stop()
    assert list(batches) == []


# -- exactly once


def test_a_restart_goes_on_in_the_midst_of_the_right_file(place: Path, home: Path) -> None:
    csv(place, "b.csv", 0, 10)
    parquet(place, "c.parquet", 10, 30, row_group_size=7)
    jsonl(place, "d.jsonl", 30, 35)
    (place / END).touch()
    assert read(a_watch(place, home)) == list(range(35))
    csv(place, "a.csv", 35, 40)  # new, though its name comes first
    for skip in range(36):
        assert read(a_watch(place, home), skip, 3) == list(range(skip, 40)), skip
    assert read(a_watch(place, home), 40) == []


def test_a_restart_before_the_end_of_a_file_is_known(place: Path, home: Path) -> None:
    csv(place, "a.csv", 0, 10)
    csv(place, "b.csv", 10, 20)
    first = a_watch(place, home).batches(SCHEMA, 0, 4)
    assert [next(first)["n"].to_pylist()[0] for _ in range(4)] == [0, 4, 8, 10]
    first.close()
    (place / END).touch()
    for skip in (0, 7, 10, 14):
        assert read(a_watch(place, home), skip) == list(range(skip, 20))


def test_without_a_state_directory_every_start_begins_with_all_files(place: Path) -> None:
    csv(place, "a.csv", 0, 3)
    (place / END).touch()
    source = a_watch(place)
    assert read(source) == [0, 1, 2]
    source.begin("packets", "ts", None)
    assert read(source) == [0, 1, 2]


def test_a_file_that_changed_or_went_before_it_was_committed_is_named(place: Path, home: Path) -> None:
    csv(place, "a.csv", 0, 10)
    csv(place, "b.csv", 10, 20)
    (place / END).touch()
    assert len(read(a_watch(place, home))) == 20
    csv(place, "b.csv", 10, 21)
    assert read(a_watch(place, home), 20) == []  # all of it is committed: nobody minds
    with pytest.raises(InputError, match=r"b\.csv has changed since it was taken"):
        read(a_watch(place, home), 15)
    (place / "b.csv").unlink()
    with pytest.raises(InputError, match=r"b\.csv is gone, but its rows are not all committed"):
        read(a_watch(place, home), 5)
    (place / "a.csv").unlink()
    assert read(a_watch(place, home), 20) == []
    with pytest.raises(InputError, match=r"a\.csv is gone"):
        read(a_watch(place, home), 5)


def test_a_file_that_changes_while_it_is_read_is_named(place: Path, home: Path) -> None:
    csv(place, "a.csv", 0, 10)
    batches = a_watch(place, home).batches(SCHEMA, 0, 3)
    next(batches)
    with open(place / "a.csv", "a") as file:
        file.write("1970-01-01T00:00:00Z,99,w\n")
    with pytest.raises(InputError, match=r"a\.csv has changed"):
        list(batches)


def test_other_options_than_before_are_noticed(place: Path, home: Path) -> None:
    (place / "a.csv").write_text("1970-01-01T00:00:00Z,1,w\n1970-01-01T00:00:00Z,2,w\n")
    (place / END).touch()
    assert read(a_watch(place, home, header=False)) == [1, 2]
    with pytest.raises(InputError, match=r"0 readable rows, but had 2"):
        read(a_watch(place, home), 1)


def test_the_ledger_survives_a_torn_line_and_refuses_damage(place: Path, home: Path) -> None:
    for name, first in (("a.csv", 0), ("b.csv", 5), ("c.csv", 10)):
        csv(place, name, first, first + 5)
    (place / END).touch()
    assert len(read(a_watch(place, home))) == 15
    ledger = home / "packets.files"
    whole = ledger.read_bytes()
    known = FilesTaken(place, ledger).files
    assert [(one.name, one.rows) for one in known.values()] == [("a.csv", 5), ("b.csv", 5), ("c.csv", 5)]
    second = whole.index(MARK, 1)
    for length in range(whole.index(MARK, second + 1), len(whole) + 1, 7):  # cut anywhere behind the first file
        ledger.write_bytes(whole[:length])
        assert read(a_watch(place, home), 3) == list(range(3, 15)), length
        assert FilesTaken(place, ledger).files == known
    ledger.write_bytes(whole.replace(b"b.csv", b"x.csv"))
    with pytest.raises(StateError, match=r"packets\.files is damaged"):
        read(a_watch(place, home), 3)
    ledger.write_bytes(whole.replace(MARK, b"BFL9"))
    with pytest.raises(StateError, match="of another version"):
        read(a_watch(place, home), 3)
    ledger.unlink()
    with pytest.raises(InputError, match=r"12 rows were committed, but .* knows of 0 only"):
        read(a_watch(place, home), 12)


def test_a_ledger_of_another_directory_is_refused(tmp_path: Path, place: Path, home: Path) -> None:
    (place / END).touch()
    read(a_watch(place, home))
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match=r"is about the directory .*incoming, not .*other"):
        read(a_watch(tmp_path / "other", home))


# -- what cannot be read


def test_bad_records_of_a_csv_file_are_told_apart(place: Path, home: Path) -> None:
    bad = [
        "1970-01-01T00:00:02Z,many,w2",
        "too,few",
        "1970-01-01T00:00:03Z,3,w3,too many",
        ",4,no time",
        'yesterday,5,"two\nlines"',
    ]
    csv(place, "a.csv", 0, 2, *bad, "1970-01-01T00:00:06Z,6,w6", '1970-01-01T00:00:07Z,7,""')
    with open(place / "a.csv", "ab") as file:
        file.write(b"1970-01-01T00:00:08Z,8,\xff\n")
    csv(place, "b.csv", 10, 12)
    (place / END).touch()
    source = a_watch(place, home)
    batches = list(source.batches(SCHEMA, 0, 100))
    assert [n for b in batches for n in b["n"].to_pylist()] == [0, 1, 6, 7, 10, 11]
    assert [w for b in batches for w in b["word"].to_pylist()][3] == ""
    found = letters(home)
    assert [one["place"] for one in found] == [f"a.csv, record {n}" for n in (3, 4, 5, 6, 7, 10)]
    assert [one["raw"].rstrip("\n") for one in found[:5]] == bad
    assert found[5]["base64"] is True
    assert found[0]["reason"] == "column 'n' is INT, but the value is 'many'"
    assert "4 fields" not in found[1]["reason"]
    assert "no time" in found[3]["reason"]
    assert {one["source"] for one in found} == {str(place)}
    assert source.dead_letters.count == 6
    assert "6 records" in source.warnings()[0]


def test_bad_lines_of_json(place: Path, home: Path) -> None:
    jsonl(place, "a.jsonl", 0, 2, "{not json", "[1]", '{"n": 3}', '{"ts": "1970-01-01T00:00:04Z", "n": 4}')
    (place / END).touch()
    source = a_watch(place, home)
    assert read(source) == [0, 1, 4]
    found = letters(home)
    assert [one["raw"] for one in found] == ["{not json", "[1]", '{"n": 3}']
    assert "not JSON" in found[0]["reason"]
    assert "no time" in found[2]["reason"]


def test_bad_rows_of_parquet(place: Path, home: Path) -> None:
    rows = table(0, 6).set_column(1, "n", pa.array([0, 2**40, 2, 3, 4, 5]))
    times = pa.array([None if n == 3 else n for n in range(6)], SCHEMA.field("ts").type)
    pq.write_table(rows.set_column(0, "ts", times), place / "a.parquet")
    (place / END).touch()
    for skip in range(5):
        assert read(a_watch(place, home), skip) == [0, 2, 4, 5][skip:]
    found = letters(home)
    assert [one["place"] for one in found] == ["a.parquet, record 2", "a.parquet, record 4"]
    assert json.loads(found[0]["raw"])["n"] == 2**40


def test_a_file_that_cannot_be_read_at_all_stops_nothing(place: Path, home: Path) -> None:
    (place / "a.csv").write_text("other,columns\n1,2\n")
    pq.write_table(pa.table({"x": [1]}), place / "b.parquet")
    whole = gzip.compress("".join(json.dumps({"ts": "1970-01-01", "n": n}) + "\n" for n in range(5)).encode())
    (place / "c.jsonl.gz").write_bytes(whole[:-10])
    (place / "d.csv").write_bytes(b"")
    csv(place, "e.csv", 7, 8)
    (place / END).touch()
    source = a_watch(place, home)
    assert read(source)[-1] == 7
    found = letters(home)
    assert [one["place"] for one in found] == ["a.csv", "b.parquet", "c.jsonl.gz"]
    assert "no column 'ts'" in found[0]["reason"]
    assert all(one["raw"] == "" for one in found)


def test_a_record_that_is_read_again_is_one_dead_letter(place: Path, home: Path) -> None:
    csv(place, "a.csv", 0, 4, "x,y,z", "1970-01-01T00:00:05Z,5,w", "late,bad,one")
    csv(place, "b.csv", 6, 8, "again,bad,one")
    (place / END).touch()
    for skip in (0, 2, 4, 5, 7):
        source = a_watch(place, home)
        assert read(source, skip) == [0, 1, 2, 3, 5, 6, 7][skip:]
        assert source.dead_letters.count == 3
    assert len(letters(home)) == 3


def test_the_user_may_take_the_dead_letters(place: Path, tmp_path: Path) -> None:
    jsonl(place, "a.jsonl", 0, 1, "x")
    (place / END).touch()
    taken: list[dict[str, Any]] = []
    assert read(a_watch(place, bad=taken.append)) == [0]
    assert [one["raw"] for one in taken] == ["x"]
    assert read(a_watch(place, bad=tmp_path / "bad.jsonl")) == [0]
    assert json.loads((tmp_path / "bad.jsonl").read_text())["place"] == "a.jsonl, record 2"


def test_two_inputs_may_share_a_file_of_dead_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file name and record in two directories are two letters, at the first start and at the next."""
    shared = tmp_path / "bad.jsonl"
    for name, count in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        csv(tmp_path / name, "a.csv", 0, 1, *[f"{name},is,bad"] * count)
        (tmp_path / name / END).touch()
    monkeypatch.chdir(tmp_path)
    for start in (tmp_path, Path()):  # the second start names the directories in another way
        for name, count in (("one", 1), ("two", 2)):
            source = a_watch(start / name, bad=shared)
            assert read(source) == [0]
            assert source.dead_letters.count == count
    found = [json.loads(line) for line in shared.read_text().splitlines()]
    assert [one["raw"] for one in found] == ["one,is,bad\n", "two,is,bad\n", "two,is,bad\n"]


@pytest.mark.parametrize("bad", [1, 999, 1_000, 1_001, 2_500])
def test_bad_records_far_into_a_large_file(place: Path, home: Path, bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clean beginning is read by blocks, the rest record by record; nothing falls between."""
    monkeypatch.setattr(csv_format, "BLOCK_BYTES", 2**18)
    monkeypatch.setattr(csv_format, "RECORDS_AT_ONCE", 1_000)
    lines = [f"1970-01-01T00:00:00Z,{n},{'x' * 200}" for n in range(3_000)]
    lines[bad] = "1970-01-01T00:00:00Z,bad,w"
    (place / "a.csv").write_text("\n".join(["ts,n,word", *lines]))
    (place / END).touch()
    good = [n for n in range(3_000) if n != bad]
    assert read(a_watch(place, home)) == good
    assert read(a_watch(place, home), 2_900) == good[2_900:]
    assert letters(home)[0]["place"] == f"a.csv, record {bad + 1}"


def test_nothing_is_lost_behind_a_long_field_of_many_lines(
    place: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks and records must agree on what one record is: those that were read by blocks are passed by."""
    monkeypatch.setattr(csv_format, "BLOCK_BYTES", 2**18)
    text = f'ts,n,word\n1970-01-01T00:00:00Z,0,"{"x" * 199}\n' + f"{'x' * 199}\n" * 1_000 + '"\n'
    text += "".join(f"1970-01-01T00:00:00Z,{n},{'y' * 20}\n" for n in range(1, 15_000))
    (place / "a.csv").write_text(f"{text}1970-01-01T00:00:00Z,bad,z\n1970-01-01T00:00:00Z,15000,z\n")
    (place / END).touch()
    assert read(a_watch(place, home)) == list(range(15_001))
    assert [one["place"] for one in letters(home)] == ["a.csv, record 15001"]


def test_a_quote_that_is_never_closed_takes_no_more_than_a_record_may_have(place: Path, home: Path) -> None:
    line = f"1970-01-01T00:00:00Z,{{:05}},{'y' * 470}\n"
    size, count = len(line.format(0)), 20_000
    (place / "a.csv").write_text('ts,n,word\n"' + "".join(line.format(n) for n in range(count)))
    (place / END).touch()
    found = read(a_watch(place, home))
    [letter] = letters(home)
    assert letter["bytes"] == len('"') + size * found[0]
    assert found == list(range(found[0], count))
    assert found[0] == 2 * csv_format.BLOCK_BYTES // size + 1


def test_empty_lines_before_the_only_column(place: Path, home: Path) -> None:
    (place / "a.csv").write_text("\n\nts\n1970-01-01T00:00:01Z\nbad\n1970-01-01T00:00:03Z\n")
    (place / END).touch()
    batches = a_watch(place, home).batches(pa.schema([SCHEMA.field("ts")]), 0, 10)
    assert [at.second for batch in batches for at in batch["ts"].to_pylist()] == [1, 3]
    assert [one["place"] for one in letters(home)] == ["a.csv, record 2"]


def test_the_count_stands_in_progress_and_summary(place: Path, home: Path) -> None:
    jsonl(place, "a.jsonl", 0, 1, "x", "y")
    (place / END).touch()
    source = a_watch(place, home)
    assert read(source) == [0]
    progress = Progress("u1", live={"packets": source})
    assert progress.to_json()["dead_letters"] == {"packets": 2}
    out = Console(file=io.StringIO(), width=400)
    out.print(summary("traffic", [progress], {}, "done"))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert f"warning: 2 records in {place} could not be read: see {home / 'packets.dead.jsonl'}" in text


# -- what it refuses, and how it is written


def test_what_it_refuses(place: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no directory .*incomin.*did you mean 'incoming'"):
        watch(tmp_path / "incomin")
    (tmp_path / "file.csv").touch()
    with pytest.raises(InputError, match="is a file"):
        watch(tmp_path / "file.csv")
    with pytest.raises(InputError, match="no order 'size'"):
        watch(place, order="size")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no format 'xlsx'"):
        watch(place, format="xlsx")
    with pytest.raises(InputError, match="did you mean 'delimiter'"):
        watch(place, delimeter=";")
    with pytest.raises(DiagramError, match="not a duration"):
        watch(place, poll="often")


def test_as_the_command_line_writes_it(place: Path) -> None:
    one = as_source(f"watch:{place}/")
    assert isinstance(one, WatchSource)
    assert one.pattern == "*"
    two = as_source(f"watch:{place}/*.csv")
    assert isinstance(two, WatchSource)
    assert (two.directory, two.pattern) == (place, "*.csv")


# -- dead letters by themselves


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "dead.jsonl"


def test_dead_letters_are_counted_beyond_the_bound_of_their_file(file: Path) -> None:
    some = DeadLetters(file, "s", bytes_most=1_000)
    for n in range(50):
        some.add(f"record {n}", "raw", "why")
    some.close()
    assert some.count == 50
    assert 0 < some.dropped < 50
    assert file.stat().st_size <= 1_000
    assert len(file.read_text().splitlines()) == 50 - some.dropped


def test_dead_letters_of_earlier_starts_are_known_and_a_torn_line_is_cut(file: Path) -> None:
    some = DeadLetters(file)
    some.add("record 1", b"\xff", "why")
    some.add("record 2", "é" * 40_000, "too long")
    some.sync()
    some.close()
    with open(file, "ab") as torn:
        torn.write(b'{"place": "rec')
    again = DeadLetters(file)
    assert again.count == 2
    again.add("record 1", b"\xff", "why")
    again.add("record 3", "x", "why")
    assert again.count == 3
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["place"] for one in found] == ["record 1", "record 2", "record 3"]
    assert found[0]["raw"] == "/w=="
    assert found[1]["bytes"] == 80_000
    assert found[1]["raw"] == "é" * 32_768
