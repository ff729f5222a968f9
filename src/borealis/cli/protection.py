"""How protection is shown: who stands by for whom, how takeovers went, and loudly what is without."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rich.text import Text

from borealis.cli.screen import FittingTable, span
from borealis.wire.messages import Takeover
from borealis.wire.status import ProtectionView, Unprotected

GOOD = ("protected", "watching")


def promise(protection: ProtectionView | None) -> tuple[str, str]:
    """The backup's node, and what is promised."""
    if protection is None:
        return "-", "-"
    return protection.backup or "-", f"{protection.approach}, {protection.guarantee}"


def protection_table(rows: Iterable[tuple[str, ProtectionView]]) -> FittingTable:
    """One line for each unit or input that is protected."""
    left, right = ("protection", "how", "backup", "state"), ("incarnation", "behind", "recovery")
    table = FittingTable(left, right, ("incarnation", "behind", "recovery", "how"))
    for name, view in rows:
        backup, how = promise(view)
        alone = view.state == "alone"
        behind, recovery = span(1000 * view.stale_ms), f"~ {span(1000 * view.recovery_ms)}"
        figures = (str(view.incarnation), "-" if alone else behind, "-" if alone else recovery)
        table.add_row(name, how, backup, _state(view), *figures)
    return table


def _state(view: ProtectionView) -> Text:
    words = f"alone since {moment(view.since)}" if view.state == "alone" else view.state
    good = view.state in GOOD
    if view.why and not good:
        words += f": {view.why}"
    return Text(words, style="green" if good else "yellow" if view.state == "catching up" else "bold red")


def takeover_line(name: str, took: Takeover) -> str:
    """The story of a takeover.

    >>> took = Takeover(at=0, incarnation=2, primary="node2", detection_ms=240, takeover_ms=31, jumped=True)
    >>> takeover_line("u2", took)
    'u2 took over from node2 -: detection 240 ms, takeover 31 ms, reprocessing 0 ms; there is a gap in its ids'
    """
    parts = {"detection": took.detection_ms, "takeover": took.takeover_ms, "reprocessing": took.reprocess_ms}
    phases = ", ".join(f"{word} {span(1000 * ms)}" for word, ms in parts.items())
    gap = "; there is a gap in its ids" if took.jumped else ""
    return f"{name} took over from {took.primary or '?'} {moment(took.at)}: {phases}{gap}"


def unprotected_lines(exposed: Iterable[Unprotected]) -> list[Text]:
    """What is without the protection it was promised."""
    found = []
    for one in exposed:
        seconds = round(one.seconds)
        length = f"{seconds} s" if seconds < 60 else span(1e6 * seconds)
        line = f"UNPROTECTED: {one.what} of {one.diagram} for {length}: {one.why or one.state}"
        found.append(Text(line, style="bold white on red"))
    return found


def moment(seconds: float) -> str:
    """A time of the day, as clocks here show it."""
    if not seconds:
        return "-"
    try:
        return datetime.fromtimestamp(seconds).strftime("%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "-"
