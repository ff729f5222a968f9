"""Decimals with more digits after the point than any DECIMAL has. Arrow must never be given one.

Arrow scales a decimal by a table of 38 powers of ten and looks beyond its end for more: it makes 1e-39 a zero, and
1e-999999999 ends the process. So such values are found before, and do not fit like any other that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

DIGITS_MOST = 38  # of a DECIMAL
_DIGITS_BY_BITS = {32: 9, 64: 18, 128: DIGITS_MOST, 256: 76}
# Without a match there are at most 38 digits after the point; few others match. An exponent counts as digits.
_MAYBE_FAR = r"\.\d{39}|\.\d{20,}[eE]-|[eE]-0*(?:19|[2-9]\d|[1-9]\d{2,})"
_ESCAPED = r"\\u00(?:3\d|[46]5|2[dDeE])"  # in JSON: a digit, e, point or minus, written so that the above misses it


def is_far(value: Decimal) -> bool:
    """Whether no DECIMAL can hold it, by its size or by its digits after the point; quick, however large it is."""
    if not value.is_finite() or value.adjusted() >= DIGITS_MOST:
        return True
    exponent = value.as_tuple().exponent
    return isinstance(exponent, int) and exponent < -DIGITS_MOST


def parse(strings: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Text as decimals. Raises ArrowInvalid if one does not fit."""
    for text in strings.filter(pc.match_substring_regex(strings, _MAYBE_FAR)).to_pylist():
        try:
            far = is_far(Decimal(text))
        except InvalidOperation:
            far = True
        if far:
            raise pa.ArrowInvalid("too many digits for a decimal")
    return strings.cast(wanted)


def is_safe_json(block: bytes, schema: pa.Schema) -> bool:
    """Whether Arrow's reader may read these lines into these columns."""
    if not has(pt.is_decimal, schema):
        return True
    return not pc.match_substring_regex(pa.scalar(block), f"{_MAYBE_FAR}|{_ESCAPED}").as_py()


def has(applies: Callable[[pa.DataType], bool], fields: Iterable[pa.Field]) -> bool:
    """Whether a column is of such a type, or has one within."""
    return any(
        applies(one.type) or (pt.is_nested(one.type) and has(applies, map(one.type.field, range(one.type.num_fields))))
        for one in fields
    )


def is_scalable(have: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow can make the other number of a decimal; its type may come with any scale, such as 999999999."""
    scale, bits = (wanted.scale, wanted.bit_width) if pt.is_decimal(wanted) else (0, 0)
    return bool(abs(have.scale - scale) <= _DIGITS_BY_BITS[max(have.bit_width, bits)])


def number(text: str) -> Decimal:
    """A number of JSON, exact. Python's decimals have exponents of 18 digits; one beyond is as far as the farthest."""
    try:
        return Decimal(text)
    except InvalidOperation:
        digits, _, exponent = text.lower().partition("e")
        return Decimal(f"{digits}e{'-' if exponent.startswith('-') else ''}{10**9}")
