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
from borealis.wire.problems import BROKEN, error_from

WATCH_S = 0.1  # so often subscriptions and conversations are looked at


@dataclass(frozen=True)
class PeerTimings:
    """How long to wait for the other side, in seconds."""

    connect_s: float = 3.0
    answer_s: float = 30.0  # of an order
    silence_s: float = 10.0  # of a subscription; the server says something every second


class Asked(threading.Thread):
    """A stream that was asked for. Flight waits for its first word without limit, even from a frozen machine."""

    def __init__(self, ask: Callable[[], flight.FlightStreamReader]) -> None:
        super().__init__(name="wire-asked", daemon=True)
        self._ask = ask
        self._came = threading.Condition()
        self._reader: flight.FlightStreamReader | None = None
        self._error: BaseException | None = None
        self._abandoned = False
        self.start()

    def run(self) -> None:
        """Wait for the first word."""
        try:
            reader, error = self._ask(), None
        except BaseException as failure:
            reader, error = None, failure
        with self._came:
            self._reader, self._error = reader, error
            self._came.notify_all()
            if self._abandoned and reader is not None:
                reader.cancel()

    def answer(self, seconds: float) -> flight.FlightStreamReader:
        """The stream; TimeoutError if nothing came in that time."""
        with self._came:
            if not self._came.wait_for(lambda: self._reader or self._error, seconds):
                self._abandoned = True
                raise TimeoutError
            if self._error is not None:
                raise self._error
            return self._reader


def silent(address: str, seconds: float) -> WireError:
    """What is said of it."""
    return WireError(f"{address} has been silent for {seconds:g} s", hint="is it frozen, or the network broken?")


class Pushed:
    """What a server pushes in one call, chunk by chunk, until that ends, is cancelled, or falls silent."""

    def __init__(self, address: str, reader: flight.FlightStreamReader, schema: pa.Schema, silence_s: float) -> None:
        self.address, self.schema = address, schema
        self.cancelled = False
        self._reader, self._silence_s = reader, silence_s
        self._waiting_since: float | None = None
        self._silent = False
        _WATCH.add(self)

    def read(self) -> flight.FlightStreamChunk | None:
        """The next chunk; None when there is none."""
        self._waiting_since = time.monotonic()
        try:
            return self._reader.read_chunk()
        except StopIteration:
            return None
        except BROKEN as error:
            if self._silent:
                raise silent(self.address, self._silence_s) from None
            if self.cancelled:
                return None
            raise error_from(error, self.address) from None
        finally:
            self._waiting_since = None

    def cancel(self) -> None:
        """End it, from any thread."""
        self.cancelled = True
        self._reader.cancel()

    def check(self, now: float) -> None:
        """End it if the other side has not spoken for long."""
        since = self._waiting_since
        if since is not None and now - since > self._silence_s:
            self._silent = True
            self._reader.cancel()


class Talk:
    """A conversation: orders and answers, by turns. For one thread at a time."""

    def __init__(
        self, address: str, writer: flight.FlightStreamWriter, reader: flight.MetadataRecordBatchReader
    ) -> None:
        self.address, self._writer, self._reader = address, writer, reader
        self.late = False  # the last answer was
        self._until: float | None = None
        _WATCH.add(self)

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
        """End it."""
        self._reader.cancel()
        with suppress(*BROKEN):  # left to Arrow, it would print that
            self._writer.close()

    def check(self, now: float) -> None:
        """End it if the answer is late."""
        if self._until is not None and now > self._until:
            self.late = True
            self._reader.cancel()


class _Watch:
    """Looks at all that this process waits for now and then: gRPC waits forever for a machine that is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: weakref.WeakSet[Pushed | Talk] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def add(self, pushed: Pushed | Talk) -> None:
        """From now on."""
        with self._lock:
            self._watched.add(pushed)
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
            for pushed in watched:
                pushed.check(time.monotonic())
            del watched, pushed


_WATCH = _Watch()
