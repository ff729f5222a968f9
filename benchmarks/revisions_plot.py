"""The figures of corrections as a picture: what a history costs, and one correction behind more and more rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .recovery_plot import axes


def plot(lines: Sequence[dict[str, Any]], to: str) -> None:
    """Ratios to the query without a history, with what is asked as marks; milliseconds against rows on the right."""
    figure, ((left, right),) = axes(6.4, 4.0, panels=2)
    shares = [one for one in lines if one["query"] == "history" and one.get("ratio") is not None]
    left.bar(
        range(len(shares)), [one["ratio"] for one in shares], color=["C2" if one["met"] else "C3" for one in shares]
    )
    for i, one in enumerate(shares):
        asked = float(one["target"].rsplit(" ", 1)[1])
        left.plot([i - 0.4, i + 0.4], [asked, asked], "k--")
    left.set_xticks(range(len(shares)), [one["case"].replace(", ", "\n") for one in shares], fontsize=7)
    left.set_ylabel("rows/s, as a ratio to the query without a history")
    singles = [one for one in lines if one["query"] == "one"]
    for function in dict.fromkeys(one["function"] for one in singles):
        mine = [(one["history_rows"], one["ms"]) for one in singles if one["function"] == function]
        right.plot(*zip(*mine, strict=True), "o-", label=f"count and {function}")
    right.set_xscale("log")
    right.set_ylim(bottom=0)
    right.set_xlabel("rows of history")
    right.set_ylabel("one replacement, ms")
    right.legend()
    figure.savefig(Path(to), dpi=150)
