"""Streams for people with nothing but curl: rows in as newline-delimited JSON, rows out as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated

import pyarrow as pa
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from borealis.client.subscriber import Start, parse_start
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.http_auth import body_of
from borealis.coordinator.http_errors import BadRequestError, TooManyError, status_of
from borealis.coordinator.naming import locate
from borealis.coordinator.threads import in_thread
from borealis.errors import BorealisError, InputError
from borealis.gateway.events import events, listening
from borealis.gateway.ndjson import Cutter, Inflow, NumberedLine, ParsedRows, rows_of
from borealis.gateway.publishing import SharedPublishers, entry_of, schema_of, send_numbered
from borealis.message import PROTOCOL
from borealis.streams.section import empty_rows
from borealis.wire.messages import NAME_RULE, BatchHead, Receipt, is_name
from borealis.wire.problems import problem_of
from borealis.wire.view import View

NUMBERED_BYTES_MOST = 16 << 20  # a body that has a number is one batch
LISTENERS_MOST = 200  # each has a thread and a subscription
TAKEN = "Borealis-Taken"
INSERTIONS_ONLY = "plain rows without _kind: what was corrected later stays as it was first given"
TENTATIVE = "also what was computed without a stream that is missing, until `event: undo`; right ones, `event: done`"
DEFAULT = "newest"  # as for `borealis tail` and for clients


@dataclass
class Counts:
    """How far a body was taken."""

    rows: int = 0
    next_id: int | None = None  # None: nothing was sent on, so the stream was not asked


def gateway(cluster: Cluster, ending: asyncio.Event) -> tuple[APIRouter, Callable[[], None]]:
    """The routes, as a part of a coordinator's application. At `ending` all listeners are sent away."""
    publishers = SharedPublishers(cluster)
    api = APIRouter(prefix="/v1/streams", tags=["streams"])
    listeners = asyncio.Semaphore(LISTENERS_MOST)

    @api.post("/{name:path}", openapi_extra=NDJSON)
    async def send(
        name: str,
        request: Request,
        heartbeat: Annotated[datetime | None, Query(description="no row before this time follows")] = None,
        end: Annotated[bool, Query(description="nothing follows at all")] = False,
        borealis_publisher: Annotated[str | None, Header()] = None,
        borealis_number: Annotated[int | None, Header(ge=0, lt=2**63)] = None,
    ) -> Response:
        """Send rows, one JSON object a line. Lines before a bad one are taken.

        Of an input with a key, `_kind` says what a row does: `+I` (or nothing) comes, `+U` comes in place of the row
        with its key, `-D` takes that row away, for which the key suffices.

        With `Borealis-Publisher` and `Borealis-Number` (rising by one from 0) the body is taken whole or not at all,
        and once only, however often it is sent.
        """
        location = await in_thread(lambda: entry_of(cluster, name))
        schema = await in_thread(lambda: schema_of(cluster, location))
        from borealis.client.publisher import microseconds  # here: a thread has imported it by now

        until = None if heartbeat is None else microseconds(heartbeat)
        if borealis_publisher is not None or borealis_number is not None:
            if borealis_publisher is None or borealis_number is None:
                hint = "give both, or none: the number rises by one from 0"
                raise BadRequestError("Borealis-Publisher and Borealis-Number go together", hint=hint)
            if not is_name(borealis_publisher):
                raise BadRequestError(f"'{borealis_publisher[:80]}' cannot be a publisher", hint=NAME_RULE)
            head = BatchHead(number=borealis_number, heartbeat=until, end=end)
            return await _send_whole(cluster, request, location.stream, schema, borealis_publisher, head)
        send_on, counts = partial(publishers.send, location.stream), Counts()
        async with Inflow(request) as inflow:
            try:
                async for lines in inflow.lines():
                    await in_thread(partial(_take, send_on, lines, schema, counts))
                if not inflow.broken and (until is not None or end):
                    counts.next_id = (await in_thread(lambda: send_on(empty_rows(schema), until, end))).next_id
            except BorealisError as error:
                await inflow.drain()
                return _refused(error, counts.rows)
        return _taken(location.stream, counts.rows, next_id=counts.next_id)

    @api.get("/{name:path}", response_class=StreamingResponse, responses=SSE)
    async def listen(
        name: str,
        start: Annotated[
            str | None, Query(description=f"`oldest`, `newest` or a tuple's id; {DEFAULT} if left out")
        ] = None,
        same: Annotated[str | None, Query(alias="from", description="the same as `start`")] = None,
        limit: Annotated[int | None, Query(ge=1, description="end after so many rows")] = None,
        headers: Annotated[bool, Query(description="with _id, _time, _kind and _stable")] = False,
        insertions_only: Annotated[bool, Query(description=INSERTIONS_ONLY)] = False,
        tentative: Annotated[bool, Query(description=TENTATIVE)] = False,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Listen to a stream: server-sent events with the tuple's id and its row as JSON, until it ends.

        Rows of a stream that carries revisions begin with `_kind`: `+I` came, `-D` went; `-U` went, and the `+U` right
        behind it came in its place.

        With `tentative` there are rows with `"_stable": false` and without an id, too, computed while a stream was
        missing. `event: undo` says that all of them are void, `{"_undo": n}` how many; the right ones follow, and then
        `event: done`.
        """
        if listeners.locked():
            hint = "listen by Arrow Flight instead: /v1/locate tells where"
            raise TooManyError(f"{LISTENERS_MOST} listeners are the most", hint=hint)
        begin = _begin(start, same) if last_event_id is None else _after(last_event_id)
        location = await in_thread(lambda: locate(cluster, name))
        listener = listening(cluster, location.stream, begin, View(headers, insertions_only), tentative)
        await listener.open()
        return StreamingResponse(
            events(listener, limit, ending, listeners, cluster.threads),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    return api, publishers.close


def _take(
    send_on: Callable[[pa.RecordBatch], Receipt], lines: list[NumberedLine], schema: pa.Schema, counts: Counts
) -> None:
    rows = rows_of(lines, schema)
    if rows.batch.num_rows:
        counts.next_id = send_on(rows.batch).next_id
        counts.rows += rows.batch.num_rows
    if rows.error is not None:
        raise rows.error


def _whole(data: bytes, schema: pa.Schema) -> ParsedRows:
    cutter = Cutter()
    return rows_of([*cutter.feed(data), *cutter.rest()], schema)


async def _send_whole(
    cluster: Cluster, request: Request, stream: str, schema: pa.Schema, publisher: str, head: BatchHead
) -> Response:
    data = await body_of(request, NUMBERED_BYTES_MOST)
    rows = await in_thread(partial(_whole, data, schema))
    if rows.error is not None:
        return _refused(rows.error, 0)
    receipt, repeated = await in_thread(lambda: send_numbered(cluster, stream, rows.batch, publisher, head))
    taken = 0 if repeated else rows.batch.num_rows
    return _taken(stream, taken, repeated=repeated, number=receipt.number, next_id=receipt.next_id)


def _taken(stream: str, rows: int, **more: int | None) -> Response:
    return JSONResponse({"v": PROTOCOL, "stream": stream, "taken": rows, **more}, headers={TAKEN: str(rows)})


def _refused(error: BorealisError, taken: int) -> Response:
    """A problem that says how much was taken before it."""
    if isinstance(error, InputError):
        before = (
            "the line before it is" if taken == 1 else f"the {taken:,} lines before it are" if taken else "nothing is"
        )
        error = InputError(f"{error.message}; {before} taken", hint=error.hint)
    headers = {TAKEN: str(taken)}
    return Response(problem_of(error).encode(), status_of(error), headers, media_type="application/json")


def _begin(start: str | None, same: str | None) -> Start:
    if start is not None and same is not None and start != same:
        raise BadRequestError(f"start={start[:80]} and from={same[:80]} contradict", hint="they are the same: give one")
    return _start(next((given for given in (start, same) if given is not None), DEFAULT))


def _start(given: str) -> Start:
    if (found := parse_start(given)) is None:
        raise BadRequestError(f"a stream cannot be read from '{given[:80]}'", hint="say oldest, newest or a tuple's id")
    return found


def _after(last: str) -> Start:
    found = _start(last)
    if isinstance(found, str):
        raise BadRequestError(f"'{last}' is no tuple's id", hint="Last-Event-ID is the id of the last event that came")
    return found + 1


NDJSON = {
    "requestBody": {
        "required": True,
        "content": {
            "application/x-ndjson": {
                "schema": {"type": "string", "example": '{"ts": "2024-05-01T12:00:00Z"}'},
                "examples": {
                    "corrections": {
                        "summary": "of an input with a key: a row is replaced, another one deleted",
                        "value": '{"_kind": "+U", "ts": "2024-05-01T12:00:00Z", "id": 1}\n{"_kind": "-D", "id": 2}\n',
                    }
                },
            }
        },
    }
}
SSE: dict[int | str, dict[str, object]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
