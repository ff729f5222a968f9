"""A stream as a Spark source: each micro-batch is a range of tuple ids, read by the executors from the stream's node.

An offset is `{"id": n, "epoch": e, "from": m}`: the micro-batch that ends here has the tuples from m up to n.

1. A named reader is registered at the first offset; from then on the stream keeps for it what it has not acknowledged.
2. Spark notes the offset of a micro-batch in its checkpoint before it runs it, and that it is done afterwards. A
   micro-batch that has to be repeated has the range that was noted: also the first one, although Spark asks again where
   to begin then. That is what `from` is for.
3. Whatever Spark takes as the start of a new micro-batch is done with: only then it is acknowledged (level 1). Spark's
   own `commit` comes a micro-batch later; a full stream that waits for it would wait forever.
4. Ids of another epoch, or tuples that the stream does not hold any more, are an error; with `onGap=continue` the job
   goes on behind them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from borealis.errors import BorealisError, GoneError, InputError, StateError
from borealis.spark.stream_client import (
    ADDRESS,
    StreamAddress,
    StreamBackoff,
    StreamClient,
    check_options,
    whole_number,
)
from borealis.streams.section import Section
from borealis.streams.status import QueueStatus
from borealis.values.fit import RowOrigin, fit, match_columns
from borealis.wire.endpoints import Location
from borealis.wire.follow import Follower, Start
from borealis.wire.messages import Ack, Subscribe
from borealis.wire.replicas import watch
from borealis.wire.subscription import WireSubscription
from borealis.wire.view import View

OPTIONS = (*ADDRESS, "reader", "from", "headers", "insertionsOnly", "maxTuplesPerTrigger", "partitions", "onGap")
Offset = dict[str, Any]

log = logging.getLogger("borealis.spark")


@dataclass(frozen=True)
class StreamReadOptions:
    """What a job wants of a stream."""

    address: StreamAddress
    reader: str | None = None  # None: the stream keeps nothing for this job, and tells it when something is gone
    start: Start = "oldest"
    view: View = field(default_factory=View)
    most: int | None = None  # tuples in a micro-batch
    partitions: int = 1
    goes_on: bool = False  # over gaps

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamReadOptions:
        check_options(options, OPTIONS)
        return cls(
            address=StreamAddress.of(options),
            reader=options.get("reader"),
            start=_start(options.get("from", "oldest")),
            view=View(*(_choice(options, name, ("false", "true")) == "true" for name in ("headers", "insertionsOnly"))),
            most=whole_number(options, "maxTuplesPerTrigger", 1),
            partitions=whole_number(options, "partitions", 1) or 1,
            goes_on=_choice(options, "onGap", ("raise", "continue")) == "continue",
        )


def _start(text: str) -> Start:
    match text.casefold():
        case "oldest":
            return "oldest"
        case "newest":
            return "newest"
        case number if number.isascii() and number.isdigit():
            return int(number)
    raise InputError(f"option from cannot be {text!r}", hint="give oldest, newest or a tuple id")


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    given = options.get(name, choices[0]).casefold()
    if given not in choices:
        raise InputError(f"option {name} cannot be {given!r}", hint=f"give {' or '.join(choices)}")
    return given


class Range(InputPartition):
    """Tuples of one epoch, for one task; `start` None: from the oldest that is held.

    They were seen at an incarnation of the stream's unit, and are read from none that is lower; first of all where they
    were seen, for another copy may not have come so far.
    """

    def __init__(self, epoch: str, incarnation: int, start: int | None, stop: int) -> None:
        super().__init__(None)
        self.epoch, self.incarnation, self.start, self.stop = epoch, incarnation, start, stop
        self.location: Location | None = None


class RangeReader:
    def __init__(self, reading: StreamReadOptions, schema: StructType) -> None:
        self.reading, self.schema = reading, schema
        self._client: StreamClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None}  # connections stay where they are

    @property
    def client(self) -> StreamClient:
        """The way to the stream from this process."""
        if self._client is None:
            self._client = StreamClient(self.reading.address)
        return self._client

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Range):  # Spark's own, where there is nothing to read
            return
        wanted = to_arrow_schema(self.schema, timezone="UTC")
        with closing(StreamClient(self.reading.address)) as client:
            if partition.location is not None:
                client.begin_at(partition.location)
            for section in sections(client, partition, self.reading.goes_on):
                if (seen := self.reading.view.rows(section)).num_rows:
                    yield shaped(seen, wanted, section.first)


class HeldReader(RangeReader, DataSourceReader):
    """`spark.read`: what the stream holds now, from `from` on."""

    def partitions(self) -> Sequence[InputPartition]:
        now, start = self.client.status(), self.reading.start
        location = self.client.location
        self.client.close()
        if start == "newest":
            return []
        first = now.first_id if start == "oldest" else start
        ranges = _ranges(now.epoch, now.incarnation, first, now.next_id, self.reading.partitions, location)
        if ranges and start == "oldest":
            ranges[0].start = None  # what is let go of until it is read is not held any more
        return ranges


class StreamReader(RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: see the head of this file."""

    def __init__(self, reading: StreamReadOptions, schema: StructType) -> None:
        super().__init__(reading, schema)
        self._first: Offset | None = None
        self._last: tuple[str, int] | None = None  # the end for `availableNow`: epoch and id
        self._seen: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        if self._first is None:  # Spark asks again and again until the first micro-batch is made
            self._first = self._begin()
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable() if self.reading.most is None else ReadMaxRows(self.reading.most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        now = self.client.status()
        self._last = (now.epoch, now.next_id)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        self.client.knows(start["epoch"], start.get("incarnation", 0))
        now = self.client.best_status(int(start["id"]))
        self._seen = {"id": now.next_id, "epoch": now.epoch}
        first = self._place(start, now)
        self._acknowledge(start, now)
        stop = now.next_id
        if isinstance(limit, ReadMaxRows):
            stop = min(stop, first + limit.max_rows)
        if self._last is not None:
            stop = min(stop, self._last[1]) if self._last[0] == now.epoch else first
        if stop <= first:
            return start
        return {"id": stop, "epoch": now.epoch, "incarnation": now.incarnation, "from": first}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        return self._seen

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start == end or "from" not in end:  # nothing came, or this only notes where to begin
            return []
        if "from" in start and start["epoch"] == end["epoch"] and start["id"] > end["from"]:
            raise StateError(
                f"a micro-batch of stream {self.reading.address.stream} is to begin at tuple {start['id']}, but was "
                f"noted as {end['from']} to {end['id']}",
                hint="restore the checkpoint from a copy, or delete it to start over",
            )
        most, location = self.reading.partitions, self.client.location
        return _ranges(end["epoch"], end.get("incarnation", 0), end["from"], end["id"], most, location)

    def commit(self, end: Offset) -> None:
        try:
            self._acknowledge(end, self.client.status())
        except BorealisError as error:  # the next question for an offset acknowledges as well
            log.warning("%s", error)

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()

    def _begin(self) -> Offset:
        now, reader, start = self.client.status(), self.reading.reader, self.reading.start
        if reader is None:
            at = now.first_id if start == "oldest" else now.next_id if start == "newest" else start
            return self._offset(at, now)
        if reader in now.readers:  # of an earlier start: what it has not acknowledged is still to come
            return self._offset(now.readers[reader], now)
        wanted = Subscribe(stream=now.stream, start=start, reader=reader, stop=0)  # no tuples, only to be known
        with self.client.call(lambda peer, _: peer.subscribe(wanted)) as registered:
            return {"id": registered.next_id, "epoch": registered.epoch}

    def _offset(self, at: int, now: QueueStatus) -> Offset:
        if not now.first_id <= at <= now.next_id and not self.reading.goes_on:
            raise GoneError(
                f"stream {now.stream} holds tuples {now.first_id} to {now.next_id}, and is to be read from {at}",
                hint="read from oldest or newest",
            )
        return {"id": min(max(at, now.first_id), now.next_id), "epoch": now.epoch}

    def _place(self, start: Offset, now: QueueStatus) -> int:
        """The id behind `start`; where that is gone and gaps are allowed, the next there is."""
        at, epoch = int(start["id"]), start["epoch"]
        if epoch == now.epoch:
            behind = now.incarnation > 0 and at > now.next_id  # a copy that has not come so far
            if behind or now.first_id <= at <= now.next_id:
                return at
            lost = f"tuples {at} to {now.first_id} of {now.stream} are lost"
            gone = f"stream {now.stream} is held from id {now.first_id} on: {at}, where this job is, is gone"
            hint = 'give the job a name with option("reader", ...), or let it go on with option("onGap", "continue")'
        else:
            lost = f"stream {now.stream} begins again, in epoch {now.epoch}"
            gone = (
                f"stream {now.stream} was restarted from nothing: it is in epoch {now.epoch}, the checkpoint in {epoch}"
            )
            hint = 'start with a new checkpoint, or with option("onGap", "continue")'
        if not self.reading.goes_on:
            raise GoneError(gone, hint=hint)
        log.warning(lost)
        return now.first_id

    def _acknowledge(self, done: Offset, now: QueueStatus) -> None:
        reader = self.reading.reader
        if reader is None or done["epoch"] != now.epoch or now.readers.get(reader, -1) >= done["id"]:
            return
        ack = Ack(stream=now.stream, reader=reader, level=1, upto=done["id"])
        self.client.call(lambda peer, _: peer.ack(ack))


def _ranges(epoch: str, incarnation: int, start: int, stop: int, most: int, location: Location | None) -> list[Range]:
    """So many parts of about one size."""
    count = min(most, max(stop - start, 0))
    cuts = [start + (stop - start) * i // count for i in range(count + 1)] if count else []
    ranges = [Range(epoch, incarnation, a, b) for a, b in pairwise(cuts)]
    for one in ranges if location is not None and location.replicated else ():
        one.location = location
    return ranges


def sections(client: StreamClient, wanted: Range, goes_on: bool) -> Iterator[Section]:
    """The tuples of a range, in order. A connection that breaks is made again, where it was."""
    at = wanted.start

    def subscribe(address: str) -> WireSubscription:
        place.stream = client.stream  # in full, since it was found
        nonlocal at
        feed = client.peer(address).subscribe(place.wanted().model_copy(update={"epoch": wanted.epoch}))
        at = feed.next_id if at is None else at
        return feed

    def broken(error: BorealisError) -> None:
        nonlocal at
        if isinstance(error, GoneError) and goes_on:
            now = client.status()
            if now.epoch != wanted.epoch or at is None:
                log.warning("tuples up to %d of %s are lost: it was restarted", wanted.stop, client.stream)
                at = wanted.stop
            else:
                log.warning("tuples %d to %d of %s are lost", at, min(now.first_id, wanted.stop), client.stream)
                at = max(at, now.first_id)
            place.go_on(at)
            place.backoff.found()
        elif not client.passes(error):
            raise error

    place = Follower(
        client.stream, client.endpoints, subscribe, broken, StreamBackoff(client.address), stop=wanted.stop
    )
    place.epoch, place.incarnation = wanted.epoch, wanted.incarnation
    if at is not None:
        place.go_on(at)
    if wanted.location is not None:
        watch(place, client.locator, wanted.location)
    for section in place:
        if at is not None and section.first > at:  # that is what a stream with full=drop does when it is full
            dropped = f"tuples {at} to {section.first} of {client.stream} were dropped"
            if not goes_on:
                slow = f"{dropped}: this job is too slow for a stream with full=drop"
                raise GoneError(slow, hint='let it go on with option("onGap", "continue")')
            log.warning(dropped)
        at = section.stop
        yield section


def shaped(seen: pa.RecordBatch, wanted: pa.Schema, first: int) -> pa.RecordBatch:
    """What is seen of a section that begins with tuple `first`, as the columns that Spark expects."""
    batch = seen.select(match_columns(wanted.names, seen.schema.names, "the stream"))
    return fit(batch, wanted, RowOrigin("the stream", first))
