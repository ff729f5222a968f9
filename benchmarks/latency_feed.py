"""Rows that are born by the clock, and how old their results are on arrival: what `bench latency` feeds and times by.

A hundredth of a second's worth of rows is due every hundredth of a second, from a whole second on. A row's birth is
when it is due, not when it is handed over: a source that is held up makes its rows older, and hides nothing. Births are
the rows' event time as well, so a window closes with the row that is born at its very end, and the age of a window's
result is counted from there.
"""

# no package and no relative imports: jobs that are run by their path use it, too

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

TICK_US = 10_000
SECOND_US = 1_000_000
WINDOW_US = 100_000
WINDOW = "100 milliseconds"
KEYS = 10
KEPT_ROWS = 0.9  # of all, by the filter
COLUMNS = "born BIGINT, k INT, v INT, ts TIMESTAMP"
FILTER = "v > 0"
SCHEMA = pa.schema([("born", pa.int64()), ("k", pa.int32()), ("v", pa.int32()), ("ts", pa.timestamp("us", "UTC"))])
FIRST_S = 120.0  # for the first results: a JVM, a session and a query start
DRAIN_S = 5.0  # behind a phase's last row; what is not there by then was not kept up with
NEAR = 0.98  # of the rows that should have been offered


@dataclass(frozen=True)
class Phase:
    """Rows at one rate: `warm_s` seconds that are not counted, `seconds` that are, and `more_s` that are not."""

    rows_per_s: int
    warm_s: int
    seconds: int
    more_s: int = 0

    @property
    def counted_us(self) -> int:
        """From its first row to the last that counts."""
        return (self.warm_s + self.seconds) * SECOND_US

    @property
    def whole_us(self) -> int:
        """From its first row to its end."""
        return self.counted_us + self.more_s * SECOND_US

    def last_us(self, windowed: bool) -> int:
        """The birth, counted from the start, that the last result has that counts."""
        return self.counted_us - (WINDOW_US if windowed else TICK_US)

    def given(self) -> dict[str, int]:
        """As JSON, for a job."""
        return asdict(self)


def now_us() -> int:
    """By the wall, as the rows' times are."""
    return time.time_ns() // 1000


