"""A client's way into a stream: numbered batches, held until the entry point has acknowledged them.

1. A batch gets the number behind the last one and is held. There is a bound on what is held; there `send` waits.
2. A thread of the connection sends what is held, in order; another one takes away what the entry point has
   acknowledged, and makes the next connection when this one breaks. Few messages are under way at a time; what waits
   meanwhile is sent as one.
3. When the connection breaks or the entry point moves, it connects to the entry point's backup, or where the
   coordinator says. The first receipt of the new connection says which number the entry point has last. What it has is
   taken away, the rest is sent again. So nothing is lost or repeated.
4. An entry point whose disk is full takes nothing; the batch is sent again, until there is room or patience ends.
5. An entry point that was not durable and died knows nothing of us any more. What it had acknowledged is lost with it;
   what is held gets new numbers, and `forgotten` counts that.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from borealis.client.row_form import RowForm, key_rows
from borealis.client.subscriber import check_name
from borealis.errors import BorealisError, InputError, StateError, StreamError, WireError
from borealis.machine import HERE, Machine
from borealis.retrying import RETRIES, Backoff, Retries, is_elsewhere, is_temporary
from borealis.streams.queue import MovedError, StandbyError
from borealis.streams.section import empty_rows
from borealis.tuples import KIND_NAMES, Kind, halves
from borealis.wire.client import Peer
from borealis.wire.endpoints import Endpoints, Location, Locator, located
from borealis.wire.messages import BatchHead, Publish, Receipt, SchemaIs, SchemaOf
from borealis.wire.publication import Publication

BATCH_ROWS = 65_536
BATCH_BYTES = 4 << 20  # well below what the wire takes at most
TOGETHER_MOST = 1024  # batches in one message
UNDER_WAY = 4  # messages; an entry point that has more to do gets larger ones
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

log = logging.getLogger("borealis.client")


@dataclass(frozen=True)
class Publishing:
    name: str | None = None  # under which the entry point counts batches; two publishers of one name lose each other's
    retries: Retries = RETRIES
    unacked_bytes: int = 32 << 20
    unacked_batches: int = 1024
    close_s: float = 2.0  # for hanging up politely
    first_s: float = 30.0  # for the first connection: a known stream may be on its way to its node, with its state

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name("publisher", self.name)


class _Unacked(NamedTuple):
    head: BatchHead
    batch: pa.RecordBatch


class Publisher:
    """Sends rows to a stream. A context manager: leaving it waits until all of them are taken over."""

    def __init__(
        self, locator: Locator, stream: str, publishing: Publishing | None = None, machine: Machine = HERE
    ) -> None:
        self.publishing = publishing or Publishing()
        self.name = self.publishing.name or f"client-{machine.chance.token(12)}"
        self.reconnects = 0
        self.forgotten = 0  # how often the entry point had lost what it knew of us
        self._locator = locator
        self._threads, clock = machine.threads, machine.clock
        self._unacked: deque[_Unacked] = deque()
        self._bytes = 0
        self._to_send = 0  # the number to send next on this connection; those held before it are under way
        self._sent: deque[BatchHead] = deque()  # those of the messages under way
        self._alone_until = -1  # up to this number batches go one by one: something among them was refused
        self._closing = self._ended = False
        self._failed: BaseException | None = None
        self._full_logged = False  # that a disk is full where batches go
        self._refused: tuple[int, str] | None = None  # the batch and the words of the last refusal
        self._changed = self._threads.condition()
        found = _entry(located(locator, stream, clock))
        self.stream = found.stream
        self._endpoints = Endpoints(lambda: _entry(locator.locate(self.stream)), found, clock=clock)
        self._peer: Peer
        self._publication: Publication | None = None
        retries = self.publishing.retries
        first = Backoff(replace(retries, give_up_s=min(self.publishing.first_s, retries.give_up_s)), clock)
        known = self._endpoints.call(self._connect_first, _may_be_soon, first)
        self.receipt: Receipt = known.known
        self.mark = known.known.mark  # what was sent with the last batch under this name, before now
        self.next_number = self._to_send = self.receipt.number + 1  # not 0 under a name that was used before
        self._backoff = Backoff(self.publishing.retries, clock)
        self._threads.start(f"borealis-publisher {self.stream}", self._listen_on)
        self._start_sending(known)

    # -- for the program

    @property
    def pending(self) -> int:
        """Batches that are not acknowledged yet."""
        return len(self._unacked)

    @property
    def connected(self) -> bool:
        """Whether batches are on their way, not waiting for a connection."""
        return self._publication is not None

    @property
    def failed(self) -> bool:
        """Whether it can do no more: something was refused for good."""
        return self._failed is not None

    def has_room(self, seconds: float = 0.0) -> bool:
        """Whether `send` would not have to wait; waits itself for at most so long."""
        with self._changed:
            return self._changed.wait_for(self._has_room, seconds)

    def idle(self, seconds: float | None = 0.0) -> bool:
        """Whether everything is acknowledged; waits for that for at most so long."""
        with self._changed:
            idle = self._changed.wait_for(lambda: not self._unacked or self._is_over(), seconds)
            self._check()
            if self._closing and self._unacked:
                raise InputError(
                    f"{len(self._unacked)} batches for {self.stream} were abandoned", hint="send them again"
                )
            return idle

    def send(self, data: Any) -> int:
        """Send rows: a record batch, a table, a data frame, dicts or tuples. Returns the number of rows.

        They are safe when `flush` returns, not before. Waits while too much is not acknowledged. If the input has a
        key, a column `_kind` may say what each row does; without it, they are insertions.
        """
        return self._send(data, None)

    def insert(self, rows: Any) -> int:
        """Send rows that come, whatever their `_kind` says."""
        return self._send(rows, Kind.INSERTION)

    def delete(self, keys: Any) -> int:
        """Take rows away again by their keys: as values (tuples, if a key has several columns), or as rows.

        Of rows (dicts, record batches, tables, data frames) only the columns of the key count.
        """
        return self._send(key_rows(keys), Kind.DELETION)

    def replace(self, rows: Any) -> int:
        """Send rows that come in place of those with their keys. They are whole: what is left out becomes null."""
        return self._send(rows, Kind.UPDATE_AFTER)

    def _send(self, data: Any, kind: Kind | None) -> int:
        rows = 0
        for batch in self.form(None if kind is None else KIND_NAMES[kind]).batches(data, BATCH_ROWS):
            for piece in pieces(batch):
                self._keep(piece)
            rows += batch.num_rows
        return rows

    def form(self, kind: str | None = None) -> RowForm:
        """How rows become those of the input; with a `kind`, all of them are of it."""
        return RowForm(self.stream, self.schema, kind)

    def send_batch(self, batch: pa.RecordBatch, mark: str | None = None) -> None:
        """Send a batch under one number, whatever its size; it must have the stream's columns already.

        The entry point keeps the `mark` with the batch: a later publisher of this name gets the last one.
        """
        if batch.num_rows:
            self._keep(batch, mark=mark)

    def heartbeat(self, time: int | datetime) -> None:
        """Promise that no tuple before this time (microseconds since 1970, or a datetime) follows."""
        self._keep(empty_rows(self.schema), heartbeat=microseconds(time))

    def end(self) -> None:
        """Say that nothing follows, ever, from any publisher; the stream has ended then."""
        self._keep(empty_rows(self.schema), end=True)
        self._ended = True

    def flush(self, timeout: float | None = None) -> Receipt:
        """Wait until everything is taken over. Raises TimeoutError if it is not by then."""
        if not self.idle(timeout):
            raise TimeoutError(f"{len(self._unacked)} batches for {self.stream} are not taken over after {timeout} s")
        return self.receipt

    def close(self, timeout: float | None = None) -> Receipt:
        """Wait until everything is taken over, and hang up."""
        try:
            receipt = self.flush(timeout)
            if (publication := self._publication) is not None:
                with contextlib.suppress(BorealisError):  # it has all of them
                    publication.close(self.publishing.close_s)
            return receipt
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Hang up now. What is not acknowledged may have arrived or not."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._peer.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    # -- what is held

    def _keep(
        self, batch: pa.RecordBatch, heartbeat: int | None = None, end: bool = False, mark: str | None = None
    ) -> None:
        with self._changed:
            if self._ended:
                raise InputError(f"the end of {self.stream} was sent already", hint="send before the end")
            self._changed.wait_for(self._has_room)
            self._check()
            if self._closing:
                raise InputError(f"this publisher of {self.stream} is closed", hint="make another one")
            head = BatchHead(number=self.next_number, heartbeat=heartbeat, end=end, mark=mark)
            self._unacked.append(_Unacked(head, batch))
            self.next_number += 1
            self._bytes += batch.nbytes
            self._changed.notify_all()

    def _has_room(self) -> bool:
        if self._is_over() or not self._unacked:
            return True
        return self._bytes < self.publishing.unacked_bytes and len(self._unacked) < self.publishing.unacked_batches

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _taken(self, receipt: Receipt) -> None:
        """Under the lock: let go of what the entry point has."""
        self.receipt = receipt
        while self._sent and self._sent[0].number <= receipt.number:
            self._sent.popleft()
        if receipt.number >= self.next_number:
            self._failed = self._failed or InputError(
                f"another program publishes to {self.stream} as '{self.name}'",
                hint="give each publisher its own name",
            )
        while self._unacked and self._unacked[0].head.number <= receipt.number:
            self._bytes -= self._unacked.popleft().batch.nbytes
            self._backoff.found()
            self._full_logged = False
        self._changed.notify_all()

    def _is_over(self) -> bool:
        return self._closing or self._failed is not None

    # -- the thread that sends, one for each connection: a dead machine may hold it up for long

    def _start_sending(self, publication: Publication) -> None:
        self._threads.start(f"borealis-publisher {self.stream} sends", partial(self._send_on, publication))

    def _send_on(self, publication: Publication) -> None:
        try:
            while (item := self._take(publication)) is not None:
                publication.send(item.batch, item.head)
        except BorealisError as error:
            self._lost(error, publication)
        except BaseException as error:  # a defect: a program that waits has to know
            self._fail(error)
        finally:
            publication.__exit__(WireError, None, None)  # the node shall not wait for more

    def _take(self, publication: Publication) -> _Unacked | None:
        """What to send next; waits for it. None: this connection is not wanted any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over() or self._publication is not publication or self._may_send())
            if self._is_over() or self._publication is not publication:
                return None
            start = self._to_send - self._unacked[0].head.number
            most = 1 if self._to_send <= self._alone_until else TOGETHER_MOST
            item = _as_one(list(_company(islice(self._unacked, start, start + most), self.schema)))
            self._to_send = item.head.number + 1
            self._sent.append(item.head)
            self._changed.notify_all()
            return item

    def _may_send(self) -> bool:
        return self._to_send < self.next_number and len(self._sent) < UNDER_WAY

    # -- the thread that listens, and connects again

    def _listen_on(self) -> None:
        while not self._is_over():
            publication = self._publication
            try:
                if publication is None:
                    made = self._endpoints.call(self._reconnect, self._passes, self._backoff, self._wait)
                    self._start_sending(made)
                elif (awaited := self._await_sent(publication)) is not None:
                    receipt = publication.wait(awaited)
                    with self._changed:
                        if self._publication is publication:
                            self._taken(receipt)
            except BaseException as error:
                if publication is not None and isinstance(error, BorealisError):
                    self._lost(error, publication)
                elif not self._closing:
                    self._fail(error)

    def _await_sent(self, publication: Publication) -> int | None:
        """Wait until something is under way; the number of the oldest of it."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over() or self._publication is not publication or self._under_way())
            return self._unacked[0].head.number if self._publication is publication and self._under_way() else None

    def _under_way(self) -> bool:
        return bool(self._unacked) and self._unacked[0].head.number < self._to_send

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)

    def _lost(self, error: BorealisError, publication: Publication) -> None:
        """The connection broke: prepare to make another, or fail where that would be in vain."""
        with self._changed:
            if publication is not self._publication:
                return  # of an earlier connection
            if isinstance(error, StateError) and not self._full_logged:
                self._full_logged = True
                log.warning("%s; trying again for %.0f s", error.message, self.publishing.retries.give_up_s)
            if not (self._may_try_again(error) or self._goes_one_by_one()):
                self._failed = self._failed or error
            self._publication = None
            self._sent.clear()
            self._endpoints.lost(error)
            self._changed.notify_all()

    def _passes(self, error: BorealisError) -> bool:
        """Whether the entry point may be found later, or elsewhere; if not, the coordinator knows of no such stream."""
        return not self._is_over() and (is_temporary(error) or is_elsewhere(error) or isinstance(error, StateError))

    def _may_try_again(self, error: BorealisError) -> bool:
        if is_temporary(error) or isinstance(error, MovedError | StandbyError | StateError):
            return True
        if not is_elsewhere(error):
            return False  # what we send is wrong
        refused = (self._unacked[0].head.number if self._unacked else -1, error.message)
        again, self._refused = refused == self._refused, refused
        return not again

    def _goes_one_by_one(self) -> bool:
        """Whether batches that went together, and were refused together, can be sent each by itself."""
        together = [head.number for head in self._sent if head.parts]
        self._alone_until = max([self._alone_until, *together])
        return bool(together)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failed = self._failed or error
            self._changed.notify_all()

    def _reconnect(self, address: str) -> Publication:
        if self._is_over():
            raise InputError(f"this publisher of {self.stream} is closed")
        self._peer.close()
        self._peer = self._locator.peer(address)
        publication = self._connect()
        self.reconnects += 1
        with self._changed:
            self._taken(publication.known)
            first = publication.known.number + 1
            if (self._unacked[0].head.number if self._unacked else self.next_number) > first:
                self.forgotten += 1
                heads = [one.head.model_copy(update={"number": n}) for n, one in enumerate(self._unacked, first)]
                self._unacked = deque(map(_Unacked, heads, [one.batch for one in self._unacked]))
                self.next_number = first + len(heads)
            if not self._unacked:
                self._backoff.found()
            self._to_send, self._publication = first, publication
            self._changed.notify_all()
        return publication

    def _connect_first(self, address: str) -> Publication:
        self._peer = self._locator.peer(address)
        try:
            self.schema = schema_of(self._peer, self.stream)
            self._publication = self._connect()
            return self._publication
        except BaseException:
            self._peer.close()
            raise

    def _connect(self) -> Publication:
        return self._peer.publish(Publish(stream=self.stream, publisher=self.name), self.schema)


def _company(waiting: Iterable[_Unacked], schema: pa.Schema) -> Iterator[_Unacked]:
    """Of those that wait, the first and all that can go along with it, in order."""
    rows = size = 0
    for number, item in enumerate(waiting):
        rows, size = rows + item.batch.num_rows, size + item.batch.nbytes
        fits = rows <= BATCH_ROWS and size <= BATCH_BYTES
        if number and not (fits and item.batch.schema.equals(schema)):
            return
        yield item
        if item.head.heartbeat is not None or item.head.end or not item.batch.schema.equals(schema):
            return  # it is about what comes behind it; or it will be refused


def _as_one(items: Sequence[_Unacked]) -> _Unacked:
    """Several batches as one, under the number of the last."""
    last = items[-1]
    if len(items) == 1:
        return last
    mark = next((item.head.mark for item in reversed(items) if item.head.mark is not None), None)
    head = last.head.model_copy(update={"mark": mark, "parts": [item.batch.num_rows for item in items]})
    return _Unacked(head, pa.concat_batches([item.batch for item in items]))


def schema_of(peer: Peer, stream: str) -> pa.Schema:
    answer = peer.act("schema", SchemaOf(stream=stream), SchemaIs)
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(answer.arrow, validate=True)))
    except (binascii.Error, ValueError, pa.ArrowException, OSError) as error:
        raise WireError(f"{peer.address} sent no schema of {stream} ({error})") from None


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts that are not too large for the wire."""
    return (part for part in halves(batch, BATCH_BYTES) if part.num_rows)


def _may_be_soon(error: BorealisError) -> bool:
    """Whether a stream that the coordinator knows may be where it says in a moment, or elsewhere."""
    return is_temporary(error) or is_elsewhere(error)


def _entry(found: Location) -> Location:
    if not found.entry:
        raise StreamError(f"{found.stream} cannot be published to", hint="only inputs of a diagram can")
    return found


def microseconds(time: int | datetime) -> int:
    """Since 1970; a datetime without a zone is in UTC."""
    if isinstance(time, datetime):
        return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)
    if isinstance(time, bool) or not isinstance(time, int):
        raise InputError(f"a heartbeat at {time!r}", hint="give microseconds since 1970, or a datetime")
    return time
