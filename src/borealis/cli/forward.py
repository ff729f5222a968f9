"""`borealis tail --to`: a stream's tuples into a topic of Kafka, exactly once across restarts of this process.

1. Tuples are read under a reader's name, so the stream keeps what is not in the topic.
2. A transaction holds their records and the id behind the last one, with the epoch that the id is of.
3. Only then they are acknowledged to the stream. A restart asks the broker for the id, and leaves out what comes again.
"""

from __future__ import annotations

from json import dumps

import pyarrow as pa
import pyarrow.compute as pc

from borealis.cli.ending import STOP
from borealis.cli.options import ClusterOptions
from borealis.cli.tail import TailOptions
from borealis.cli.watching import console
from borealis.cli.words import plural
from borealis.client.subscriber import Start, Subscription
from borealis.connectors.kafka.brokers import shown
from borealis.connectors.kafka.to_topic import sink_at
from borealis.connectors.kafka.writer import Position, Rendering, TopicWriter
from borealis.errors import StreamError, WireError
from borealis.tuples import HEADER, ID

LOOK_EVERY_S = 0.5  # whether someone wants us to stop
GATHER_S = 0.02  # for more tuples that go into the same transaction
ROWS_AT_ONCE = 200_000  # of one transaction


def forward(
    stream: str, url: str, start: Start | None, options: TailOptions, cluster: ClusterOptions, json: bool
) -> None:
    """Until the stream ends, the limit is reached, or someone stops us."""
    sink = sink_at(url)
    reader = options.reader or f"kafka.{sink.topic}"
    err = console(stderr=True)
    with cluster.client() as client, STOP.deferred():
        full = client.locate(stream).stream
        writer = sink.writer(f"borealis.{full}.{reader}")
        try:
            known = writer.open()
            begin = known.upto if known else "oldest" if start is None else start
            with client.subscribe(stream, begin, reader=reader, headers=True, auto_ack=False) as subscription:
                _check_life(known, subscription, shown(url))
                if not json:
                    err.print(f"{full} to {shown(url)} as '{reader}', from {subscription.position:,}", style="dim")
                rows = Forwarding(subscription, writer, sink.format, sink.key, options).run(known)
        finally:
            writer.close()
    if json:
        print(dumps({"stream": full, "to": shown(url), "reader": reader, "rows": rows}, ensure_ascii=False))
    else:
        print(f"{plural(rows, 'row')} of {full} to {shown(url)}")


def _check_life(known: Position | None, subscription: Subscription, place: str) -> None:
    if known is not None and known.note != subscription.epoch:
        raise StreamError(
            f"{subscription.stream} has begun anew since {place} was written: its ids mean other tuples now",
            hint="give another --reader to forward the new stream from its beginning",
        )


class Forwarding:
    """Tuples on their way from a stream to a topic."""

    def __init__(
        self, subscription: Subscription, writer: TopicWriter, format_: str, key: str | None, options: TailOptions
    ) -> None:
        self._in, self._writer, self._options = subscription, writer, options
        names = [name for name in subscription.schema.names if name not in HEADER]
        self._names = [*HEADER, *names] if options.headers else names
        self._format, self._key = format_, key

    def run(self, known: Position | None) -> int:
        """All of it; returns how many rows went."""
        upto, sent = known.upto if known else 0, 0
        while self._options.limit is None or sent < self._options.limit:
            STOP.point()
            batch = self._in.read(LOOK_EVERY_S)
            if batch is None:
                if not self._in.running:
                    break
                continue
            rows = self._gather(batch)
            rows = rows.filter(pc.greater_equal(rows[ID], upto))
            if self._options.limit is not None:
                rows = rows.slice(0, self._options.limit - sent)
            if rows.num_rows:
                upto = rows[ID][-1].as_py() + 1
                self._publish(rows.select(self._names), Position(upto, self._in.epoch))
                sent += rows.num_rows
            self._ack(upto)
        return sent

    def _gather(self, first: pa.RecordBatch) -> pa.Table:
        batches, rows = [first], first.num_rows
        while rows < ROWS_AT_ONCE and (more := self._in.read(GATHER_S)) is not None:
            batches.append(more)
            rows += more.num_rows
        return pa.Table.from_batches(batches)

    def _publish(self, rows: pa.Table, position: Position) -> None:
        rendering = Rendering(self._format, self._key, rows.schema)
        self._writer.publish(*rendering.records(rows), position)

    def _ack(self, upto: int) -> None:
        try:
            self._in.ack(upto)
        except WireError:
            return  # not connected just now; the next one says it, too
