"""Batches on their way to an entry point."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from borealis.errors import BorealisError, WireError
from borealis.wire.messages import BatchHead, Receipt
from borealis.wire.problems import BROKEN, error_from
from borealis.wire.service import BATCH_BYTES_MOST, columns
from borealis.wire.transport import Receipts, Writer

if TYPE_CHECKING:
    from borealis.wire.client import Peer


class Publication:
    """Batches on their way to an entry point. One thread sends; receipts come in beside it.

    `known` is what the entry point had of this publisher before: go on with the number behind it. A batch is safe when
    its receipt is there, not when `send` returns.
    """

    def __init__(self, peer: Peer, schema: pa.Schema, writer: Writer, receipts: Receipts) -> None:
        threads, self._clock = peer.machine.threads, peer.machine.clock
        self._peer, self._writer, self._receipts = peer, writer, receipts
        self.schema = schema
        self._writing = threads.lock()
        self._finished = False  # nothing more can be sent
        self._came = threads.condition()
        self._last: Receipt | None = None
        self._error: BorealisError | None = None
        self._over = False  # the server has ended the call
        threads.start("wire-receipts", self._listen)
        self.known = self._wait_for(lambda: self._last is not None, peer.timings.answer_s)

    @property
    def receipt(self) -> Receipt:
        return self._last or self.known

    def send(self, batch: pa.RecordBatch, head: BatchHead) -> None:
        """Send a batch; waits while the other side does not read."""
        if batch.nbytes > BATCH_BYTES_MOST:
            raise WireError(f"a batch of {batch.nbytes:,} bytes", hint=f"cut it: {BATCH_BYTES_MOST:,} at most")
        if not batch.schema.equals(self.schema):
            raise WireError(f"a batch of ({columns(batch.schema)})", hint=f"this sends ({columns(self.schema)})")
        try:
            with self._writing:
                if not self._finished:
                    self._writer.write_with_metadata(batch, head.encode())
                    return
        except BROKEN as error:
            raise self._reason(error_from(error, self._peer.address)) from None
        raise self._reason(WireError("this publication is closed"))

    def wait(self, number: int, within: float | None = None) -> Receipt:
        """Wait until all batches up to this number are taken over."""
        return self._wait_for(lambda: self.receipt.number >= number, within)

    def close(self, within: float | None = None) -> Receipt:
        """Wait until everything sent is taken over, and end. This does not end the stream: `BatchHead.end` does."""
        self._finish()
        with self._came:
            self._hear(lambda: self._over, within)
        if self._error is not None:
            raise self._error
        return self.receipt

    def __enter__(self) -> Publication:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.close()
        else:
            self._finish()

    def _finish(self) -> None:
        """Say that nothing follows; if that goes wrong, `_listen` hears why."""
        with self._writing, suppress(*BROKEN):
            if not self._finished:
                self._finished = True
                self._writer.done_writing()

    def _listen(self) -> None:
        """Take receipts until the server has ended the call, and learn how it ended."""
        try:
            while (data := self._receipts.read()) is not None:
                receipt = Receipt.decode(data)
                with self._came:
                    self._last = receipt
                    self._came.notify_all()
            with self._writing:
                self._finished = True
                self._writer.close()  # raises what the server said last
            self._end(None)
        except BROKEN as error:
            self._end(error_from(error, self._peer.address))
        except WireError as error:
            self._end(error)

    def _end(self, error: BorealisError | None) -> None:
        with self._came:
            self._error, self._over = error, True
            self._came.notify_all()

    def _wait_for(self, condition: Callable[[], bool], within: float | None) -> Receipt:
        with self._came:
            self._hear(lambda: self._over or condition(), within)
            if condition():
                return self.receipt
            raise self._error or WireError(f"{self._peer.address} ended the publication")

    def _hear(self, condition: Callable[[], bool], within: float | None) -> None:
        """Wait for something to be so. A full queue may take long; a node that is gone may not."""
        until = None if within is None else self._clock.now() + within
        while not condition():
            left = self._peer.timings.silence_s if until is None else until - self._clock.now()
            if left <= 0:
                raise WireError(f"{self._peer.address} did not take a batch over within {within:g} s")
            if not self._came.wait(min(left, self._peer.timings.silence_s)):
                self._came.release()
                try:
                    self._peer.probe()
                finally:
                    self._came.acquire()

    def _reason(self, seen: BorealisError) -> BorealisError:
        """Why nothing can be sent: what the server said, if it did."""
        with self._came:
            self._came.wait_for(lambda: self._over, self._peer.timings.connect_s)
            return self._error or seen
