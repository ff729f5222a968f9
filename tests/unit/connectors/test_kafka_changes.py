"""Records that delete and replace rows: kinds, tombstones, changes of Debezium's; and topics that are tables."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis import kafka
from borealis.connectors.kafka.changes import TopicRecords
from borealis.connectors.kafka.to_topic import sink_at
from borealis.connectors.kafka.writer import Rendering
from borealis.connectors.records import Decoded
from borealis.errors import InputError, OutputError
from borealis.kernels.time_of import TimeOf, key_in, note_in, noted
from borealis.tuples import KIND

TS = pa.field("ts", pa.timestamp("us", "UTC"))
COLUMNS = [TS, pa.field("id", pa.int32()), pa.field("price", pa.float64())]
SCHEMA = pa.schema([*COLUMNS, (KIND, pa.string())])
NOON = "2026-01-01T12:00:00Z"
Record = tuple[bytes | None, bytes | None]  # key and value


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def line(**more: Any) -> bytes:
    return dumped({"ts": NOON, "id": 1, "price": 2.5} | more)


def read(
    records: list[Record], format_: str = "json", schema: pa.Schema = SCHEMA, key: tuple[str, ...] = ("id",)
) -> Decoded:
    reader = TopicRecords(format_, schema, TimeOf("ts"), key)
    return reader.decode([value for _, value in records], [key for key, _ in records])


def rows(found: Decoded) -> list[tuple[Any, ...]]:
    return [(row[KIND], row["id"], row["price"]) for row in found.rows.to_pylist()]


# -- tombstones


def test_a_tombstone_deletes_the_row_that_its_key_names() -> None:
    found = read([(b"1", line()), (b"1", line(_kind="+U", price=3)), (b"1", None), (b"2", line(id=2))])
    assert rows(found) == [(None, 1, 2.5), ("+U", 1, 3), ("-D", 1, None), (None, 2, 2.5)]
    assert found.record.tolist() == [0, 1, 2, 3]
    assert not found.bad


SINGLE = [b"7", b'"7"', b'{"id": 7}', b'{"id": "7", "more": [1]}', b'{"schema": {}, "payload": 7}']
SINGLE += [b'{"schema": {"type": "struct"}, "payload": {"id": 7}}']


@pytest.mark.parametrize("key", SINGLE)
def test_a_key_of_one_column_is_a_value_or_an_object(key: bytes) -> None:
    assert rows(read([(key, None)])) == [("-D", 7, None)]


WORDS = pa.schema([TS, ("id", pa.string()), ("price", pa.float64()), (KIND, pa.string())])


@pytest.mark.parametrize(
    ("key", "word"),
    [
        (b"a b", "a b"),
        (b" 17", " 17"),
        (b'"a b"', "a b"),
        (b'"a" b', '"a" b'),
        (b"{a", "{a"),
        (b"null", "null"),
        (b"true", "true"),
        (b"", ""),
        (b'{"id": null}', None),
        (b'{"id": "{a"}', "{a"),
        ('{"id": "ä"}'.encode(), "ä"),
    ],
)
def test_text_needs_no_quotes(key: bytes, word: str | None) -> None:
    assert [row["id"] for row in read([(key, None)], schema=WORDS).rows.to_pylist()] == [word]


def test_a_key_of_several_columns_is_an_object() -> None:
    found = read([(dumped({"ts": NOON, "id": 7}), None), (b"7", None), (b'{"id": 7}', None)], key=("id", "ts"))
    assert [(row["id"], str(row["ts"])) for row in found.rows.to_pylist()] == [(7, "2026-01-01 12:00:00+00:00")]
    assert found.bad == [(1, "its key has no column 'id': '7'"), (2, "its key has no column 'ts': '{\"id\": 7}'")]


BAD_KEYS = [
    (None, "it deletes a row, and has no key that says which"),
    (b"x", "its key: column 'id' is INT, but the value is 'x'"),
    (b"", "its key: column 'id' is INT, but the value is ''"),
    (b"\xff", "its key is not UTF-8"),
    (b"{}", "its key has no column 'id': '{}'"),
    (b'{"id": [7]}', "its key: column 'id' is neither text nor a number, but '[\"7\"]'"),
]


@pytest.mark.parametrize(("key", "reason"), BAD_KEYS)
def test_a_tombstone_that_names_no_row_is_set_aside(key: bytes | None, reason: str) -> None:
    found = read([(b"2", None), (key, None), (b"1", line())])
    assert rows(found) == [("-D", 2, None), (None, 1, 2.5)]
    assert found.bad == [(1, reason)]


def test_an_input_without_a_key_takes_no_tombstones() -> None:
    plain = pa.schema(COLUMNS)
    found = read([(b"1", None), (b"1", line())], schema=plain, key=())
    assert (found.rows.num_rows, found.bad) == (1, [(0, "it has no value (a tombstone)")])


@pytest.mark.parametrize("of", [0, 3], ids=["no kind", "kinds"])
def test_lines_of_csv_may_have_the_kind_in_front(of: int) -> None:
    lines = [b"2026-01-01T12:00:00Z,1,2.5", b"2026-01-01T12:00:00Z,2,", b"x", b"-D,,1,", b"+U,2026-01-01T12:00:00Z,2,3"]
    found = read([(None, one) for one in lines[of:]], "csv")
    assert rows(found) == [(None, 1, 2.5), (None, 2, None), ("-D", 1, None), ("+U", 2, 3)][of and of - 1 :]
    assert [why for _, why in found.bad] == ([] if of else ["it has 1 fields, not 3: 'x'"])


# -- Debezium


def change(op: str | None, before: Any = None, after: Any = None, wrapped: bool = False) -> bytes:
    envelope = {"op": op, "before": before, "after": after, "source": {"lsn": 17}, "ts_ms": 1}
    return dumped({"schema": {"type": "struct"}, "payload": envelope} if wrapped else envelope)


ROW, OTHER = {"ts": NOON, "id": 1, "price": 2.5}, {"ts": NOON, "id": 1, "price": 3.5}
KEY = b'{"id": 1}'


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("times", [1, 5], ids=["one by one", "by Arrow"])
def test_changes_of_debezium(wrapped: bool, times: int) -> None:
    changes = [
        (KEY, change("c", None, ROW, wrapped)),
        (KEY, change("u", ROW, OTHER, wrapped)),
        (KEY, change("d", OTHER, None, wrapped)),
        (KEY, None),
        (KEY, change("r", None, ROW | {"more": 1}, wrapped)),
    ]
    found = read(changes * times, "debezium")
    assert rows(found) == [("+I", 1, 2.5), ("+U", 1, 3.5), ("-D", 1, 3.5), ("+I", 1, 2.5)] * times
    assert found.record.tolist()[:4] == [0, 1, 2, 4], "a tombstone is no second deletion"
    assert not found.bad


@pytest.mark.parametrize("before", [None, {}, {"id": None, "price": 2.5}])
def test_a_deletion_without_the_row_goes_by_the_key_of_the_record(before: Any) -> None:
    found = read([(KEY, change("c", None, ROW)), (KEY, change("d", before)), (None, change("d", before))], "debezium")
    assert rows(found) == [("+I", 1, 2.5), ("-D", 1, None)]
    assert found.bad == [(2, "it deletes a row, and has no key that says which")]


BAD_CHANGES = [
    (change("t"), "it is no change of a row: `op` is t, not c, r, u or d"),
    (change(None, None, ROW), "it is no change of a row: `op` is None, not c, r, u or d"),
    (line(), "it is no change of a row: `op` is None, not c, r, u or d"),
    (change("u", ROW), "it is no change of a row: it has no `after`"),
    (change("c", None, {"id": 1}), "it has no time: column 'ts' is null"),
    (change("c", None, ROW | {"id": "x"}), "column 'id' is INT, but the value is 'x'"),
    (change("u", ROW, ROW | {"ts": 17}, True), "column 'ts' is TIMESTAMP, but the value is 17"),
    (change("c", None, [1]), "column 'after' is STRUCT<"),
    (b"oops", "it is not JSON"),
]


@pytest.mark.parametrize(("value", "reason"), BAD_CHANGES)
def test_what_is_no_change_is_set_aside(value: bytes, reason: str) -> None:
    found = read([(KEY, change("c", None, ROW)), (KEY, value), (KEY, change("d", ROW))], "debezium")
    assert rows(found) == [("+I", 1, 2.5), ("-D", 1, 2.5)]
    [(at, why)] = found.bad
    assert (at, why[: len(reason)]) == (1, reason)


COMPANY: list[Record] = [(KEY, change("c", None, ROW)), (KEY, change("d", None, None, True)), (KEY, None)]
COMPANY += [(KEY, change("d", OTHER)), (b"x", change("d")), (KEY, change("u", ROW, OTHER, True)), (KEY, b"oops")]
COMPANY += [(None, line()), (b"1", line(_kind="-D", ts=None)), (b"1", line(_kind="?")), (b"x", None), (KEY, b"1,2")]
COMPANY += [(KEY, NOON.encode() + b",1,2"), (KEY, b"-D,,1,")]


@pytest.mark.parametrize("format_", ["json", "csv", "debezium"])
@given(st.lists(st.sampled_from(COMPANY), max_size=20))
def test_a_record_means_the_same_in_any_company(format_: str, records: list[Record]) -> None:
    """A restart reads records in other company, and counts their rows."""
    together, alone = read(records, format_), [read([one], format_) for one in records]
    assert together.rows.to_pylist() == [row for one in alone for row in one.rows.to_pylist()]
    assert together.record.tolist() == [i for i, one in enumerate(alone) for _ in one.rows.to_pylist()]
    assert together.bad == [(i, why) for i, one in enumerate(alone) for _, why in one.bad]


def test_debezium_needs_a_key() -> None:
    source = kafka.source("quotes", "localhost:1", format="debezium")
    with pytest.raises(InputError, match=r"input 'quotes' has no key.*key='id', history='1 hour'"):
        source.begin("quotes", "ts", None)
    source.begin("quotes", "ts", None, ("id",))


# -- out: a topic that is a table


def written(changes: list[tuple[Any, ...]], key: tuple[str, ...] = ("id",), format_: str = "json") -> list[Record]:
    table = pa.table([list(column) for column in zip(*changes, strict=True)], names=[KIND, "id", "n"])
    values, keys = Rendering(format_, key, table.schema, table=True).records(table)
    assert keys is not None
    return list(zip(keys, values, strict=True))


def test_a_row_is_a_record_under_its_key_and_a_tombstone_when_it_goes() -> None:
    changes = [("+I", 3, 30), ("-U", 1, 10), ("+U", 1, 11), ("-D", 2, 20)]
    assert written(changes) == [(b"3", b'{"id":3,"n":30}'), (b"1", b'{"id":1,"n":11}'), (b"2", None)]
    assert written(changes, format_="csv") == [(b"3", b"3,30"), (b"1", b"1,11"), (b"2", None)]
    both = [(b'{"id":1,"n":10}', None), (b'{"id":1,"n":11}', b"1,11")]
    assert written(changes[1:3], ("id", "n"), "csv") == both, "another key is another record"


def test_what_comes_and_goes_leaves_no_trace() -> None:
    assert written([("+I", 1, 10), ("-U", 1, 10), ("+U", 1, 11), ("+I", 2, 20), ("-D", 2, 20)]) == [
        (b"1", b'{"id":1,"n":11}')
    ]


def test_an_output_that_is_never_corrected_can_be_a_table() -> None:
    table = pa.table({"id": [1, 1], "n": [10, 11]})
    assert Rendering("csv", ("id",), table.schema, table=True).records(table) == ([b"1,10", b"1,11"], [b"1", b"1"])


def test_halves_that_are_apart_do_what_they_say() -> None:
    assert written([("+U", 1, 11), ("-U", 2, 20)], format_="csv") == [(b"1", b"1,11"), (b"2", None)]


def test_rows_that_exchange_their_keys_both_stay() -> None:
    changes = [("-U", 1, 10), ("+U", 2, 10), ("-U", 2, 20), ("+U", 1, 20)]
    assert written(changes, format_="csv") == [(b"2", b"2,10"), (b"1", b"1,20")]


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=3, unique_by=lambda row: row[0])))
def test_a_topic_holds_what_stands(states: list[list[tuple[int, int]]]) -> None:
    """Tables that follow each other, whose rows have unique ids; the n-th row of one becomes the n-th of the next."""
    topic: dict[bytes | None, bytes | None] = {}
    before: list[tuple[int, int]] = []
    for rows in states:
        pairs = [(old, new) for old, new in zip(before, rows, strict=False) if old != new]
        changes = [change for old, new in pairs for change in (("-U", *old), ("+U", *new))]
        changes += [("+I", *row) for row in rows[len(before) :]] + [("-D", *row) for row in before[len(rows) :]]
        topic |= dict(written(changes, format_="csv")) if changes else {}
        assert {key: value for key, value in topic.items() if value is not None} == {
            str(id_).encode(): f"{id_},{n}".encode() for id_, n in rows
        }
        before = rows


@given(st.lists(st.one_of(st.none(), st.text(), st.sampled_from(['"', '{"id":"x"}', "{", "null"])), min_size=1))
def test_the_key_of_a_tombstone_is_read_as_the_same_row(words: list[str | None]) -> None:
    records = written([("-D", word, 1) for word in words])
    assert [value for _, value in records] == [None] * len(words)
    assert read(records, schema=WORDS).rows["id"].to_pylist() == words


def test_a_table_needs_a_key_and_records_of_one_row() -> None:
    with pytest.raises(OutputError, match=r"topic prices is to be a table, and has no key.*key='id'"):
        kafka.sink("prices", "localhost:1", table=True)
    sink = sink_at("kafka://localhost:1/prices?key=id,day&table=true")
    assert (sink.key, sink.table) == (("id", "day"), True)
    with pytest.raises(OutputError, match=r"no column 'day' for the key \(has: id\)"):
        sink.rendering(pa.schema([(KIND, pa.string()), ("id", pa.int64())]))
    with pytest.raises(OutputError, match="records of Arrow hold many rows"):
        Rendering("arrow", ("id",), SCHEMA, table=True)


def test_those_who_send_to_an_input_learn_its_key() -> None:
    schema = noted(SCHEMA, TimeOf("ts"), ("id", "ts"))
    assert (note_in(schema), key_in(schema), key_in(SCHEMA)) == (TimeOf("ts"), ("id", "ts"), ())
