"""`borealis tail`: a stream's rows as they come."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

from borealis.cli.ending import STOP
from borealis.cli.options import ClusterOptions, JsonRows, StreamName
from borealis.cli.screen import console, plural
from borealis.errors import BorealisError, OutputError, StreamError

if TYPE_CHECKING:
    from borealis.client.client import Client
    from borealis.client.subscriber import Subscription

QUIET_S = 0.5  # without rows, until that is shown


@dataclass(frozen=True)
class TailOptions:
    start: Annotated[
        str | None,
        Option(
            "--from",
            metavar="PLACE",
            help="oldest, newest or a tuple id. If left out: newest; with --reader or --to where that was, or oldest.",
        ),
    ] = None
    reader: Annotated[
        str | None,
        Option(metavar="NAME", help="Read under this name: what is not shown yet is kept for the next time."),
    ] = None
    limit: Annotated[int | None, Option(min=1, help="End after so many rows.")] = None
    headers: Annotated[bool, Option("--headers", help="Show the header columns of tuples, too.")] = False
    insertions_only: Annotated[
        bool,
        Option("--insertions-only", help="Plain rows: what was corrected later stays as it was first given."),
    ] = False
    stable_only: Annotated[
        bool, Option("--stable-only", help="No tentative rows: those that were computed without a missing stream.")
    ] = False


def tail(
    stream: StreamName,
    options: TailOptions,
    cluster: ClusterOptions,
    json: JsonRows = False,
    to: Annotated[
        str | None,
        Option(
            metavar="PLACE",
            help="Stable rows into a topic or file instead, each once: kafka://host:port/topic, rows.jsonl, folder/.",
        ),
    ] = None,
    tentative_to: Annotated[
        str | None,
        Option(
            metavar="PLACE",
            help="With --to: tentative rows, too, into a topic or a text file of their own. An undo empties the file.",
        ),
    ] = None,
) -> None:
    from borealis.client.subscriber import parse_start

    start = None if options.start is None else parse_start(options.start)
    if options.start is not None and start is None:
        hint = "give oldest, newest or a tuple id"
        raise StreamError(f"--from '{options.start}' is no place in a stream", hint=hint)
    if to is not None:
        from borealis.cli.forward import forward

        forward(stream, to, start, options, cluster, json, tentative_to)
        return
    if tentative_to is not None:
        raise OutputError(
            "--tentative-to says where rows go that are not stable", hint="say with --to where stable ones go"
        )
    from borealis.cli.following import FollowedRows
    from borealis.connectors.files.text import JsonLines

    with (
        cluster.client() as client,
        client.subscribe(
            stream,
            start,
            reader=options.reader,
            headers=options.headers,
            insertions_only=options.insertions_only,
            tentative=not options.stable_only,
            on_gap="continue",
        ) as subscription,
        STOP.deferred(),
    ):
        out, err = console(), console(stderr=True)
        coloured = out.color_system is not None and not out.no_color
        rows = FollowedRows(coloured, json)
        if json:
            JsonLines().check(subscription.schema)
        if err.is_terminal and not json:
            err.print(f"{subscription.stream} from {subscription.position:,}", style="dim")
        left, gaps, jumps, lost, undone, recovered, silent = options.limit, 0, 0, 0, 0, 0, True
        while left is None or left > 0:
            STOP.point()
            batch = subscription.read(QUIET_S, left)
            at = f"{subscription.stream} goes on at {subscription.position:,}"
            notes = []
            if subscription.gaps > gaps:
                gaps, lost = subscription.gaps, subscription.lost
                notes.append(f"gap: {at}" + (f", {lost:,} tuples are missing" if lost else ""))
            if subscription.lost > lost:
                more, lost = subscription.lost - lost, subscription.lost
                dropped = f"{more:,} tuples of {subscription.stream} were dropped"
                notes.append(f"lost: {dropped}, for they were not read in time")
            if subscription.jumps > jumps:
                jumps = subscription.jumps
                notes.append(f"recovered: {at}; tuples may be missing, come again or count twice")
            if subscription.undone > undone:
                undone = subscription.undone
                if void := rows.undo():
                    notes.append(f"undone: {plural(void, 'tentative row')} above, for which the right ones follow")
            if subscription.recovered > recovered:
                recovered = subscription.recovered
                if rows.done():
                    notes.append(f"right again: all tentative rows of {subscription.stream} are corrected")
            for line in notes:
                err.print(line, style="yellow", soft_wrap=True)
            if batch is None:
                if silent and (silence := _silence(client, subscription)):
                    err.print(silence, style="dim", soft_wrap=True, highlight=False)
                silent = False
                if not subscription.running:
                    break
                continue
            silent = False
            rows.show(batch, subscription.stable)
            if left is not None:
                left -= batch.num_rows
            if options.reader is not None:
                subscription.ack()


def _silence(client: Client, subscription: Subscription) -> str:
    """Of a stream from which nothing comes: that it waits or has ended, and how many rows are held before its start."""
    before = []
    if subscription.options.reader is None:  # else it goes on where it was, whatever --from says
        with suppress(BorealisError):  # the coordinator is away: the stream goes on without it
            found = [one for one in client.streams() if one.stream == subscription.stream]
            held = sum(min(one.held_rows, max(0, subscription.position - one.first_id)) for one in found)
            before = [f"{plural(held, 'row')} {'is' if held == 1 else 'are'} held: --from oldest"] if held else []
    if subscription.running:
        return "; ".join([f"waiting for rows of {subscription.stream}", *before])
    return "; ".join([f"{subscription.stream} has ended", *before]) if before else ""
