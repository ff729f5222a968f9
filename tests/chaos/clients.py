"""The client of a case that publishes in small batches for as long as it goes on; `reader.py` reads all results."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from matrix import Deployed

from borealis.client.client import Client
from borealis.sim.history import History
from borealis.sim.shapes import ALL_GROUPS, START_US, STEP_US, rows

BATCH_ROWS = 200
TICK_S = 1.0  # a dozen units whose trains follow each other closely are more than two cores can bear
END_S = 60.0


class Feed:
    """Publishes to all inputs of several diagrams, in one thread, in small batches, until it is stopped."""

    def __init__(
        self, client: Client, diagrams: Sequence[Deployed], histories: Mapping[str, Sequence[History]]
    ) -> None:
        self.count = 0  # rows of each input so far
        self._histories = histories
        self._ways = {
            (one.name, name): client.publisher(f"{one.name}/{name}")
            for one in diagrams
            for name in ALL_GROUPS[one.group].inputs
        }
        self._stop, self._resting = threading.Event(), False
        self._thread = threading.Thread(target=self._publish, name="feed", daemon=True)
        self._thread.start()

    @property
    def moment(self) -> int:
        """The time of the next row."""
        return START_US + self.count * STEP_US

    @contextmanager
    def rest(self) -> Iterator[None]:
        """Publish nothing meanwhile."""
        self._resting = True
        try:
            yield
        finally:
            self._resting = False

    def _publish(self) -> None:
        while not self._stop.wait(TICK_S):
            if self._resting:
                continue
            first, stop = self.count, self.count + BATCH_ROWS
            for diagram, name in self._ways:
                self._give(diagram, name, first, stop)
            self.count = stop

    def _give(self, diagram: str, name: str, first: int, stop: int) -> None:
        way = self._ways[diagram, name]
        if way.failed:
            return
        way.send_batch(rows(name, first, stop).cast(way.schema))
        event = {"what": "published", "input": name, "rows": stop, "receipt": way.receipt.number}
        self._note(diagram, event)
        for history in self._histories[diagram]:
            history.published[name] = stop

    def _note(self, diagram: str, event: dict[str, Any]) -> None:
        for history in self._histories[diagram]:
            history.events.append({"at": time.time(), **event})

    def finish(self) -> None:
        """The end of all inputs; what could not be handed over is told."""
        self.stop()
        for way in self._ways.values():
            if not way.failed:
                way.end()
        for (diagram, name), way in self._ways.items():
            try:
                way.close(END_S)
            except Exception as error:
                for history in self._histories[diagram]:
                    history.trouble.append(f"the publisher of {name} failed: {error!r}")
            told = {"reconnects": way.reconnects, "forgotten": way.forgotten}
            self._note(diagram, {"what": "closed", "input": name, **told})

    def stop(self) -> None:
        """Publish nothing more."""
        self._stop.set()
        self._thread.join(END_S)

    def abandon(self) -> None:
        """Hang up."""
        self.stop()
        for way in self._ways.values():
            way.abandon()
