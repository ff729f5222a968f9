"""What file sinks write, sources read back exactly; a crash at any byte leaves no mark."""

from __future__ import annotations

import errno
import gzip
import math
import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from borealis.connectors.files import sink as files_module
from borealis.connectors.sink import Sink
from borealis.connectors.sinks import as_sink
from borealis.connectors.sources import replay
from borealis.errors import OutputError
from borealis.tuples import TIMESTAMP
from shares import shares

PLAIN = pa.schema(
    [
        ("ts", TIMESTAMP),
        ("local", pa.timestamp("us")),
        ("name", pa.string()),
        ("n", pa.int32()),
        ("big", pa.int64()),
        ("small", pa.int8()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("price", pa.decimal128(38, 10)),
        ("whole", pa.decimal128(5, 0)),
        ("day", pa.date32()),
        ("ok", pa.bool_()),
        ("raw", pa.binary()),
    ]
)
NESTED = pa.schema(
    [
        *PLAIN,
        ("tags", pa.list_(pa.string())),
        ("times", pa.list_(TIMESTAMP)),
        ("by_time", pa.map_(pa.timestamp("us"), pa.timestamp("us"))),
        ("by_key", pa.map_(pa.string(), pa.int32())),
        ("by_day", pa.map_(pa.date32(), pa.float64())),
        ("pair", pa.struct([("a", pa.decimal128(10, 2)), ("b", pa.list_(pa.struct([("c", pa.binary())])))])),
    ]
)
TEXTS = [
    "plain",
    "",
    None,
    'quote " and "" twice',
    "comma, and\nnew line\r\nand \r alone",
    " spaces ",
    "\t",
    "null",
    "Ελληνικά עברית 漢字 हिन्दी 🦊 e\u0301",
    "back\\slash \\n \u0001 \u2028",
    "NaN",
    "'",
    "\ufeffbom",
]
TIMES = [
    datetime(2024, 5, 1, 12, 0, 0, 123456, UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    None,
]
FLOATS = [0.1, -0.0, 1e300, 5e-324, math.nan, math.inf, -math.inf, 1 / 3, None, 1e16, 100000.0]
DECIMALS = [
    Decimal("0.0000000001"),
    Decimal("-9999999999999999999999999999.9999999999"),
    Decimal("0.0000000000"),
    Decimal("12.5"),
    None,
]


@cache
def table(rows: int, schema: pa.Schema = PLAIN) -> pa.Table:
    """Rows with everything that is hard to write."""

    def pick(values: list[Any], i: int) -> Any:
        return values[i % len(values)]

    makers: dict[str, Callable[[int], Any]] = {
        "ts": lambda i: pick(TIMES, i),
        "local": lambda i: pick([None if at is None else at.replace(tzinfo=None) for at in TIMES], i),
        "name": lambda i: pick(TEXTS, i),
        "n": lambda i: pick([0, 2**31 - 1, -(2**31), None, i], i),
        "big": lambda i: pick([2**63 - 1, -(2**63), None, i], i),
        "small": lambda i: pick([127, -128, None], i),
        "x": lambda i: pick(FLOATS, i),
        "f": lambda i: pick([0.1, math.nan, -math.inf, None, 3e38], i),
        "price": lambda i: pick(DECIMALS, i),
        "whole": lambda i: pick([Decimal(99999), Decimal(-1), Decimal(0), None], i),
        "day": lambda i: pick([date(1960, 2, 29), date(2024, 1, 1), None, date(1, 1, 1)], i),
        "ok": lambda i: pick([True, False, None], i),
        "raw": lambda i: pick([b"", b"\x00\xff", None, b"text"], i),
        "tags": lambda i: pick([[], None, [None, "", 'a"b', "漢"]], i),
        "times": lambda i: pick([[TIMES[1], None], [], None, [TIMES[0]]], i),
        "by_time": lambda i: pick(
            [None, [(datetime(2024, 5, 1, 12), datetime(1960, 1, 1)), (datetime(1, 1, 1), None)]], i
        ),
        "by_key": lambda i: pick([[("a", 1), ('"q"', None)], [], None], i),
        "by_day": lambda i: pick([[(date(2024, 1, 1), 0.5), (date(1950, 1, 1), math.nan)], None], i),
        "pair": lambda i: pick([{"a": Decimal("1.50"), "b": [{"c": b"\xff"}, None]}, None, {"a": None, "b": None}], i),
    }
    return pa.table(
        {field.name: pa.array(map(makers[field.name], range(rows)), field.type) for field in schema}, schema
    )


def read(path: Path, schema: pa.Schema, **options: Any) -> pa.Table:
    return pa.Table.from_batches(replay(path, **options).batches(schema, 0, 1000), schema)


def assert_same(left: pa.Table, right: pa.Table) -> None:
    assert left.schema == right.schema
    assert left.num_rows == right.num_rows
    for name in left.schema.names:
        a, b = left[name].to_pylist(), right[name].to_pylist()
        assert list(map(repr, a)) == list(map(repr, b)), name  # repr: NaN and -0.0 count too


FILES = ["a.csv", "a.csv.gz", "a.jsonl", "a.ndjson", "a.json", "a.jsonl.gz"]
WHOLE = ["a.parquet", "a.arrow", "a.feather", "a.ipc", "a.arrows"]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 143])
@pytest.mark.parametrize("name", FILES + WHOLE)
def test_round_trip(tmp_path: Path, name: str, rows: int, durable: bool) -> None:
    schema = PLAIN if "csv" in name else NESTED
    sink = as_sink(tmp_path / name, tmp_path / "journal" if durable else None)
    written = table(rows, schema)
    sink.open(schema, None)
    for start in range(0, rows, 17):
        sink.write(written.slice(start, 17))
    sink.write(written.slice(0, 0))
    sink.flush(sync=True)
    sink.close(complete=True)
    assert_same(read(tmp_path / name, schema), written)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("column", PLAIN.names)
