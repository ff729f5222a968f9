"""The overhead figures as a picture: cost against the interval, a panel for each kind of diagram."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .overhead_cases import CLASSES
from .recovery_plot import axes


def plot(lines: Sequence[dict[str, Any]], to: str) -> None:
    """Network solid, processor dashed, for each approach."""
    mine = [one for one in lines if one["experiment"] == "approaches" and one["interval_ms"]]
    shown = [name for name in CLASSES if any(one["diagram"] == name for one in mine)]
    figure, (panels,) = axes(4.6, 4.0, panels=max(1, len(shown)))
    for panel, diagram in zip(panels, shown, strict=False):
        for approach in dict.fromkeys(one["approach"] for one in mine):
            points = sorted(
                (one["interval_ms"], one["network_overhead_pct"], one["cpu_overhead_pct"])
                for one in mine
                if one["diagram"] == diagram and one["approach"] == approach
            )
            every, network, cpu = ([point[i] for point in points] for i in range(3))
            (drawn,) = panel.plot(every, network, "o-", label=f"{approach}, network")
            panel.plot(every, cpu, "s--", color=drawn.get_color(), label=f"{approach}, CPU")
        panel.set_title(f"{diagram} ({CLASSES[diagram]})", fontsize=9)
        panel.set_xscale("log")
        panel.set_xlabel("interval, ms")
        panel.set_ylabel("overhead, %")
        panel.legend(fontsize=6)
    figure.savefig(Path(to), dpi=150)
