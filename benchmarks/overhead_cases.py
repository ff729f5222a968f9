"""What the overhead benchmark runs: which diagram, protected how, with which window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from borealis import Diagram, window

COLUMNS = "ts TIMESTAMP, src INT, bytes INT"
Q2_COLUMNS = "k INT, v DOUBLE, ts TIMESTAMP"
LAST = "last"
NONE = "none"
INTERVALS_MS = (25, 100, 500, 1000)
SIZES_MS = (2000, 6000, 10000)
SLIDES_MS = (1000, 250, 50)
WARM_S = 6.0
GUARANTEES = {NONE: "none", "amnesia": "gap", "passive": "precise", "active": "precise", "upstream-backup": "precise"}
CLASSES = {"filter": "repeatable", "aggregate": "convergent-capable", "union": "arbitrary"}  # of the diagrams
INPUTS = {"union": ("packets", "others")}


@dataclass(frozen=True)
class Case:
    """One deployment."""

    experiment: str
    diagram: str
    approach: str = NONE
    interval_ms: int | None = None
    size_ms: int = 20_000
    slide_ms: int = 1_000
    kill: bool = False  # at the end, to see how much is computed again

    @property
    def guarantee(self) -> str:
        """The most that the approach can give."""
        return GUARANTEES[self.approach]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Of the diagram."""
        return INPUTS.get(self.diagram, ("packets",))

    @property
    def ahead_s(self) -> float:
        """So much of its input comes at once, to fill its windows."""
        return self.size_ms / 1000 if self.diagram == "aggregate" else 0.0

    @property
    def warm_s(self) -> float:
        """Until it runs as it will."""
        return WARM_S + (self.size_ms / 1000 if self.diagram == "q2" else 0.0)

    def bare(self) -> Case:
        """The same without protection."""
        return replace(self, approach=NONE, interval_ms=None, kill=False)

    def draw(self) -> Diagram:
        """Its diagram, with a box named `last` at the end."""
        d = Diagram(f"{self.diagram}-{self.approach}")
        if self.diagram == "q2":
            rows = d.input("packets", Q2_COLUMNS, time="ts")
            over = window("10 seconds", "1 second")
            rows.aggregate(by="k", over=over, n="count(*)", total="sum(v)", name=LAST).output(LAST)
            return d
        packets = d.input("packets", COLUMNS, time="ts")
        if self.diagram == "filter":
            packets.filter("bytes >= 0", name=LAST).output(LAST)
        elif self.diagram == "union":
            packets.union(d.input("others", COLUMNS, time="ts"), name=LAST).output(LAST)
        else:
            over = window(f"{self.size_ms} ms", f"{self.slide_ms} ms")
            packets.aggregate(by="src", over=over, n="count(*)", name=LAST).output(LAST)
        return d


def approaches(diagrams: Sequence[str], wanted: Sequence[str], intervals: Sequence[int]) -> list[list[Case]]:
    """Groups to measure between two runs without protection: Hwang's figures 3.6 to 3.8 and table 3.6."""
    groups = []
    for diagram in diagrams:
        cases = [
            Case("approaches", diagram, approach, interval)
            for approach in wanted
            for interval in ((None,) if approach == "amnesia" else intervals)
        ]
        half = (len(cases) + 1) // 2
        groups += [cases[:half], cases[half:]]
    return groups


def windows(wanted: Sequence[str], sizes: Sequence[int]) -> list[list[Case]]:
    """State size varied, at one rate of change: table 3.7."""
    kept = [one for one in wanted if one in ("passive", "upstream-backup")]
    return [[Case("window", "aggregate", one, None, size, 250, kill=True) for one in kept] for size in sizes]


def slides(wanted: Sequence[str], steps: Sequence[int]) -> list[list[Case]]:
    """Rate of change varied, at one state size: table 3.8."""
    kept = [one for one in wanted if one in ("passive", "upstream-backup")]
    return [[Case("slide", "aggregate", one, None, 4_000, step, kill=True) for one in kept] for step in steps]


def q2(times: int) -> list[list[Case]]:
    """Passive standby on Q2 of the engine benchmark, by turns with none."""
    return [[Case("q2", "q2", "passive", 500, 10_000)] for _ in range(times)]
