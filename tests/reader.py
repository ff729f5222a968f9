"""A client that reads an output of a real cluster from its beginning to its end, into a history that is judged."""

from __future__ import annotations

import threading
import time

from borealis.client.client import Client
from borealis.sim.history import History, Received, plain
from borealis.sim.invariants import Given
from borealis.streams.section import Section


class Reader:
    """Reads in a thread of its own. With `tentative`, it notes all that was given, and stable tuples as ever."""

    def __init__(self, client: Client, stream: str, history: History, *, tentative: bool = False) -> None:
        self.history, self.newest, self.ended = history, 0, threading.Event()
        self.given: list[Given] = []
        self.tentative = 0  # tuples so far
        self._subscription = client.subscribe(stream, start="oldest", on_gap="continue", tentative=tentative)
        threading.Thread(target=self._read, name=f"reader {stream}", daemon=True).start()

    @property
    def address(self) -> str:
        """Where it reads now."""
        return self._subscription.address

    def _read(self) -> None:
        try:
            for section in self._subscription.sections():
                self._take(section)
            self.history.ended = self._subscription.ended
        except BaseException as error:
            self.history.trouble.append(f"the reader failed: {error!r}")
        self.history.gaps = self._subscription.gaps
        self.ended.set()

    def _take(self, section: Section) -> None:
        self.given.append(Given.of(section, self._subscription.gaps, self._subscription.connection))
        what = "received"
        if section.undo or not section.stable:
            what = "undo" if section.undo else f"tentative, of fork {section.fork}"
            self.tentative += len(section)
        elif not len(section):
            return
        times = section.time.tolist()
        event = {"at": time.time(), "what": what, "first": section.first, "rows": len(times), "time": times[-1:]}
        self.history.events.append(event)
        if what != "received":
            return
        found = plain(section.rows, self.history.shape.columns)
        for number, (at, row) in enumerate(zip(times, found, strict=True)):
            self.history.received.append(Received(section.first + number, at, row))
        self.newest = max(self.newest, *times)

    def stop(self) -> None:
        """No more."""
        self._subscription.stop()
