"""Making columns fit their declared types: exactly, or with an error that names the row, the column and the value."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from borealis.errors import InputError, did_you_mean
from borealis.tuples import KIND
from borealis.values import decimals

Conversion: TypeAlias = Callable[[pa.Array], pa.Array]

SHOWN_CHARACTERS = 60  # of a bad value in an error
ZONED = r"^[^T ]*[T ].*(Z|[+-]\d\d(:?\d\d)?)$"
DATE_ONLY = r"^\d{4}-\d\d-\d\d$"
SIMPLE = {"int8": "TINYINT", "int16": "SMALLINT", "int32": "INT", "int64": "BIGINT", "bool": "BOOLEAN"}
OTHER_DELIMITERS = (";", "\t", "|", " ")  # that files have which are called CSV


@dataclass(frozen=True)
class RowOrigin:
    """Where a batch begins: the file (or other source) and how many of its rows come before."""

    source: str
    rows_before: int = 0

    def row(self, index: int) -> str:
        """`a.csv, row 3`: rows count from 1."""
        return f"{self.source}, row {self.rows_before + index + 1}"


def match_columns(wanted: Sequence[str], have: Sequence[str], source: str) -> list[int]:
    """Where each wanted column stands among those a source has: by name, else by name whatever the case.

    A source need not have kinds: without them, its rows are insertions.
    """
    return [_match(name, have, source) for name in wanted if name != KIND or name in have]


def _match(name: str, have: Sequence[str], source: str) -> int:
    exact = [index for index, other in enumerate(have) if other == name]
    folded = [index for index, other in enumerate(have) if other.casefold() == name.casefold()]
    for found in (exact, folded):
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(f"'{have[index]}'" for index in found)
            raise InputError(f"{source} has {len(found)} columns for '{name}': {names}", hint="rename all but one")
    listing = ", ".join(have) or "none"
    hint = did_you_mean(name, have) or "declare the columns the source has, or choose another source"
    mark = next((mark for mark in OTHER_DELIMITERS if len(have) == 1 and name in have[0].split(mark)), None)
    if mark is not None:
        hint = f"say delimiter={mark!r}; from a shell: FILE?delimiter={quote(mark)}"
    raise InputError(f"no column '{name}' in {source} (has: {listing})", hint=hint)


def choose(wanted: pa.Schema | None, have: pa.Schema, source: str) -> list[int]:
    """Where the wanted columns stand, each of a type that may fit; all columns if none are named."""
    if wanted is None:
        return list(range(len(have)))
    chosen = match_columns(wanted.names, have.names, source)
    for index, field in zip(chosen, wanted, strict=False):  # kinds, which need not be there, come last
        checked_conversion(have.field(index).type, field, source)
    return chosen


def fit(batch: pa.RecordBatch, schema: pa.Schema, place: RowOrigin, *, text: bool = False) -> pa.RecordBatch:
    """The batch's columns, taken in order, as exactly `schema`. With `text`, strings are parsed; else never."""
    if schema.names[-1:] == [KIND] and batch.num_columns < len(schema):
        batch = batch.append_column(KIND, pa.nulls(batch.num_rows, schema.field(KIND).type))
    arrays = [fit_column(column, field, place, text=text) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def fit_column(column: pa.Array, field: pa.Field, place: RowOrigin, *, text: bool = False) -> pa.Array:
    """One column as its declared type; every value must survive, only digits below a microsecond may go."""
    if column.type == field.type:
        return column
    convert = checked_conversion(column.type, field, place.source, text=text)

    def fits(start: int, stop: int) -> bool:
        try:
            convert(column.slice(start, stop - start))
        except pa.ArrowInvalid:
            return False
        return True

    try:
        return convert(column)
    except pa.ArrowInvalid:
        index = first_misfit(len(column), fits)
        raise misfit(place, index, field, _shown(column[index])) from None


def _shown(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):  # a time that Python's datetime cannot hold
        return f"{scalar.value} {scalar.type.unit} since 1970"


def checked_conversion(have: pa.DataType, field: pa.Field, source: str, *, text: bool = False) -> Conversion:
    """What makes a column fit its declared type; one none of whose values could is refused, before any is read."""
    convert = _conversion(have, field.type, text)
    if convert is None:
        raise InputError(
            f"column '{field.name}' of {source} is {sql_name(have)}, declared {sql_name(field.type)}",
            hint=f"declare it {sql_name(have)} and convert it in a map",
        )
    return convert


def misfit(place: RowOrigin, index: int, field: pa.Field, value: object) -> InputError:
    shown = repr(value) if isinstance(value, str | bytes) else str(value)
    if len(shown) > SHOWN_CHARACTERS:
        shown = shown[:SHOWN_CHARACTERS] + "..."
    return InputError(
        f"{place.row(index)}: column '{field.name}' is {sql_name(field.type)}, but the value is {shown}",
        hint=_hint(field.type, value),
    )


def _hint(wanted: pa.DataType, value: object) -> str:
    if is_string(wanted) and isinstance(value, bytes):
        return "save it as UTF-8, for example with `iconv -f LATIN1 -t UTF-8`, or declare the column BINARY"
    if pt.is_timestamp(wanted):
        return "write times as ISO 8601, such as 2024-05-01T12:00:00Z"
    if pt.is_date(wanted):
        return "write dates as 2024-05-01"
    if pt.is_decimal(wanted):
        return f"at most {wanted.precision} digits fit, {wanted.scale} of them after the point"
    if pt.is_integer(wanted):
        bits = wanted.bit_width
        return f"whole numbers from {-(2 ** (bits - 1))} to {2 ** (bits - 1) - 1} fit; or declare a wider type"
    if pt.is_binary(wanted):
        return "write bytes as base64"
    if pt.is_boolean(wanted):
        return "write true or false"
    return f"mend the value, or declare the column with a type that fits, not {sql_name(wanted)}"


def sql_name(kind: pa.DataType) -> str:
    """An Arrow type as a user would declare it.

    >>> sql_name(pa.decimal128(10, 2)), sql_name(pa.list_(pa.int32()))
    ('DECIMAL(10,2)', 'ARRAY<INT>')
    """
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return sql_name(kind.value_type)
    if pt.is_map(kind):
        return f"MAP<{sql_name(kind.key_type)}, {sql_name(kind.item_type)}>"
    if _is_list(kind):
        return f"ARRAY<{sql_name(kind.value_type)}>"
    if pt.is_struct(kind):
        return f"STRUCT<{', '.join(f'{field.name}: {sql_name(field.type)}' for field in kind)}>"
    if pt.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    for applies, name in ((pt.is_timestamp, "TIMESTAMP"), (pt.is_date, "DATE"), (is_string, "STRING")):
        if applies(kind):
            return name
    return "BINARY" if is_binary(kind) else SIMPLE.get(str(kind), str(kind).upper())


def is_string(kind: pa.DataType) -> bool:
    """Whether it is text, however Arrow holds it."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Whether it is bytes, however Arrow holds them."""
    return bool(
        pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    lists = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)
    return any(is_list(kind) for is_list in lists)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


def _conversion(have: pa.DataType, wanted: pa.DataType, text: bool) -> Conversion | None:
    """What makes values of one type those of another, or raises ArrowInvalid for one that does not fit; None if none
    could fit."""
    if pt.is_dictionary(have) or pt.is_run_end_encoded(have):
        inner = _conversion(have.value_type, wanted, text)
        decode = pa.DictionaryArray.dictionary_decode if pt.is_dictionary(have) else pc.run_end_decode
        return None if inner is None else lambda array: inner(decode(array))
    if have == wanted:
        return lambda array: array
    if pt.is_null(have):
        return lambda array: pa.nulls(len(array), wanted)
    if pt.is_struct(wanted):
        return _struct_conversion(have, wanted, text) if pt.is_struct(have) else None
    if pt.is_map(wanted) or _is_list(wanted):
        return _nested_conversion(have, wanted, text)
    if text and is_string(have) and not is_string(wanted):
        return lambda array: parse(array.cast(pa.string()), wanted)
    if pt.is_timestamp(wanted) and pt.is_timestamp(have):
        return lambda array: array.cast(wanted, safe=have.unit != "ns")
    if _is_number(wanted) and _is_number(have):
        return _number_conversion(have, wanted)
    same = (
        (pt.is_timestamp(wanted) and pt.is_date(have))
        or (pt.is_date(wanted) and pt.is_date(have))
        or (is_string(wanted) and (is_string(have) or is_binary(have)))
        or (is_binary(wanted) and is_binary(have))
    )
    return (lambda array: array.cast(wanted)) if same else None


def _number_conversion(have: pa.DataType, wanted: pa.DataType) -> Conversion | None:
    if pt.is_decimal(have) and not decimals.is_scalable(have, wanted):
        return None
    if pt.is_decimal(wanted) and pt.is_floating(have):  # a float stands for its shortest decimal form
        return lambda array: decimals.parse(array.cast(pa.string()), wanted)
    if pt.is_decimal(wanted) and pt.is_integer(have):
        return lambda array: array.cast(pa.decimal128(20, 0)).cast(wanted)
    if pt.is_floating(wanted) and pt.is_floating(have):
        return lambda array: _no_new_infinity(array.cast(wanted), pc.is_inf(array))
    return lambda array: array.cast(wanted)


def _no_new_infinity(floats: pa.Array, infinite: pa.Array) -> pa.Array:
    if pc.any(pc.and_not(pc.is_inf(floats), infinite)).as_py():
        raise pa.ArrowInvalid("too large a number")
    return floats


def _struct_conversion(have: pa.DataType, wanted: pa.DataType, text: bool) -> Conversion | None:
    names = [field.name for field in have]
    parts = []
    for field in wanted:
        at = _member(names, field.name)
        part = None if at is None else _conversion(have.field(at).type, field.type, text)
        if at is None or part is None or len(set(names)) != len(names):
            return None
        parts.append((at, part))

    def convert(array: pa.Array) -> pa.Array:
        columns = array.flatten()
        children = [part(columns[at]) for at, part in parts]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())

    return convert


