"""`borealis tail`: a stream's rows as they come."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from borealis.cli.cells import cells, to_stdout
from borealis.cli.ending import STOP
from borealis.cli.reaching import Reach
from borealis.cli.watching import console
from borealis.cli.words import plural
from borealis.client.client import Client
from borealis.client.subscriber import Start, Subscription
from borealis.connectors.files.text import JsonLines, render
from borealis.errors import BorealisError, StreamError

LOOK_EVERY_S = 0.5  # whether someone wants us to stop


@dataclass(frozen=True)
class TailOptions:
    """What to show, as the command line has it."""

    start: str | None = None
    reader: str | None = None
    limit: int | None = None
    headers: bool = False
    json: bool = False
    to: str | None = None  # a topic instead of the screen


def tail_command(stream: str, options: TailOptions, reach: Reach) -> None:
    """Until the stream ends, the limit is reached, or someone stops us."""
    start = _start(options.start)
    if options.to is not None:
        from borealis.cli.forward import ForwardOptions, forward

        how = ForwardOptions(start, options.reader, options.limit, options.headers, options.json)
        forward(stream, options.to, how, reach)
        return
    with (
        reach.client() as client,
        client.subscribe(
            stream, start, reader=options.reader, headers=options.headers, on_gap="continue"
        ) as subscription,
        STOP.deferred(),
    ):
        show = _Json(subscription.schema) if options.json else _Text()
        err = console(stderr=True)
        if err.is_terminal and not options.json:
            err.print(f"{subscription.stream} from {subscription.position:,}", style="dim")
        left, gaps, jumps, lost = options.limit, 0, 0, 0
        quiet = _Quiet(client, subscription)
        while left is None or left > 0:
            STOP.point()
            batch = subscription.read(LOOK_EVERY_S)
            if subscription.gaps > gaps:
                gaps, lost = subscription.gaps, subscription.lost
                err.print(_gap(subscription), style="yellow", soft_wrap=True)
            if subscription.lost > lost:
                more, lost = subscription.lost - lost, subscription.lost
                said = f"lost: {more:,} tuples of {subscription.stream} were dropped, for they were not read in time"
                err.print(said, style="yellow", soft_wrap=True)
            if subscription.jumps > jumps:
                jumps = subscription.jumps
                at = f"recovered: {subscription.stream} goes on at {subscription.position:,}"
                err.print(f"{at}; tuples may be missing, come again or count twice", style="yellow", soft_wrap=True)
            if batch is None:
                if (silence := quiet.told()) is not None:
                    err.print(silence, style="dim", soft_wrap=True, highlight=False)
                if not subscription.running:
                    break
                continue
            quiet.over()
            shown = batch if left is None else batch.slice(0, left)
            show(shown)
            if left is not None:
                left -= shown.num_rows
            if options.reader is not None:
                subscription.ack(subscription.position - (batch.num_rows - shown.num_rows))


class _Quiet:
    """What to tell of a stream from which nothing comes: once, and only until the first row."""

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self._client, self._subscription = client, subscription
        self._over = False

    def over(self) -> None:
        """Rows come."""
        self._over = True

    def told(self) -> str | None:
        """That it waits, or has ended, and how many rows are held before the place where it begins."""
        if self._over:
            return None
        self._over = True
        before = self._held_before()
        if self._subscription.running:
            waiting = f"waiting for rows of {self._subscription.stream}"
            return f"{waiting}; {before}" if before else waiting
        return f"{self._subscription.stream} has ended; {before}" if before else None

    def _held_before(self) -> str:
        if self._subscription.reading.reader is not None:
            return ""  # it goes on where it was, whatever --from says
        try:
            found = [one for one in self._client.streams() if one.stream == self._subscription.stream]
        except BorealisError:
            return ""  # the coordinator is away: the stream goes on without it
        position = self._subscription.position
        held = sum(min(one.held_rows, max(0, position - one.first_id)) for one in found)
        is_are = "is" if held == 1 else "are"
        return f"{plural(held, 'row')} {is_are} held: --from oldest" if held else ""


def _start(text: str | None) -> Start | None:
    if text in ("oldest", "newest"):
        return text  # type: ignore[return-value]
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    raise StreamError(f"--from '{text}' is no place in a stream", hint="give oldest, newest or a tuple id")


def _gap(subscription: Subscription) -> str:
    known = f", {subscription.lost:,} tuples are missing" if subscription.lost else ""
    return f"gap: {subscription.stream} goes on at {subscription.position:,}{known}"


class _Json:
    """Rows as JSON lines."""

    def __init__(self, schema: pa.Schema) -> None:
        self._rendering = JsonLines()
        self._rendering.check(schema)

    def __call__(self, batch: pa.RecordBatch) -> None:
        to_stdout(b"".join(bytes(piece) for piece in render(pa.table(batch), self._rendering)))


class _Text:
    """Rows in columns that grow as they must; the names once, and again when the widths have changed."""

    def __init__(self) -> None:
        self._widths: list[int] = []

    def __call__(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        rows = [list(row) for row in zip(*(cells(column).to_pylist() for column in batch.columns), strict=True)]
        widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
        before = self._widths or [0] * len(widths)
        self._widths = [max(pair) for pair in zip(before, widths, strict=True)]
        lines = [] if self._widths == before else [self._line(names)]
        lines += [self._line(row) for row in rows]
        to_stdout("".join(lines).encode("utf-8", "replace"))

    def _line(self, cells: list[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True)).rstrip() + "\n"
