"""The clients of a case: one that publishes in small batches for as long as it goes on, one that reads all results."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pyarrow as pa
from history import History, Received
from matrix import Case
from shapes import SHAPES, START_US, STEP_US, rows

from borealis.emit.client import Client
from borealis.section import Section

BATCH_ROWS = 20
TICK_S = 0.05
END_S = 60.0


class Reader:
    """Reads an output from the oldest tuple to the end into a history."""

    def __init__(self, client: Client, case: Case, history: History) -> None:
        self.history, self.newest, self.ended = history, 0, threading.Event()
        self._subscription = client.subscribe(f"{case.name}/out", start="oldest", on_gap="continue")
        threading.Thread(target=self._read, name=f"reader {case.name}", daemon=True).start()

    def _read(self) -> None:
        try:
            for section in self._subscription.sections():
                self._take(section)
            self.history.ended = self._subscription.ended
        except BaseException as error:
            self.history.trouble.append(f"the reader failed: {error!r}")
        if self._subscription.gaps:
            self.history.trouble.append(f"{self._subscription.gaps} gaps, {self._subscription.lost} tuples lost")
        self.ended.set()

    def _take(self, section: Section) -> None:
        if not len(section):
            return
        times = section.time.tolist()
        columns = [_numbers(column) for column in section.rows.columns]
        for number, (at, row) in enumerate(zip(times, zip(*columns, strict=True), strict=True)):
            self.history.received.append(Received(section.first + number, at, row))
        self.newest = max(self.newest, *times)
        event = {"at": time.time(), "what": "received", "first": section.first, "rows": len(times), "time": times[-1]}
        self.history.events.append(event)

    def stop(self) -> None:
        """No more."""
        self._subscription.stop()


def _numbers(column: pa.Array) -> list[int]:
    return list((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())


class Feed:
    """Publishes to all inputs of several cases, in one thread, in small batches, until it is stopped."""

    def __init__(self, client: Client, cases: Sequence[Case], histories: Sequence[History]) -> None:
        self.count = 0  # rows of each input so far
        self._cases = list(zip(cases, histories, strict=True))
        self._ways = {
            (case.name, name): client.publisher(f"{case.name}/{name}")
            for case in cases
            for name in SHAPES[case.shape].inputs
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="feed", daemon=True)
        self._thread.start()

    @property
    def moment(self) -> int:
        """The time of the next row."""
        return START_US + self.count * STEP_US

    def _publish(self) -> None:
        while not self._stop.wait(TICK_S):
            first, stop = self.count, self.count + BATCH_ROWS
            for case, history in self._cases:
                self._give(case, history, first, stop)
            self.count = stop

    def _give(self, case: Case, history: History, first: int, stop: int) -> None:
        for name in SHAPES[case.shape].inputs:
            way = self._ways[case.name, name]
            if way.failed:
                continue
            batch = rows(case.shape, name, first, stop)
            way.send_batch(batch.cast(way.schema))
            history.published[name] = stop
            receipt = way.receipt.number
            event = {"at": time.time(), "what": "published", "input": name, "rows": stop, "receipt": receipt}
            history.events.append(event)

    def finish(self) -> None:
        """The last batch, and the end; what could not be handed over is told."""
        self.stop()
        for way in self._ways.values():
            if not way.failed:
                way.end()
        for case, history in self._cases:
            for name in SHAPES[case.shape].inputs:
                self._close(history, name, case)

    def _close(self, history: History, name: str, case: Case) -> None:
        way = self._ways[case.name, name]
        try:
            way.close(END_S)
        except Exception as error:
            history.trouble.append(f"the publisher of {name} failed: {error!r}")
        told = {"reconnects": way.reconnects, "forgotten": way.forgotten}
        history.events.append({"at": time.time(), "what": "closed", "input": name, **told})

    def stop(self) -> None:
        """Publish nothing more."""
        self._stop.set()
        self._thread.join(END_S)

    def abandon(self) -> None:
        """Hang up."""
        self.stop()
        for way in self._ways.values():
            way.abandon()
