"""A topic for dead letters: its readers learn of every record that could not be read, and why."""

from __future__ import annotations

from borealis.connectors.addresses import TopicAddress, shown
from borealis.connectors.kafka.brokers import GIVE_UP, Brokers
from borealis.connectors.kafka.sender import TopicSender
from borealis.errors import InputError

OPTIONS = ("give_up",)


class LetterTopic:
    """Sends each letter as JSON, its source and place as key. After a crash one may come twice, under the same key."""

    def __init__(self, url: str) -> None:
        address = TopicAddress.parse(url, OPTIONS)
        self.url = shown(url)
        brokers = Brokers(address.brokers, address.settings, address.options.get("give_up", GIVE_UP))
        self._sender = TopicSender(brokers, address.topic, f"dead letters for {self.url}", InputError)

    @property
    def note(self) -> str:
        """Whether its brokers are away now, and since when; empty if not."""
        return self._sender.presence.note

    def send(self, key: str, letter: bytes) -> None:
        """Hand a letter to the library; `sync` waits for the brokers."""
        self._sender.send(letter, key.encode())

    def sync(self) -> None:
        """Wait until the brokers have all letters: what stands behind them is handed on only then."""
        if why := self._sender.sync():
            raise InputError(
                f"cannot keep a record that could not be read, in {self.url}: {why}",
                hint="check the brokers and the topic, then start again: nothing is lost",
            )
