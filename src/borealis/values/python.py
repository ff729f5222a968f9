"""Python rows as Arrow columns: dicts or tuples of what Python programs hold, each value checked against its type."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from borealis.errors import InputError, did_you_mean
from borealis.tuples import KIND
from borealis.values import decimals
from borealis.values.fit import RowOrigin, first_misfit, misfit, parse

NOTHING = type(None)
FAILURES = (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError, AttributeError)


def batch_of(rows: Sequence[object], schema: pa.Schema, place: RowOrigin) -> pa.RecordBatch:
    """The rows as one batch of exactly `schema`; a dict may hold more or less than is declared, a tuple may not."""
    kinds = schema.names[-1:] == [KIND]  # which rows need not have
    names = schema.names[:-1] if kinds else schema.names
    if all(type(row) is dict for row in rows):
        try:
            columns: list[list[Any]] = [[row[name] for row in rows] for name in names]  # type: ignore[index]
            columns += [[row.get(KIND) for row in rows]] * kinds  # type: ignore[attr-defined]
        except KeyError:
            columns = _slowly(rows, schema, place)
    elif all(isinstance(row, tuple | list) and len(row) == len(names) for row in rows):
        columns = [[row[index] for row in rows] for index in range(len(names))] + [[None] * len(rows)] * kinds  # type: ignore[index]
    else:
        columns = _slowly(rows, schema, place)
    arrays = [column_of(values, field, place) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _slowly(rows: Sequence[object], schema: pa.Schema, place: RowOrigin) -> list[list[Any]]:
    tuples = [_as_tuple(row, schema, place, index) for index, row in enumerate(rows)]
    return [list(column) for column in zip(*tuples, strict=True)] if tuples else [[] for _ in schema]


def _as_tuple(row: object, schema: pa.Schema, place: RowOrigin, index: int) -> Sequence[Any]:
    if isinstance(row, Mapping):
        return [_value_in(row, name) for name in schema.names]
    if isinstance(row, tuple | list):
        if len(row) == len(schema) - 1 and schema.names[-1] == KIND:
            return [*row, None]
        if len(row) != len(schema):
            raise InputError(
                f"{place.row(index)} has {len(row)} values, declared are {len(schema)}: {', '.join(schema.names)}",
                hint="give every declared column a value, in the declared order, or use dicts",
            )
        return row
    raise not_a_row(place.row(index), row)


def not_a_row(where: str, row: object) -> InputError:
    return InputError(
        f"{where} is of type {type(row).__name__}",
        hint="rows are dicts, tuples in the declared order, or Arrow record batches",
    )


def _value_in(row: Mapping[Any, Any], name: str) -> Any:
    """A key that is absent is null: by one rule in files, in rows, over HTTP and from topics."""
    if name in row or name == KIND:
        return row.get(name)
    folded = [key for key in row if isinstance(key, str) and key.casefold() == name.casefold()]
    return row[folded[0]] if len(folded) == 1 else None


def absent(wanted: Sequence[str], have: Collection[str], source: str, notes: list[str]) -> list[str]:
    """The declared columns that none of the first rows has, in whatever case: noted, for it may be a mistake."""
    folded = {name.casefold() for name in have}
    found = [name for name in wanted if name.casefold() not in folded]
    for name in (one for one in found if one != KIND) if have else ():
        near = did_you_mean(name, have)
        note = f"no column '{name}' in {source} (has: {', '.join(have)}): it is null" + (f"; {near}" if near else "")
        if note not in notes:
            notes.append(note)
    return found


def column_of(values: list[Any], field: pa.Field, place: RowOrigin) -> pa.Array:
    """Values of one column as its declared type. A naive datetime is UTC; text is parsed as in a CSV file."""
    wanted = field.type
    kinds = set(map(type, values))
    try:
        if kinds <= _natural(wanted):
            if pt.is_decimal(wanted) and any(type(value) is Decimal and decimals.is_far(value) for value in values):
                raise pa.ArrowInvalid("a value does not fit")
            return pa.array(values, wanted)
        if kinds <= {str, NOTHING} and not pt.is_nested(wanted):
            return parse(pa.array(values, pa.string()), wanted)
        return pa.array([normal(value, wanted) for value in values], wanted)
    except FAILURES:
        index = first_misfit(len(values), lambda start, stop: _fits(values[start:stop], wanted))
        if _fits(values[index : index + 1], wanted):
            raise
        raise misfit(place, index, field, values[index]) from None


def _fits(values: list[Any], wanted: pa.DataType) -> bool:
    try:
        pa.array([normal(value, wanted) for value in values], wanted)
    except FAILURES:
        return False
    return True


def _natural(wanted: pa.DataType) -> set[type]:
    """The Python types that Arrow itself takes for this one as we mean it."""
    return next((natural for applies, natural, _ in _KINDS if applies(wanted)), set()) | {NOTHING}


def normal(value: Any, wanted: pa.DataType) -> Any:
    """The value as the Python type that Arrow takes for `wanted`. Raises ValueError if it means something else."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    elif isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None:
        return None
    if isinstance(value, str) and not pt.is_nested(wanted) and not pt.is_string(wanted):
        return parse(pa.array([value], pa.string()), wanted)[0].as_py()
    for applies, _, make in _KINDS:
        if applies(wanted):
            return make(value, wanted)
    return value