def next_second(at_us: int) -> int:
    """The first whole second that is at least a fifth of one ahead.

    >>> next_second(1_100_000), next_second(1_900_000)
    (2000000, 3000000)
    """
    return math.ceil((at_us + SECOND_US // 5) / SECOND_US) * SECOND_US


def ticks(phase: Phase, start_us: int) -> Iterator[tuple[int, int, int]]:
    """When the rows are due, the number of the first, and how many; never early. Gives up at twice the time."""
    count = phase.rows_per_s * TICK_US // SECOND_US
    for number in range(phase.whole_us // TICK_US):
        due = start_us + number * TICK_US
        if (left := due - now_us()) > 0:
            time.sleep(left / SECOND_US)
        elif -left > phase.whole_us:
            return
        yield due, number * count, count


def batch(born_us: int, first: int, count: int) -> pa.RecordBatch:
    """The rows of a tick: of every ten, the filter takes one away, and the rest are of one key."""
    number = np.arange(first, first + count)
    columns = [
        pa.array(np.full(count, born_us)),
        pa.array((number // 10 % KEYS).astype(np.int32)),
        pa.array((number % 10).astype(np.int32)),
        pa.array(np.full(count, born_us)).cast(SCHEMA.field("ts").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def records(born_us: int, first: int, count: int) -> list[bytes]:
    """The same as JSON."""
    at = datetime.fromtimestamp(born_us / SECOND_US, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return [
        f'{{"born":{born_us},"k":{number // 10 % KEYS},"v":{number % 10},"ts":"{at}"}}'.encode()
        for number in range(first, first + count)
    ]


class Ages:
    """What arrived when: births of results, and how many rows each result stands for."""

    def __init__(self) -> None:
        self.newest = 0  # birth
        self._changed = threading.Condition()
        self._taken: list[tuple[int, np.ndarray, np.ndarray]] = []

    def take(self, at_us: int, births: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Results that arrived together."""
        if len(births):
            with self._changed:
                self._taken.append((at_us, births, np.ones(len(births), np.int64) if rows is None else rows))
                self.newest = max(self.newest, int(births.max()))
                self._changed.notify_all()

    def wait(self, newest: int, seconds: float) -> bool:
        """Until a result of that birth is there, or a later one."""
        with self._changed:
            return self._changed.wait_for(lambda: self.newest >= newest, seconds)

    def between(self, start_us: int, stop_us: int) -> tuple[np.ndarray, int]:
        """Ages in ms of the results that were born then, and how many rows they stand for; forgets all."""
        with self._changed:
            taken, self._taken = self._taken, []
        if not taken:
            return np.empty(0), 0
        births = np.concatenate([births for _, births, _ in taken])
        rows = np.concatenate([rows for _, _, rows in taken])
        at = np.repeat([at for at, _, _ in taken], [len(births) for _, births, _ in taken])
        mine = (births >= start_us) & (births < stop_us)
        return (at[mine] - births[mine]) / 1000, int(rows[mine].sum())


def take_batch(ages: Ages, at_us: int, rows: Any) -> None:
    """Results as Arrow: of windows, or row by row."""
    if "window_end" in rows.schema.names:
        ages.take(at_us, _numbers(rows, "window_end"), _numbers(rows, "n"))
    else:
        ages.take(at_us, _numbers(rows, "born"))


def _numbers(rows: Any, name: str) -> np.ndarray:
    column = rows.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", "UTC"))
    numbers = column.cast(pa.int64())
    return np.asarray(numbers.to_numpy() if isinstance(numbers, pa.ChunkedArray) else numbers.to_numpy(False))


def percentiles(ages_ms: np.ndarray, shares: Sequence[float]) -> list[float]:
    """For each share the smallest age that at least that share of the ages does not exceed."""
    ordered = np.sort(ages_ms)
    return [float(ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]) for share in shares]


def found(phase: Phase, start_us: int, ages: Ages, offered: int, cpu_s: float, drained: bool) -> dict[str, Any]:
    """A phase's figures; no ages if no result came. `offered`: the counted rows that were handed over in time."""
    counted_us = start_us + phase.warm_s * SECOND_US
    ages_ms, rows = ages.between(counted_us, start_us + phase.counted_us)
    p50, p90, p99, most = percentiles(ages_ms, (0.5, 0.9, 0.99, 1.0)) if len(ages_ms) else [None] * 4
    return {
        "rows_per_s": phase.rows_per_s,
        "p50_ms": _ms(p50),
        "p90_ms": _ms(p90),
        "p99_ms": _ms(p99),
        "max_ms": _ms(most),
        "results": len(ages_ms),
        "cpu_s_per_s": round(cpu_s * SECOND_US / phase.whole_us, 3),
        "offered_per_s": round(offered / phase.seconds),
        "received_per_s": round(rows / KEPT_ROWS / phase.seconds),
        "kept_up": drained and offered >= NEAR * phase.rows_per_s * phase.seconds,
    }


def _ms(age: float | None) -> float | None:
    return None if age is None else round(age, 2)


class Offer:
    """Counts what of a phase was handed over in time."""

    def __init__(self, phase: Phase, start_us: int) -> None:
        self._from, self._until = start_us + phase.warm_s * SECOND_US, start_us + phase.counted_us
        self.rows = 0

    def __call__(self, born_us: int, count: int) -> None:
        """Rows are handed over now."""
        if born_us >= self._from and now_us() <= self._until:
            self.rows += count


def feed(
    phases: Sequence[Phase],
    ages: Ages,
    windowed: bool,
    meter: Callable[[], Callable[[], float]],
    tell: Callable[[dict[str, Any]], None],
) -> Iterator[tuple[int, int, int]]:
    """All phases one after the other, as ticks for a source in this process; the first only warms up.

    Tells the figures of each. A phase begins when the one before has drained; where one was not kept up with, no other
    follows.
    """
    for number, phase in enumerate(phases):
        start_us = next_second(now_us())
        offer, used = Offer(phase, start_us), meter()
        for born_us, first, count in ticks(phase, start_us):
            yield born_us, first, count
            offer(born_us, count)
        cpu_s = used()
        drained = ages.wait(start_us + phase.last_us(windowed), DRAIN_S if number else FIRST_S)
        if number == 0:
            if not drained:
                raise TimeoutError(f"the warm-up's results were not there after {FIRST_S:.0f} s")
            ages.between(0, 0)
            continue
        one = found(phase, start_us, ages, offer.rows, cpu_s, drained)
        tell(one)
        if not one["kept_up"]:
            return