def test_round_trip_of_one_column(tmp_path: Path, name: str, column: str) -> None:
    written = table(30).select([column])
    sink = as_sink(tmp_path / name)
    sink.open(written.schema, None)
    sink.write(written)
    sink.close(complete=True)
    assert_same(read(tmp_path / name, written.schema), written)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow", "a.arrows"])
@pytest.mark.parametrize("share", shares(3))
def test_a_crash_leaves_no_mark(tmp_path: Path, name: str, share: int) -> None:
    """Uncommitted writes and torn bytes after a commit vanish; what follows is as if nothing had happened."""
    random_ = random.Random(share)
    schema = PLAIN if "csv" in name else NESTED
    rows = table(300, schema)
    trains = [rows.slice(start, 20) for start in range(0, 300, 20)]

    def journal_of(folder: str) -> Path:
        return tmp_path / folder / "journal"

    def make(folder: str) -> Sink:
        (tmp_path / folder).mkdir(exist_ok=True)
        sink = as_sink(tmp_path / folder / name, journal_of(folder))
        assert sink.durable
        return sink

    sink = make("straight")
    sink.open(schema, None)
    for train in trains:
        sink.write(train)
        sink.flush(sync=False)
    sink.close(complete=True)

    committed: int | None = None
    done = 0
    while done < len(trains):
        sink = make("crashing")  # the one before is dropped without close, as by kill -9
        sink.open(schema, committed)
        for _ in range(random_.randrange(4)):
            if done < len(trains):
                sink.write(trains[done])
                committed = sink.flush(sync=random_.random() < 0.1)
                done += 1
        if done < len(trains) and random_.random() < 0.7:
            sink.write(trains[done])
        grown = journal_of("crashing") if name in WHOLE else tmp_path / "crashing" / name
        with open(grown, "ab") as file:
            file.write(random_.randbytes(random_.randrange(50)))
        if committed is not None and random_.random() < 0.5:
            size = grown.stat().st_size
            with open(grown, "r+b") as file:
                file.truncate(random_.randint(committed, size))
    sink = make("crashing")
    sink.open(schema, committed)
    sink.close(complete=True)
    crashing, straight = tmp_path / "crashing" / name, tmp_path / "straight" / name
    assert crashing.read_bytes() == straight.read_bytes()
    assert_same(read(crashing, schema), rows)


