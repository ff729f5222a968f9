"""Tables for people: the first rows of what a run has collected, as text and as HTML."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import Any

import pyarrow as pa

from borealis.errors import plural

ROWS_SHOWN = 10
CELL_MOST = 40  # characters
GAP = "  "


def text_of(name: str, table: pa.Table) -> str:
    """The name, how many rows there are, and the first of them.

    >>> print(text_of("busy", pa.table({"src": ["a", "bcd"], "n": [10, 2]})))
    busy: 2 rows
    src  n
    a    10
    bcd  2
    """
    names, cells = _cells(table)
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = [GAP.join(v.ljust(w) for v, w in zip(line, widths, strict=True)).rstrip() for line in [names, *cells]]
    more = ["..."] if table.num_rows > ROWS_SHOWN else []
    return "\n".join([_head(name, table), *lines, *more])


def html_of(name: str, table: pa.Table) -> str:
    """The same for a notebook."""
    names, cells = _cells(table)
    head = "".join(f"<th>{escape(n)}</th>" for n in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(v)}</td>" for v in line) + "</tr>" for line in cells)
    more = "<p>...</p>" if table.num_rows > ROWS_SHOWN else ""
    return (
        f"<p>{escape(_head(name, table))}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
    )


def _head(name: str, table: pa.Table) -> str:
    return f"{name}: {plural(table.num_rows, 'row')}"


def _cells(table: pa.Table) -> tuple[list[str], list[list[str]]]:
    first = table.slice(0, ROWS_SHOWN)
    columns = [[_cell(value) for value in column] for column in first.columns]
    return table.column_names, [list(line) for line in zip(*columns, strict=True)]


def _cell(scalar: pa.Scalar) -> str:
    try:
        value: Any = scalar.as_py()
    except (ValueError, OverflowError):  # a time that Python's datetime cannot hold
        value = scalar.cast(pa.string()).as_py()
    if value is None:
        return "null"
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    text = str(value)
    return text if len(text) <= CELL_MOST else text[: CELL_MOST - 3] + "..."
