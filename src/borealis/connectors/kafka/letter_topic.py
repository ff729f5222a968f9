"""A topic for dead letters: its readers learn of every record that could not be read, and why."""

from __future__ import annotations

from typing import Any

from borealis.connectors.addresses import TopicAddress, shown
from borealis.connectors.kafka.brokers import GIVE_UP, Brokers, Presence, confluent
from borealis.errors import InputError

OPTIONS = ("give_up",)


class LetterTopic:
    """Sends each letter as JSON, its source and place as key. After a crash one may come twice, under the same key."""

    def __init__(self, url: str) -> None:
        address = TopicAddress.parse(url, OPTIONS)
        self.url = shown(url)
        give_up = address.options.get("give_up", GIVE_UP)
        self._brokers, self._topic = Brokers(address.brokers, address.settings, give_up), address.topic
        self._presence = Presence(f"dead letters for {self.url}", self._brokers, InputError)
        confluent()
        self._producer: Any = None
        self._taken = 0  # letters that the brokers have
        self._failed = ""

    @property
    def note(self) -> str:
        """Whether its brokers are away now, and since when; empty if not."""
        return self._presence.note

    def send(self, key: str, letter: bytes) -> None:
        """Hand a letter to the library; `sync` waits for the brokers."""
        if self._producer is None:
            self._producer = self._presence.client(
                "Producer",
                self._presence.heard,
                enable_idempotence=True,
                message_timeout_ms=0,  # we say how long
            )
        while True:
            try:
                self._producer.produce(self._topic, letter, key.encode(), on_delivery=self._delivered)
                return
            except BufferError:  # very many at once
                self.sync()

    def sync(self) -> None:
        """Wait until the brokers have all letters: what stands behind them is handed on only then."""
        taken = self._taken
        while self._producer is not None and self._producer.flush(self._brokers.timings.flush_s) and not self._failed:
            if self._taken == taken:
                self._presence.lost("no answer")
            taken = self._taken
        if self._failed:
            why, self._failed = self._failed, ""
            raise InputError(
                f"cannot keep a record that could not be read, in {self.url}: {why}",
                hint="check the brokers and the topic, then start again: nothing is lost",
            )

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed = self._failed or error.str()
        else:
            self._taken += 1
            self._presence.found()
