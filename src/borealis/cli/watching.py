"""A run as people watch it: live in a terminal, a line now and then elsewhere, and a summary at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from borealis.cli.ending import STOP
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


class Watcher(Protocol):
    """What is shown while a run runs. `see` also is the run's safe point to stop."""

    units: Sequence[Progress]

    def see(self, units: Sequence[Progress]) -> None: ...

    def say(self, text: str) -> None:
        """What happens before there is any progress."""

    def __enter__(self) -> Watcher: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Silent:
    """Shows nothing."""

    def __init__(self) -> None:
        self.units: Sequence[Progress] = ()

    def see(self, units: Sequence[Progress]) -> None:
        self.units = units
        STOP.point()

    def say(self, text: str) -> None:
        pass

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Lines(Silent):
    """A plain line per unit every few seconds."""

    def __init__(self, out: Console, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._out, self._now = out, now
        self._next = now() + PLAIN_EVERY_S

    def see(self, units: Sequence[Progress]) -> None:
        super().see(units)
        if self._now() >= self._next:
            self._next = self._now() + PLAIN_EVERY_S
            for unit in units:
                self._out.print(progress_line(unit), soft_wrap=True, markup=False)


class Terminal(Silent):
    """A table that stays in its place; `below` adds what belongs under it."""

    def __init__(self, out: Console, below: Callable[[], RenderableType] | None = None) -> None:
        super().__init__()
        self._below = below
        self._live = Live(console=out, auto_refresh=False, transient=True)
        self._next = 0.0

    def see(self, units: Sequence[Progress]) -> None:
        super().see(units)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LIVE_EVERY_S
            table = progress_table(units)
            self._live.update(Group(table, self._below()) if self._below else table, refresh=True)

    def say(self, text: str) -> None:
        self._live.update(Text(text, style="dim"), refresh=True)

    def __enter__(self) -> Watcher:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def watcher(out: Console, below: Callable[[], RenderableType] | None = None) -> Watcher:
    """What suits the place where it is shown."""
    return Terminal(out, below) if out.is_terminal else Lines(out)


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
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("unit")
    for title in ("in", "out", "rate", "lag", "train", "p50", "late", "state"):
        table.add_column(title, justify="right")
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
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("unit", "in", "rate", "trains", "p50", "p99", "late", "state"):
        table.add_column(title, justify="left" if title == "unit" else "right")
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
    outputs = Table(box=SIMPLE_HEAD, pad_edge=False)
    outputs.add_column("output")
    outputs.add_column("rows", justify="right")
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


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 10 or not value else f"{value:.1f} ms"


def _last(unit: Progress) -> str:
    return _ms(unit.train_ms[-1]) if unit.train_ms else "-"
