"""What carries calls between processes: Arrow Flight, or a simulation. What goes wrong raises one of `BROKEN`."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import pyarrow as pa

from borealis.wire.auth import Security


class Chunk(NamedTuple):
    """A batch, words, or both."""

    data: pa.RecordBatch | None
    app_metadata: pa.Buffer | None


class Reader(Protocol):
    """What the other side sends within one call, in order."""

    @property
    def schema(self) -> pa.Schema: ...

    def read(self, within: float) -> Chunk | None:
        """The next chunk; None behind the last. TimeoutError if none comes for so many seconds: the call is over."""

    def cancel(self) -> None:
        """End the call, from any thread; a `read` that waits raises or returns None."""


class Writer(Protocol):
    """What is sent to the other side within one call. For one thread at a time."""

    def write_with_metadata(self, batch: pa.RecordBatch, words: bytes) -> None: ...

    def write_metadata(self, words: bytes) -> None: ...

    def done_writing(self) -> None:
        """Nothing follows."""

    def close(self) -> None:
        """Wait for the end of the call; raises what the server said last."""


class Receipts(Protocol):
    """Words of the server within a call that puts batches."""

    def read(self) -> pa.Buffer | None: ...


class Transport(Protocol):
    """A connection to one node. Threads may share it; nothing is sent before the first call."""

    def action(self, name: str, body: bytes, within: float | None) -> list[bytes]: ...

    def exchange(self) -> tuple[Writer, Reader]:
        """Words and answers, by turns. What is written may be sent as late as its answer is read."""

    def get(self, ticket: bytes, within: float) -> Reader:
        """Returns with the schema; TimeoutError if that does not come within so many seconds."""

    def put(self, command: bytes, schema: pa.Schema) -> tuple[Writer, Receipts]: ...

    def close(self) -> None: ...


class QuietLine(Protocol):
    """An open line to a process on which nothing is said: it is cut the moment that process is gone."""

    def wait(self, seconds: float) -> bool:
        """For so long, or until the line is cut; whether it was."""

    def close(self) -> None: ...


class Network(Protocol):
    """Where connections come from."""

    def connect(self, address: str, security: Security, connect_s: float, silence_s: float) -> Transport: ...

    def line(self, address: str, within: float) -> QuietLine:
        """Connect to a process; ConnectionRefusedError where none listens, another OSError where no answer comes."""