@pytest.mark.parametrize("name", WHOLE)
def test_a_finished_run_started_again_makes_the_target_anew(tmp_path: Path, name: str) -> None:
    sink = as_sink(tmp_path / name, tmp_path / "journal")
    sink.open(PLAIN, None)
    sink.write(table(10))
    position = sink.flush(sync=True)
    sink.close(complete=True)
    (tmp_path / name).unlink()
    again = as_sink(tmp_path / name, tmp_path / "journal")
    again.open(PLAIN, position)
    assert again.flush(sync=False) == position
    again.close(complete=True)
    assert_same(read(tmp_path / name, PLAIN), table(10))


@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.arrow"])
def test_after_an_error_whole_writes_are_a_valid_file(tmp_path: Path, name: str, journal: bool) -> None:
    sink = as_sink(tmp_path / name, tmp_path / "journal" if journal else None)
    sink.open(PLAIN, None)
    sink.write(table(10))
    sink.flush(sync=False)
    sink.close(complete=False)
    assert_same(read(tmp_path / name, PLAIN), table(10))


@pytest.mark.parametrize("journal", [True, False])
def test_small_writes_are_gathered(tmp_path: Path, journal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "GROUP_ROWS", 100)
    sink = as_sink(tmp_path / "a.parquet", tmp_path / "journal" if journal else None)
    sink.open(PLAIN, None)
    for start in range(0, 250, 7):
        sink.write(table(250).slice(start, 7))
    sink.write(table(310))
    sink.close(complete=True)
    groups = pq.ParquetFile(tmp_path / "a.parquet").metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [100, 100, 100, 100, 100, 60]


def test_the_target_changes_only_when_whole(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("old")
    sink = as_sink(tmp_path / "a.parquet")
    sink.open(PLAIN, None)
    sink.write(table(5))
    assert (tmp_path / "a.parquet").read_text() == "old"
    sink.close(complete=True)
    assert_same(read(tmp_path / "a.parquet", PLAIN), table(5))


def test_how_csv_looks(tmp_path: Path) -> None:
    schema = pa.schema([("ts", TIMESTAMP), ("na,me", pa.string()), ("d", pa.decimal128(12, 8)), ("x", pa.float64())])
    sink = as_sink(tmp_path / "a.csv")
    sink.open(schema, None)
    rows = [[TIMES[1], None], ["", 'a"b'], [Decimal("0.00000001"), Decimal(2)], [0.1, None]]
    sink.write(pa.table(rows, schema=schema))
    sink.close(complete=True)
    assert (tmp_path / "a.csv").read_text() == (
        'ts,"na,me",d,x\n1969-12-31T23:59:59.999999Z,"",0.00000001,0.1\n,"a""b",2.00000000,\n'
    )


def test_how_json_lines_look(tmp_path: Path) -> None:
    sink = as_sink(tmp_path / "a.jsonl")
    schema = pa.schema([("ts", TIMESTAMP), ("s", pa.string()), ("d", pa.decimal128(12, 8)), ("x", pa.float64())])
    schema = schema.append(pa.field("m", pa.map_(pa.string(), pa.binary())))
    sink.open(schema, None)
    rows = [[TIMES[1]], ['漢"'], [Decimal("0.00000001")], [math.nan], [[("k", b"\xff")]]]
    sink.write(pa.table(rows, schema=schema))
    sink.close(complete=True)
    assert (tmp_path / "a.jsonl").read_text() == (
        '{"ts":"1969-12-31T23:59:59.999999Z","s":"漢\\"","d":0.00000001,"x":"NaN","m":{"k":"/w=="}}\n'
    )


def test_gzip_is_gzip(tmp_path: Path) -> None:
    sink = as_sink(str(tmp_path / "a.csv.gz"))
    sink.open(pa.schema([("n", pa.int32())]), None)
    sink.write(pa.table({"n": pa.array([1, 2], pa.int32())}))
    sink.close(complete=True)
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()) == b"n\n1\n2\n"


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_a_file_shorter_than_committed_is_refused(tmp_path: Path, name: str) -> None:
    sink = as_sink(tmp_path / name, tmp_path / "journal")
    sink.open(PLAIN, None)
    sink.write(table(10))
    position = sink.flush(sync=False)
    sink.close(complete=True)
    for damaged in (tmp_path / name, tmp_path / "journal"):
        if damaged.exists():
            damaged.write_bytes(damaged.read_bytes()[:5])
    with pytest.raises(
        OutputError, match=r"5 bytes, but [\d,]+ bytes were committed: it was changed since.*state directory"
    ):
        as_sink(tmp_path / name, tmp_path / "journal").open(PLAIN, position)


