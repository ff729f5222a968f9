"""Records to rows: whole lists at once, and bad ones told apart wherever they stand."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis.connectors import records as subject
from borealis.connectors.records import decode, records
from borealis.errors import InputError
from borealis.kernels.time_of import TimeOf

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("src", pa.string()), ("bytes", pa.int32())])
NOON = "2026-01-01T12:00:00Z"
ROW = {"ts": datetime(2026, 1, 1, 12, tzinfo=UTC), "src": "a", "bytes": 7}


def line(**more: object) -> bytes:
    return json.dumps({"ts": NOON, "src": "a", "bytes": 7} | more).encode()


def read(values: list[bytes | None], format_: str = "json", schema: pa.Schema = SCHEMA) -> subject.Decoded:
    return decode(values, records(format_, schema), schema, TimeOf("ts"))


def test_objects_become_rows() -> None:
    found = read([line(), line(src="b", more=[1, 2]), line(bytes=None)])
    assert found.rows.to_pylist() == [ROW, ROW | {"src": "b"}, ROW | {"bytes": None}]
    assert found.record.tolist() == [0, 1, 2]
    assert not found.bad


def test_of_many_records_only_those_around_a_bad_one_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[bytes | None] = [line(bytes=n) for n in range(5_000)]
    for n in (17, 2_500, 4_999):
        values[n] = line(bytes="many")
    parsed: list[int] = []
    parse = subject.parse_object
    monkeypatch.setattr(subject, "parse_object", lambda *what: (parsed.append(1), parse(*what))[1])
    found = read(values)
    assert [n for n, _ in found.bad] == [17, 2_500, 4_999]
    assert found.record.tolist() == [n for n in range(5_000) if n not in (17, 2_500, 4_999)]
    assert len(parsed) <= len(values) + 3 * 2 * subject.FEW  # once all of them, to see whether they are objects


BAD_JSON = [
    (b"{", "not JSON"),
    (b"", "not JSON"),
    (b"   ", "not JSON"),
    (b"17", "not a JSON object"),
    (b"null", "not a JSON object"),
    (line() + line(), "not JSON"),
    (line() + b"\n" + line(), "not JSON"),
    (b'{"ts": "' + NOON.encode() + b'", "src": "\xff"}', "not JSON"),
    (line(bytes="seven"), "column 'bytes' is INT, but the value is 'seven'"),
    (line(bytes=2**40), "column 'bytes' is INT"),
    (line(bytes=1.5), "column 'bytes' is INT"),
    (line(ts="noon"), "column 'ts' is TIMESTAMP, but the value is 'noon'"),
    (line(ts=None), "no time"),
    (b"{}", "no time"),
    (None, "tombstone"),
]


@pytest.mark.parametrize(("value", "reason"), BAD_JSON)
def test_a_bad_object_is_told_apart(value: bytes | None, reason: str) -> None:
    found = read([line(src="before"), value, line(src="behind")])
    assert [row["src"] for row in found.rows.to_pylist()] == ["before", "behind"]
    assert found.record.tolist() == [0, 2]
    [(index, why)] = found.bad
    assert index == 1
    assert reason in why
    assert "Hint" not in why


@pytest.mark.parametrize("number", [b"1e-999999999", b'"1e-999999999"', b"1e-39", b"1e99999999999999999999"])
def test_a_decimal_of_far_too_many_digits_is_told_apart(number: bytes) -> None:
    schema = pa.schema([*SCHEMA, ("price", pa.decimal128(10, 2))])
    poison = line()[:-1] + b', "price": ' + number + b"}"
    found = read([line(price=1), poison, line(price=2)], schema=schema)
    assert found.rows.column("price").to_pylist() == [1, 2]
    assert [index for index, _ in found.bad] == [1]
    assert "column 'price' is DECIMAL(10,2), but the value is " in found.bad[0][1]
    row = f"{NOON},a,7,".encode()
    found = read([row + b"1", row + number.strip(b'"'), row + b"2"], "csv", schema)
    assert found.rows.column("price").to_pylist() == [1, 2]
    assert [index for index, _ in found.bad] == [1]


def test_two_rows_in_one_record_do_not_make_up_for_a_record_with_none() -> None:
    found = read([line(src="x") + line(src="y"), b"", line(src="z")])
    assert [row["src"] for row in found.rows.to_pylist()] == ["z"]
    assert [index for index, _ in found.bad] == [0, 1]


def test_an_object_over_several_lines_is_one_row() -> None:
    pretty = json.dumps({"ts": NOON, "src": "p", "bytes": 1}, indent=2).encode()
    assert [row["src"] for row in read([line(), pretty, line()]).rows.to_pylist()] == ["a", "p", "a"]


def test_what_arrows_reader_does_not_know_is_read_all_the_same() -> None:
    schema = pa.schema([*SCHEMA, ("price", pa.decimal128(10, 2)), ("tags", pa.map_(pa.string(), pa.int64()))])
    found = read([line(price=1.25, tags={"x": 1}, bytes="8")], schema=schema)
    assert found.rows.to_pylist() == [ROW | {"bytes": 8, "price": Decimal("1.25"), "tags": [("x", 1)]}]


def test_a_record_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "RECORD_BYTES_MOST", 100)
    found = read([line(), line(src="x" * 100), line()])
    assert found.record.tolist() == [0, 2]
    assert "more than 100" in found.bad[0][1]


def test_lines_of_csv() -> None:
    found = read([b"2026-01-01T12:00:00Z,a,7", b'2026-01-01T12:00:00Z,"b, c",', b'2026-01-01T12:00:00Z,"",1'], "csv")
    assert found.rows.to_pylist() == [ROW, ROW | {"src": "b, c", "bytes": None}, ROW | {"src": "", "bytes": 1}]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"2026-01-01T12:00:00Z,a", "it has 2 fields, not 3: '2026-01-01T12:00:00Z,a'"),
        (b"2026-01-01T12:00:00Z,a,7,8", "it has 4 fields, not 3"),
        (b"2026-01-01T12:00:00Z,a,x", "column 'bytes' is INT"),
        (b"2026-01-01T12:00:00Z,a,7\n2026-01-01T12:00:00Z,a,7", "2 lines"),
        (b"", "0 lines"),
        (b",a,7", "no time"),
        (b"2026-01-01T12:00:00Z,\xff,7", "column 'src' is STRING"),
    ],
)
def test_a_bad_line_of_csv_is_told_apart(value: bytes, reason: str) -> None:
    good = b"2026-01-01T12:00:00Z,a,7"
    found = read([good, value, good], "csv")
    assert found.rows.to_pylist() == [ROW, ROW]
    [(index, why)] = found.bad
    assert index == 1
    assert reason in why


def test_a_line_break_within_quotes_stays() -> None:
    good = b"2026-01-01T12:00:00Z,a,7"
    found = read([good, b'2026-01-01T12:00:00Z,"b\nc",7', good], "csv")
    assert [row["src"] for row in found.rows.to_pylist()] == ["a", "b\nc", "a"]


def stream(rows: list[dict[str, object]], schema: pa.Schema = SCHEMA) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema))
    return sink.getvalue().to_pybytes()


def test_streams_of_arrow_hold_any_number_of_rows() -> None:
    found = read([stream([ROW, ROW]), stream([]), stream([ROW])], "arrow")
    assert found.rows.num_rows == 3
    assert found.record.tolist() == [0, 0, 2]
    assert read([stream([]), stream([])], "arrow").rows.num_rows == 0


def test_a_bad_stream_of_arrow_is_told_apart_as_a_whole() -> None:
    other = pa.schema([("ts", pa.timestamp("us", "UTC")), ("bytes", pa.int32())])
    late = stream([ROW, ROW | {"ts": None}])
    values = [stream([ROW]), stream([ROW])[:100], stream([], other), late, b"", stream([ROW])]
    found = read(values, "arrow")
    assert found.record.tolist() == [0, 5]
    assert [index for index, _ in found.bad] == [1, 2, 3, 4]


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InputError, match=r"no record format 'jso'.*did you mean 'json'"):
        records("jso", SCHEMA)


@given(st.lists(st.sampled_from([line(), line(src="b"), *(value for value, _ in BAD_JSON)]), max_size=30))
def test_a_record_means_the_same_in_any_company(values: list[bytes | None]) -> None:
    """A ledger counts rows by records, and a restart reads them in other groups."""
    together = read(values)
    alone = [read([value]) for value in values]
    assert together.rows.to_pylist() == [row for one in alone for row in one.rows.to_pylist()]
    assert [index for index, _ in together.bad] == [i for i, one in enumerate(alone) if one.bad]


@pytest.mark.parametrize("other", [line(), line(bytes="8")], ids=["read by Arrow", "read one by one"])
@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (b'{"TS":"2026-01-01T12:00:00Z"}', None),
        (b'{"ts":"2026-01-01T12:00:00Z","Bytes":5}', {"bytes": None}),
        (b'{"ts":"2026-01-01T12:00:00Z","share":1.00000017881393432617187499}', {"share": 1.0000001192092896}),
    ],
    ids=["no time", "another name", "rounded once"],
)
def test_names_are_exact_and_numbers_rounded_once_in_any_company(
    value: bytes, wanted: dict[str, object] | None, other: bytes
) -> None:
    """Otherwise a restart, which reads records in other company, would come to other rows."""
    schema = SCHEMA.append(pa.field("share", pa.float32()))
    for values in ([value], [other, value], [value, other, other]):
        found = read(list(values), schema=schema)
        at = values.index(value)
        rows = [row for row, record in zip(found.rows.to_pylist(), found.record, strict=True) if record == at]
        if wanted is None:
            assert (rows, [number for number, _ in found.bad]) == ([], [at])
        else:
            assert rows[0] | wanted == rows[0]


def test_what_nobody_foresaw_is_a_bad_record_too() -> None:
    """Arrow streams with any bytes changed: rows, or a reason; never an end of the reading."""
    chance = random.Random(7)
    whole, bad = stream([ROW, ROW | {"src": None}]), 0
    for _ in range(1500):
        changed = bytearray(whole)
        changed[chance.randrange(len(changed))] = chance.choice([0, 1, 127, 128, 255])
        bad += len(read([bytes(changed)], "arrow").bad)
    assert bad > 100


def test_many_bad_records_among_many() -> None:
    chance = random.Random(1)
    values = [b"oops" if chance.random() < 0.05 else line(bytes=i) for i in range(5_000)]
    found = read(list(values))
    good = [i for i, value in enumerate(values) if value != b"oops"]
    assert found.rows["bytes"].to_pylist() == good
    assert np.array_equal(found.record, good)
    assert len(found.bad) == len(values) - len(good)
