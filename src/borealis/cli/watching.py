"""A run as people watch it: live in a terminal, a line now and then elsewhere, and a summary at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from borealis.cli.ending import STOP, Stopped
from borealis.cli.words import size, span

if TYPE_CHECKING:
    from borealis.trains.progress import Progress

PLAIN_EVERY_S = 5.0
LIVE_EVERY_S = 0.1
WIDTH_PLAIN = 120  # of what does not go to a terminal


def console(stderr: bool = False) -> Console:
    """Where to print; lines are not broken at 80 columns only because nobody said how wide they may be."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=WIDTH_PLAIN)


class Screen:
    """stderr while a command works: in a terminal a view that stays in its place, elsewhere lines, or nothing."""

    def __init__(
        self, quiet: bool = False, out: Console | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.quiet, self.out, self._now = quiet, out or console(stderr=True), now
        shown = self.out.is_terminal and not quiet
        self._live = Live(console=self.out, auto_refresh=False, transient=True) if shown else None
        self._every = LIVE_EVERY_S if shown else PLAIN_EVERY_S
        self.began = now()
        self._next = self.began + self._every

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def due(self) -> bool:
        """Whether it is time to show something again."""
        if self.quiet or self._now() < self._next:
            return False
        self._next = self._now() + self._every
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


class Watcher(Screen):
    """What is shown of a run; `below` adds what belongs under it. `see` also is the run's safe point to stop."""

    def __init__(self, quiet: bool = False, below: Callable[[], RenderableType] | None = None, **where: Any) -> None:
        super().__init__(quiet, **where)
        self._below = below
        self.units: Sequence[Progress] = ()

    def doing(self, text: str) -> None:
        """What happens before there is any progress."""
        self.show(Text(text, style="dim"), ())

    def see(self, units: Sequence[Progress]) -> None:
        """How far the run is."""
        self.units = units
        STOP.point()
        if self.due():
            table = progress_table(units)
            self.show(Group(table, self._below()) if self._below else table, map(progress_line, units))


@contextmanager
def stoppable(watch: Watcher, name: str, places: Mapping[str, str | None], out: Console) -> Iterator[None]:
    """Within, a run stops at its safe points, and says then how far it came."""
    try:
        with STOP.deferred():
            yield
    except Stopped:
        watch.__exit__()
        if watch.units and not watch.quiet:
            out.print(summary(name, watch.units, places, "stopped"))
        raise


def progress_line(unit: Progress) -> str:
    """A unit's progress in one line."""
    if not unit.trains:
        return "; ".join([_before_the_first(unit), *unit.notes()])
    late, dead = sum(dict(unit.late).values()), sum(unit.dead_letters.values())
    parts = [
        f"{unit.rows_in:,} in",
        *(f"{n:,} to {name}" for name, n in dict(unit.rows_out).items()),
        f"{unit.rate:,.0f}/s",
        f"lag {span(unit.lag_us)}",
        f"train {_last(unit)} (p50 {_ms(unit.percentile(0.5))})",
        *([f"boundary held by {unit.held_by}"] if unit.held_by else []),
        *([f"{late:,} late"] if late else []),
        *([f"{dead:,} dead letters"] if dead else []),
        f"state {size(unit.state_bytes)}",
    ]
    return "; ".join([f"{unit.unit}: {', '.join(parts)}", *unit.notes()])


def _before_the_first(unit: Progress) -> str:
    """Spark takes seconds for the first train of a query; meanwhile rows are read ahead."""
    doing = "Spark is starting the first train" if unit.rows_read() else "waiting for rows"
    return f"{unit.unit}: {unit.rows_read():,} rows read, none committed yet ({doing}, {span(unit.seconds * 1e6)})"


def progress_table(units: Sequence[Progress]) -> Table:
    """All units' progress."""
    table = _table("unit", "in", "out", "rate", "lag", "train", "p50", "late", "state")
    several = any(unit.held_by for unit in units)
    if several:
        table.add_column("boundary held by")
    for unit in units:
        late = sum(dict(unit.late).values())
        row: list[RenderableType] = [
            unit.unit,
            f"{unit.rows_in:,}",
            f"{sum(dict(unit.rows_out).values()):,}",
            f"{unit.rate:,.0f}/s",
            span(unit.lag_us),
            _last(unit),
            _ms(unit.percentile(0.5)),
            Text(f"{late:,}", style="yellow" if late else ""),
            size(unit.state_bytes),
        ]
        table.add_row(*row, *([unit.held_by or ""] if several else []))
    first = [_before_the_first(unit) for unit in units if not unit.trains]
    if notes := [*first, *(note for unit in units for note in unit.notes())]:
        table.caption = Text("\n".join(notes), style="yellow")
    return table


def summary(name: str, units: Sequence[Progress], places: Mapping[str, str | None], ended: str) -> RenderableType:
    """What a run did, as it ended (`done`, `stopped`); `places` says where each output went, None for nowhere."""
    parts: list[RenderableType] = []
    seconds = max((u.seconds for u in units), default=0.0)
    taken = sum(u.rows_in for u in units)
    head = Text.assemble((name, "bold"), f": {ended} after {span(seconds * 1e6)}")
    for unit in units:
        if unit.resumed_after:
            of = f" of unit {unit.unit}" if len(units) > 1 else ""
            head.append(f", resumed after train {unit.resumed_after:,}{of}")
    parts.append(head)
    table = _table("unit", "in", "rate", "trains", "p50", "p99", "late", "state")
    for unit in units:
        table.add_row(
            unit.unit,
            f"{unit.rows_in:,}",
            f"{unit.rows_in / max(unit.seconds, 1e-9):,.0f}/s",
            f"{unit.trains:,}",
            _ms(unit.percentile(0.5)),
            _ms(unit.percentile(0.99)),
            f"{sum(unit.late.values()):,}",
            size(unit.state_bytes),
        )
    if len(units) > 1:
        table.add_section()
        table.add_row("all", f"{taken:,}", f"{taken / max(seconds, 1e-9):,.0f}/s")
    outputs = _table("output", "rows")
    outputs.add_column("went to", overflow="fold")
    counts = {output: n for u in units for output, n in u.rows_out.items()}
    for output, place in places.items():
        nowhere = Text(f"nowhere: add --output {output}=FILE", style="dim")
        outputs.add_row(
            output,
            f"{counts.get(output, 0):,}",
            nowhere if place is None else Text("stdout" if place == "-" else place),
        )
    parts += [table, outputs]
    parts += [Text(f"warning: {w}", style="yellow") for u in units for w in u.warnings()]
    return Group(*parts)


def _table(name: str, *figures: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(name)
    for title in figures:
        table.add_column(title, justify="right")
    return table


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 10 or not value else f"{value:.1f} ms"


def _last(unit: Progress) -> str:
    return _ms(unit.train_ms[-1]) if unit.train_ms else "-"
