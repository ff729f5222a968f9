"""What commands show: answers on stdout, tables that fit, numbers as people read them, and on stderr a live view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from json import dumps
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.filesize import decimal
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from borealis.clock import WALL, Clock
from borealis.errors import plural as plural

PLAIN_EVERY_S = 5.0
LIVE_EVERY_S = 0.1
WIDTH_PLAIN = 120  # of what does not go to a terminal
WIDE = 10_000  # characters, more than any table has
TEXT_MOST = 40  # characters of a text for which columns go; a longer one is folded

Cell = str | Text


def answer(json: bool, facts: Any, text: str) -> None:
    """What a command has done: as JSON, or in words."""
    print(dumps(facts, ensure_ascii=False) if json else text)


def console(stderr: bool = False) -> Console:
    """Where to print; lines are not broken at 80 columns where no terminal says how wide it is."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=WIDTH_PLAIN)


def working(text: str, quiet: bool) -> AbstractContextManager[object]:
    """Show on stderr what a command waits for."""
    return nullcontext() if quiet else console(stderr=True).status(text)


class Screen:
    """stderr while a command works: in a terminal a view that stays in its place, elsewhere lines, or nothing."""

    def __init__(self, quiet: bool = False, out: Console | None = None, clock: Clock = WALL) -> None:
        self.quiet, self.out, self._clock = quiet, out or console(stderr=True), clock
        shown = self.out.is_terminal and not quiet
        self._live = Live(console=self.out, auto_refresh=False, transient=True) if shown else None
        self._every = LIVE_EVERY_S if shown else PLAIN_EVERY_S
        self._began = clock.now()
        self._next = self._began + self._every

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def seconds(self) -> float:
        """How long the command has worked."""
        return self._clock.now() - self._began

    def due(self) -> bool:
        if self.quiet or self._clock.now() < self._next:
            return False
        self._next = self._clock.now() + self._every
        return True

    def show(self, view: RenderableType, lines: Iterable[str]) -> None:
        """The view, or where it cannot stay in its place the lines."""
        if self._live is not None:
            self._live.update(view, refresh=True)
        else:
            for line in lines:
                self.say(line)

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.quiet:
            self.out.print(text, markup=False, soft_wrap=True)


def table(*left: str, right: Sequence[str] = (), title: str | None = None) -> Table:
    """Columns of text that is folded where it is too long, then columns of numbers."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for name in left:
        made.add_column(Text(name), overflow="fold")
    for name in right:
        made.add_column(name, justify="right")
    return made


def grid(rows: Iterable[Iterable[RenderableType]]) -> Table:
    """Rows in columns without titles and rules."""
    made = Table.grid(padding=(0, 2))
    for row in rows:
        made.add_row(*row)
    return made


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
        made = Table(box=None if self._plain else SIMPLE_HEAD, pad_edge=False)
        shown = [i for i, title in enumerate(self._titles) if title not in gone]
        for title in (self._titles[i] for i in shown):
            if title in self._left:
                made.add_column(title, overflow="fold")
            else:
                made.add_column(title, justify="right", no_wrap=True)
        for cells in self._rows:
            made.add_row(*(cells[i][:most] for i in shown))
        return made


def span(us: float | None) -> str:
    """A length of time in microseconds.

    >>> span(1_500), span(2_340_000), span(75_000_000), span(None)
    ('2 ms', '2.3 s', '1 min 15 s', '-')
    """
    if us is None:
        return "-"
    if us < 1_000_000:
        return f"{us / 1000:.0f} ms"
    if us < 60_000_000:
        return f"{us / 1e6:.1f} s"
    seconds = round(us / 1e6)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600:,} h {seconds % 3600 // 60} min"


def size(count: int) -> str:
    """A number of bytes.

    >>> size(624), size(1_530_000)
    ('624 B', '1.5 MB')
    """
    return f"{count} B" if count < 1000 else decimal(count)
