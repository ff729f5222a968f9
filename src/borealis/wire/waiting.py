"""What waits for the other side of a connection, and for how long: gRPC itself waits forever."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import flight

from borealis.errors import WireError
from borealis.machine import HERE
from borealis.wire.problems import BROKEN, error_from

WATCH_S = 0.1  # so often subscriptions and conversations are looked at


@dataclass(frozen=True)
class PeerTimings:
    """How long to wait for the other side, in seconds."""

    connect_s: float = 3.0
    answer_s: float = 30.0  # of an order
    silence_s: float = 10.0  # of a subscription; the server says something every second


def silent(address: str, seconds: float) -> WireError:
    return WireError(f"{address} has been silent for {seconds:g} s", hint="is it frozen, or the network broken?")


def first_answer(
    address: str, ask: Callable[[], flight.FlightStreamReader], seconds: float
) -> flight.FlightStreamReader:
    """The stream that was asked for. Flight waits for its first word without limit, even from a frozen machine."""
    is_late = False

    def asked() -> flight.FlightStreamReader | None:
        try:
            reader = ask()
        except BROKEN:
            if is_late:
                return None
            raise
        if is_late:
            reader.cancel()
        return reader

    try:
        return HERE.threads.start("wire-asked", asked).result(seconds)
    except TimeoutError:
        is_late = True
        raise silent(address, seconds) from None


class _Call:
    """A call in which this process waits for the server, each time until a deadline."""

    def __init__(self, address: str, reader: flight.FlightStreamReader) -> None:
        self.address, self._reader = address, reader
        self.late = False  # the last answer was
        self._until: float | None = None
        _WATCH.add(self)

    def check(self, now: float) -> None:
        """End it if the answer is late."""
        until = self._until
        if until is not None and now > until:
            self.late = True
            self._reader.cancel()


class Pushed(_Call):
    """What a server pushes in one call, chunk by chunk, until that ends, is cancelled, or falls silent."""

    def __init__(self, address: str, reader: flight.FlightStreamReader, silence_s: float) -> None:
        super().__init__(address, reader)
        self.schema: pa.Schema = reader.schema
        self.cancelled = False
        self._silence_s = silence_s

    def read(self) -> flight.FlightStreamChunk | None:
        """The next chunk; None when there is none."""
        self._until = time.monotonic() + self._silence_s
        try:
            return self._reader.read_chunk()
        except StopIteration:
            return None
        except BROKEN as error:
            if self.late:
                raise silent(self.address, self._silence_s) from None
            if self.cancelled:
                return None
            raise error_from(error, self.address) from None
        finally:
            self._until = None

    def cancel(self) -> None:
        """End it, from any thread."""
        self.cancelled = True
        self._reader.cancel()


class Talk(_Call):
    """A conversation: orders and answers, by turns. For one thread at a time."""

    def __init__(
        self, address: str, writer: flight.FlightStreamWriter, reader: flight.MetadataRecordBatchReader
    ) -> None:
        super().__init__(address, reader)
        self._writer = writer

    def ask(self, name: str, body: bytes, within: float) -> bytes:
        """The answer to an order; after an error there is no other."""
        self._until = time.monotonic() + within
        try:
            self._writer.write_metadata(name.encode() + b"\n" + body)
            words = self._reader.read_chunk().app_metadata
        except StopIteration:
            self.cancel()
            raise WireError(f"{self.address} has ended the conversation") from None
        except BROKEN as error:
            self.cancel()
            if self.late:
                text = f"{self.address} did not answer '{name}' within {within:g} s"
                raise WireError(text, hint="is it overloaded, or frozen?") from None
            raise error_from(error, self.address) from None
        finally:
            self._until = None
        if words is None:
            raise WireError(f"{self.address} answered '{name}' without words")
        return bytes(words)

    def cancel(self) -> None:
        self._reader.cancel()
        with suppress(*BROKEN):  # left to Arrow, it would print that
            self._writer.close()


class _Watch:
    """Ends the calls of this process that are late: gRPC waits forever for a machine that is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: weakref.WeakSet[_Call] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def add(self, call: _Call) -> None:
        with self._lock:
            self._watched.add(call)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._look, name="wire-watch", daemon=True)
                self._thread.start()

    def _look(self) -> None:
        while True:
            time.sleep(WATCH_S)
            with self._lock:
                watched = list(self._watched)
                if not watched:
                    self._thread = None
                    return
            for call in watched:
                call.check(time.monotonic())
            del watched, call


_WATCH = _Watch()
