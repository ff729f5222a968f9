"""What arrivals and kills come to: pure sums, the same for our cluster and for plain Structured Streaming."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .recovery_packets import Counts, Key

IN_FLIGHT_S = 0.15  # what left the dead process before the kill may still arrive so long after it
TOLD_NATIVE = "native-restart"


@dataclass
class Arrivals:
    """What a client saw: when something new came, and every result with how often it came."""

    when: list[float] = field(default_factory=list)  # monotonic seconds of each batch with at least one new result
    seen: dict[Key, int] = field(default_factory=dict)  # the last value of each result
    repeated: int = 0  # results that came again

    def add(self, at: float, results: Sequence[tuple[Key, int]]) -> None:
        """A batch of results."""
        before = len(self.seen)
        for key, value in results:
            self.repeated += key in self.seen
            self.seen[key] = value
        if len(self.seen) > before:
            self.when.append(at)


@dataclass(frozen=True)
class Checked:
    """Results beside what they should have been."""

    duplicates: int
    lost: int
    wrong: int  # with another value, or such as should not have come


def check(arrivals: Arrivals, expected: Counts) -> Checked:
    """Exact: every expected result once, with its value, and no other."""
    lost = sum(key not in arrivals.seen for key in expected)
    wrong = sum(expected.get(key) != value for key, value in arrivals.seen.items())
    return Checked(arrivals.repeated, lost, wrong)


def silence_ms(when: Sequence[float], killed: float, in_flight_s: float = IN_FLIGHT_S) -> float:
    """From the last new result of the dead process to the first after it.

    Results that were on their way at the kill still arrive a moment later: the silence is the longest gap of those that
    begin with the last arrival before the kill, or within that moment.

    >>> silence_ms([0.0, 1.0, 1.04, 3.0, 9.0], killed=1.01)
    1960.0
    """
    before = [at for at in when if at <= killed]
    after = [at for at in when if at > killed]
    if not before or not after:
        raise ValueError("nothing came before the kill" if not before else "nothing came after the kill")
    gaps = [(b - a) for a, b in pairwise([before[-1], *after]) if a <= killed + in_flight_s]
    return round(max(gaps) * 1000, 1)


def gaps_ms(when: Sequence[float], since: float, until: float) -> list[float]:
    """The gaps between new results while nothing failed."""
    inside = [at for at in when if since <= at <= until]
    return [(b - a) * 1000 for a, b in pairwise(inside)]


def line(approach: str, guarantee: str, diagram: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """One object of the result; figures that a run does not have are None."""
    silences = [round(one, 1) for one in found["silences"]]
    natural = sorted(found["gaps"])
    spans = {part: _median(found.get(part, ())) for part in ("detection_ms", "takeover_ms", "reprocess_ms")}
    return {
        "approach": approach,
        "guarantee": guarantee,
        "diagram": diagram,
        "kills": len(silences),
        "silence_ms": silences,
        "silence_ms_p50": _median(silences),
        "silence_ms_max": max(silences, default=None),
        **spans,
        "natural_gap_ms_p50": _median(natural),
        "natural_gap_ms_p99": round(natural[int(len(natural) * 0.99)], 1) if natural else None,
        "train_ms": _median(found.get("train_ms", ())),
        "duplicates": found["duplicates"],
        "lost": found["lost"],
        "wrong": found["wrong"],
        "results": found["results"],
        "ratio_to_native": None,
        "interval_ms": found.get("interval_ms"),
        "data": found["data"],
        "note": found.get("note", ""),
    }


def with_ratios(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each silence's median under the native one of the same query."""
    native = {one["diagram"]: one["silence_ms_p50"] for one in lines if one["approach"] == TOLD_NATIVE}
    made = []
    for one in lines:
        theirs, ours = native.get(one["diagram"]) or next(iter(native.values()), None), one["silence_ms_p50"]
        made.append(one | {"ratio_to_native": round(theirs / ours, 1) if theirs and ours else None})
    return made


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 1) if values else None
