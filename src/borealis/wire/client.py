"""The other side of a node's Flight server: subscribe, publish, order. Everything blocks; threads may share a Peer."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import flight

from borealis.errors import BorealisError, WireError
from borealis.hosts import is_flight
from borealis.message import Message
from borealis.streams.section import NOTHING, Section
from borealis.tuples import LAST_TIME, TIME, Int64s
from borealis.wire.auth import OPEN, Security
from borealis.wire.messages import (
    Ack,
    Acknowledgements,
    BatchHead,
    Done,
    Export,
    Ping,
    Pong,
    Publish,
    Receipt,
    SectionHead,
    StreamFacts,
    Subscribe,
)
from borealis.wire.problems import BROKEN, told
from borealis.wire.server import BATCH_BYTES_MOST, FACTS, columns

A = TypeVar("A", bound=Message)

WINDOW_BYTES = 4 << 20  # so much may be under way to a subscriber that does not read
FRAME_BYTES = 1 << 20  # large ones save work; gRPC's own choice is 16 KB
NEVER_MS = 24 * 3600 * 1000  # gRPC's own pings are not wanted: servers take them for an attack
WATCH_S = 0.1  # so often subscriptions and conversations are looked at


@dataclass(frozen=True)
class Patience:
    """How long to wait for the other side, in seconds."""

    connect_s: float = 3.0
    answer_s: float = 30.0  # of an order
    silence_s: float = 10.0  # of a subscription; the server says something every second


class Sendable(Protocol):
    """Anything that knows its bytes: a message, or what is too large for one."""

    def encode(self) -> bytes: ...


class Peer:
    """A node at an address. Nothing is sent before the first call; a broken connection is made anew by the next one."""

    def __init__(self, address: str, security: Security | None = None, patience: Patience | None = None) -> None:
        if not is_flight(address):
            raise WireError(f"'{address}' is no address of a node", hint="write grpc://host:port")
        self.address = address
        self.patience = patience or Patience()
        self._security = security or OPEN
        options = [
            ("grpc.enable_http_proxy", 0),  # nodes talk to one another, whatever the environment says of the web
            ("grpc.min_reconnect_backoff_ms", int(self.patience.connect_s * 1000)),  # of one attempt to connect
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
            ("grpc.http2.max_frame_size", FRAME_BYTES),
            ("grpc.keepalive_time_ms", NEVER_MS),  # set at all, it makes the system give up on unanswered packets
            ("grpc.keepalive_timeout_ms", int(self.patience.silence_s * 1000)),
        ]
        tls = {"tls_root_certs": self._security.roots()} if address.startswith("grpc+tls://") else {}
        self._client = flight.FlightClient(address, generic_options=options, **tls)
        self._open: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._talks: list[_Talk] = []  # those that are free

    def ping(self, within: float | None = None) -> Pong:
        return self.say("ping", Ping(), Pong, within=within or self.patience.connect_s)

    def act(self, name: str, message: Sendable, answer: type[A], *, within: float | None = None) -> A:
        """Give an order and wait for its answer."""
        got = self._act(name, message, within)
        if len(got) != 1:
            raise WireError(f"{self.address} answered '{name}' with {len(got)} messages", hint="one is expected")
        return answer.decode(got[0])

    def say(self, name: str, message: Sendable, answer: type[A], *, within: float | None = None) -> A:
        """Give an order that is given often, and may arrive twice: over a line that stays, for half the price."""
        body, limit = message.encode(), self.patience.answer_s if within is None else within
        talk = self._free()
        if talk is not None:
            try:
                return answer.decode(self._ask(talk, name, body, limit))
            except WireError:
                if talk.late:
                    raise
                self._hang_up()  # the node was started anew, perhaps: the lines are old
        return answer.decode(self._ask(self._talk(), name, body, limit))

    def _free(self) -> _Talk | None:
        """A line on which nobody speaks."""
        try:
            return self._talks.pop()
        except IndexError:
            return None

    def _ask(self, talk: _Talk, name: str, body: bytes, within: float) -> bytes:
        got = talk.ask(name, body, within)
        self._talks.append(talk)
        return got

    def _talk(self) -> _Talk:
        try:
            descriptor = flight.FlightDescriptor.for_command(b"talk")
            return _Talk(self.address, *self._client.do_exchange(descriptor, self._options()))
        except BROKEN as error:
            raise told(error, self.address) from None

    def _hang_up(self) -> None:
        while (talk := self._free()) is not None:
            talk.cancel()

    def ack(self, *acks: Ack, within: float | None = None) -> None:
        """Tell queues how far readers are. Raises the first refusal; the others are done all the same."""
        self.say("ack", Acknowledgements(acks=list(acks)), Done, within=within)

    def subscribe(self, wanted: Subscribe) -> Subscription:
        """Be pushed a stream from a place on."""
        self.reach()
        subscription = Subscription(self._get(wanted, self.patience.silence_s), wanted)
        self._open.add(subscription)
        return subscription

    def publish(self, publish: Publish, schema: pa.Schema) -> Publication:
        """Send batches to an entry point."""
        self.reach()
        try:
            descriptor = flight.FlightDescriptor.for_command(publish.encode())
            writer, receipts = self._client.do_put(descriptor, schema, self._options())
        except BROKEN as error:
            raise told(error, self.address) from None
        return Publication(self, schema, writer, receipts)

    def export(self, what: str, body: bytes = b"") -> Iterator[bytes]:
        """Bytes from the other side, in pieces."""
        self.reach()
        pushed = self._get(Export(export=what, body=body.decode()), self.patience.answer_s)
        try:
            while (chunk := pushed.read()) is not None:
                yield chunk.data.column(0)[0].as_py()
        finally:
            pushed.cancel()

    def close(self) -> None:
        """Give the connection back. Subscriptions are cancelled; publications are theirs to close who have them."""
        for subscription in list(self._open):
            subscription.cancel()
        self._hang_up()
        self._client.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def reach(self) -> None:
        """Raises soon if nobody answers: a stream itself has no time limit."""
        try:
            # not `list_actions`: if the server cancels that, Arrow pretends that this process was interrupted (Ctrl-C)
            list(self._client.do_action(flight.Action("reach", b""), self._options(self.patience.connect_s)))
        except BROKEN as error:
            raise told(error, self.address) from None

    def _get(self, ticket: Message, silence_s: float) -> _Pushed:
        asked = _Asked(lambda: self._client.do_get(flight.Ticket(ticket.encode()), self._options()))
        try:
            reader = asked.answer(silence_s)
            return _Pushed(self.address, reader, reader.schema, silence_s)
        except TimeoutError:
            raise _silent(self.address, silence_s) from None
        except BROKEN as error:
            raise told(error, self.address) from None

    def _act(self, name: str, message: Sendable, within: float | None) -> list[bytes]:
        limit = self.patience.answer_s if within is None else within
        try:
            answers = self._client.do_action(flight.Action(name, message.encode()), self._options(limit))
            return [answer.body.to_pybytes() for answer in answers]
        except BROKEN as error:
            raise told(error, self.address) from None

    def _options(self, within: float | None = None) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=within, headers=self._security.headers())


class _Asked(threading.Thread):
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


def _silent(address: str, seconds: float) -> WireError:
    return WireError(f"{address} has been silent for {seconds:g} s", hint="is it frozen, or the network broken?")


class _Pushed:
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
                raise _silent(self.address, self._silence_s) from None
            if self.cancelled:
                return None
            raise told(error, self.address) from None
        finally:
            self._waiting_since = None

    def cancel(self) -> None:
        self.cancelled = True
        self._reader.cancel()

    def check(self, now: float) -> None:
        """End it if the other side has not spoken for long."""
        since = self._waiting_since
        if since is not None and now - since > self._silence_s:
            self._silent = True
            self._reader.cancel()


class _Talk:
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
            raise told(error, self.address) from None
        finally:
            self._until = None
        if words is None:
            raise WireError(f"{self.address} answered '{name}' without words")
        return bytes(words)

    def cancel(self) -> None:
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
        self._watched: weakref.WeakSet[_Pushed | _Talk] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def add(self, pushed: _Pushed | _Talk) -> None:
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


class Subscription:
    """A stream as it comes in: iterate for its sections, in order. One thread iterates; any may cancel.

    It ends where the stream ends, where the request says, or by `cancel`; anything else that ends it raises.
    """

    def __init__(self, pushed: _Pushed, wanted: Subscribe) -> None:
        self._pushed, self.address, self._stop = pushed, pushed.address, wanted.stop
        schema = pushed.schema
        facts = StreamFacts.decode((schema.metadata or {}).get(FACTS, b""))
        if schema.names[-1:] != [TIME] or schema.types[-1] != pa.int64():
            raise WireError(f"{self.address} serves {wanted.stream} without '{TIME}'")
        self.stream, self.epoch, self.next_id = facts.stream, facts.epoch, facts.first
        self.incarnation = facts.incarnation  # of the unit that writes it; 0: nothing protects it
        self.schema = pa.schema(list(schema)[:-1])
        self.boundary = wanted.boundary  # with `next_id`: where to take the stream up again
        self.lost = 0  # tuples that were dropped because this reader was too slow
        self.jumps = 0  # how often ids were left out, in a recovery

    def __iter__(self) -> Iterator[Section]:
        return (section for section in self.beats() if section is not None)

    def beats(self) -> Iterator[Section | None]:
        """Sections, and None about once a second while nothing comes, for those who also look at something else."""
        while (chunk := self._pushed.read()) is not None:
            section, head = self._section(chunk)
            news = len(section) or head.lost or head.jump or section.final > self.boundary
            self.next_id, self.boundary = section.stop, section.final
            self.lost += head.lost
            self.jumps += head.jump
            yield section if news else None
        whole = self.boundary == LAST_TIME or (self._stop is not None and self.next_id >= self._stop)
        if not whole and not self._pushed.cancelled:
            raise WireError(f"{self.address} ended stream {self.stream} before its end")

    def cancel(self) -> None:
        self._pushed.cancel()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cancel()

    def _section(self, chunk: flight.FlightStreamChunk) -> tuple[Section, SectionHead]:
        """A pushed batch as a section, if it is one and follows the last."""
        batch = chunk.data
        if batch is None or chunk.app_metadata is None:
            raise WireError(f"{self.address} sent a batch of {self.stream} without its head")
        head = SectionHead.decode(chunk.app_metadata)
        try:
            batch.validate()
        except pa.ArrowException as error:
            raise WireError(f"{self.address} sent a broken batch of {self.stream}: {error}") from None
        if batch.column(batch.num_columns - 1).null_count:
            raise WireError(f"{self.address} sent tuples of {self.stream} without a time")
        rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=self.schema)
        time_of = _int64s(batch.column(batch.num_columns - 1))
        at, bound = np.array(head.at, np.int64), np.array(head.bound, np.int64)
        section = Section(head.first, rows, time_of, at, bound, head.standing)
        due = self.next_id + head.lost
        follows = head.first > due if head.jump else head.first == due
        if not follows or head.standing < self.boundary or not _is_whole(section):
            raise WireError(
                f"{self.address} sent tuples {head.first} to {section.stop} of {self.stream} ({head.lost} lost, "
                f"boundary {head.standing}) after tuple {self.next_id}, boundary {self.boundary}",
                hint="subscribe again from there",
            )
        return section, head


def _int64s(column: pa.Array) -> Int64s:
    """The numbers of a column without nulls, where they are; Arrow's own `to_numpy` would load pandas for this."""
    data = column.buffers()[1]
    if data is None or not len(column):
        return NOTHING
    return np.frombuffer(data, np.int64, len(column), 8 * column.offset)


