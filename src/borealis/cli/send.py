"""`borealis send`: files, a topic or a watched directory into a stream, as fast as they go or at a given rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.text import Text
from typer import Argument, Option

from borealis.cli.ending import LOOK_EVERY_S, STOP, Stopped
from borealis.cli.options import ClusterOptions, Json
from borealis.cli.screen import Screen, console, plural, span
from borealis.clock import WALL
from borealis.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from borealis.cli.send_follow import Follower
    from borealis.client.publisher import Publisher
    from borealis.client.row_form import RowForm

BATCHES_PER_SECOND = 20  # at a given rate
BATCH_ROWS = 16_384  # at none
NAMED_BATCH_ROWS = 1_000  # under a name batches must be the same at every start, whatever the rate
LAST_FLUSH_S = 5.0  # for what is under way when we are stopped


@dataclass(frozen=True)
class SendOptions:
    rate: Annotated[float | None, Option(min=0.001, help="Rows per second; as fast as they go if left out.")] = None
    publisher: Annotated[
        str | None, Option(metavar="NAME", help="Send under this name: started again, it goes on where it was.")
    ] = None
    batch_rows: Annotated[
        int | None, Option(min=1, max=1_000_000, help="Rows per batch; keep it when going on under a name.")
    ] = None
    kind: Annotated[
        str | None,
        Option(
            metavar="KIND",
            help="What all rows do: come (+I), come in place of those with their keys (+U), go (-D, the key suffices). "
            "If left out, as their column _kind says.",
        ),
    ] = None
    end: Annotated[bool, Option("--end", help="End the stream behind the last row.")] = False
    time: Annotated[
        str | None,
        Option(metavar="COLUMN", help="For kafka: and watch:, the input's time, if it has several TIMESTAMPs."),
    ] = None
    state: Annotated[
        Path | None, Option(metavar="DIR", help="For watch:, remember here which files were sent: each only once.")
    ] = None

    @property
    def rows(self) -> int:
        """Of one batch."""
        if self.batch_rows is not None:
            return self.batch_rows
        if self.publisher is not None:
            return NAMED_BATCH_ROWS
        return BATCH_ROWS if self.rate is None else max(1, min(BATCH_ROWS, round(self.rate / BATCHES_PER_SECOND)))


def send(
    stream: Annotated[str, Argument(help="An input of a running diagram: packets, or traffic/packets.")],
    file: Annotated[
        str, Argument(help="A file (FILE?format=csv), folder or glob; kafka://host:port/topic; watch:DIR; - for stdin.")
    ],
    options: SendOptions,
    cluster: ClusterOptions,
    json: Json = False,
) -> None:
    from borealis.connectors.addresses import is_topic, shown
    from borealis.connectors.sources import WATCH, as_source

    watched, topic = file.startswith(WATCH), is_topic(file)
    if (watched or topic) and options.end and "until=now" not in file:
        hint = "leave out --end" + (", or write ?until=now" if topic else "")
        raise InputError(f"{shown(file)} has no end that could be sent", hint=hint)
    if options.state is not None and not watched:
        raise InputError("--state is for a directory that is watched", hint="leave it out")
    name, followed = options.publisher, watched or topic
    if followed:
        from borealis.cli.send_follow import follower, publisher_of

        name = publisher_of(file, name, options.state)
    else:
        source = as_source(file)
    began = WALL.now()
    with cluster.client() as client, Screen(json) as screen:
        out = client.publisher(stream, name)
        form = None if options.kind is None else _form(out, options.kind, followed)
        sending = PacedSender(out, screen, options.rate)
        stopped: Stopped | None = None
        rows: Iterable[tuple[pa.RecordBatch, str | None]]
        try:
            if followed:
                following = sending.follower = follower(file, out, options.time, options.state)
                screen.say(f"{out.name} {'goes on' if following.resumes else 'begins'} in {shown(file)}")
                rows = following.batches(sending.look)
            else:
                skip = out.next_number * options.rows
                if skip:
                    done = plural(out.next_number, "batch", "batches")
                    screen.say(f"{out.name} has sent {done} before: going on behind row {skip:,}")
                wanted = out.schema if form is None else form.wanted
                batches = whole_batches(source.batches(wanted, skip, options.rows), options.rows)
                rows = ((batch, None) for batch in batches)
            if form is not None:
                rows = ((form.whole(batch), mark) for batch, mark in rows)
            with STOP.deferred():
                sending.run(rows)
                if options.end:
                    out.end()
                sending.wait_until(out.idle)
        except Stopped as stop:
            stopped = stop
            out.idle(LAST_FLUSH_S)
        finally:
            out.abandon()
    _tell(out, sending, WALL.now() - began, json, stopped is not None)
    if stopped is not None:
        raise stopped


def _form(out: Publisher, kind: str, followed: bool) -> RowForm:
    """How rows become those of a kind."""
    form = out.form(kind)
    if followed and form.by_key:
        hint = "send a file of keys; or give each record its own _kind"
        raise InputError(f"--kind {kind} is not for a topic or a directory that is followed", hint=hint)
    return form


class PacedSender:
    """Rows on their way, at their rate."""

    def __init__(self, out: Publisher, screen: Screen, rate: float | None) -> None:
        self._out, self._screen, self._rate = out, screen, rate
        self._began = WALL.now()
        self.follower: Follower | None = None  # of a topic or a directory
        self.rows = 0

    @property
    def dead_letters(self) -> int:
        return 0 if self.follower is None else self.follower.source.dead_letters.count

    def run(self, batches: Iterable[tuple[pa.RecordBatch, str | None]]) -> None:
        """Send all of them, each with its mark."""
        for batch, mark in batches:
            if self._rate:  # wait until the rows sent so far are due; what a stall has delayed is made up for
                STOP.sleep(self._began + self.rows / self._rate - WALL.now())
            self.wait_until(self._out.has_room)
            self._out.send_batch(batch, mark)
            self.rows += batch.num_rows
            self.look()

    def look(self) -> None:
        """A safe point to stop; shows how far it is, now and then."""
        STOP.point()
        if not self._screen.due():
            return
        waiting = plural(self._out.pending, "batch", "batches")
        rate = self.rows / max(WALL.now() - self._began, 1e-9)
        line = f"{self.rows:,} rows to {self._out.stream}, {rate:,.0f}/s, {waiting} not acknowledged"
        line += "" if self._out.connected else "; not connected, trying"
        line += f"; {note}" if self.follower is not None and (note := self.follower.source.note) else ""
        self._screen.show(Text(line), [line])

    def wait_until(self, happens: Callable[[float], bool]) -> None:
        """Wait in a way that a wish to stop is heard."""
        while not happens(LOOK_EVERY_S):
            self.look()


def whole_batches(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of exactly so many; only the last may have fewer.

    >>> import pyarrow as pa
    >>> parts = [pa.record_batch({"n": [1, 2, 3]}), pa.record_batch({"n": [4]}), pa.record_batch({"n": [5]})]
    >>> [b.num_rows for b in whole_batches(iter(parts), 2)]
    [2, 2, 1]
    """
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while batch.num_rows:
            part = batch.slice(0, rows - count)
            batch = batch.slice(part.num_rows)
            held.append(part)
            count += part.num_rows
            if count == rows:
                yield pa.concat_batches(held) if len(held) > 1 else held[0]
                held, count = [], 0
    if held:
        yield pa.concat_batches(held)


