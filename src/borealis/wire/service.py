"""What a node answers to calls, whatever network carries them: streams, publications, orders."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Protocol, Self

import pyarrow as pa

from borealis.clock import Clock
from borealis.errors import StreamError, WireError
from borealis.machine import HERE, Machine
from borealis.streams.section import empty_rows
from borealis.wire.calls import Answering, Calls, StreamHost
from borealis.wire.feed import FeedTimings, ServedFeed
from borealis.wire.messages import Ack, Acknowledgements, BatchHead, Done, Export, Publish, Subscribe
from borealis.wire.problems import arriving
from borealis.wire.transport import Chunk

BATCH_BYTES_MOST = 64 << 20  # of one published batch
MESSAGE_BYTES_MOST = 8 << 20  # of an order
PARCEL_BYTES_MOST = 1 << 30  # of what primaries send to their backups: whole states, at times
NAME_BYTES_MOST = 64  # of an order
PIECE_BYTES_MOST = 1 << 20  # of an export
PIECES = pa.schema([pa.field("data", pa.binary(), nullable=False)])
GIVE_BACK_S = 0.5  # after a message was refused for its size, when nothing holds it any more


class Outgoing(Protocol):
    """What is pushed to a reader, with words or without."""

    def __iter__(self) -> Self: ...

    def __next__(self) -> tuple[pa.RecordBatch, bytes] | pa.RecordBatch: ...

    def close(self) -> None:
        """The reader is gone, or has all."""


class Service:
    """A host's side of each call, checked and passed on; everything that goes wrong is raised as a Problem."""

    def __init__(self, host: StreamHost, timings: FeedTimings | None = None, machine: Machine = HERE) -> None:
        self._host, self._timings, self._machine = host, timings or FeedTimings(), machine
        self.calls = Calls(machine)
        self.turns: dict[tuple[str, str], object] = {}  # by stream and named reader: whose subscription counts

    def get(self, ticket: bytes, is_cancelled: Callable[[], bool]) -> tuple[pa.Schema, Outgoing]:
        """A subscription or an export. What is returned must be closed."""
        with Answering("a ticket"):
            if _is_export(ticket):
                return PIECES, self._pieces(Export.decode(ticket))
            wanted, machine = Subscribe.decode(ticket), self._machine
            feed = ServedFeed(self._host, self.calls, self.turns, self._timings, is_cancelled, wanted, machine)
            return feed.schema, feed

    def put(
        self, command: bytes, schema: pa.Schema, read: Callable[[], Chunk | None], write: Callable[[bytes], None]
    ) -> None:
        """A publication: a receipt at once, then one for each batch. `read` returns None behind the last."""
        doing = "a publication"
        with Answering(doing):
            publish = Publish.decode(command)
            entry = self._host.entry(publish.stream)
            with arriving(doing):
                _check_columns(publish.stream, schema, entry.schema)
            receipt = entry.known(publish.publisher)
            while True:
                with arriving(doing):
                    write(receipt.encode())
                    if (chunk := read()) is None:
                        return
                    head, batch = published(publish.stream, chunk, entry.schema, self._machine)
                self.calls.check()
                with self.calls.busy():
                    receipt = entry.take(publish.publisher, head, batch)

    def act(self, name: str, body: bytes | pa.Buffer) -> bytes:
        """An order, and the answer to it."""
        with Answering("an action"):
            self.calls.check()
            with self.calls.busy():
                return self._act(name, body)

    def converse(self, read: Callable[[], Chunk | None], write: Callable[[bytes], None]) -> None:
        """Orders one after the other, each answered before the next; half the price of actions."""
        doing = "a conversation"
        with Answering(doing):
            while True:
                with arriving(doing):
                    if (chunk := read()) is None:
                        return
                    name, body = _order(chunk)
                answer = self.act(name, body)
                with arriving(doing):
                    write(answer)

    def _act(self, name: str, body: bytes | pa.Buffer) -> bytes:
        """What the wire itself knows, or an order for the host."""
        most = PARCEL_BYTES_MOST if name == "guard" else MESSAGE_BYTES_MOST
        _check_size("an order", len(body), most, self._machine)
        if name not in ("ack", "reach"):
            return self._host.act(name, bytes(body))
        if name == "ack":
            self._acknowledge(Acknowledgements.decode(body).acks)
        return Done().encode()

    def _acknowledge(self, acks: Sequence[Ack]) -> None:
        """All of them; raises the first refusal behind the last."""
        refused: StreamError | None = None
        for ack in acks:
            try:
                self._host.queue(ack.stream).ack(ack.reader, ack.level, ack.upto)
            except StreamError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def _pieces(self, wanted: Export) -> Generator[pa.RecordBatch]:
        with Answering(f"export of {wanted.export}"):
            for data in self._host.export(wanted.export, wanted.body.encode()):
                for at in range(0, len(data), PIECE_BYTES_MOST):
                    self.calls.check()
                    yield pa.record_batch([pa.array([data[at : at + PIECE_BYTES_MOST]], pa.binary())], schema=PIECES)


def _order(chunk: Chunk) -> tuple[str, pa.Buffer]:
    """The name of an order in a conversation, and its body."""
    words = chunk.app_metadata
    end = -1 if words is None else bytes(words[:NAME_BYTES_MOST]).find(b"\n")
    if words is None or end < 0:
        raise WireError("words that are no order", hint="write its name, a line's end, and its body")
    return bytes(words[:end]).decode(), words.slice(end + 1)


def _is_export(ticket: bytes) -> bool:
    try:
        given = json.loads(ticket)
    except (ValueError, RecursionError):
        return False
    return isinstance(given, dict) and "export" in given


def _check_columns(stream: str, given: pa.Schema, wanted: pa.Schema) -> None:
    """Names and types in order; whether nulls are allowed is seen in each batch."""
    if given.names != wanted.names or given.types != wanted.types:
        raise StreamError(
            f"stream {stream} has columns ({columns(wanted)}), not ({columns(given)})",
            hint="send all of them, in this order and of these types",
        )


def columns(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema)


def published(
    stream: str, chunk: Chunk, schema: pa.Schema, machine: Machine = HERE
) -> tuple[BatchHead, pa.RecordBatch]:
    """A published batch that can be worked with: of bounded size, whole inside, and without forbidden nulls."""
    if chunk.app_metadata is None:
        raise WireError("a published batch without a BatchHead", hint="put one into its app_metadata")
    head, batch = BatchHead.decode(chunk.app_metadata), chunk.data
    rows = 0 if batch is None else batch.num_rows
    if head.parts and (sum(head.parts) != rows or head.first < 0):
        raise WireError(f"a batch of {rows} rows as {len(head.parts)} parts of {sum(head.parts)}, up to {head.number}")
    if batch is None:
        return head, empty_rows(schema)
    batch.validate(full=True)  # offsets from the wire may point anywhere: before anything follows them
    _check_size("a batch", batch.nbytes, BATCH_BYTES_MOST, machine)
    for field, column in zip(schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise StreamError(f"nulls in column '{field.name}' of {stream}, which has none", hint="send values")
    return head, pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _check_size(what: str, size: int, most: int, machine: Machine) -> None:
    """gRPC has taken a message in before it can be refused; at least its memory is given back."""
    if size > most:
        machine.threads.start("give-back", partial(_give_back, machine.clock))
        raise WireError(f"{what} of {size:,} bytes", hint=f"cut it: {most:,} at most")


def _give_back(clock: Clock) -> None:
    """Return free pages to the system: a large message came in thousands of pieces, and the allocator keeps those."""
    clock.sleep(GIVE_BACK_S)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
