"""How protection is shown: who stands by for whom, how takeovers went, and loudly what is without."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from rich.text import Text

from borealis.cli.tables import FittingTable
from borealis.cli.words import span

Facts = dict[str, Any]
GOOD = ("protected", "watching")


def promise(protection: Facts | None) -> tuple[str, str]:
    """The backup's node, and what is promised."""
    if not protection:
        return "-", "-"
    return str(protection.get("backup") or "-"), f"{protection.get('approach')}, {protection.get('guarantee')}"


def protection_table(rows: Iterable[tuple[str, Facts]]) -> FittingTable:
    """One line for each unit or input that is protected."""
    left, right = ("protection", "how", "backup", "state"), ("incarnation", "behind", "recovery")
    table = FittingTable(left, right, ("incarnation", "behind", "recovery", "how"))
    for name, facts in rows:
        backup, how = promise(facts)
        alone = facts.get("state") == "alone"
        table.add_row(
            name,
            how,
            backup,
            _state(facts),
            str(facts.get("incarnation", "-")),
            "-" if alone else span(1000 * float(facts.get("stale_ms") or 0)),
            "-" if alone else f"~ {span(1000 * float(facts.get('recovery_ms') or 0))}",
        )
    return table


def _state(facts: Facts) -> Text:
    state = str(facts.get("state") or "-")
    said = f"alone since {moment(facts.get('since'))}" if state == "alone" else state
    if facts.get("why") and state not in GOOD:
        said += f": {facts['why']}"
    return Text(said, style="green" if state in GOOD else "yellow" if state == "catching up" else "bold red")


def takeover_line(name: str, takeover: Facts) -> str:
    """The story of a takeover.

    >>> takeover_line("u2", {"primary": "node2", "at": None, "detection_ms": 240, "takeover_ms": 31, "jumped": True})
    'u2 took over from node2 -: detection 240 ms, takeover 31 ms, reprocessing 0 ms; there is a gap in its ids'
    """
    parts = {"detection": "detection_ms", "takeover": "takeover_ms", "reprocessing": "reprocess_ms"}
    told = ", ".join(f"{word} {span(1000 * float(takeover.get(key) or 0))}" for word, key in parts.items())
    gap = "; there is a gap in its ids" if takeover.get("jumped") else ""
    return f"{name} took over from {takeover.get('primary') or '?'} {moment(takeover.get('at'))}: {told}{gap}"


def unprotected_lines(exposed: Iterable[Facts]) -> list[Text]:
    """What is without the protection it was promised."""
    found = []
    for one in exposed:
        seconds = round(float(one.get("seconds") or 0))
        said = f"{seconds} s" if seconds < 60 else span(1e6 * seconds)
        what, why = f"{one.get('what')} of {one.get('diagram')}", one.get("why") or one.get("state")
        found.append(Text(f"UNPROTECTED: {what} for {said}: {why}", style="bold white on red"))
    return found


def moment(seconds: Any) -> str:
    """A time of the day, as clocks here show it."""
    if not seconds:
        return "-"
    try:
        return datetime.fromtimestamp(float(seconds)).strftime("%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "-"
