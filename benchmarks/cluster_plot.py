"""The figures of clusters as a picture; matplotlib is wanted only here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .recovery_plot import axes

PANELS = (("4.8", "servers", "servers"), ("4.9", "type_2_units", "units of type 2"), ("4.10", "load", "load"))


def plot(lines: Sequence[dict[str, Any]], to: str) -> None:
    """A panel for each figure of the paper: seconds that the death of a server would take."""
    figure, (panels,) = axes(5.0, 4.0, panels=len(PANELS))
    for panel, (number, across, title) in zip(panels, PANELS, strict=True):
        mine = [one for one in lines if one["figure"] == number]
        for assignment, schedule in dict.fromkeys((one["assignment"], one["schedule"]) for one in mine):
            some = [one for one in mine if (one["assignment"], one["schedule"]) == (assignment, schedule)]
            ys = [one["recovery_s"] for one in some]
            panel.plot([one[across] for one in some], ys, "o-", label=f"{assignment}, {schedule}")
        panel.set_xlabel(title)
        panel.set_ylabel("expected recovery, s")
        panel.set_title(f"figure {number}")
        panel.set_ylim(bottom=0)
        if mine:
            panel.legend(fontsize=7)
    figure.savefig(Path(to), dpi=150)