def _tell(out: Publisher, sending: PacedSender, seconds: float, json: bool, stopped: bool) -> None:
    rows = sending.rows
    if json:
        facts = {
            "stream": out.stream,
            "publisher": out.name,
            "rows": rows,
            "batches": out.receipt.number + 1,
            "not_acknowledged": out.pending,
            "next_id": out.receipt.next_id,
            "late": out.receipt.late,
            "dead_letters": sending.dead_letters,
            "seconds": round(seconds, 3),
            "reconnects": out.reconnects,
            "forgotten": out.forgotten,
            "stopped": stopped,
        }
        print(dumps(facts))
        return
    words = [f"{rows:,} rows to {out.stream} in {span(seconds * 1e6)}", f"{rows / max(seconds, 1e-9):,.0f}/s"]
    words += [f"{out.receipt.late:,} late"] if out.receipt.late else []
    words += [f"{sending.dead_letters:,} dead letters"] if sending.dead_letters else []
    words += [f"{plural(out.reconnects, 'reconnection')}"] if out.reconnects else []
    words += [f"{plural(out.pending, 'batch', 'batches')} not acknowledged"] if out.pending else []
    words += ["stopped"] if stopped else []
    print(", ".join(words))
    if out.forgotten:
        warning = f"warning: {out.stream} was lost and began from empty: rows it had acknowledged before are gone"
        console(stderr=True).print(warning, style="yellow", soft_wrap=True)
