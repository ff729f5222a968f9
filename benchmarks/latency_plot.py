"""The latency figures as a picture: ages against the rate, a panel for each path and query, a line for each engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .recovery_plot import axes


def plot(lines: Sequence[dict[str, Any]], to: str) -> None:
    """The median solid, the 99th percentile dashed; both axes logarithmic."""
    mine = [one for one in lines if one.get("p50_ms")]
    shown = list(dict.fromkeys((one["path"], one["query"]) for one in mine))
    figure, (panels,) = axes(4.2, 4.0, panels=max(1, len(shown)))
    for panel, (path, query) in zip(panels, shown, strict=False):
        here = [one for one in mine if (one["path"], one["query"]) == (path, query)]
        for engine, nodes in dict.fromkeys((one["engine"], one["nodes"]) for one in here):
            points = sorted(
                (one["rows_per_s"], one["p50_ms"], one["p99_ms"])
                for one in here
                if (one["engine"], one["nodes"]) == (engine, nodes)
            )
            rates, p50, p99 = ([point[i] for point in points] for i in range(3))
            label = f"{engine}, {nodes} node{'s' * (nodes > 1)}" if nodes else engine
            (drawn,) = panel.plot(rates, p50, "o-", label=f"{label}, p50")
            panel.plot(rates, p99, "s--", color=drawn.get_color(), label=f"{label}, p99")
        panel.set_title(f"{query}, {path}", fontsize=9)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("rows per second")
        panel.set_ylabel("age of a result, ms")
        panel.legend(fontsize=6)
    figure.savefig(Path(to), dpi=150)
