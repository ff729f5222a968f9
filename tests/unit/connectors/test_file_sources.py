"""Files of every format, read from any position in any batch size, and bad ones told in one line."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from borealis.cli.ending import run_app
from borealis.connectors.files.formats import ReadSpec
from borealis.connectors.files.formats import csv as csv_format
from borealis.connectors.files.formats import jsonl as jsonl_format
from borealis.connectors.files.source import read
from borealis.connectors.records import decode, records
from borealis.connectors.sources import SortedSource, Source, as_source, replay, rows
from borealis.errors import InputError
from borealis.gateway.ndjson import NumberedLine, rows_of
from borealis.kernels.expr import Call, Column
from borealis.kernels.time_of import TimeOf
from borealis.tuples import TIMESTAMP

PACKET = pa.schema([("ts", TIMESTAMP), ("src", pa.string()), ("bytes", pa.int32())])
ROWS = pa.table(
    [
        pa.array([None if i % 7 == 3 else i * 1_000_003 - 10**8 for i in range(101)], pa.int64()).cast(TIMESTAMP),
        [None if i % 5 == 2 else f"host {i}\n" if i % 11 == 0 else f"h,{i % 3}" for i in range(101)],
        pa.array([None if i % 4 == 1 else i for i in range(101)], pa.int32()),
    ],
    schema=PACKET,
)


def write_text(path: Path, rows: pa.Table) -> None:
    from borealis.connectors.sinks import as_sink

    sink = as_sink(path)
    sink.open(rows.schema, None)
    sink.write(rows)
    sink.close(complete=True)


def write_ipc(path: Path, rows: pa.Table, stream: bool) -> None:
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(str(path), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=13)


WRITERS: dict[str, Callable[[Path, pa.Table], None]] = {
    "a.parquet": lambda path, rows: pq.write_table(rows, path, row_group_size=13),
    "a.csv": write_text,
    "a.csv.gz": write_text,
    "a.jsonl": write_text,
    "a.ndjson": write_text,
    "a.json": write_text,
    "a.arrow": lambda path, rows: write_ipc(path, rows, stream=False),
    "a.ipc": lambda path, rows: write_ipc(path, rows, stream=True),
    "a.feather": lambda path, rows: pyarrow.feather.write_feather(rows, str(path), chunksize=13),
    "a.arrows": lambda path, rows: write_ipc(path, rows, stream=True),
}


def take(source: Source, schema: pa.Schema, skip: int = 0, most_rows: int = 1000) -> pa.Table:
    batches = list(source.batches(schema, skip, most_rows))
    assert all(batch.schema == schema and 0 < batch.num_rows <= most_rows for batch in batches)
    return pa.Table.from_batches(batches, schema)


def read_text(tmp_path: Path, name: str, text: str, schema: pa.Schema, **options: Any) -> list[tuple[Any, ...]]:
    (tmp_path / name).write_text(text, newline="")
    rows = take(replay(tmp_path / name, **options), schema)
    return [tuple(row.values()) for row in rows.to_pylist()]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_format, "BLOCK_BYTES", 500)
    monkeypatch.setattr(jsonl_format, "BLOCK_BYTES", 500)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("most_rows", [1, 13, 40, 1000])
def test_any_position_and_batch_size_give_the_same_rows(tmp_path: Path, name: str, most_rows: int) -> None:
    WRITERS[name](tmp_path / name, ROWS)
    source = as_source(str(tmp_path / name))
    assert source.finite_and_ordered
    for skip in (0, 1, 12, 13, 26, 57, 100, 101, 500):
        assert take(source, PACKET, skip, most_rows) == ROWS.slice(skip)


@pytest.mark.parametrize("name", WRITERS)
def test_several_files_follow_each_other(tmp_path: Path, name: str) -> None:
    for index, start in enumerate((0, 40, 40, 90)):
        WRITERS[name](tmp_path / f"{index}{name}", ROWS.slice(start, 50 if index in (1,) else (40, 0, 0, 11)[index]))
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "notes.txt").touch()
    for source in (
        replay(tmp_path),
        replay(str(tmp_path / f"*{name}")),
        replay([tmp_path / f"{index}{name}" for index in range(4)]),
    ):
        for skip in (0, 30, 40, 45, 95, 101):
            assert take(source, PACKET, skip, 30) == ROWS.slice(skip)


def test_columns_are_found_by_name_whatever_the_case(tmp_path: Path) -> None:
    rows = ROWS.rename_columns(["TS", "Src", "bytes"]).select(["bytes", "Src", "TS"]).append_column("x", [range(101)])
    for name, write in WRITERS.items():
        write(tmp_path / name, rows)
        assert take(replay(tmp_path / name), PACKET) == ROWS


def test_another_delimiter_and_another_encoding_are_guessed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"say delimiter=';'; from a shell: FILE\?delimiter=%3B"):
        read_text(tmp_path, "semicolons.csv", "ts;src;bytes\n2024-01-01 00:00:00;a;1\n", PACKET)
    (tmp_path / "latin.csv").write_bytes("ts,src,bytes\n2024-01-01 00:00:00,café,1\n".encode("latin-1"))
    with pytest.raises(InputError, match="save it as UTF-8"):
        take(replay(tmp_path / "latin.csv"), PACKET)


@pytest.mark.parametrize("name", WRITERS)
def test_a_missing_column_is_named(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name, ROWS)
    source, schema = replay(tmp_path / name), pa.schema([("byte", pa.int32())])
    missing = f"no column 'byte' in {tmp_path / name} (has: ts, src, bytes)"
    if "js" in name:  # a key that an object lacks is null
        assert take(source, schema)["byte"].null_count == ROWS.num_rows
        assert source.warnings() == [f"{missing}: it is null; did you mean 'bytes'?"]
        return
    with pytest.raises(InputError) as caught:
        take(source, schema)
    assert str(caught.value) == f"{missing}. Hint: did you mean 'bytes'?"


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.arrows"])
def test_types_that_hold_the_same_values_are_cast(tmp_path: Path, name: str) -> None:
    have = pa.table(
        {
            "naive": pa.array([datetime(2024, 1, 1)], pa.timestamp("ms")),
            "nano": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "Europe/Paris")),
            "day": pa.array([date(1960, 1, 1)], pa.date32()),
            "long": pa.array([2**31 - 1], pa.int64()),
            "byte": pa.array([7], pa.uint8()),
            "price": pa.array([Decimal("1.5")], pa.decimal128(38, 18)),
            "count": pa.array([12], pa.int64()),
            "ratio": pa.array([1.1], pa.float64()),
            "word": pa.array(["x"]).dictionary_encode(),
            "large": pa.array(["y"], pa.large_string()),
            "list": pa.array([[1, None]], pa.list_(pa.int64())),
            "struct": pa.array([{"b": "x", "a": 1}], pa.struct([("b", pa.string()), ("a", pa.int64())])),
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        }
    )
    WRITERS[name](tmp_path / name, have)
    wanted = pa.schema(
        [
            ("naive", TIMESTAMP),
            ("nano", TIMESTAMP),
            ("day", TIMESTAMP),
            ("long", pa.int32()),
            ("byte", pa.int64()),
            ("price", pa.decimal128(10, 2)),
            ("count", pa.decimal128(10, 2)),
            ("ratio", pa.decimal128(10, 2)),
            ("word", pa.string()),
            ("large", pa.string()),
            ("list", pa.list_(pa.int32())),
            ("struct", pa.struct([("a", pa.int32())])),
            ("map", pa.map_(pa.string(), pa.int32())),
        ]
    )
    (row,) = take(replay(tmp_path / name), wanted).to_pylist()
    assert row == {
        "naive": datetime(2024, 1, 1, tzinfo=UTC),
        "nano": datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=123456),
        "day": datetime(1960, 1, 1, tzinfo=UTC),
        "long": 2**31 - 1,
        "byte": 7,
        "price": Decimal("1.50"),
        "count": Decimal("12.00"),
        "ratio": Decimal("1.10"),
        "word": "x",
        "large": "y",
        "list": [1, None],
        "struct": {"a": 1},
        "map": [("k", 1)],
    }


@pytest.mark.parametrize("skip", [0, 30])
@pytest.mark.parametrize("name", WRITERS)
def test_a_value_that_does_not_fit_is_found(tmp_path: Path, name: str, skip: int) -> None:
    numbers = pa.array([2**31 if i == 57 else i for i in range(101)], pa.int64())
    WRITERS[name](tmp_path / name, ROWS.set_column(2, "bytes", numbers))
    with pytest.raises(InputError) as caught:
        take(replay(tmp_path / name), PACKET, skip, 20)
    assert caught.value.message == f"{tmp_path / name}, row 58: column 'bytes' is INT, but the value is " + (
        "'2147483648'" if "csv" in name else "2147483648"
    )
    assert "2147483647" in caught.value.hint


@pytest.mark.parametrize(
    ("have", "wanted"),
    [
        (pa.array(["1"]), pa.int32()),
        (pa.array(["2024-01-01"]), TIMESTAMP),
        (pa.array([1]), pa.string()),
        (pa.array([1]), TIMESTAMP),
        (pa.array([datetime(2024, 1, 1)]), pa.date32()),
        (pa.array([True]), pa.int32()),
        (pa.array([[1]]), pa.int32()),
        (pa.array([{"a": 1}]), pa.struct([("b", pa.int64())])),
    ],
)
def test_columns_of_another_kind_are_refused_even_when_empty(
    tmp_path: Path, have: pa.Array, wanted: pa.DataType
) -> None:
    for name in ("a.parquet", "a.arrow"):
        WRITERS[name](tmp_path / name, pa.table({"x": have.slice(0, 0)}))
        with pytest.raises(InputError, match=r"column 'x' of .* is \w+.*, declared \w+"):
            take(replay(tmp_path / name), pa.schema([("x", wanted)]))


@pytest.mark.parametrize(
    ("have", "wanted", "index"),
    [
        (pa.array([1.5, 2.25, 2.125]), pa.decimal128(5, 2), 2),
        (pa.array([1.0, 2.5]), pa.int32(), 1),
        (pa.array([Decimal("1.23"), Decimal("1.234")]), pa.decimal128(5, 2), 1),
        (pa.array([999, 1000]), pa.decimal128(5, 2), 1),
        (pa.array([1.5, 5e-324]), pa.decimal128(5, 2), 1),
        (pa.array([0, 10**17], pa.timestamp("s")), TIMESTAMP, 1),
        (pa.array([b"ok", b"\xff"]), pa.string(), 1),
        (pa.array([1e30, 1e39]), pa.float32(), 1),
        (pa.array([[1], [2, 300]]), pa.list_(pa.int8()), 1),
        (pa.array([{"a": 1}, None, {"a": 300}]), pa.struct([("a", pa.int8())]), 2),
    ],
)
def test_arrow_values_that_do_not_fit(tmp_path: Path, have: pa.Array, wanted: pa.DataType, index: int) -> None:
    write_ipc(tmp_path / "a.arrow", pa.table({"x": have}), stream=False)
    with pytest.raises(InputError, match=rf"a\.arrow, row {index + 1}: column 'x' is"):
        take(replay(tmp_path / "a.arrow"), pa.schema([("x", wanted)]))


TIME_TEXTS = {
    "2024-05-01T12:00:00Z": datetime(2024, 5, 1, 12, tzinfo=UTC),
    "2024-05-01 12:00:00.5": datetime(2024, 5, 1, 12, 0, 0, 500000, UTC),
    "2024-05-01T12:00:00.123456789+02:00": datetime(2024, 5, 1, 10, 0, 0, 123456, UTC),
    "2024-05-01T12:00-0330": datetime(2024, 5, 1, 15, 30, tzinfo=UTC),
    "2024-05-01": datetime(2024, 5, 1, tzinfo=UTC),
    "1955-11-05T06:15:00.000001": datetime(1955, 11, 5, 6, 15, 0, 1, UTC),
}


@pytest.mark.parametrize("zone", ["UTC", None])
def test_times_as_text_with_and_without_zone(tmp_path: Path, zone: str | None) -> None:
    schema = pa.schema([("ts", pa.timestamp("us", zone))])
    times = {text: time if zone else time.replace(tzinfo=None) for text, time in TIME_TEXTS.items()}
    expected = [(time,) for time in times.values()]
    assert read_text(tmp_path, "a.csv", "ts\n" + "\n".join(TIME_TEXTS), schema) == expected
    lines = "\n".join(f'{{"ts":"{text}"}}' for text in TIME_TEXTS)
    assert read_text(tmp_path, "a.jsonl", lines, schema) == expected
    for text, time in times.items():
        assert read_text(tmp_path, "a.csv", f"ts\n{text}\n", schema) == [(time,)]


ALL = pa.schema(
    [
        ("s", pa.string()),
        ("i", pa.int32()),
        ("x", pa.float64()),
        ("d", pa.decimal128(6, 2)),
        ("day", pa.date32()),
        ("ok", pa.bool_()),
        ("raw", pa.binary()),
    ]
)


def test_csv_text_is_parsed(tmp_path: Path) -> None:
    text = 's,i,x,d,day,ok,raw\n a , +1,1e3, 2.5 ,2024-01-02,TRUE,/w==\n,,,,,,\n"","","","","","",""\r\n\n'
    assert read_text(tmp_path, "a.csv", text, ALL) == [
        (" a ", 1, 1000.0, Decimal("2.50"), date(2024, 1, 2), True, b"\xff"),
        (None,) * 7,
        ("", None, None, None, None, None, b""),
    ]


def test_csv_options(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int32())])
    text = "x;1\n'y;z';NA\n"
    rows = read_text(tmp_path, "a.csv", text, schema, header=False, delimiter=";", quote="'", nulls=["", "NA"])
    assert rows == [("x", 1), ("y;z", None)]
    assert read_text(tmp_path, "b.csv", "", schema, header=False) == []
    assert read_text(tmp_path, "c.csv", '\ufeff\n\n"a",b\n1,2\n', schema) == [("1", 2)]
    assert read_text(tmp_path, "d.txt", "a,b\n1,2\n", schema, format="csv") == [("1", 2)]


def test_json_is_parsed(tmp_path: Path) -> None:
    full = '{"s":"a","i":1,"x":2,"d":2.50,"day":"2024-01-02","ok":true,"raw":"/w==","more":[1]}\n'
    text = '{"i":"7","x":"NaN","d":"1.25","ok":"false"}\n\n{"i":3.0,"s":null}\r\n'
    expected = ("a", 1, 2.0, Decimal("2.50"), date(2024, 1, 2), True, b"\xff")
    assert read_text(tmp_path, "a.jsonl", full * 3, ALL) == [expected] * 3
    rows = read_text(tmp_path, "a.jsonl", "\ufeff" + full + text, ALL)
    assert rows[0] == expected
    assert repr(rows[1]) == repr((None, 7, float("nan"), Decimal("1.25"), None, False, None))
    assert rows[2] == (None, 3, None, None, None, None, None)


AB = pa.schema([("a", pa.int32()), ("b", pa.int32())])
SPARSE = [b'{"a": 1}', b'{"b": 2, "c": 3}', b"{}"]


def test_an_absent_key_is_null_wherever_the_object_comes_from(tmp_path: Path) -> None:
    expected = [(1, None), (None, 2), (None, None)]
    text = b"\n".join(SPARSE).decode()
    assert read_text(tmp_path, "a.jsonl", text, AB) == expected
    over_http = rows_of([NumberedLine(i + 1, line) for i, line in enumerate(SPARSE)], AB)
    assert over_http.error is None
    objects = [json.loads(line) for line in SPARSE]
    for batches in (
        [decode(SPARSE, records("json", AB), AB).rows],  # a topic's
        [over_http.batch],
        [piece.rows for piece in read(tmp_path / "a.jsonl", "jsonl", ReadSpec(AB))],  # a watched directory's
        rows(objects).batches(AB, 0, 10),
        rows(iter(objects)).batches(AB, 0, 10),
    ):
        assert [tuple(row.values()) for row in pa.Table.from_batches(batches).to_pylist()] == expected


@pytest.mark.parametrize(
    ("format_", "bad", "words"),
    [
        ("json", '{"a": 1', "is not JSON (Expecting ',' delimiter at character 8): '{\"a\": 1'"),
        ("json", "[1]", "is not a JSON object: '[1]'"),
        ("json", '{"a": "x"}', "column 'a' is INT, but the value is 'x'"),
        ("csv", "1", "has 1 fields, not 2: '1'"),
        ("csv", "1,x", "column 'b' is INT, but the value is 'x'"),
    ],
)
def test_a_bad_record_is_told_in_the_same_words_wherever_it_comes_from(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], format_: str, bad: str, words: str
) -> None:
    good, reason = ('{"a": 1, "b": 2}' if format_ == "json" else "1,2"), words if "column" in words else f"it {words}"
    told = f": {words}" if "column" in words else f" {words}"
    assert decode([good.encode(), bad.encode()], records(format_, AB), AB).bad == [(1, reason)]  # a topic's
    path = tmp_path / f"a.{format_}"
    path.write_text("\n".join(["a,b"] * (format_ == "csv") + [good, bad, good, ""]))
    with pytest.raises(InputError) as caught:
        take(replay(path), AB)
    assert caught.value.message == f"{path}, row 2{told}"
    [piece] = read(path, {"json": "jsonl"}.get(format_, format_), ReadSpec(AB))  # a watched directory's
    assert (piece.rows.num_rows, piece.bad, piece.raw(1)) == (
        2,
        [(1, reason)],
        bad.encode() + b"\n" * (format_ == "csv"),
    )
    if format_ == "json":
        error = rows_of([NumberedLine(7, good.encode()), NumberedLine(9, bad.encode())], AB).error  # over HTTP
        assert error is not None
        assert error.message == f"line 9{told}"
    if "fields" in words or "not JSON" in words:
        assert run_app(["cat", str(path)]) == 1
        assert f"{path}, row 2{told}. Hint: rows before it are shown" in capfd.readouterr().err


WHOLE = {"a.csv": "n\n{}\n", "a.jsonl": '{{"n": {}}}\n', "b.jsonl": '{{"n": "{}"}}\n'}


@pytest.mark.parametrize("name", WHOLE)
def test_one_point_zero_is_a_whole_number_and_one_and_a_half_is_not(tmp_path: Path, name: str) -> None:
    schema = pa.schema([("n", pa.int32())])
    for text in ("1.0", "1.000"):
        assert read_text(tmp_path, name, WHOLE[name].format(text), schema) == [(1,)]
    for text in ("1.5", "2147483648.0"):
        with pytest.raises(InputError, match="column 'n' is INT, but the value is"):
            read_text(tmp_path, name, WHOLE[name].format(text), schema)


@pytest.mark.parametrize("kind", [float, Decimal])
def test_whole_numbers_of_any_kind_fit(tmp_path: Path, kind: type) -> None:
    schema = pa.schema([("n", pa.int32())])
    table = pa.table({"n": [kind(1), None, kind(-7)]})
    pq.write_table(table, tmp_path / "a.parquet")
    for source in (
        replay(tmp_path / "a.parquet"),
        as_source(table),
        rows(table.to_pylist()),
        as_source(table.to_pandas()),
    ):
        assert take(source, schema)["n"].to_pylist() == [1, None, -7]


def test_options_of_a_file_stand_behind_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with gzip.open("a.txt.gz", "wt") as file:
        file.write("1 'x y'\n- z\n")
    schema = pa.schema([("n", pa.int32()), ("s", pa.string())])
    address = "a.txt.gz?format=csv&delimiter=%20&header=false&quote='&null=-&null=z"
    assert take(as_source(address), schema).to_pylist() == [{"n": 1, "s": "x y"}, {"n": None, "s": None}]
    Path("b?n=1.csv").write_text("n\n7\n")  # a file that is there is that file
    assert take(as_source("b?n=1.csv"), pa.schema([("n", pa.int32())])).num_rows == 1
    assert take(as_source("b?n=?.csv"), pa.schema([("n", pa.int32())])).num_rows == 1  # a pattern
    for wrong, message in (
        ("a.txt.gz?format=csv&delimter=;", "a csv file takes no option 'delimter' .*did you mean 'delimiter'"),
        ("a.txt.gz?format=csv&header=no", "header=no is neither true nor false"),
        ("a.txt.gz?format=cvs", "no format 'cvs' .*did you mean 'csv'"),
        ("a.txt.gz?format=csv&quote=%22&quote=x", "the option 'quote' twice"),
        ("a.txt.gz", r"cannot tell the format .*FILE\?format=csv"),
    ):
        with pytest.raises(InputError, match=message):
            as_source(wrong)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("-", '{"n": 1}\n\n{"n": 2}'),
        ("-?format=csv", "n\n1\n2\n"),
        ("-?format=jsonl&sort=true", '{"n": 2}\n{"n": 1}\n'),
    ],
)
def test_a_dash_is_stdin(monkeypatch: pytest.MonkeyPatch, address: str, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    source = as_source(address)
    if isinstance(source, SortedSource):
        source.time = TimeOf("timestamp_seconds(n)", Call("timestamp_seconds", (Column("n", "integer"),), "timestamp"))
    assert take(source, pa.schema([("n", pa.int32())]))["n"].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "s,i\nx,1\nx,1\n\nx\n", "row 3 has 1 fields, not 2: 'x'"),
        ("a.csv", "s,i\nx,1\nx,one\n", "row 2: column 'i' is INT, but the value is 'one'"),
        ("a.csv", "s,i\nx,1.5\n", "row 1: column 'i' is INT, but the value is '1.5'"),
        ("a.csv", "s,i,i\nx,1,2\n", "has 2 columns for 'i'"),
        ("a.csv", '"s,i\n' + "a,1\n" * 1500, "row 1 has 1,001 characters, more than can be read.*quote never"),
        ("a.csv", 's,i\na,1\n"' + "x\n" * 1500 + '",1\n', "row 2 has 1,001 bytes, more than 1,000.*quote never"),
        ("a.jsonl", '{"s":"x","i":1}\n{"s":1,"i":1}\n', "row 2: column 's' is STRING, but the value is 1"),
        ("a.jsonl", '{"s":"x","i":1}\n{"s":"x","i":true}\n', "row 2: column 'i' is INT, but the value is True"),
        ("a.jsonl", '{"s":"x","i":1}\n{"s":"x"\n', r"row 2 is not JSON \("),
        ("a.jsonl", '{"s":"x","i":1}\n' * 60 + '{"s":"x","i":1,}\n', r"row 61 is not JSON \("),
        ("a.json", '[{"s":"x","i":1}]\n', "row 1 is not a JSON object.*without brackets"),
        ("a.json", '{\n"s":"x"}\n', "row 1 is not JSON.*one JSON object per line"),
        ("a.json", '{"s":"x","i":1}\n' * 60 + "null\n", "row 61 is not a JSON object"),
    ],
)
def test_bad_text_is_told(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_text(tmp_path, name, text, pa.schema([("s", pa.string()), ("i", pa.int32())]))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TIMESTAMP, "yesterday"),
        (TIMESTAMP, "1700000000"),
        (pa.date32(), "2024-13-01"),
        (pa.decimal128(4, 2), "1.255"),
        (pa.decimal128(4, 2), "123"),
        (pa.decimal128(4, 2), "1e-999999999"),
        (pa.decimal128(4, 2), "0E-99999999999999999999"),
        (pa.decimal128(4, 2), "1e-59"),
        (pa.decimal128(38, 38), " 1e-39"),
        (pa.decimal128(4, 2), "1e999999999"),
        (pa.int64(), "1e9999999"),
        (pa.float64(), "1e999"),
        (pa.bool_(), "perhaps"),
        (pa.binary(), "%%%"),
        (pa.int8(), "128"),
    ],
)
def test_text_that_does_not_fit(tmp_path: Path, name: str, kind: pa.DataType, value: str) -> None:
    text = f"a,x\n1,\n2,{value}\n" if name == "a.csv" else f'{{"a":1,"x":null}}\n{{"a":2,"x":"{value}"}}\n'
    with pytest.raises(InputError, match=f"row 2: column 'x' is .*, but the value is '{value}'"):
        read_text(tmp_path, name, text, pa.schema([("a", pa.int32()), ("x", kind)]))


FAR = ["1e-999999999", "1E-59", "1e9999999", "0e-999999999", "1e-99999999999999999999", f"0.{'0' * 39}"]


@pytest.mark.parametrize("value", [*FAR, '"1e-999999999"', r'"1\u0065-999999999"', r'"1e\u002d\u0039\u0039\u0039"'])
@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (pa.decimal128(4, 2), "{}"),
        (pa.list_(pa.decimal128(4, 2)), "[1, {}]"),
        (pa.struct([("d", pa.decimal128(4, 2))]), '{{"d": {}}}'),
        (pa.map_(pa.string(), pa.decimal128(4, 2)), '{{"d": {}}}'),
    ],
)
def test_far_numbers_in_json_do_not_fit(tmp_path: Path, value: str, kind: pa.DataType, written: str) -> None:
    text = f'{{"x":null}}\n{{"x":{written.format(value)}}}\n'
    with pytest.raises(InputError, match=r"row 2: column 'x' is .*DECIMAL"):
        read_text(tmp_path, "a.jsonl", text, pa.schema([("x", kind)]))


def test_far_numbers_in_other_columns_harm_nothing(tmp_path: Path) -> None:
    schema = pa.schema([("d", pa.decimal128(38, 38)), ("x", pa.float64())])
    text = f'{{"d":1e-38,"x":1e-300,"n":1e-99999999999999999999}}\n{{"d":0.{"1" * 38},"x":5E-999999999}}\n'
    expected = [(Decimal("1e-38"), 1e-300), (Decimal(f"0.{'1' * 38}"), 0.0)]
    assert read_text(tmp_path, "a.jsonl", text, schema) == expected


@pytest.mark.parametrize("wanted", [pa.decimal128(10, 2), pa.int64(), pa.float64()])
@pytest.mark.parametrize("scale", [999999999, -999999999, 41])
def test_decimals_of_an_absurd_scale_are_refused(tmp_path: Path, wanted: pa.DataType, scale: int) -> None:
    one = pa.array([(1).to_bytes(16, "little")], pa.binary(16)).view(pa.decimal128(10, scale))
    write_ipc(tmp_path / "a.arrow", pa.table({"x": one}), stream=False)
    with pytest.raises(InputError, match=rf"column 'x' of .* is DECIMAL\(10,{scale}\), declared"):
        take(replay(tmp_path / "a.arrow"), pa.schema([("x", wanted)]))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_bytes_that_are_not_utf8_are_found(tmp_path: Path, name: str) -> None:
    data = b"a,b\nx,1\n\xff,1\n" if name == "a.csv" else b'{"a":"x","b":1}\n{"a":"\xff","b":1}\n'
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=rf"{name}, row 2"):
        take(replay(tmp_path / name), pa.schema([("a", pa.string())]))


@pytest.mark.parametrize("name", WRITERS)
def test_a_damaged_file_is_told(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name, ROWS)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) - 40] if "arrows" not in name else data[:-100])
    if name in ("a.csv",):
        return  # a CSV file cut at a line's end cannot be told from a whole one
    with pytest.raises(InputError, match=name):
        take(replay(tmp_path / name), PACKET)
    (tmp_path / name).write_bytes(b"\x01\x02 nothing of the kind \x03\n")
    with pytest.raises(InputError, match=name):
        take(replay(tmp_path / name), PACKET)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "packets.csv").touch()
    with pytest.raises(InputError, match=r"no file '.*packet\.csv'.*did you mean 'packets\.csv'"):
        replay(tmp_path / "packet.csv")
    with pytest.raises(InputError, match="no file matches"):
        replay(tmp_path / "*.parquet")
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(InputError, match="cannot tell the format"):
        replay(tmp_path / "a.xlsx")
    (tmp_path / "d").mkdir()
    with pytest.raises(InputError, match="no readable files in the directory"):
        replay(tmp_path / "d")
    with pytest.raises(InputError, match="the list is empty"):
        replay([])


def test_options_are_checked(tmp_path: Path) -> None:
    for name in ("a.csv", "a.parquet"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"no option 'delimeter'.*did you mean 'delimiter'"):
        replay(tmp_path / "a.csv", delimeter=";")
    with pytest.raises(InputError, match="not one character"):
        replay(tmp_path / "a.csv", delimiter="||")
    with pytest.raises(InputError, match="takes no option 'header'"):
        replay(tmp_path / "a.parquet", header=False)
    with pytest.raises(InputError, match="no format 'excel'"):
        replay(tmp_path / "a.csv", format="excel")


def test_gzip_members_are_one_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"n\n1\n") + gzip.compress(b"2\n"))
    assert take(replay(tmp_path / "a.csv.gz"), pa.schema([("n", pa.int32())])).to_pydict() == {"n": [1, 2]}


def test_row_groups_before_the_position_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": range(100)}), path, row_group_size=10, compression="none", use_dictionary=False)
    start = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 20] = b"\xff" * 20
    path.write_bytes(data)
    assert take(replay(path), pa.schema([("n", pa.int64())]), 15)["n"].to_pylist() == list(range(15, 100))


def test_a_packed_csv_goes_on_in_its_middle_whatever_its_name(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64())])
    for count in range(5, 40):
        path = tmp_path / f"{count}.csv"
        with gzip.open(path, "wt") as file:
            file.write("n\n" + "".join(f"{n}\n" for n in range(count)))
        got = [n for batch in replay(path).batches(schema, 3, 100) for n in batch.column(0).to_pylist()]
        assert got == list(range(3, count))
