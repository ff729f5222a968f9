"""The calls of a Flight server that are under way, how their errors become answers, and how they end."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyarrow import flight

from borealis.errors import WireError
from borealis.wire.problems import refusal


class Calls:
    """The calls under way that the server itself can end, and whether it is time."""

    def __init__(self) -> None:
        self.closing = False
        self._busy = 0
        self._changed = threading.Condition()

    def enter(self) -> None:
        with self._changed:
            self._busy += 1

    def leave(self) -> None:
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """For as long as it takes."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def check(self) -> None:
        """Raises when it is time to end."""
        if self.closing:
            raise WireError("the node is closing", hint="come back later, or ask the coordinator who serves this now")

    def close(self, seconds: float) -> int:
        """Let nobody in, and wait for those inside; returns how many are left."""
        with self._changed:
            self.closing = True
            self._changed.wait_for(lambda: not self._busy, seconds)
            return self._busy


class Door(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets no call in when the server closes."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def start_call(self, info: Any, headers: Any) -> None:
        """Raises when it is too late."""
        try:
            self._calls.check()
        except WireError as error:
            raise refusal(error, "a call") from None


@contextmanager
def answering(doing: str) -> Iterator[None]:
    """Errors inside become answers."""
    try:
        yield
    except (StopIteration, GeneratorExit):
        raise
    except Exception as error:
        raise refusal(error, doing) from None


def is_open(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        with socket.create_connection((host, port), 1.0):
            return True
    except OSError:
        return False


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
