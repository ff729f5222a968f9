"""The client library for asyncio. Streams are read by threads of their own; the event loop never waits for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

import pyarrow as pa
from anyio import CapacityLimiter, to_thread

from borealis.client.client import Client, SubscribeOptions
from borealis.client.publisher import Publisher
from borealis.client.subscriber import Start, Subscription
from borealis.streams.section import Section

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")
THREADS_MOST = 64  # so many calls of a client may wait at a time, such as publishers for room


class Threaded(Generic[U]):
    """Something that blocks, for asyncio: its methods run in threads."""

    def __init__(self, threads: CapacityLimiter, make: Callable[[], U]) -> None:
        self._threads, self._make = threads, make
        self._under: U | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> U:
        """Connect, if that is not done yet; the blocking form under this one."""
        async with self._opening:
            if self._under is None:
                self._under = await self._run(self._make)
                self._opened(self._under)
            return self._under

    def _opened(self, under: U) -> None:
        """It is connected now."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def _run(self, do: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        call = partial(do, *given, **named)
        return await to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)


def in_thread(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method of the blocking form, awaited."""

    @wraps(method)
    async def run(self: Threaded[Any], /, *given: P.args, **named: P.kwargs) -> T:
        return await self._run(method, await self.open(), *given, **named)

    return run


class AsyncClient(Threaded[Client]):
    """A cluster, as an asyncio program uses it. `async with`, or `await close()`. What is not here is `Client`'s."""

    def __init__(self, client: Client) -> None:
        super().__init__(CapacityLimiter(THREADS_MOST), lambda: client)
        self._under = self.blocking = client  # the same cluster, for threads

    publish = in_thread(Client.publish)
    forget = in_thread(Client.forget)
    deploy = in_thread(Client.deploy)
    undeploy = in_thread(Client.undeploy)
    move = in_thread(Client.move)
    status = in_thread(Client.status)
    nodes = in_thread(Client.nodes)
    forget_node = in_thread(Client.forget_node)
    streams = in_thread(Client.streams)
    close = in_thread(Client.close)

    def stream(self, stream: str, start: Start | None = None, **options: Unpack[SubscribeOptions]) -> AsyncSubscription:
        """A stream to iterate over with `async for`; see `Client.subscribe`. It connects when iteration begins."""
        return AsyncSubscription(self._threads, lambda: self.blocking.subscribe(stream, start, **options))

    async def subscribe(
        self, stream: str, start: Start | None = None, **options: Unpack[SubscribeOptions]
    ) -> AsyncSubscription:
        """The same, connected already: from `newest` means from now on."""
        made = self.stream(stream, start, **options)
        await made.open()
        return made

    def publisher(self, stream: str, name: str | None = None) -> AsyncPublisher:
        """A way into an input for many batches: `async with cluster.publisher("packets") as out`."""
        return AsyncPublisher(self._threads, lambda: self.blocking.publisher(stream, name))

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncSubscription(Threaded[Subscription]):
    """A stream that comes in, for one task: `async for` gives rows; `batches()`, `pandas()`, `sections()` the rest."""

    def __init__(self, threads: CapacityLimiter, make: Callable[[], Subscription]) -> None:
        super().__init__(threads, make)
        self._news = asyncio.Event()

    def _opened(self, under: Subscription) -> None:
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its reader has gone
                loop.call_soon_threadsafe(self._news.set)

        under.on_news(tell)

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        return self.rows()

    async def rows(self) -> AsyncIterator[dict[str, Any]]:
        """Row by row, as dicts."""
        under = await self.open()
        while (section := await self._take()) is not None:
            for row in under.hand_out(section):
                yield row

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """As Arrow record batches, as they come."""
        under = await self.open()
        while (section := await self._take()) is not None:
            yield under.whole(section)

    async def pandas(self) -> AsyncIterator[Any]:
        """As pandas data frames, as they come."""
        async for batch in self.batches():
            yield batch.to_pandas()

    async def sections(self) -> AsyncIterator[Section]:
        """As sections: tuples with their ids and times, and the boundaries among them."""
        under = await self.open()
        while (section := await self._take(boundaries=True)) is not None:
            under.passed(section)
            yield section

    ack = in_thread(Subscription.ack)

    async def stop(self) -> None:
        """End it; iterations end."""
        if self._under is not None:
            await self._run(self._under.stop)

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def _take(self, *, boundaries: bool = False) -> Section | None:
        """As `Subscription.take`, waiting on the event loop."""
        under = await self.open()
        if under.wants_to_ack:
            await self._run(under.ack_what_was_had)
        seconds = under.options.timeout
        while True:
            self._news.clear()
            try:
                section = under.take(0, boundaries=boundaries, ack=False)
                if section is None:
                    await self._run(under.ack_what_was_had, now=True)
                return section
            except TimeoutError as nothing:
                try:
                    await asyncio.wait_for(self._news.wait(), seconds)
                except TimeoutError:
                    raise TimeoutError(f"nothing came on {under.stream} for {seconds} s") from nothing


class AsyncPublisher(Threaded[Publisher]):
    """A way into an input for many batches, in numbered order. `async with` waits at the end for all of them."""

    send = in_thread(Publisher.send)
    insert = in_thread(Publisher.insert)
    delete = in_thread(Publisher.delete)
    replace = in_thread(Publisher.replace)
    heartbeat = in_thread(Publisher.heartbeat)
    end = in_thread(Publisher.end)
    flush = in_thread(Publisher.flush)

    async def close(self, timeout: float | None = None) -> None:
        """Wait until everything is taken over, and hang up."""
        if self._under is not None:
            await self._run(self._under.close, timeout)

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            await self.close()
        elif self._under is not None:
            self._under.abandon()
