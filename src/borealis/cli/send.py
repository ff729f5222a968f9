"""`borealis send`: files, a topic or a watched directory into a stream, as fast as they go or at a given rate."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from rich.live import Live
from rich.text import Text

from borealis.cli.ending import STOP, Stopped
from borealis.cli.reaching import Reach
from borealis.cli.send_topic import Follower, publisher_of
from borealis.cli.send_watch import DirectoryFollower, is_watch, watcher_name
from borealis.cli.watching import LIVE_EVERY_S, PLAIN_EVERY_S, console
from borealis.cli.words import plural, span
from borealis.client.publisher import Publisher
from borealis.connectors.kafka.brokers import is_topic, shown
from borealis.connectors.sources import Source, as_source
from borealis.errors import InputError

BATCHES_PER_SECOND = 20  # at a given rate
BATCH_ROWS = 16_384  # at none
NAMED_BATCH_ROWS = 1_000  # under a name batches must be the same at every start, whatever the rate
LOOK_EVERY_S = 0.2  # whether someone wants us to stop, while there is no room
LAST_FLUSH_S = 5.0  # for what is under way when we are stopped


@dataclass(frozen=True)
class SendOptions:
    """How to send, as the command line has it."""

    rate: float | None = None
    publisher: str | None = None
    batch_rows: int | None = None
    end: bool = False
    json: bool = False
    time: str | None = None  # for a topic or a watched directory: the column that holds a tuple's time
    state: Path | None = None  # for a watched directory: where to keep which files were sent

    @property
    def rows(self) -> int:
        """Of one batch."""
        if self.batch_rows is not None:
            return self.batch_rows
        if self.publisher is not None:
            return NAMED_BATCH_ROWS
        return BATCH_ROWS if self.rate is None else max(1, min(BATCH_ROWS, round(self.rate / BATCHES_PER_SECOND)))


def send_command(stream: str, files: str, options: SendOptions, reach: Reach) -> None:
    """Under a publisher's name, a file that was sent in part goes on where it was; nothing is sent twice."""
    follows = is_topic(files) or is_watch(files)
    if follows and options.end and "until=now" not in files:
        raise InputError(f"{shown(files)} has no end that could be sent", hint=_no_end(files))
    if options.state is not None and not is_watch(files):
        raise InputError("--state is for a directory that is watched", hint="leave it out")
    source = None if follows else as_source(files)
    began = time.monotonic()
    with reach.client() as client, _watch(options.json) as watch:
        out = client.publisher(stream, _name(files, options))
        sending = Sending(out, watch, options.rate)
        stopped: Stopped | None = None
        try:
            follower = _follower(files, out, options) if follows else None
            skip = out.next_number * options.rows
            if follower is not None:
                watch.say(f"{out.name} {'goes on' if follower.resumes else 'begins'} in {shown(files)}")
            elif skip:
                done = plural(out.next_number, "batch", "batches")
                watch.say(f"{out.name} has sent {done} before: going on behind row {skip:,}")
            with STOP.deferred():
                if follower is not None:
                    sending.follow(follower)
                elif source is not None:
                    sending.run(source, skip, options.rows)
                if options.end:
                    out.end()
                sending.wait_until(out.idle)
        except Stopped as stop:
            stopped = stop
            out.idle(LAST_FLUSH_S)
        finally:
            out.abandon()
    _tell(out, sending, time.monotonic() - began, options, stopped is not None)
    if stopped is not None:
        raise stopped


def _no_end(files: str) -> str:
    return "leave out --end" + (", or write ?until=now" if is_topic(files) else "")


def _name(files: str, options: SendOptions) -> str | None:
    """The publisher's."""
    if is_watch(files):
        return watcher_name(files, options.publisher, options.state)
    return options.publisher or (publisher_of(files) if is_topic(files) else None)


def _follower(files: str, out: Publisher, options: SendOptions) -> Follower | DirectoryFollower:
    if is_watch(files):
        return DirectoryFollower(files, out, options.time, options.state)
    return Follower(files, out, options.time)