def test_a_journal_of_other_columns_is_refused(tmp_path: Path) -> None:
    sink = as_sink(tmp_path / "a.parquet", tmp_path / "journal")
    sink.open(PLAIN, None)
    position = sink.flush(sync=False)
    with pytest.raises(OutputError, match="holds other columns"):
        as_sink(tmp_path / "a.parquet", tmp_path / "journal").open(pa.schema([("n", pa.int32())]), position)


def test_a_whole_file_without_a_journal_cannot_be_continued(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="kept no journal"):
        as_sink(tmp_path / "a.parquet").open(PLAIN, 5)


@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.arrow", "a.arrows"])
def test_a_missing_directory_is_told(tmp_path: Path, name: str, journal: bool) -> None:
    with pytest.raises(OutputError, match="mkdir -p"):
        as_sink(tmp_path / "none" / name, tmp_path / "journal" if journal else None).open(PLAIN, None)


def test_nested_columns_do_not_fit_in_csv(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"column 'tags'.*a CSV file cannot hold.*JSON lines"):
        as_sink(tmp_path / "a.csv").open(NESTED, None)
    assert not (tmp_path / "a.csv").exists()


def test_a_time_beyond_iso_8601_is_refused_in_text(tmp_path: Path) -> None:
    sink = as_sink(tmp_path / "a.csv")
    schema = pa.schema([("ts", TIMESTAMP)])
    sink.open(schema, None)
    with pytest.raises(OutputError, match="after 9999"):
        sink.write(pa.table([pa.array([2**60], pa.int64()).cast(TIMESTAMP)], schema=schema))


def test_an_unknown_suffix_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"a\.xlsx.*known: \.parquet"):
        as_sink(tmp_path / "a.xlsx")
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(OutputError, match="is a directory"):
        as_sink(tmp_path / "d.csv")


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """/dev/full takes nothing, as a full disk."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    (tmp_path / "a.csv").symlink_to("/dev/full")
    sink = as_sink(tmp_path / "a.csv")
    with pytest.raises(OutputError, match="the disk is full"):
        sink.open(PLAIN, None)


def test_a_disk_that_fills_up_leaves_whole_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = as_sink(tmp_path / "a.jsonl")
    sink.open(PLAIN, None)
    sink.write(table(10))
    sink.flush(sync=False)
    file = sink._file._file  # type: ignore[attr-defined]

    class Filling:
        """Takes seven more bytes."""

        written = False

        def write(self, data: memoryview) -> int:
            if self.written:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.written = True
            return int(file.write(data[:7]))

        def __getattr__(self, name: str) -> Any:
            return getattr(file, name)

    sink._file._file = Filling()  # type: ignore[attr-defined]
    with pytest.raises(OutputError, match="the disk is full: make room"):
        sink.write(table(3))
    sink.close(complete=False)
    assert_same(read(tmp_path / "a.jsonl", PLAIN), table(10))