def _nested_conversion(have: pa.DataType, wanted: pa.DataType, text: bool) -> Conversion | None:
    """Of lists and maps. An array is first copied compact: a slice's children reach beyond the slice."""
    is_map = pt.is_map(wanted)
    if not (pt.is_map(have) if is_map else _is_list(have)):
        return None
    names = ("key", "item") if is_map else ("value",)
    parts = [_conversion(getattr(have, f"{name}_type"), getattr(wanted, f"{name}_type"), text) for name in names]

    def convert(array: pa.Array) -> pa.Array:
        if not is_map and not pt.is_list(have):
            array = array.cast(pa.list_(have.value_type))
        array = array.take(pa.array(range(len(array)), pa.int64()))
        children = (array.keys, array.items) if is_map else (array.values,)
        made = [part(child) for part, child in zip(parts, children, strict=True) if part is not None]
        kind = pa.MapArray if is_map else pa.ListArray
        return kind.from_arrays(array.offsets, *made, mask=array.is_null()).cast(wanted)

    return None if None in parts else convert


def _member(names: Sequence[str], name: str) -> int | None:
    if name in names:
        return names.index(name)
    folded = [other.casefold() for other in names]
    return folded.index(name.casefold()) if name.casefold() in folded else None


def parse(strings: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Text as numbers, decimals, dates, times (ISO 8601, no zone means UTC), true or false, or base64 bytes."""
    if pt.is_timestamp(wanted):
        return _parse_times(strings, wanted)
    if pt.is_binary(wanted):
        return pa.array([None if text is None else _unbase64(text) for text in strings.to_pylist()], wanted)
    cast = decimals.parse if pt.is_decimal(wanted) else pa.Array.cast
    try:
        parsed = cast(strings, wanted)
    except pa.ArrowInvalid:
        tidy = pc.utf8_trim_whitespace(strings)
        if _is_number(wanted):
            tidy = pc.replace_substring_regex(tidy, r"^\+(\d)", r"\1")
        if pt.is_integer(wanted):
            tidy = pc.replace_substring_regex(tidy, r"^(-?\d+)\.0*$", r"\1")  # many programs write 1.0 for 1
        parsed = cast(tidy, wanted)
    if pt.is_floating(wanted) and pc.any(pc.is_inf(parsed)).as_py():
        _no_new_infinity(parsed, pc.match_substring(strings, "inf", ignore_case=True))
    return parsed


def _parse_times(strings: pa.Array, wanted: pa.DataType) -> pa.Array:
    utc = pa.timestamp(wanted.unit, "UTC")
    for attempt in (wanted, utc if wanted.tz is None else pa.timestamp(wanted.unit)):  # all with a zone, or all without
        try:
            return strings.cast(attempt).cast(wanted)
        except pa.ArrowInvalid:
            continue
    tidy = pc.utf8_trim_whitespace(strings)
    tidy = pc.replace_substring_regex(tidy, r"([.,]\d{6})\d+", r"\1")
    tidy = pc.if_else(pc.match_substring_regex(tidy, DATE_ONLY), pc.binary_join_element_wise(tidy, "T00:00", ""), tidy)
    zoned = pc.match_substring_regex(tidy, ZONED)
    return pc.if_else(zoned, tidy, pc.binary_join_element_wise(tidy, "Z", "")).cast(utc).cast(wanted)


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise pa.ArrowInvalid("not base64") from None


def first_misfit(count: int, fits: Callable[[int, int], bool]) -> int:
    """The first of so many that does not fit, if it is known that one does not: halve until one is left.

    >>> first_misfit(5, lambda start, stop: not start <= 3 < stop)
    3
    """
    start, stop = 0, count
    while stop - start > 1:
        middle = (start + stop) // 2
        if fits(start, middle):
            start = middle
        else:
            stop = middle
    return start
