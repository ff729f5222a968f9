"""Tables that fit: where a terminal is too narrow, columns are left out instead of squeezed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

WIDE = 10_000  # characters, more than any table has
TEXT_MOST = 40  # characters of a text for which columns go; a longer one is folded

Cell = str | Text


class FittingTable:
    """A table whose `spare` columns go, the first of them first, until the others fit; names stay to the last."""

    def __init__(self, left: Sequence[str], right: Sequence[str], spare: Sequence[str], *, plain: bool = False) -> None:
        self._left, self._titles, self._spare = set(left), [*left, *right], spare
        self._plain = plain  # without a rule below the titles, for few rows
        self._rows: list[tuple[Cell, ...]] = []

    def add_row(self, *cells: Cell) -> None:
        """A cell for each column, whether it is shown or not."""
        assert len(cells) == len(self._titles)
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        gone: set[str] = set()
        for title in (*self._spare, None):
            needs = Measurement.get(console, options.update(width=WIDE), self._without(gone, TEXT_MOST)).maximum
            if needs <= options.max_width or title is None:
                yield self._without(gone)
                return
            gone.add(title)

    def _without(self, gone: set[str], most: int = WIDE) -> Table:
        table = Table(box=None if self._plain else SIMPLE_HEAD, pad_edge=False)
        shown = [i for i, title in enumerate(self._titles) if title not in gone]
        for title in (self._titles[i] for i in shown):
            if title in self._left:
                table.add_column(title, overflow="fold")
            else:
                table.add_column(title, justify="right", no_wrap=True)
        for cells in self._rows:
            table.add_row(*(cells[i][:most] for i in shown))
        return table
