"""The client library for asyncio. Streams are read by threads of their own; the event loop never waits for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

import pyarrow as pa

from borealis.client.publisher import Publisher
from borealis.client.subscriber import Start, Subscription
from borealis.diagram.deployment import DeployOptions
from borealis.diagram.model import Diagram
from borealis.diagram.spec import Spec
from borealis.streams.section import Section
from borealis.wire.messages import Receipt
from borealis.wire.status import ClusterStatus, Deployed, NodeView, Ordered, StreamView

if TYPE_CHECKING:
    from borealis.client.client import Client

T = TypeVar("T")
THREADS_MOST = 64  # so many calls may wait at a time, such as publishers for room


class Threads:
    """Threads for what blocks: not those of the event loop, which a program may need for itself."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS_MOST, thread_name_prefix="borealis-aio")

    async def __call__(self, do: Callable[..., T], *given: Any, **named: Any) -> T:
        """Do it in one of them, and wait for that."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(do, *given, **named))

    def close(self) -> None:
        """No more is to be done."""
        self._pool.shutdown(wait=False)


class AsyncClient:
    """A cluster, as an asyncio program uses it. `async with`, or `await close()`."""

    def __init__(self, client: Client) -> None:
        self.blocking = client  # the same cluster, for threads
        self._run = Threads()

    def stream(
        self,
        stream: str,
        start: Start | None = None,
        *,
        reader: str | None = None,
        headers: bool = False,
        on_gap: Literal["raise", "continue"] = "raise",
        auto_ack: bool = True,
        timeout: float | None = None,
    ) -> AsyncSubscription:
        """A stream to iterate over with `async for`; see `Client.subscribe`. It connects when iteration begins."""
        options = {"reader": reader, "headers": headers, "on_gap": on_gap, "auto_ack": auto_ack, "timeout": timeout}
        return AsyncSubscription(self.blocking, self._run, stream, start, options)

    async def subscribe(self, stream: str, start: Start | None = None, **options: Any) -> AsyncSubscription:
        """The same, connected already: from `newest` means from now on."""
        made = self.stream(stream, start, **options)
        await made.open()
        return made

    async def publish(self, stream: str, data: Any, *, timeout: float | None = None) -> Receipt:
        """Send rows to an input and wait until they are taken over."""
        return await self._run(self.blocking.publish, stream, data, timeout=timeout)

    def publisher(self, stream: str, name: str | None = None) -> AsyncPublisher:
        """A way into an input for many batches: `async with cluster.publisher("packets") as out`."""
        return AsyncPublisher(self.blocking, self._run, stream, name)

    async def deploy(self, diagram: Diagram | Spec | str | Path, **options: Unpack[DeployOptions]) -> Deployed:
        """Run a diagram; see `Client.deploy`."""
        return await self._run(self.blocking.deploy, diagram, **options)

    async def undeploy(self, diagram: str) -> None:
        """Stop a diagram."""
        await self._run(self.blocking.undeploy, diagram)

    async def move(self, unit: str, node: str, *, diagram: str | None = None) -> Ordered:
        """Move a running unit, with its state, to another node."""
        return await self._run(self.blocking.move, unit, node, diagram=diagram)

    async def status(self) -> ClusterStatus:
        """Everything: nodes, diagrams, units, streams."""
        return await self._run(self.blocking.status)

    async def nodes(self) -> list[NodeView]:
        """The nodes, alive or not."""
        return await self._run(self.blocking.nodes)

    async def streams(self) -> list[StreamView]:
        """The streams, and where they are."""
        return await self._run(self.blocking.streams)

    async def close(self) -> None:
        """End everything that runs over this client."""
        await self._run(self.blocking.close)
        self._run.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSubscription:
    """A stream that comes in, for one task: `async for` gives rows; `batches()`, `pandas()`, `sections()` the rest."""

    def __init__(self, client: Client, run: Threads, stream: str, start: Start | None, options: dict[str, Any]) -> None:
        self._client, self._run, self._stream, self._start, self._options = client, run, stream, start, options
        self._under: Subscription | None = None
        self._news = asyncio.Event()

    async def open(self) -> Subscription:
        """Connect, if that is not done yet; the blocking subscription under this one."""
        if self._under is None:
            loop = asyncio.get_running_loop()
            under = await self._run(self._client.subscribe, self._stream, self._start, **self._options)
            if self._under is not None:  # another task was faster
                under.stop()  # type: ignore[unreachable]
                return self._under
            self._under = under

            def tell() -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                    loop.call_soon_threadsafe(self._news.set)

            under.on_news(tell)
        return self._under

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
            under.whole(section)
            yield section

    async def ack(self, upto: int | None = None) -> None:
        """This named reader needs nothing before `upto` (by default all that was handed out), whatever happens."""
        under = await self.open()
        await self._run(under.ack, upto)

    async def stop(self) -> None:
        """End it; iterations end."""
        if self._under is not None:
            await self._run(self._under.stop)

    async def __aenter__(self) -> AsyncSubscription:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _take(self, *, boundaries: bool = False) -> Section | None:
        """As `Subscription.take`, waiting on the event loop."""
        under = await self.open()
        if under.wants_to_ack:
            await self._run(under.ack_what_was_had)
        seconds = under.reading.timeout
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


class AsyncPublisher:
    """A way into an input for many batches, in numbered order. `async with` waits at the end for all of them."""

    def __init__(self, client: Client, run: Threads, stream: str, name: str | None) -> None:
        self._client, self._run, self._stream, self._name = client, run, stream, name
        self._under: Publisher | None = None

    async def open(self) -> Publisher:
        """Connect, if that is not done yet; the blocking publisher under this one."""
        if self._under is None:
            self._under = await self._run(self._client.publisher, self._stream, self._name)
        return self._under

    async def send(self, data: Any) -> int:
        """Send rows; they are safe when `flush` returns. Returns their number."""
        under = await self.open()
        return await self._run(under.send, data)

    async def heartbeat(self, time: int | datetime) -> None:
        """Promise that no tuple before this time follows."""
        under = await self.open()
        await self._run(under.heartbeat, time)

    async def end(self) -> None:
        """Say that nothing follows, ever."""
        under = await self.open()
        await self._run(under.end)

    async def flush(self, timeout: float | None = None) -> Receipt:
        """Wait until everything is taken over."""
        under = await self.open()
        return await self._run(under.flush, timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Wait until everything is taken over, and hang up."""
        if self._under is not None:
            await self._run(self._under.close, timeout)

    async def __aenter__(self) -> AsyncPublisher:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        elif self._under is not None:
            self._under.abandon()