def _is_whole(section: Section) -> bool:
    """Whether the boundaries are where boundaries can be."""
    at, bound = section.at, section.bound
    if not len(at) and not len(bound):
        return True
    if len(at) != len(bound) or at[0] < section.first or at[-1] > section.stop or bound[0] <= section.standing:
        return False
    return not ((at[1:] < at[:-1]).any() or (bound[1:] <= bound[:-1]).any())


class Publication:
    """Batches on their way to an entry point. One thread sends; receipts come in beside it.

    `known` is what the entry point had of this publisher before: go on with the number behind it. A batch is safe when
    its receipt is there, not when `send` returns.
    """

    def __init__(
        self, peer: Peer, schema: pa.Schema, writer: flight.FlightStreamWriter, receipts: flight.FlightMetadataReader
    ) -> None:
        self._peer, self._writer, self._receipts = peer, writer, receipts
        self.schema = schema
        self._writing = threading.Lock()
        self._finished = False  # nothing more can be sent
        self._came = threading.Condition()
        self._last: Receipt | None = None
        self._error: BorealisError | None = None
        self._over = False  # the server has ended the call
        threading.Thread(target=self._listen, name="wire-receipts", daemon=True).start()
        self.known = self._wait_for(lambda: self._last is not None, peer.patience.answer_s)

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
            raise self._reason(told(error, self._peer.address)) from None
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
            self._end(told(error, self._peer.address))
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
        """Wait for something to be so. A full queue may keep us waiting for long; a node that is gone may not."""
        until = None if within is None else time.monotonic() + within
        while not condition():
            left = self._peer.patience.silence_s if until is None else until - time.monotonic()
            if left <= 0:
                raise WireError(f"{self._peer.address} did not take a batch over within {within:g} s")
            if not self._came.wait(min(left, self._peer.patience.silence_s)):
                self._came.release()
                try:
                    self._peer.reach()
                finally:
                    self._came.acquire()

    def _reason(self, seen: BorealisError) -> BorealisError:
        """Why nothing can be sent: what the server said, if it did."""
        with self._came:
            self._came.wait_for(lambda: self._over, self._peer.patience.connect_s)
            return self._error or seen
