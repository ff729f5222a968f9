"""The client library: publish to a running cluster's streams, subscribe to them, deploy and watch.

with borealis.connect() as cluster:
    cluster.publish("packets", [{"ts": now, "src": "10.0.0.1", "bytes": 40}])
    for row in cluster.subscribe("per_source"):
        print(row)

async with borealis.connect_async() as cluster:
    async for row in cluster.stream("per_source"):
        print(row)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from borealis.client.cluster_config import Whereabouts, find
from borealis.client.coordinator import TIMINGS, CoordinatorRequests
from borealis.client.publisher import Publisher, Publishing
from borealis.client.subscriber import ReadOptions, Start, Subscription
from borealis.diagram.deployment import Deployment, DeployOptions
from borealis.diagram.model import Diagram
from borealis.diagram.spec import Spec
from borealis.errors import DiagramError, InputError
from borealis.machine import HERE, Machine
from borealis.retrying import RETRIES, Retries
from borealis.wire.auth import Security
from borealis.wire.client import Peer
from borealis.wire.endpoints import Location
from borealis.wire.messages import Done, Forget, Receipt
from borealis.wire.status import Deployed

if TYPE_CHECKING:
    from borealis.client.aio import AsyncClient


def connect(
    address: str | None = None,
    token: str | None = None,
    *,
    ca: str | Path | None = None,
    retries: Retries = RETRIES,
) -> Client:
    """A client of the cluster whose coordinator is at `address` (`host:port`).

    Left out, they come from BOREALIS_COORDINATOR, BOREALIS_TOKEN and BOREALIS_CA, or from what `borealis up` wrote
    down. Nothing is sent yet. `ca` is the file of the authority that signed the cluster's certificates.
    """
    return Client(find(address, token, ca), retries)


def connect_async(
    address: str | None = None,
    token: str | None = None,
    *,
    ca: str | Path | None = None,
    retries: Retries = RETRIES,
) -> AsyncClient:
    """The same for asyncio: `async with connect_async() as cluster`."""
    return connect(address, token, ca=ca, retries=retries).aio


class SubscribeOptions(TypedDict, total=False):
    """Options of a subscription, beside the stream and where to start."""

    reader: str | None  # under which tuples are kept until they are acknowledged
    headers: bool  # rows come with _id, _time, _kind and _stable
    insertions_only: bool  # plain rows without _kind; results that were corrected later stay as they were
    tentative: bool  # also what was computed without a stream that is missing, until it is corrected
    on_gap: Literal["raise", "continue"]  # where tuples are missing; by default it raises
    auto_ack: bool  # what was handed out is acknowledged when more is asked for; by default it is
    timeout: float | None  # seconds without a tuple after which iteration raises TimeoutError


class Streams(ABC):
    """Streams, as a program uses them; what knows where they are is a class under this one, and a `Locator`."""

    def __init__(self, retries: Retries = RETRIES, machine: Machine = HERE) -> None:
        self.machine = machine
        self._retries = retries
        self._publishers: dict[str, Publisher] = {}
        self._subscriptions: list[Subscription] = []
        self._lock = machine.threads.lock()

    @abstractmethod
    def locate(self, stream: str) -> Location: ...

    @abstractmethod
    def peer(self, address: str) -> Peer: ...

    def publish(self, stream: str, data: Any, *, timeout: float | None = None) -> Receipt:
        """Send rows to an input and wait until they are taken over: a record batch, a table, a data frame, dicts."""
        with self._lock:
            publisher = self._publishers.get(stream)
            if publisher is None:
                publisher = self._publishers[stream] = self.publisher(stream)
        try:
            publisher.send(data)
            return publisher.flush(timeout)
        except BaseException as error:
            if publisher.failed or not isinstance(error, InputError):  # else the rows were wrong, and none was sent
                with self._lock:
                    if self._publishers.get(stream) is publisher:
                        del self._publishers[stream]
                publisher.abandon()
            raise

    def publisher(self, stream: str, name: str | None = None) -> Publisher:
        """A way into an input for many batches. Under a `name` a later program can go on where this one ended."""
        return Publisher(self, stream, Publishing(name=name, retries=self._retries), self.machine)

    def subscribe(self, stream: str, start: Start | None = None, **options: Unpack[SubscribeOptions]) -> Subscription:
        """A stream from a place on: `newest` (what comes from now on), `oldest`, or a tuple id.

        With a `reader` name the stream keeps tuples until they are acknowledged under it, and a later program goes on
        where this one ended; `start` matters only the first time then.

        Rows of a stream that carries revisions begin with `_kind`: `+I`, `-D`, or `-U` and right behind it `+U`. With
        `insertions_only` only the first of these come, as plain rows: such a reader never hears that one was wrong.
        """
        made = Subscription(self, stream, ReadOptions(start, retries=self._retries, **options), self.machine)
        with self._lock:
            self._subscriptions = [s for s in self._subscriptions if s.running]
            self._subscriptions.append(made)
        return made

    def forget(self, stream: str, reader: str) -> None:
        """A named reader will not come back: the stream keeps nothing for it any more."""
        found = self.locate(stream)
        with self.peer(found.address) as peer:
            peer.act("forget", Forget(stream=found.stream, reader=reader), Done)

    def close(self) -> None:
        """End everything that runs over this client."""
        with self._lock:
            publishers, self._publishers = self._publishers, {}
            subscriptions, self._subscriptions = self._subscriptions, []
        for publisher in publishers.values():
            publisher.abandon()  # each `publish` waited for its rows
        for subscription in subscriptions:
            subscription.stop()


class Client(CoordinatorRequests, Streams):
    """A cluster, as a program uses it. Blocking; threads may share it. Close it, or use it as a context manager."""

    def __init__(self, whereabouts: Whereabouts, retries: Retries = RETRIES, machine: Machine = HERE) -> None:
        CoordinatorRequests.__init__(self, whereabouts)
        Streams.__init__(self, retries, machine)
        self._security = Security(token=whereabouts.token, ca=Path(whereabouts.ca) if whereabouts.ca else None)

    def deploy(self, diagram: Diagram | Spec | str | Path, **options: Unpack[DeployOptions]) -> Deployed:
        """Run a diagram: a Diagram or the path of its YAML file.

        `cut` names boxes before which to cut, `place` says on which node an input, box or output shall be, `units`
        into how many units to cut where nothing else decides.

        `ha` (amnesia, passive, active, replicas, upstream-backup; none) and `guarantee` (gap, no-loss, precise) say
        how all units are protected, over what the diagram says; `interval` between checkpoints or trimming messages
        ("500 ms"), `checkpoint` (interval, sweeping, min-max) when a passive standby makes one; `ping`, `misses` when
        a node is held to be dead, `backup` where a unit's backup shall be;
        `without_backup` (refuse, degrade) what happens where no node is left for one; `merge` (arrival, time) in which
        order a unit reads several streams, `bucket` ("100 ms") how much of them at a time; `replicas` how many copies
        of a unit answer with `ha="replicas"`, two or more, `backups` how many stand by with `ha="passive"`. The answer
        has `warnings`: where `no-loss` leaves state behind a unit that may count tuples twice, for one.

        `delay` ("3 s") bounds how long a unit waits for a stream that is missing: then it answers tentatively, and
        corrects that when the stream is back; with `delay_of="path"` all units on a path share it. `during_failure`
        (process, delay) and `during_stabilization` (process, delay, suspend) say whether tuples that come meanwhile
        are answered at once, or as late as may be, or not.
        `keep` ("2 GB") and `keep_time` ("10 minutes") bound what is kept of each input until then, most of it on disk;
        then all wait or, with `when_full="drop-oldest"` and amnesia, the oldest is given up, which is a gap.

        `replace` ends what runs under the diagram's name, once the new one is known to be sound. State and streams of
        the old one are gone then: the new one begins from empty, and readers of the old streams get an error.
        """
        if isinstance(diagram, str) and "\n" in diagram:
            hint = "give Diagram.from_yaml(text), or the path of a file"
            raise DiagramError("deploy takes a diagram or a path, not the text of a diagram", hint=hint)
        loaded = Diagram.load(diagram) if isinstance(diagram, str | Path) else diagram
        if isinstance(loaded, Diagram):
            loaded.validate()
            loaded = loaded.spec
        order = Deployment.of(loaded.to_yaml(), options).to_json()
        return Deployed.decode(self.ask("POST", "/v1/diagrams", json=order, timeout=TIMINGS.change_s))

    @property
    def aio(self) -> AsyncClient:
        """The same cluster for asyncio."""
        from borealis.client.aio import AsyncClient

        return AsyncClient(self)

    def close(self) -> None:
        """End everything that runs over this client."""
        Streams.close(self)
        CoordinatorRequests.close(self)

    def peer(self, address: str) -> Peer:
        return Peer(address, self._security, machine=self.machine)
