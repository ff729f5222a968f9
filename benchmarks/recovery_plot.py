"""The recovery figures as a picture; matplotlib is wanted only here."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from borealis.errors import MachineError

PARTS = ("detection_ms", "takeover_ms", "reprocess_ms")


def refuse_without_matplotlib() -> None:
    """Before hours of measuring, not behind them."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MachineError("a plot needs matplotlib", hint="pip install 'borealis-spark[plot]', or leave out --plot")


def axes(wide: float, high: float, panels: int = 1) -> tuple[Any, Any]:
    """A figure without a screen, and its panels side by side."""
    refuse_without_matplotlib()
    import matplotlib  # type: ignore[import-not-found, unused-ignore]

    matplotlib.use("Agg")
    from matplotlib import pyplot  # type: ignore[import-not-found, unused-ignore]

    figure, panels_of = pyplot.subplots(1, panels, figsize=(wide * panels, high), squeeze=False, layout="constrained")
    return figure, panels_of


def plot(lines: Sequence[dict[str, Any]], to: str) -> None:
    """Each kill's silence as a dot, on a logarithmic axis; what the medians are made of beside it."""
    figure, ((left, right),) = axes(6.4, 4.0, panels=2)
    names = [f"{one['approach']}\n{one['diagram']}, {one['guarantee']}" for one in lines]
    for i, one in enumerate(lines):
        left.plot([i] * len(one["silence_ms"]), one["silence_ms"], "o", alpha=0.6)
        left.plot([i - 0.25, i + 0.25], [one["silence_ms_p50"]] * 2, "k-")
    left.set_yscale("log")
    left.set_ylabel("silence after kill -9, ms")
    below = [0.0] * len(lines)
    for part in PARTS:
        heights = [float(one[part] or 0.0) for one in lines]
        right.bar(range(len(lines)), heights, bottom=below, label=part.removesuffix("_ms"))
        below = [a + b for a, b in zip(below, heights, strict=True)]
    right.set_ylabel("median, ms")
    right.legend()
    for panel in (left, right):
        panel.set_xticks(range(len(lines)), names, fontsize=7, rotation=20)
    figure.savefig(Path(to), dpi=150)
