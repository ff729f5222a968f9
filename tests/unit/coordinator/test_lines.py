"""Newline-delimited JSON: however it is cut on its way, the lines are the same; a bad one is told by its number."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_ins import PACKETS

from borealis.coordinator.lines import LINE_BYTES_MOST, Cutter, Line, rows_of
from borealis.coordinator.refusals import TooLargeError


def lines(text: str) -> list[Line]:
    cutter = Cutter()
    return [*cutter.feed(text.encode()), *cutter.rest()]


@given(st.lists(st.sampled_from([b"", b" ", b"{}", b'{"a": 1}', b"\r"])), st.booleans(), st.data())
def test_lines_do_not_depend_on_how_they_come(parts: list[bytes], ended: bool, data: st.DataObject) -> None:
    body = b"\n".join(parts) + (b"\n" if ended else b"")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)))))
    cutter = Cutter()
    found = [line for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True) for line in cutter.feed(body[a:b])]
    found += cutter.rest()
    assert found == [Line(i, part) for i, part in enumerate(parts, 1) if part.strip()]


def test_rows() -> None:
    text = """\ufeff{"ts": "2024-05-01T12:00:00Z", "src": "a", "bytes": 7, "more": [1]}

    {"bytes": null, "SRC": "b\\u00e9", "ts": "2024-05-01 12:00:01+02:00"}"""
    rows = rows_of(lines(text), PACKETS)
    assert rows.error is None
    assert rows.batch.schema == PACKETS
    assert rows.batch.column("src").to_pylist() == ["a", "bé"]
    assert rows.batch.column("bytes").to_pylist() == [7, None]
    assert str(rows.batch.column("ts")[1].as_py()) == "2024-05-01 10:00:01+00:00"


def test_numbers_keep_their_digits() -> None:
    schema = pa.schema([("d", pa.decimal128(20, 2)), ("f", pa.float64()), ("n", pa.int64())])
    rows = rows_of(lines('{"d": 12345678901234567.89, "f": -0, "n": 9007199254740993}'), schema)
    assert [str(v) for v in rows.batch.to_pylist()[0].values()] == ["12345678901234567.89", "-0.0", "9007199254740993"]


GOOD = '{"ts": "2024-05-01T12:00:00Z", "src": "a", "bytes": 7}'


@pytest.mark.parametrize(
    ("bad", "message", "hint"),
    [
        ("{", "line 3 is not JSON", "one JSON object per line"),
        ("[1]", "line 3 is not a JSON object: '[1]'", "without brackets"),
        ("17", "line 3 is not a JSON object", ""),
        (GOOD.replace("7", '"x"'), "line 3: column 'bytes' is INT, but the value is 'x'", "whole numbers"),
        (GOOD.replace("7", "3000000000"), "line 3: column 'bytes' is INT, but the value is 3000000000", ""),
        (GOOD.replace("7", "1.5"), "line 3: column 'bytes' is INT", ""),
        (GOOD.replace("7", "9" * 5000), "line 3 is not JSON", ""),
        (GOOD.replace("2024-05-01T12:00:00Z", "yesterday"), "line 3: column 'ts' is TIMESTAMP", "ISO 8601"),
        (GOOD.replace("bytes", "byte"), "line 3: no column 'bytes' (has: ts, src, byte)", "did you mean 'byte'"),
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
