"""The calls of a server: the host that they are for, those under way, and how their errors become answers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import flight

from borealis.errors import WireError
from borealis.machine import HERE, Machine
from borealis.streams.queue import OutputQueue
from borealis.wire.auth import HEADER, refused_token
from borealis.wire.messages import BatchHead, Receipt
from borealis.wire.problems import problem_of, refusal


class EntryHost(Protocol):
    """An entry point, as the wire sees it."""

    schema: pa.Schema

    def take(self, publisher: str, head: BatchHead, batch: pa.RecordBatch) -> Receipt:
        """Take a batch over; waits while there is no room. A number it has already is harmless."""

    def known(self, publisher: str) -> Receipt:
        """What it has of a publisher."""


class StreamHost(Protocol):
    """A node, as its server sees it."""

    def queue(self, stream: str) -> OutputQueue:
        """The queue of a stream; StreamError if there is none."""

    def entry(self, stream: str) -> EntryHost:
        """The entry point of a stream; StreamError if it is not here."""

    def act(self, action: str, body: bytes) -> bytes: ...

    def export(self, what: str, body: bytes) -> Iterator[bytes]:
        """Bytes for another node."""

    def deposed(self, stream: str, incarnation: int) -> None:
        """A reader has read this stream from a higher incarnation than is here."""


class Calls:
    """The calls under way that the server itself can end, and whether it is time."""

    def __init__(self, machine: Machine = HERE) -> None:
        self.closing = False
        self._busy = 0
        self._changed = machine.threads.condition()

    def enter(self) -> None:
        with self._changed:
            self._busy += 1

    def leave(self) -> None:
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()

    def busy(self) -> _Busy:
        """For as long as one is under way."""
        return _Busy(self)

    def check(self) -> None:
        """Raises when it is time to end."""
        if self.closing:
            raise WireError("the node is closing", hint="come back later, or ask the coordinator who serves this now")

    def close(self, seconds: float) -> int:
        """Let no call in, and wait for those under way; returns how many are left."""
        with self._changed:
            self.closing = True
            self._changed.wait_for(lambda: not self._busy, seconds)
            return self._busy


class _Busy:
    """Written out: every action passes here, and a generator costs more than the rest of it."""

    __slots__ = ("_calls",)

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def __enter__(self) -> None:
        self._calls.enter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._calls.leave()


class Door(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets a call in if it carries the token, where there is one, and the server is not closing."""

    def __init__(self, calls: Calls, token: str | None) -> None:
        super().__init__()
        self._calls, self._token = calls, token

    def start_call(self, info: Any, headers: dict[str, list[str | bytes]]) -> None:
        given = [g.encode("utf-8", "replace") if isinstance(g, str) else g for g in headers.get(HEADER, [])]
        if wrong := refused_token(given, self._token):
            problem = problem_of(WireError(wrong, hint="give the token of this cluster"))
            raise flight.FlightUnauthenticatedError(wrong, extra_info=problem.encode())
        try:
            self._calls.check()
        except WireError as error:
            raise refusal(error, "a call") from None


class Answering:
    """Errors inside become answers."""

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise refusal(error, self._doing) from None


def cut_connections(port: int) -> None:
    """Break what is connected to this port: Flight cannot end a call that waits for its peer to read or write."""
    for name in os.listdir("/dev/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:
            continue
        try:
            other = socket.socket(fileno=copy)
        except OSError:  # a file, a pipe
            os.close(copy)
            continue
        with other:
            try:
                if other.family in (socket.AF_INET, socket.AF_INET6) and other.getsockname()[1] == port:
                    other.getpeername()  # raises for the one that listens
                    other.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
