"""The owner of the streams and entry points that a Flight server serves, as the server sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from borealis.streams.queue import OutputQueue
from borealis.wire.messages import BatchHead, Receipt


class EntryHost(Protocol):
    """An entry point, as the wire sees it."""

    schema: pa.Schema

    def take(self, publisher: str, head: BatchHead, batch: pa.RecordBatch) -> Receipt:
        """Take a batch over; waits while there is no room. A number it has already is harmless."""

    def known(self, publisher: str) -> Receipt:
        """What it has of a publisher."""


class StreamHost(Protocol):
    """A node, as its Flight server sees it."""

    def queue(self, stream: str) -> OutputQueue:
        """The queue of a stream; StreamError if there is none."""

    def entry(self, stream: str) -> EntryHost:
        """The entry point of a stream; StreamError if it is not here."""

    def act(self, action: str, body: bytes) -> bytes:
        """Carry out an order."""

    def export(self, what: str, body: bytes) -> Iterator[bytes]:
        """Bytes for another node."""

    def deposed(self, stream: str, incarnation: int) -> None:
        """A reader has read this stream from a higher incarnation than is here."""
