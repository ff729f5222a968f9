"""`borealis tail --to`: a stream's tuples into a topic or files, exactly once across restarts of this process.

1. Tuples are read under a reader's name, so the stream keeps what is not there.
2. They are written with the id behind the last one and the epoch that the id is of: a sink has both or none.
3. Only then they are acknowledged to the stream. A restart asks the sink for the id, and leaves out what comes again.

Tentative ones go elsewhere, if they are wanted. What is there is void before the next stable ones are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from borealis.cli.ending import LOOK_EVERY_S, STOP
from borealis.cli.options import ClusterOptions
from borealis.cli.screen import answer, console, plural
from borealis.cli.tail import TailOptions
from borealis.client.client import Client
from borealis.client.subscriber import Start, Subscription
from borealis.clock import WALL
from borealis.connectors.addresses import shown
from borealis.connectors.placed import PlacedSink, Position, TentativeSink, placed_at, tentative_at
from borealis.errors import StreamError, WireError
from borealis.tuples import ID

GATHER_S = 0.02  # for more tuples that are written together
ROWS_AT_ONCE = 200_000  # that are written together, at most


class Gathered(NamedTuple):
    """Rows that came one after the other, all stable or all of one fork; none: an undo, or recovery is done."""

    rows: pa.Table | None
    fork: str = ""
    done: bool = False


class Forwarding:
    """One run of the command; `rows` were written in it."""

    def __init__(
        self, stream: str, sink: PlacedSink, tentative: TentativeSink | None, options: TailOptions, where: str
    ) -> None:
        self.stream, self.sink, self.tentative, self.options, self.where = stream, sink, tentative, options, where
        self.reader = options.reader or sink.reader
        self.rows = 0
        self.complete = False  # nothing follows, or nothing is wanted

    def run(self, client: Client, start: Start | None, quiet: bool) -> None:
        """Until the stream ends or the limit is reached."""
        known = self.sink.open(self.stream, self.reader)
        with client.subscribe(
            self.stream,
            known.upto if known else "oldest" if start is None else start,
            reader=self.reader,
            headers=True,
            insertions_only=self.options.insertions_only,
            tentative=self.tentative is not None,
            auto_ack=False,
        ) as subscription:
            if known is not None and known.note != subscription.epoch:
                raise StreamError(
                    f"{self.stream} is in another epoch since {self.where} was written: its ids mean other tuples now",
                    hint=self.sink.anew,
                )
            if not quiet:
                told = f"{self.stream} to {self.where} as '{self.reader}', from {subscription.position:,}"
                console(stderr=True).print(told, style="dim")
            upto = known.upto if known else subscription.position
            names = subscription.schema.names if self.options.headers else subscription.columns
            schema = pa.schema([subscription.schema.field(name) for name in names])
            self.sink.begin(schema, Position(upto, subscription.epoch))
            if self.tentative is not None:
                self.tentative.open(schema, upto)
            self._write(subscription, names, upto)
        self.complete = True

    def _write(self, stream: Subscription, names: list[str], upto: int) -> None:
        for rows, fork, done in gathered(stream):
            if self.tentative is not None and rows is None:
                (self.tentative.done if done else self.tentative.undo)(upto)
            elif self.tentative is not None and rows is not None and fork:
                self.tentative.write(rows.select(names), fork)
            elif rows is not None:
                left = None if self.options.limit is None else self.options.limit - self.rows
                new = rows.filter(pc.greater_equal(rows[ID], upto)).slice(0, left)
                if new.num_rows:
                    upto = new[ID][-1].as_py() + 1
                    self.sink.publish(new.select(names), Position(upto, stream.epoch))
                    self.rows += new.num_rows
                with suppress(WireError, StreamError):  # not connected just now; the next one says it, too
                    stream.ack(upto)
                if self.rows == self.options.limit:
                    return


def forward(
    stream: str,
    to: str,
    start: Start | None,
    options: TailOptions,
    cluster: ClusterOptions,
    json: bool,
    tentative_to: str | None = None,
) -> None:
    """Until the stream ends, the limit is reached, or a signal comes."""
    sink, where = placed_at(to), shown(to)
    tentative = None if tentative_to is None else tentative_at(tentative_to, to)
    with cluster.client() as client, STOP.deferred(), ExitStack() as stack:
        one = Forwarding(client.locate(stream).stream, sink, tentative, options, where)
        if tentative is not None:
            stack.callback(tentative.close)
        stack.callback(lambda: sink.close(one.complete))
        one.run(client, start, quiet=json)
    facts = {"stream": one.stream, "to": where, "reader": one.reader, "rows": one.rows}
    answer(json, facts, f"{plural(one.rows, 'row')} of {one.stream} to {where}")


def gathered(stream: Subscription) -> Iterator[Gathered]:
    """What comes, in its order, gathered for a moment."""
    held: list[pa.RecordBatch] = []
    fork, undone, recovered, until = "", 0, 0, 0.0
    while True:
        STOP.point()
        more = stream.running
        batch = stream.read(max(0.0, until - WALL.now()) if held else LOOK_EVERY_S)
        is_void, is_done = stream.undone > undone, stream.recovered > recovered
        if held and (batch is None or is_void or is_done or stream.fork != fork):
            yield Gathered(pa.Table.from_batches(held), fork)
            held = []
        undone, recovered = stream.undone, stream.recovered
        if is_void:
            yield Gathered(None)
        if is_done:
            yield Gathered(None, done=True)
        if batch is None and not more:
            return
        if batch is None:
            continue
        if not held:
            fork, until = stream.fork, WALL.now() + GATHER_S
        held.append(batch)
        if sum(map(len, held)) >= ROWS_AT_ONCE:
            yield Gathered(pa.Table.from_batches(held), fork)
            held = []
