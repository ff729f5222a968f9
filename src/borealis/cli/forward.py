"""`borealis tail --to`: a stream's tuples into a topic of Kafka, exactly once across restarts of this process.

1. Tuples are read under a reader's name, so the stream keeps what is not in the topic.
2. A transaction holds their records and the id behind the last one, with the epoch that the id is of.
3. Only then they are acknowledged to the stream. A restart asks the broker for the id, and leaves out what comes again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress

import pyarrow as pa
import pyarrow.compute as pc

from borealis.cli.ending import LOOK_EVERY_S, STOP
from borealis.cli.options import ClusterOptions
from borealis.cli.screen import answer, console, plural
from borealis.cli.tail import TailOptions
from borealis.client.subscriber import Start, Subscription
from borealis.connectors.addresses import shown
from borealis.connectors.kafka.to_topic import sink_at
from borealis.connectors.kafka.writer import Position
from borealis.errors import StreamError, WireError
from borealis.tuples import ID

GATHER_S = 0.02  # for more tuples that go into the same transaction
ROWS_AT_ONCE = 200_000  # of one transaction


def forward(
    stream: str, url: str, start: Start | None, options: TailOptions, cluster: ClusterOptions, json: bool
) -> None:
    """Until the stream ends, the limit is reached, or a signal comes."""
    sink = sink_at(url)
    reader = options.reader or f"kafka.{sink.topic}"
    err = console(stderr=True)
    with cluster.client() as client, STOP.deferred():
        full = client.locate(stream).stream
        writer = sink.writer(f"borealis.{full}.{reader}")
        with closing(writer):
            known = writer.open()
            begin = known.upto if known else "oldest" if start is None else start
            with client.subscribe(
                stream, begin, reader=reader, headers=True, insertions_only=options.insertions_only, auto_ack=False
            ) as subscription:
                if known is not None and known.note != subscription.epoch:
                    raise StreamError(
                        f"{full} is in another epoch since {shown(url)} was written: its ids mean other tuples now",
                        hint="give another --reader to forward the new stream from its beginning",
                    )
                if not json:
                    err.print(f"{full} to {shown(url)} as '{reader}', from {subscription.position:,}", style="dim")
                names = subscription.columns
                rows = 0
                for some, position in _taken(subscription, known.upto if known else 0, options.limit):
                    table = some if options.headers else some.select(names)
                    writer.publish(*sink.rendering(table.schema).records(table), position)
                    rows += table.num_rows
    facts = {"stream": full, "to": shown(url), "reader": reader, "rows": rows}
    answer(json, facts, f"{plural(rows, 'row')} of {full} to {shown(url)}")


def _taken(stream: Subscription, upto: int, limit: int | None) -> Iterator[tuple[pa.Table, Position]]:
    """Rows from an id on, each time with the position behind them; acknowledged once the caller comes for more."""
    left = limit
    while left is None or left > 0:
        STOP.point()
        batch = stream.read(LOOK_EVERY_S)
        if batch is None:
            if not stream.running:
                return
            continue
        batches = [batch]
        while sum(map(len, batches)) < ROWS_AT_ONCE and (more := stream.read(GATHER_S)) is not None:
            batches.append(more)
        rows = pa.Table.from_batches(batches)
        rows = rows.filter(pc.greater_equal(rows[ID], upto)).slice(0, left)
        if rows.num_rows:
            upto = rows[ID][-1].as_py() + 1
            yield rows, Position(upto, stream.epoch)
            left = None if left is None else left - rows.num_rows
        with suppress(WireError):  # not connected just now; the next one says it, too
            stream.ack(upto)
