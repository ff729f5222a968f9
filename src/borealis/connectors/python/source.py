"""Python rows as a source: lists and tables, or generators that may be endless and slow."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from borealis.clock import WALL
from borealis.connectors.records import brief_error
from borealis.connectors.source import SortedSource, cut
from borealis.errors import InputError, article
from borealis.values.fit import RowOrigin, fit, match_columns
from borealis.values.python import absent, batch_of, not_a_row

BURST_S = 0.0005  # for the rows that a generator gives right behind the first, so that they are not two trains
SOURCE = "the rows"
SEARCHED = 1000  # rows, for the names of their columns


def rows(iterable: Any, *, sort: bool = False) -> SequenceSource | IterableSource | SortedSource:
    """Rows that a Python program holds or makes: dicts, tuples in the declared order, record batches, tables, frames.

    Lists, tuples, tables and data frames (pandas, Polars, whatever has `__arrow_c_stream__`) can be merged by time with
    files; other iterables are taken as they come. A generator can be read once only: give the function that makes it
    if the run shall be resumed. With `sort`, what has an end is sorted by time first, a copy of it in memory.
    """
    if sort:
        return SortedSource(rows(iterable))
    if (table := table_of(iterable)) is not None:
        return SequenceSource([table])
    if isinstance(iterable, list | tuple):
        if iterable and not isinstance(iterable[0], ROWS):
            raise not_a_row(f"{SOURCE}, row 1", iterable[0])
        return SequenceSource(iterable)
    if callable(iterable) or (
        isinstance(iterable, Iterable) and not isinstance(iterable, str | bytes | bytearray | dict)
    ):
        return IterableSource(iterable)
    raise InputError(
        f"{article(type(iterable).__name__)} cannot be an input",
        hint="give a path, replay(...), a list or generator of rows, or a data frame (pandas, Polars, Arrow, Spark)",
    )


TABLES = (pa.RecordBatch, pa.Table)
ROWS = (Mapping, tuple, list, *TABLES)  # what may stand in a sequence


class SequenceSource:
    """Rows in memory. The sequence must not change while it is read."""

    finite_and_ordered = True

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items
        self._notes: list[str] = []

    def warnings(self) -> list[str]:
        """Columns that the first rows lack."""
        return self._notes

    def check(self, names: Sequence[str]) -> None:
        """Refuse tables that lack a declared column, before anything is read."""
        for item in self._items if len(self._items) == 1 else ():
            if isinstance(item, TABLES):
                match_columns(names, item.schema.names, SOURCE)

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        """Rows from position `skip` on; a record batch in the sequence counts as its rows."""
        items = self._items
        if not any(isinstance(item, TABLES) for item in items):
            if items and isinstance(items[0], Mapping):
                seen = dict.fromkeys(str(key) for row in items[:SEARCHED] if isinstance(row, Mapping) for key in row)
                absent(schema.names, seen, SOURCE, self._notes)
            for start in range(skip, len(items), most_rows):
                yield batch_of(items[start : start + most_rows], schema, RowOrigin(SOURCE, start))
            return
        pieces = (items[start : start + most_rows] for start in range(0, len(items), most_rows))
        yield from _assembled(pieces, schema, skip, most_rows)


class IterableSource:
    """Rows drawn one by one in a thread of their own, so that a slow iterable never holds back what it has given."""

    finite_and_ordered = False

    def __init__(self, iterable: Iterable[Any] | Callable[[], Any]) -> None:
        self._iterable = iterable
        self._drawn_once = False

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        """Rows from position `skip` on, handed over as they are drawn: those that came meanwhile, together."""
        pump = _Pump(self._begin(), most_rows)
        try:
            yield from _assembled(iter(pump.take, []), schema, skip, most_rows)
        finally:
            pump.stop()

    def _begin(self) -> Iterator[Any]:
        if callable(self._iterable):
            made = self._iterable()
            return iter([made] if isinstance(made, TABLES) else made)
        iterator = iter(self._iterable)
        if iterator is self._iterable:
            if self._drawn_once:
                raise InputError(
                    "a generator can be read only once", hint="give the function that makes it, without calling it"
                )
            self._drawn_once = True
        return iterator


def _assembled(
    drawn: Iterable[Sequence[Any]], schema: pa.Schema, skip: int, most_rows: int
) -> Iterator[pa.RecordBatch]:
    """Drawn items as batches, without the first `skip` rows."""
    row = 0
    for is_table, run in (run for items in drawn for run in _runs(items)):
        drop = min(max(skip - row, 0), len(run))
        row += drop
        if drop == len(run):
            continue
        if not is_table:
            for start in range(drop, len(run), most_rows):
                part = run[start : start + most_rows]
                yield batch_of(part, schema, RowOrigin(SOURCE, row))
                row += len(part)
            continue
        chosen = match_columns(schema.names, run.schema.names, SOURCE)
        for batch in run[drop:].to_batches() if isinstance(run, pa.Table) else [run[drop:]]:
            for part in cut(batch.select(chosen), most_rows):
                yield fit(part, schema, RowOrigin(SOURCE, row))
                row += part.num_rows


def _runs(items: Sequence[Any]) -> Iterator[tuple[bool, Any]]:
    """Whether it is a batch or a table, each by itself; else Python rows that follow each other, as a list."""
    for is_table, run in groupby(items, lambda item: isinstance(item, TABLES)):
        together = list(run)
        yield from ((is_table, one) for one in (together if is_table else [together]))


class _Pump:
    """Draws items in a thread into a bounded buffer. What was drawn before an error is handed over before the error."""

    def __init__(self, iterator: Iterator[Any], most_rows: int) -> None:
        self._iterator = iterator
        self._most_rows = most_rows
        self._items: deque[Any] = deque()
        self._rows = 0
        self._ended = False
        self._stopped = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._draw, name="borealis-rows", daemon=True).start()

    def take(self) -> list[Any]:
        """The items drawn so far, at most most_rows rows or one item; at the end none, or the error that ended it."""
        with self._changed:
            while not self._items and not self._ended:
                self._changed.wait()
        if self._rows < self._most_rows and not self._ended:
            WALL.sleep(BURST_S)
        with self._changed:
            items = list(self._items)
            self._items.clear()
            self._rows = 0
            self._changed.notify_all()
        if not items and isinstance(self._error, Exception):
            raise InputError(
                f"the rows ended with {type(self._error).__name__}: {self._error}", hint="mend the generator"
            ) from self._error
        if not items and self._error is not None:
            raise self._error
        return items

    def stop(self) -> None:
        """Draw no more; a draw that is under way is left to itself."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _draw(self) -> None:
        try:
            for item in self._iterator:
                weight = item.num_rows if isinstance(item, TABLES) else 1
                with self._changed:
                    self._items.append(item)
                    self._rows += weight
                    if len(self._items) == 1 or self._rows >= self._most_rows:
                        self._changed.notify_all()
                    while self._rows >= self._most_rows and not self._stopped:
                        self._changed.wait()
                    if self._stopped:
                        return
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()


def table_of(value: Any) -> pa.Table | None:
    """What a data frame holds; None for something that is no data frame.

    A pandas index is a column if it has a name.

    >>> table_of(pa.RecordBatch.from_pydict({"n": [1, 2]})).num_rows, table_of([1, 2])
    (2, None)
    """
    if isinstance(value, pa.Table):
        return value
    is_pandas = type(value).__module__.partition(".")[0] == "pandas"
    if not (is_pandas or hasattr(value, "__arrow_c_stream__") or isinstance(value, pa.RecordBatch)):
        return None
    if is_pandas and not hasattr(value, "columns"):
        raise InputError(f"a pandas {type(value).__name__} is no table", hint="give a DataFrame: .to_frame()")
    try:
        if not is_pandas:
            return pa.table(value)
        named = [name for name in value.index.names if name is not None]
        taken = {str(name) for name in value.columns}
        return pa.Table.from_pandas(value, preserve_index=bool(named) and not taken & set(map(str, named)))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(
            f"a {type(value).__name__} cannot be read as a table ({brief_error(error)})",
            hint="give each column values of one type",
        ) from error
