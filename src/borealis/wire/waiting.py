"""What waits for the other side of a connection, and for how long."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from borealis.errors import WireError
from borealis.wire.problems import BROKEN, error_from
from borealis.wire.transport import Chunk, Reader, Writer


@dataclass(frozen=True)
class PeerTimings:
    """How long to wait for the other side, in seconds."""

    connect_s: float = 3.0
    answer_s: float = 30.0  # of an order
    silence_s: float = 10.0  # of a subscription; the server says something every second


def silent(address: str, seconds: float) -> WireError:
    return WireError(f"{address} has been silent for {seconds:g} s", hint="is it frozen, or the network broken?")


class Pushed:
    """What a server pushes in one call, chunk by chunk, until that ends, is cancelled, or falls silent."""

    def __init__(self, address: str, reader: Reader, silence_s: float) -> None:
        self.address, self._reader, self._silence_s = address, reader, silence_s
        self.schema: pa.Schema = reader.schema
        self.cancelled = False

    def read(self) -> Chunk | None:
        """The next chunk; None when there is none."""
        try:
            return self._reader.read(self._silence_s)
        except TimeoutError:
            raise silent(self.address, self._silence_s) from None
        except BROKEN as error:
            if self.cancelled:
                return None
            raise error_from(error, self.address) from None

    def cancel(self) -> None:
        """End it, from any thread."""
        self.cancelled = True
        self._reader.cancel()


class Talk:
    """A conversation: orders and answers, by turns. For one thread at a time."""

    def __init__(self, address: str, writer: Writer, reader: Reader) -> None:
        self.address, self._writer, self._reader = address, writer, reader
        self.late = False  # the last answer was

    def ask(self, name: str, body: bytes, within: float) -> bytes:
        """The answer to an order; after an error there is no other."""
        try:
            self._writer.write_metadata(name.encode() + b"\n" + body)
            chunk = self._reader.read(within)
        except TimeoutError:
            self.late = True
            self.cancel()
            text = f"{self.address} did not answer '{name}' within {within:g} s"
            raise WireError(text, hint="is it overloaded, or frozen?") from None
        except BROKEN as error:
            self.cancel()
            raise error_from(error, self.address) from None
        if chunk is None:
            self.cancel()
            raise WireError(f"{self.address} has ended the conversation")
        if chunk.app_metadata is None:
            raise WireError(f"{self.address} answered '{name}' without words")
        return bytes(chunk.app_metadata)

    def cancel(self) -> None:
        self._reader.cancel()
        with suppress(*BROKEN):  # left to Arrow, it would print that
            self._writer.close()
