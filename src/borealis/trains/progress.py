"""What a run shows of itself while it runs and when it is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from borealis.clock import WALL, Clock
from borealis.connectors.source import LiveSource
from borealis.diagram.durations import about
from borealis.entry.admission import Cursor
from borealis.errors import plural
from borealis.tuples import FIRST_TIME, LAST_TIME

TRAINS_REMEMBERED = 2_000


@dataclass
class Progress:
    """Counts of one unit; the commit writes them, anyone may read them."""

    unit: str
    trains: int = 0
    rows_in: int = 0
    rows_out: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    state_bytes: int = 0
    errors: int = 0  # tuples that a box could not take
    last_error: str = ""
    refused: dict[str, int] = field(default_factory=dict)  # changes that were not made, by the arrow they are on
    jumps: int = 0  # how often ids of its inputs were left out, in recoveries upstream
    train_ms: deque[float] = field(default_factory=lambda: deque(maxlen=TRAINS_REMEMBERED))
    busy_s: float = 0.0  # that all of them took
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=20))  # when, rows_in
    resumed_after: int = 0  # the train a restarted run goes on after
    ends: tuple[Any, ...] = ()  # sources and sinks; those that can be cut off have a `note`
    live: dict[str, LiveSource] = field(default_factory=dict)  # sources that count what they cannot read
    rows_read: Callable[[], int] = lambda: 0  # from the sources, committed or not
    clock: Clock = WALL
    started: float = field(init=False)
    _noted: float = field(init=False)  # when the last train was

    def __post_init__(self) -> None:
        self.started = self._noted = self.clock.now()

    def note(self, rows_in: int, ms: float, cursors: dict[str, Cursor], state_bytes: int) -> None:
        """A train was committed."""
        self.trains += 1
        self.rows_in += rows_in
        self.cursors = cursors
        self.late = {name: c.late for name, c in cursors.items()}
        self.state_bytes = state_bytes
        self.train_ms.append(ms)
        now = self.clock.now()
        self.busy_s += min(ms / 1000, now - self._noted)  # it may have begun before the last one was over
        self._noted = now
        self.recent.append((now, self.rows_in))

    @property
    def dead_letters(self) -> dict[str, int]:
        """Records of each live input that could not be read, those of earlier starts included."""
        return {name: source.dead_letters.count for name, source in self.live.items()}

    def notes(self) -> list[str]:
        """What is wrong just now and may pass, such as a broker that is away."""
        return [note for end in self.ends if (note := getattr(end, "note", ""))]

    @property
    def seconds(self) -> float:
        return self.clock.now() - self.started

    @property
    def rate(self) -> float:
        """Input rows per second over the last trains."""
        if len(self.recent) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self.recent[0], self.recent[-1]
        return (n1 - n0) / max(t1 - t0, 1e-9)

    @property
    def held_by(self) -> str | None:
        """The input whose boundary is furthest back, when there is more than one to compare."""
        open_ = {n: c.boundary for n, c in self.cursors.items() if not c.ended}
        return min(open_, key=lambda n: open_[n]) if len(self.cursors) > 1 and open_ else None

    @property
    def lag_us(self) -> int | None:
        """How far the unit's boundary is behind the newest time seen."""
        newest = max((c.newest for c in self.cursors.values()), default=FIRST_TIME)
        boundary = min((c.boundary for c in self.cursors.values()), default=FIRST_TIME)
        if newest == FIRST_TIME or boundary == FIRST_TIME:
            return None
        return 0 if boundary == LAST_TIME else max(0, newest - boundary)

    def percentile(self, share: float) -> float:
        """Train time below which that share of the trains stayed, ms."""
        times = sorted(self.train_ms)
        return times[min(len(times) - 1, int(share * len(times)))] if times else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "trains": self.trains,
            "resumed_after_train": self.resumed_after,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "late": self.late,
            "dead_letters": self.dead_letters,
            "errors": self.errors,
            "refused": self.refused,
            "notes": self.notes(),
            "boundary_held_by": self.held_by,
            "lag_ms": None if self.lag_us is None else self.lag_us / 1000,
            "seconds": round(self.seconds, 3),
            "rows_per_second": round(self.rows_in / max(self.seconds, 1e-9)),
            "train_ms_p50": round(self.percentile(0.5), 1),
            "train_ms_p99": round(self.percentile(0.99), 1),
            "state_bytes": self.state_bytes,
        }

    def warnings(self) -> list[str]:
        """What a user should know although nothing failed."""
        late = [
            f"{n:,} late tuples on '{name}', up to {about(self.cursors[name].lateness)} behind the boundary: "
            f"raise its slack, or take them from the output '{name}.late'"
            for name, n in self.late.items()
            if n
        ]
        aside = []
        if self.errors:
            some = f"{plural(self.errors, 'tuple')} that a box cannot take {'is' if self.errors == 1 else 'are'}"
            last = f" (the last: {self.last_error})" if self.last_error else ""
            aside = [f"{some} aside{last}: see the output '{self.unit}.errors'"]
        aside += [
            f"{plural(n, 'change')} on '{name}' could not be made: see there" for name, n in self.refused.items() if n
        ]
        sources = [*self.live.values(), *(end for end in self.ends if end not in self.live.values())]
        theirs = [one for source in sources if hasattr(source, "warnings") for one in source.warnings()]
        return [*late, *aside, *theirs]
