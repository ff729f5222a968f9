"""Records to a topic without transactions: in order, and after a crash some of the last may be missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from borealis.connectors.kafka.brokers import Brokers, Presence, confluent
from borealis.errors import BorealisError

Headers = Sequence[tuple[str, str]]


class TopicSender:
    """Sends in the order of the calls, partition by partition. For one thread."""

    def __init__(self, brokers: Brokers, topic: str, what: str, kind: type[BorealisError]) -> None:
        confluent()
        self.topic, self.presence = topic, Presence(what, brokers, kind)
        self._brokers = brokers
        self._made: Any = None
        self._taken = 0  # records that the brokers have
        self._failed = ""

    def send(
        self, value: bytes | None, key: bytes | None = None, headers: Headers = (), partition: int | None = None
    ) -> None:
        """Hand a record to the library; `sync` waits for the brokers."""
        where = {} if partition is None else {"partition": partition}
        while True:
            try:
                self._producer.produce(
                    self.topic, value, key, headers=list(headers), on_delivery=self._delivered, **where
                )
                return
            except BufferError:  # very many at once
                self._wait()

    def sync(self) -> str:
        """Wait until the brokers have all records; why they refuse one, or nothing."""
        self._wait()
        why, self._failed = self._failed, ""
        return why

    def partitions(self) -> list[int]:
        """Of the topic, by their numbers; an error if there is none."""
        return sorted(self.presence.topic(self.topic, self._list_topics).partitions)

    @property
    def _producer(self) -> Any:
        if self._made is None:
            self._made = self.presence.client(
                "Producer",
                self.presence.heard,
                enable_idempotence=True,
                message_timeout_ms=0,  # we say how long
            )
        return self._made

    def _wait(self) -> None:
        taken = self._taken
        while self._made is not None and self._made.flush(self._brokers.timings.flush_s) and not self._failed:
            if self._taken == taken:
                self.presence.lost("no answer")
            taken = self._taken

    def _list_topics(self, *name: str) -> Any:
        ask = lambda: self._producer.list_topics(*name, timeout=self._brokers.timings.ask_s)  # noqa: E731
        return self.presence.ask(ask, lambda code: self.presence.lost(code.str()))

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed = self._failed or error.str()
        else:
            self._taken += 1
            self.presence.found()