class Sending:
    """Rows on their way, at their rate."""

    def __init__(self, out: Publisher, watch: _Watch, rate: float | None) -> None:
        self._out, self._watch, self._rate = out, watch, rate
        self._began = time.monotonic()
        self.rows = 0
        self.dead_letters = 0

    def run(self, source: Source, skip: int, batch_rows: int) -> None:
        """All of the source, from a row on."""
        for batch in whole_batches(source.batches(self._out.schema, skip, batch_rows), batch_rows):
            self._pace()
            self.wait_until(self._out.has_room)
            self._out.send_batch(batch)
            self.rows += batch.num_rows
            STOP.point()
            self._watch.see(self._out, self.rows)

    def follow(self, follower: Follower | DirectoryFollower) -> None:
        """A topic or a directory, for as long as there is no end to it."""
        for batch, mark in follower.batches(lambda: self._look(follower)):
            self._pace()
            self.wait_until(self._out.has_room)
            self._out.send_batch(batch, mark)
            self.rows += batch.num_rows
            self._look(follower)
        self.dead_letters = follower.source.dead_letters.count

    def _look(self, follower: Follower | DirectoryFollower) -> None:
        self.dead_letters = follower.source.dead_letters.count
        STOP.point()
        self._watch.see(self._out, self.rows, follower.source.note)

    def wait_until(self, happens: Callable[[float], bool]) -> None:
        """Wait in a way that a wish to stop is heard."""
        while not happens(LOOK_EVERY_S):
            STOP.point()
            self._watch.see(self._out, self.rows)

    def _pace(self) -> None:
        """Wait until the rows sent so far are due; what a stall has delayed is made up for."""
        if not self._rate:
            return
        due = self._began + self.rows / self._rate
        while (left := due - time.monotonic()) > 0:
            STOP.point()
            time.sleep(min(left, LOOK_EVERY_S))


def whole_batches(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of exactly so many; only the last may have fewer.

    >>> parts = [pa.record_batch({"n": [1, 2, 3]}), pa.record_batch({"n": [4]}), pa.record_batch({"n": [5]})]
    >>> [b.num_rows for b in whole_batches(iter(parts), 2)]
    [2, 2, 1]
    """
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while batch.num_rows:
            part = batch.slice(0, rows - count)
            batch = batch.slice(part.num_rows)
            held.append(part)
            count += part.num_rows
            if count == rows:
                yield _joined(held)
                held, count = [], 0
    if held:
        yield _joined(held)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


class _Watch:
    """Shows nothing."""

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Once."""

    def see(self, out: Publisher, rows: int, note: str = "") -> None:
        """How it stands."""


class _Lines(_Watch):
    """How many rows went, in place or a line now and then."""

    def __init__(self) -> None:
        self._err = console(stderr=True)
        self._live = Live(console=self._err, auto_refresh=False, transient=True) if self._err.is_terminal else None
        self._every = LIVE_EVERY_S if self._live else PLAIN_EVERY_S
        self._began = time.monotonic()
        self._next = self._began + self._every

    def __enter__(self) -> _Watch:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        self._err.print(text, markup=False, soft_wrap=True)

    def see(self, out: Publisher, rows: int, note: str = "") -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every
        rate = rows / max(now - self._began, 1e-9)
        line = (
            f"{rows:,} rows to {out.stream}, {rate:,.0f}/s, {plural(out.pending, 'batch', 'batches')} not acknowledged"
        )
        line += "" if out.connected else "; not connected, trying"
        line += f"; {note}" if note else ""
        if self._live is not None:
            self._live.update(Text(line), refresh=True)
        else:
            self.say(line)


def _watch(quiet: bool) -> _Watch:
    return _Watch() if quiet else _Lines()


def _tell(out: Publisher, sending: Sending, seconds: float, options: SendOptions, stopped: bool) -> None:
    rows = sending.rows
    if options.json:
        told = {
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
        print(json.dumps(told))
        return
    words = [f"{rows:,} rows to {out.stream} in {span(seconds * 1e6)}", f"{rows / max(seconds, 1e-9):,.0f}/s"]
    words += [f"{out.receipt.late:,} late"] if out.receipt.late else []
    words += [f"{sending.dead_letters:,} dead letters"] if sending.dead_letters else []
    words += [f"{plural(out.reconnects, 'reconnection')}"] if out.reconnects else []
    words += [f"{plural(out.pending, 'batch', 'batches')} not acknowledged"] if out.pending else []
    words += ["stopped"] if stopped else []
    print(", ".join(words))
    if out.forgotten:
        said = f"{out.stream} was lost and began anew: rows it had acknowledged before are gone"
        console(stderr=True).print(f"warning: {said}", style="yellow", soft_wrap=True)