def _refuse(value: object) -> Any:
    raise ValueError(f"{value!r} means something else")


def _time(value: Any, wanted: pa.DataType) -> datetime:
    if isinstance(value, datetime):
        return value
    return datetime.combine(value, time(), UTC) if isinstance(value, date) else _refuse(value)


def _date(value: Any, wanted: pa.DataType) -> date:
    if isinstance(value, datetime):
        midnight = value.timetz().replace(tzinfo=None) == time() and value.utcoffset() in (None, UTC.utcoffset(None))
        return value.date() if midnight else _refuse(value)
    return value if isinstance(value, date) else _refuse(value)


def _number(value: Any) -> Any:
    return _refuse(value) if isinstance(value, bool) or not isinstance(value, int | float | Decimal) else value


def _decimal(value: Any, wanted: pa.DataType) -> Decimal:
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(_number(value))
    return _refuse(value) if decimals.is_far(exact) else exact


def _integer(value: Any, wanted: pa.DataType) -> int:
    if isinstance(_number(value), Decimal) and value.adjusted() >= decimals.DIGITS_MOST:
        return _refuse(value)  # type: ignore[no-any-return]  # int() would write out all its digits
    return int(value) if int(value) == value else _refuse(value)


def _floating(value: Any, wanted: pa.DataType) -> float:
    if isinstance(_number(value), Decimal) and pt.is_float32(wanted):  # by way of a double it would be rounded twice
        made = float(pa.scalar(str(value)).cast(wanted).as_py())
    else:
        made = float(value)
    return made if isinstance(value, float) or abs(made) != float("inf") else _refuse(value)


def _only(kind: type) -> Callable[[Any, pa.DataType], Any]:
    return lambda value, wanted: value if isinstance(value, kind) else _refuse(value)


def _binary(value: Any, wanted: pa.DataType) -> bytes:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else _refuse(value)


def _map(value: Any, wanted: pa.DataType) -> list[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, Mapping) else value
    return [(normal(key, wanted.key_type), normal(item, wanted.item_type)) for key, item in pairs]


def _list(value: Any, wanted: pa.DataType) -> list[Any]:
    if not isinstance(value, list | tuple):
        return _refuse(value)  # type: ignore[no-any-return]
    return [normal(item, wanted.value_type) for item in value]


def _struct(value: Any, wanted: pa.DataType) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {field.name: normal(value.get(field.name), field.type) for field in wanted}
    if isinstance(value, tuple | list) and len(value) == wanted.num_fields:
        return {field.name: normal(item, field.type) for field, item in zip(wanted, value, strict=True)}
    return _refuse(value)  # type: ignore[no-any-return]


# what applies to which types, what Arrow takes for them, and how other values are made such
_KINDS: tuple[tuple[Callable[[pa.DataType], bool], set[type], Callable[[Any, pa.DataType], Any]], ...] = (
    (pt.is_timestamp, {datetime}, _time),
    (pt.is_date, {date}, _date),
    (pt.is_decimal, {Decimal, int}, _decimal),
    (pt.is_integer, {int}, _integer),
    (pt.is_floating, {float}, _floating),
    (pt.is_boolean, {bool}, _only(bool)),
    (pt.is_string, {str}, _only(str)),
    (pt.is_binary, {bytes}, _binary),
    (pt.is_map, set(), _map),
    (pt.is_list, set(), _list),
    (pt.is_struct, set(), _struct),
)
