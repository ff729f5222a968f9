"""A run as people watch it: live in a terminal, a line now and then elsewhere, and a summary at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from borealis.cli.ending import STOP, Stopped
from borealis.cli.screen import Screen, size, span, table

if TYPE_CHECKING:
    from borealis.trains.progress import Progress


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
        self.units = units
        STOP.point()
        if self.due():
            shown = progress_table(units)
            self.show(Group(shown, self._below()) if self._below else shown, map(progress_line, units))


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
    shown = table("unit", right=("in", "out", "rate", "lag", "train", "p50", "late", "state"))
    several = any(unit.held_by for unit in units)
    if several:
        shown.add_column("boundary held by")
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
        shown.add_row(*row, *([unit.held_by or ""] if several else []))
    first = [_before_the_first(unit) for unit in units if not unit.trains]
    if notes := [*first, *(note for unit in units for note in unit.notes())]:
        shown.caption = Text("\n".join(notes), style="yellow")
    return shown


def summary(name: str, units: Sequence[Progress], places: Mapping[str, str | None], ended: str) -> RenderableType:
    """What a run did, as it ended (`done`, `stopped`); `places` says where each output went, None for nowhere."""
    seconds = max((u.seconds for u in units), default=0.0)
    taken = sum(u.rows_in for u in units)
    head = Text.assemble((name, "bold"), f": {ended} after {span(seconds * 1e6)}")
    for unit in units:
        if unit.resumed_after:
            of = f" of unit {unit.unit}" if len(units) > 1 else ""
            head.append(f", resumed after train {unit.resumed_after:,}{of}")
    shown = table("unit", right=("in", "rate", "trains", "p50", "p99", "late", "state"))
    for unit in units:
        shown.add_row(
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
        shown.add_section()
        shown.add_row("all", f"{taken:,}", f"{taken / max(seconds, 1e-9):,.0f}/s")
    outputs = table("output", right=("rows",))
    outputs.add_column("went to", overflow="fold")
    counts = {output: n for u in units for output, n in u.rows_out.items()}
    for output, place in places.items():
        nowhere = Text(f"nowhere: add --output {output}=FILE", style="dim")
        went = nowhere if place is None else Text("stdout" if place == "-" else place)
        outputs.add_row(output, f"{counts.get(output, 0):,}", went)
    return Group(head, shown, outputs, *(Text(f"warning: {w}", style="yellow") for u in units for w in u.warnings()))


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 10 or not value else f"{value:.1f} ms"


def _last(unit: Progress) -> str:
    return _ms(unit.train_ms[-1]) if unit.train_ms else "-"
