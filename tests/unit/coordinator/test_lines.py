"""Newline-delimited JSON: however it is cut on its way, the lines are the same; a bad one is named by its number."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_ins import PACKETS

from borealis.connectors.records import JsonRecords
from borealis.coordinator.http_errors import TooLargeError
from borealis.errors import InputError
from borealis.gateway.ndjson import LINE_BYTES_MOST, Cutter, NumberedLine, rows_of
from borealis.tuples import KIND
from borealis.values.fit import first_misfit


def lines(text: str) -> list[NumberedLine]:
    cutter = Cutter()
    return [*cutter.feed(text.encode()), *cutter.rest()]


@given(st.lists(st.sampled_from([b"", b" ", b"{}", b'{"a": 1}', b"\r"])), st.booleans(), st.data())
def test_lines_do_not_depend_on_how_they_come(parts: list[bytes], ended: bool, data: st.DataObject) -> None:
    body = b"\n".join(parts) + (b"\n" if ended else b"")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)))))
    cutter = Cutter()
    found = [line for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True) for line in cutter.feed(body[a:b])]
    found += cutter.rest()
    assert found == [NumberedLine(i, part) for i, part in enumerate(parts, 1) if part.strip()]


def test_rows() -> None:
    text = """\ufeff{"ts": "2024-05-01T12:00:00Z", "src": "a", "bytes": 7, "more": [1]}

    {"bytes": null, "SRC": "b\\u00e9", "ts": "2024-05-01 12:00:01+02:00"}"""
    rows = rows_of(lines(text), PACKETS)
    assert rows.error is None
    assert rows.batch.schema == PACKETS
    assert rows.batch.column("src").to_pylist() == ["a", "bé"]
    assert rows.batch.column("bytes").to_pylist() == [7, None]
    assert str(rows.batch.column("ts")[1].as_py()) == "2024-05-01 10:00:01+00:00"


def test_rows_may_correct_others_where_they_have_a_key() -> None:
    keyed = PACKETS.append(pa.field(KIND, pa.string()))
    rows = rows_of(lines(f'{GOOD}\n{{"_kind": "-D", "src": "a"}}\n{{"_kind": "?"}}'), keyed)
    assert rows.batch.column(KIND).to_pylist() == [None, "-D"]
    assert rows.error is not None
    assert rows.error.message == "line 3: a row has the _kind '?'"
    plain = rows_of(lines("\n".join([GOOD] * 20 + [GOOD.replace("{", '{"_kind": "+U", ')])), PACKETS)
    assert plain.batch.num_rows == 20
    assert plain.batch.schema == PACKETS
    assert "line 21: a row has the _kind '+U', but rows of this stream cannot be corrected" in str(plain.error)


def test_numbers_keep_their_digits() -> None:
    schema = pa.schema([("d", pa.decimal128(20, 2)), ("f", pa.float64()), ("n", pa.int64())])
    rows = rows_of(lines('{"d": 12345678901234567.89, "f": -0, "n": 9007199254740993}'), schema)
    assert [str(v) for v in rows.batch.to_pylist()[0].values()] == ["12345678901234567.89", "-0.0", "9007199254740993"]


GOOD = '{"ts": "2024-05-01T12:00:00Z", "src": "a", "bytes": 7}'


@pytest.mark.parametrize(
    ("bad", "message", "hint"),
    [
        ("{", "line 3 is not JSON", "one JSON object per line"),
        ('{"ts": 1, "src"; 2}', "line 3 is not JSON (Expecting ':' delimiter at character 16): '{", "one JSON object"),
        ("{}{}", "line 3 is not JSON (Extra data at character 3)", "with --data-binary, not with -d"),
        ("[1]", "line 3 is not a JSON object: '[1]'", "without brackets"),
        ("17", "line 3 is not a JSON object", ""),
        (GOOD.replace("7", '"x"'), "line 3: column 'bytes' is INT, but the value is 'x'", "whole numbers"),
        (GOOD.replace("7", "3000000000"), "line 3: column 'bytes' is INT, but the value is 3000000000", ""),
        (GOOD.replace("7", "1.5"), "line 3: column 'bytes' is INT", ""),
        (GOOD.replace("7", "9" * 5000), "line 3 is not JSON", ""),
        (GOOD.replace("2024-05-01T12:00:00Z", "yesterday"), "line 3: column 'ts' is TIMESTAMP", "ISO 8601"),
        (GOOD.replace('"a"', '"\\ud800"'), "line 3: column 'src' is STRING", ""),
        ("[" * 100_000, "line 3 is not JSON", ""),
    ],
)
def test_a_bad_line_is_told_and_those_before_it_are_good(bad: str, message: str, hint: str) -> None:
    rows = rows_of(lines(f"{GOOD}\n\n{bad}\n{GOOD}\n"), PACKETS)
    assert rows.batch.num_rows == 1
    assert rows.error is not None
    assert rows.error.message.startswith(message)
    assert hint in rows.error.hint


def test_the_first_of_two_bad_lines_is_told() -> None:
    for bad in (["{", GOOD.replace("7", '"x"')], [GOOD.replace("7", '"x"'), "{"]):
        rows = rows_of(lines("\n".join([GOOD, *bad])), PACKETS)
        assert rows.batch.num_rows == 1
        assert rows.error is not None
        assert rows.error.message.startswith("line 2")


def test_the_first_bad_line_is_told_whichever_column_is_bad() -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.int32())])
    found = rows_of(lines("\n".join(['{"a":1,"b":1}'] * 50 + ['{"a":1,"b":"x"}', '{"a":"x","b":1}'])), schema)
    assert found.batch.num_rows == 50
    assert found.error is not None
    assert found.error.message.startswith("line 51: column 'b'")


def test_a_bad_line_behind_many_is_found_by_halving() -> None:
    many = 200_000
    asked: list[int] = []

    def fits(start: int, stop: int) -> bool:
        asked.append(stop - start)
        return stop < many

    assert first_misfit(many, fits) == many - 1
    assert sum(asked) < 2 * many
    assert len(asked) < 20


@pytest.mark.parametrize(
    "value", ["1e-999999999", '"1e-999999999"', r'"1\u0065-999999999"', "1e-39", "1e9999999", "1e-99999999999999999999"]
)
@pytest.mark.parametrize("kind", [pa.decimal128(10, 2), pa.list_(pa.decimal128(10, 2)), pa.int64()])
def test_numbers_that_are_far_too_large_or_small_do_not_fit(value: str, kind: pa.DataType) -> None:
    written = f"[{value}]" if pa.types.is_list(kind) else value
    found = rows_of(lines(f'{{"x": null}}\n{{"x": {written}}}'), pa.schema([("x", kind)]))
    assert found.batch.num_rows == 1
    assert found.error is not None
    assert found.error.message.startswith("line 2: column 'x' is")


def test_bytes_that_are_no_text() -> None:
    cutter = Cutter()
    rows = rows_of(cutter.feed(b'{"src": "\xff"}\n'), PACKETS)
    assert rows.error is not None
    assert rows.error.message.startswith("line 1 is not JSON")


def test_a_line_without_an_end_is_not_kept_forever() -> None:
    cutter = Cutter()
    for _ in range(LINE_BYTES_MOST // 1024):
        assert cutter.feed(b"x" * 1024) == []
    with pytest.raises(TooLargeError, match="line 1 is longer than 1,048,576 bytes"):
        cutter.feed(b"x")


# -- the fast reader and its slow twin

KINDS = {
    "i": pa.int32(),
    "l": pa.int64(),
    "f": pa.float32(),
    "d": pa.float64(),
    "m": pa.decimal128(10, 2),
    "b": pa.bool_(),
    "s": pa.string(),
    "x": pa.binary(),
    "t": pa.timestamp("us", "UTC"),
    "y": pa.date32(),
    "a": pa.list_(pa.int32()),
    "o": pa.struct([("i", pa.int32()), ("s", pa.string())]),
}
WHOLE = ["0", "-0", "1", "-7", "16777217", "123456789012", "9223372036854775807", "9223372036854775808"]
BROKEN = ["1.0", "1.5", "1e3", "1E-2", "0.1", "-0.0", "1e400", "3.4e39", "12345678.90", "0.005", "NaN", "Infinity"]
FAR = ["1e-39", "1e-999", "1e-999999999", "1e9999999", "1e-99999999999999999999", "1e-38", f"0.{'0' * 39}"]
NO_NUMBERS = ["00", "1.", ".5", "+1"]
NUMBERS = st.sampled_from([*WHOLE, *BROKEN, *FAR, *NO_NUMBERS])
WORDS = ['""', '"a"', '"1"', '"1.5"', '" 1"', '"true"', '"YQ=="', '"?"', '"NaN"', '"é"', "'a'", '"\t"', '"1e-59"']
ESCAPES = [r'"\u00e9\n"', r'"\ud800"', r'"\ud83d\ude00"']
TIMES = ['"2024-05-01"', '"2024-05-01T12:00:00Z"', '"2024-05-01 12:00:00.123456789+02:00"', '"2024-13-01"']
TEXTS = st.sampled_from([*WORDS, *ESCAPES, *TIMES])
VALUES = (
    NUMBERS
    | TEXTS
    | st.sampled_from(
        ["true", "false", "null", "[]", "{}", "[1]", "[null]", '{"i": 1}', '{"s": "a", "i": 2}', "", "tru"]
    )
)
GAPS = st.sampled_from(["", "", "", " ", "\t", "\r"])


@st.composite
def objects(draw: st.DrawFn, names: list[str]) -> str:
    """What may stand in a line: mostly an object with the wanted columns."""
    keys = draw(st.permutations(names)) if draw(st.booleans()) else names
    extra = draw(st.lists(st.sampled_from([*names, "other", "I", ""]), max_size=2)) if draw(st.booleans()) else []
    pairs = [f'"{key}"{draw(GAPS)}:{draw(GAPS)}{draw(VALUES)}' for key in (*keys, *extra)]
    return draw(GAPS) + "{" + ",".join(pairs) + "}" + draw(st.sampled_from(["", "", "", "{}", "}", " x", ",", " "]))


@settings(max_examples=20 * settings.default.max_examples)
@given(st.data(), st.booleans())
def test_the_fast_reader_agrees_with_the_slow_one_or_is_silent(data: st.DataObject, fold: bool) -> None:
    names = data.draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3, unique=True))
    schema = pa.schema([(name, KINDS[name]) for name in names])
    found = [line.text for line in lines("\n".join(data.draw(st.lists(objects(names), min_size=1, max_size=3))))]
    reader = JsonRecords(schema, fold=fold)
    try:
        fast = reader.by_arrow(found)
    except InputError:
        with pytest.raises(InputError):
            reader.one_by_one(found)
        return
    if fast is not None:
        slow = reader.one_by_one(found)
        assert fast.schema == slow.schema
        assert str(fast.to_pylist()) == str(slow.to_pylist())  # as text: NaN is NaN there, and zeros have signs


def test_the_fast_reader_is_used_for_what_is_ordinary() -> None:
    for name, text in {
        "i": "1",
        "d": "1.5",
        "s": '"a"',
        "b": "true",
        "t": '"2024-05-01T12:00:00Z"',
        "m": "1.25",
    }.items():
        schema = pa.schema([(name, KINDS[name])])
        assert JsonRecords(schema, fold=True).by_arrow([f'{{"{name}": {text}}}'.encode()]) is not None
    prices = pa.schema([("m", KINDS["m"]), ("d", KINDS["d"])])
    assert JsonRecords(prices).by_arrow([b'{"m": 12345678.90, "d": 1.2345678901234567e-18}']) is not None
