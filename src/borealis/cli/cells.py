"""Values as people read them, in columns: `cells` by whole columns where it can, `cell` one by one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from borealis.cli.ending import PipeClosedError

CELL_MOST = 40  # characters, before a value is cut for people
NULL = "-"
ODD = rf"^\s|\s$|\s\s|[^\x20-\x7e]|.{{{CELL_MOST + 1}}}"  # blanks but single spaces between words, not ASCII, too long
FIRST_US, LAST_US = -30_610_224_000_000_000, 253_402_300_799_999_999  # the years 1000 to 9999


def cell(value: Any) -> str:
    """A value as people read it, not longer than a column should be. Times with a zone are in UTC, and end in Z."""
    if value is None:
        return NULL
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else "Z"
        there = value if value.tzinfo is None else value.astimezone(UTC)
        return there.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".") + zone
    text = f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= CELL_MOST else text[: CELL_MOST - 1] + "…"


def cells(column: pa.Array) -> pa.Array:
    """A column as strings, each as `cell` has it."""
    kind = column.type
    if pt.is_dictionary(kind):
        return cells(column.dictionary_decode())
    if pt.is_floating(kind):
        return strings([NULL if value is None else f"{value:.6g}" for value in column.to_pylist()])
    if pt.is_integer(kind):
        return _filled(column.cast(pa.string()))
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _texts(column.cast(pa.string()))
    if pt.is_timestamp(kind) and kind.unit != "ns" and (found := _times(column)) is not None:
        return found
    return _one_by_one(column)


def _texts(column: pa.Array) -> pa.Array:
    odd = pc.match_substring_regex(column, ODD)
    if not pc.any(odd, min_count=0).as_py():
        return _filled(column)
    mask = pc.and_kleene(odd, pc.is_valid(column))  # no null among them
    return _filled(pc.replace_with_mask(column, mask, _one_by_one(column.filter(mask))))


def _filled(column: pa.Array) -> pa.Array:
    return pc.fill_null(column, text(NULL))


def _times(column: pa.Array) -> pa.Array | None:
    """None where years have not four digits."""
    try:
        times = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    ends = pc.min_max(times).as_py()
    if ends["min"] is not None and not FIRST_US <= ends["min"] <= ends["max"] <= LAST_US:
        return None
    shown = times.cast(pa.timestamp("us")).cast(pa.string())
    zone = "" if column.type.tz is None else "Z"
    return _filled(pc.replace_substring_regex(shown, r"\.?0*$", zone, max_replacements=1))


def _one_by_one(column: pa.Array) -> pa.Array:
    return strings([_shown(value) for value in column])


def _shown(value: pa.Scalar) -> str:
    try:
        return cell(value.as_py())
    except (ValueError, OverflowError):  # a time that Python's datetime cannot hold
        return str(value.value)


def strings(texts: Sequence[str]) -> pa.Array:
    """An array of them; halves of surrogate pairs become question marks. Unlike `pa.array` it imports no pandas, which
    takes longer than to show many rows.
    """
    encoded = [text.encode("utf-8", "replace") for text in texts]
    ends = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def text(value: str) -> pa.Scalar:
    return strings([value])[0]


def to_stdout(data: bytes) -> None:
    """Print, and notice when nobody reads it."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError as error:
        raise PipeClosedError("nobody reads stdout any more") from error
