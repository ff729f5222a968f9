"""A topic for dead letters: whoever reads it learns of every record that could not be read, and why."""

from __future__ import annotations

import time
from typing import Any

from borealis.errors import InputError
from borealis.ingest.sources.brokers import Address, Brokers, confluent, shown

OPTIONS = ("give_up",)
FLUSH_S = 0.5  # between looks at what is still under way


class LetterTopic:
    """Sends each letter as JSON, under its place as key. After a crash a letter may come twice, under the same key."""

    def __init__(self, url: str) -> None:
        address = Address.parse(url)
        address.check_options(OPTIONS)
        self.url = shown(url)
        self._brokers, self._topic = Brokers(address.brokers, address.settings, **address.options), address.topic
        self._kafka = confluent()
        self._producer: Any = None
        self._failed = ""

    def send(self, place: str, letter: bytes) -> None:
        """Put a letter on its way."""
        if self._producer is None:
            waits = {"enable.idempotence": True, "message.timeout.ms": 0}  # 0: we say how long
            self._producer = self._kafka.Producer(self._brokers.conf() | waits)
        while True:
            try:
                self._producer.produce(self._topic, letter, place.encode(), on_delivery=self._told)
                return
            except BufferError:  # very many at once
                self.sync()

    def sync(self) -> None:
        """Wait until the brokers have all letters: what stands behind them is handed on only then."""
        until = time.monotonic() + self._brokers.give_up_s
        while self._producer is not None and self._producer.flush(FLUSH_S) and not self._failed:
            if time.monotonic() > until:
                self._failed = f"no answer for {self._brokers.give_up}"
        if self._failed:
            why, self._failed = self._failed, ""
            raise InputError(
                f"cannot keep a record that could not be read, in {self.url}: {why}",
                hint="check the brokers and the topic, then start again: nothing is lost",
            )

    def _told(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed = self._failed or error.str()
