"""How long a client hears nothing when a node is killed: `borealis bench recovery [--kills N] [--plot out.png]`.

Packets come in real time; the query counts those that are not empty by source, in windows of a second that end every 50
ms, so that results come many times a second. `kill -9` hits all processes of the node that runs the last unit, and no
other; it is started again, and when the unit is protected again the next kill comes. Silence is from the last new
result before to the first after it, at the client; results are checked against a plain count of what was sent.

Beside it: the same query in plain Structured Streaming, killed likewise, started again at once from its checkpoint.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from .measuring import Say, terminable
from .recovery_cluster import cluster, refuse_unknown
from .recovery_native import native
from .recovery_ours import DIAGRAMS, GUARANTEES, SIZE, SIZE_US, SLIDE, SLIDE_US, Trial
from .recovery_packets import packets
from .recovery_plot import plot, refuse_without_matplotlib
from .recovery_sums import TOLD_NATIVE, with_ratios

QUERIES = tuple(DIAGRAMS)  # `--only` and `--diagram` name the same
APPROACHES = (*GUARANTEES, TOLD_NATIVE)
NEEDED_KILLS = 5
SHOWN: tuple[str, ...] = (
    "approach",
    "diagram",
    "silence_ms_p50",
    "silence_ms_max",
    "detection_ms",
    "takeover_ms",
    "reprocess_ms",
)
SHOWN += ("natural_gap_ms_p50", "duplicates", "lost", "ratio_to_native", "note")  # in the table; JSON has all
START_S, TRIAL_S, KILL_S, NATIVE_S = 60, 30, 40, 30  # about, on two slow cores


@dataclass(frozen=True)
class Options:
    """What to measure."""

    only: tuple[str, ...] = ()
    runs: int = 3  # of other benchmarks; here kills are counted
    quick: bool = False
    kills: int = NEEDED_KILLS
    approach: tuple[str, ...] = ()
    diagram: tuple[str, ...] = ()
    interval: str | None = None
    plot: str | None = None

    @property
    def diagrams(self) -> tuple[str, ...]:
        """Which, and `aggregate` if nothing is said."""
        return self.diagram or self.only or ("aggregate",)

    @property
    def approaches(self) -> tuple[str, ...]:
        """Which."""
        return self.approach or APPROACHES

    @property
    def times(self) -> int:
        """How many kills of each."""
        return 2 if self.quick else self.kills


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """All figures."""
    _check(options)
    say(f"about {about_minutes(options)} minutes")
    data, began = packets(), time.monotonic()
    say(f"packets: {data.where_from}")
    with terminable():
        lines = _ours(options, data, say)
        if TOLD_NATIVE in options.approaches:
            lines.append(native("aggregate", options.times, data, (SIZE, SIZE_US), (SLIDE, SLIDE_US), say))
    lines = with_ratios(lines)
    say(f"took {(time.monotonic() - began) / 60:.1f} minutes")
    if options.plot:
        plot(lines, options.plot)
    return lines


def _ours(options: Options, data: Any, say: Say) -> list[dict[str, Any]]:
    mine = [one for one in options.approaches if one != TOLD_NATIVE]
    if not mine:
        return []
    with cluster(say) as running:
        return [
            Trial(running, diagram, approach, options.interval, data).run(options.times, say)
            for diagram in options.diagrams
            for approach in mine
        ]


def about_minutes(options: Options) -> int:
    """So that nobody waits without knowing for how long."""
    ours = len([one for one in options.approaches if one != TOLD_NATIVE]) * len(options.diagrams)
    seconds = ours * (TRIAL_S + KILL_S * options.times) + (START_S if ours else 0)
    seconds += (NATIVE_S * (options.times + 1)) if TOLD_NATIVE in options.approaches else 0
    return max(1, round(seconds / 60))


def _check(options: Options) -> None:
    refuse_unknown("approach", options.approaches, APPROACHES)
    refuse_unknown("diagram", options.diagrams, QUERIES)
    if options.plot:
        refuse_without_matplotlib()
