"""Chains of one to four replicated units with a bound on delay, one of whose inputs is behind a proxy; the rows that
they are fed, by the clock, and what must come of them, in plain Python."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.client.client import Client
from borealis.sim.history import Counts, History, Row, Shape

START_US = 1_700_000_000_000_000
STEP_US = 5_000  # between two rows of an input, in stream time and by the clock
WINDOW_ROWS, WINDOWS = 100, 2  # of the third unit; so many of them are one of the fourth
TICK_S = 0.05
END_S = 60.0
INPUTS = "cab"  # of rows of one time, those of what the diagram names first go first: inputs, then boxes
BOXES = {
    "merged": "{union: {from: [a, b]}}",
    "joined": "{union: {from: [merged, c]}}",
    "counted": "{aggregate: {from: joined, size: 500 ms, exprs: {n: count(*), least: min(n)}}}",
    "summed": "{aggregate: {from: counted, size: 1 second, exprs: {n: sum(n), least: min(least)}}}",
}


def rows(name: str, first: int, stop: int) -> pa.RecordBatch:
    """Rows of an input: those of one time have numbers in the order of INPUTS."""
    i = np.arange(first, stop)
    times = pa.array(START_US + i * STEP_US).cast(pa.timestamp("us", "UTC"))
    return pa.record_batch({"ts": times, "n": pa.array(i * len(INPUTS) + INPUTS.index(name))})


def _merged(inputs: str, counts: Counts) -> list[Row]:
    return sorted((i * len(INPUTS) + INPUTS.index(name),) for name in inputs for i in range(counts[name]))


def _windows(size_rows: int, counts: Counts) -> list[Row]:
    """End, rows and least number of each window."""
    found: dict[int, list[int]] = {}
    for (n,) in _merged(INPUTS, counts):
        found.setdefault(n // len(INPUTS) // size_rows + 1, []).append(n)
    return [(START_US + end * size_rows * STEP_US, len(some), some[0]) for end, some in sorted(found.items())]


WINDOW_COLUMNS = ("window_end", "n", "least")
SHAPES = (  # no two rows are equal in the column by which they are in order: the order is all that it can be
    Shape(lambda counts: _merged("ab", counts), ("n",), order=0),
    Shape(lambda counts: _merged(INPUTS, counts), ("n",), order=0),
    Shape(lambda counts: _windows(WINDOW_ROWS, counts), WINDOW_COLUMNS, order=0),
    Shape(lambda counts: _windows(WINDOW_ROWS * WINDOWS, counts), WINDOW_COLUMNS, order=0),
)


@dataclass(frozen=True)
class Chain:
    """So many units in a row, both copies of each on neighbours among the nodes; `b` comes from behind a proxy."""

    length: int
    nodes: Sequence[str]  # of units and of the other inputs
    behind: str  # the node of `b`
    patience_s: int = 20

    @property
    def name(self) -> str:
        return f"chain{self.length}"

    @property
    def boxes(self) -> list[str]:
        """One for each unit."""
        return list(BOXES)[: self.length]

    @property
    def inputs(self) -> str:
        return INPUTS if self.length > 1 else "ab"

    @property
    def yaml(self) -> str:
        inputs = "".join(f"  {one}: {{columns: 'ts TIMESTAMP, n BIGINT', time: ts}}\n" for one in self.inputs)
        boxes = "".join(f"  {box}: {BOXES[box]}\n" for box in self.boxes)
        promise = f"{{ha: replicas, delay: 1 second, bucket: 50 ms, patience: {self.patience_s} seconds}}"
        begin = f"borealis: 1\nname: {self.name}\ninputs:\n{inputs}boxes:\n{boxes}"
        return f"{begin}outputs:\n  out: {self.boxes[-1]}\nprotection: {promise}\n"

    @property
    def places(self) -> dict[str, Any]:
        """Where all of it is, as `deploy` wants it."""
        at = {box: self._node(number) for number, box in enumerate(self.boxes)}
        at |= {"a": self._node(-1), "b": self.behind} | ({"c": self._node(1)} if "c" in self.inputs else {})
        backup = {f"u{number + 1}": self._node(number + 1) for number in range(self.length)}
        return {"cut": self.boxes[1:], "place": at, "backup": backup}

    def _node(self, number: int) -> str:
        return self.nodes[number % len(self.nodes)]

    def history(self, reader: str) -> History:
        """An empty one of its output."""
        return History(f"{self.name}_{reader}", "out", SHAPES[self.length - 1], "replicas", "precise")


class Feed:
    """Publishes to all inputs, each in a thread of its own, whatever the clock says is due: one that was held up has
    more to send behind it."""

    def __init__(self, client: Client, chain: Chain, histories: Sequence[History]) -> None:
        self._histories, self._began = histories, time.monotonic()
        self._until: int | None = None  # the last row of all
        self._over = threading.Event()
        publish = self._publish
        ways = {name: client.publisher(f"{chain.name}/{name}") for name in chain.inputs}
        self._threads = [threading.Thread(target=publish, args=one, daemon=True) for one in ways.items()]
        for thread in self._threads:
            thread.start()

    @property
    def due(self) -> int:
        """Rows that each input shall have by now."""
        return int((time.monotonic() - self._began) * 1_000_000 / STEP_US)

    @property
    def moment(self) -> int:
        """The time of the next row."""
        return START_US + self.due * STEP_US

    def _publish(self, name: str, way: Any) -> None:
        sent = 0
        try:
            while not self._over.wait(TICK_S) or (self._until is not None and sent < self._until):
                stop = self._until or self.due
                if stop > sent:
                    way.send_batch(rows(name, sent, stop).cast(way.schema))
                    sent = stop
                    for history in self._histories:
                        history.published[name] = sent
            if self._until is not None:
                way.end()
                way.close(END_S)
            else:
                way.abandon()
        except Exception as error:
            for history in self._histories:
                history.trouble.append(f"the publisher of {name} failed: {error!r}")

    def finish(self) -> None:
        """All inputs come to the same row, and end."""
        self._until = self.due
        self.abandon()

    def abandon(self) -> None:
        """Publish nothing more."""
        self._over.set()
        for thread in self._threads:
            thread.join(END_S)
