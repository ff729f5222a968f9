"""A cluster of real nodes and a real coordinator, in one thread: started, killed, paused, and started again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from pyarrow import flight
from pydantic import TypeAdapter

from borealis.client.coordinator import REFUSALS, TIMINGS
from borealis.coordinator.catalog import Catalog
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.coordinator import Coordinator
from borealis.coordinator.http_errors import status_of
from borealis.coordinator.timings import TIMINGS as CLUSTER_TIMINGS
from borealis.coordinator.timings import ClusterTimings
from borealis.errors import BorealisError, UnreachableError, WireError
from borealis.node.heartbeats import Heartbeats
from borealis.node.node import Node
from borealis.sim.disk import SimDisk
from borealis.sim.kernel import Kernel, Process
from borealis.sim.network import Delays, SimNetwork, Wires, address_of
from borealis.sim.plan import COORDINATOR, STORAGE, Weather
from borealis.sim.programs import Programs, SimSession
from borealis.sim.query import SimLaneQuery
from borealis.spark.worker import forget
from borealis.storage import Storage
from borealis.streams.queue import QueueLimits
from borealis.wire.auth import OPEN
from borealis.wire.client import Peer, Peers
from borealis.wire.endpoints import Location
from borealis.wire.messages import Claim, Claimed
from borealis.wire.problems import error_from, refusal
from borealis.wire.service import Service

DATA = Path("/data")
CATALOG = Path("/catalog/catalog.db")
STORED = Path("/stored")  # in storage
LOCATION = TypeAdapter(Location)
CLAIMED = TypeAdapter(list[Claimed])


class CoordinatorFront:
    """A coordinator's requests as calls of the simulated network, in HTTP's place."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def act(self, name: str, body: bytes) -> bytes:
        try:
            match name:
                case "heartbeat":
                    return self._coordinator.heartbeat(body).encode()
                case "claim":
                    claims = TypeAdapter(list[Claim]).validate_json(body)
                    return CLAIMED.dump_json(self._coordinator.claim(claims))
                case _:
                    return LOCATION.dump_json(self._coordinator.locate(body.decode()))
        except BorealisError as error:
            raise flight.FlightServerError(
                f"{status_of(error)}", extra_info=getattr(refusal(error, name), "extra_info", b"")
            ) from None

    def get(self, *_: Any) -> Any:
        raise NotImplementedError

    put = get


class CoordinatorLine:
    """A coordinator as a process of the simulation asks it: what `client.coordinator.CoordinatorClient` is over HTTP.

    It also finds streams and nodes for clients.
    """

    def __init__(self, network: SimNetwork, peers: Peers) -> None:
        self._line = network.connect(address_of(COORDINATOR), OPEN, 1.0, 1.0)
        self._peers = peers

    def _ask(self, name: str, body: bytes, within: float) -> bytes:
        try:
            return self._line.action(name, body, within)[0]
        except flight.FlightServerError as error:
            complaint = error_from(error, COORDINATOR)
            complaint.status = int(str(error).partition(".")[0].split()[0])  # type: ignore[attr-defined]
            raise complaint from None
        except (flight.FlightError, OSError) as error:
            raise WireError(f"no coordinator ({error})") from None

    def heartbeat(self, status: bytes) -> None:
        try:
            self._ask("heartbeat", status, TIMINGS.heartbeat_s)
        except BorealisError as error:
            if getattr(error, "status", None) in REFUSALS:
                raise
            raise UnreachableError(f"the coordinator does not answer: {error}") from error

    def claim(self, claims: Sequence[Claim]) -> list[Claimed] | None:
        body = json.dumps([claim.model_dump(mode="json") for claim in claims]).encode()
        try:
            return CLAIMED.validate_json(self._ask("claim", body, TIMINGS.claim_s))
        except BorealisError:
            return None

    def locate(self, stream: str) -> Location:
        return LOCATION.validate_json(self._ask("locate", stream.encode(), TIMINGS.locate_s))

    def find(self, stream: str) -> Location | None:
        """For a node: nothing where the coordinator does not know or does not answer."""
        try:
            return self.locate(stream)
        except BorealisError:
            return None

    def peer(self, address: str) -> Peer:
        return self._peers.connect(address)


class Host:
    """A machine: its disk, and the process that runs on it, if one does."""

    def __init__(self, name: str, kernel: Kernel, wires: Wires, sync_s: float = 0.0) -> None:
        self.name, self.kernel, self.wires = name, kernel, wires
        self.disk = SimDisk(sync_s)
        self.process: Process | None = None
        self.lives = 0  # processes so far

    @property
    def alive(self) -> bool:
        return self.process is not None and not self.process.dead

    def boot(self) -> Process:
        """A new process, on the same disk."""
        self.lives += 1
        self.process = self.kernel.process(f"{self.name}#{self.lives}", self.disk)
        return self.process

    def kill(self) -> None:
        """As by `kill -9`."""
        if self.process is not None and self.alive:
            self.process.kill()
            self.wires.died(self.process)


class StorageHost(Host):
    """Where all nodes write; it never dies, but its disk may be full, or fail."""

    def of(self, process: Process) -> Storage:
        """As a process sees it."""
        return Storage(STORAGE, STORED, replace(process.machine, disk=self.disk.for_process(process)))


class NodeHost(Host):
    """A machine that runs a node."""

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        wires: Wires,
        programs: Programs,
        chance: Random,
        weather: Weather,
        limits: QueueLimits | None,
        storage: StorageHost | None,
    ) -> None:
        super().__init__(name, kernel, wires, weather.sync_s)
        self._storage = storage
        self._costs_s = weather.train_s, weather.start_s
        self.node: Node | None = None
        self._programs, self._chance, self._limits = programs, chance, limits

    def start(self) -> None:
        process, self.node = self.boot(), None  # until its process has made one
        network = self.wires.of(process, self.name)
        machine = process.machine
        peers = Peers(network=network, machine=machine)
        coordinator = CoordinatorLine(network, peers)

        def main() -> None:
            node = self.node = Node(
                self.name,
                data=DATA,
                ask=coordinator.find,
                claim=coordinator.claim,
                cores=2,
                query=partial(SimLaneQuery, process, self._chance, *self._costs_s),
                peers=peers,
                session=SimSession(self.name, self._programs, machine),
                limits=self._limits,
                storage=self._storage.of(process) if self._storage is not None else None,
                machine=machine,
            )
            node.address = address_of(self.name)
            node.warm = True
            self.wires.listen(node.address, process, Service(node, machine=machine))
            Heartbeats(node, coordinator).first()

        process.start("main", main)


class CoordinatorHost(Host):
    """The machine that runs the coordinator."""

    def __init__(
        self, kernel: Kernel, wires: Wires, weather: Weather, timings: ClusterTimings, storage: StorageHost | None
    ) -> None:
        super().__init__(COORDINATOR, kernel, wires, weather.sync_s)
        self._timings, self._storage = timings, storage
        self.coordinator: Coordinator | None = None

    def start(self) -> None:
        process, self.coordinator = self.boot(), None
        network = self.wires.of(process, self.name)

        def main() -> None:
            machine = process.machine
            storage = self._storage.of(process) if self._storage is not None else None
            catalog = Catalog(CATALOG, machine, storage)
            cluster = Cluster(catalog, Peers(network=network, machine=machine), self._timings, machine)
            coordinator = Coordinator(cluster)
            coordinator.start()
            self.coordinator = coordinator
            self.wires.listen(address_of(self.name), process, CoordinatorFront(coordinator))

        process.start("main", main)

    def do(self, work: Callable[[Coordinator], Any]) -> Any:
        """Have the coordinator do something, in a thread of its process: the task, or None if it is not there."""
        coordinator, process = self.coordinator, self.process
        if coordinator is None or process is None or process.dead:
            return None
        return process.start("request", lambda: work(coordinator))


class SimCluster:
    """Some nodes and a coordinator, and a client's machine, which never fails."""

    def __init__(
        self,
        kernel: Kernel,
        names: Sequence[str],
        programs: Programs,
        weather: Weather | None = None,
        limits: QueueLimits | None = None,
        timings: ClusterTimings = CLUSTER_TIMINGS,
        *,
        stored: bool = False,
    ) -> None:
        """With `stored` there is storage that all nodes reach."""
        weather = weather or Weather()
        delays = Delays(usual_s=weather.message_s, late=weather.late, late_s=weather.late_s)
        self.kernel, self.wires = kernel, Wires(kernel, delays)
        self.storage = StorageHost(STORAGE, kernel, self.wires, weather.sync_s) if stored else None
        self.coordinator = CoordinatorHost(kernel, self.wires, weather, timings, self.storage)
        more = (kernel.chance("costs"), weather, limits, self.storage)
        self.nodes = {name: NodeHost(name, kernel, self.wires, programs, *more) for name in names}
        self.client = Host("client", kernel, self.wires)

    def start(self) -> CoordinatorLine:
        """Start everything; says how a client finds its way."""
        forget()  # what the kernels of earlier runs take in memory must not matter to this one
        self.coordinator.start()
        for node in self.nodes.values():
            node.start()
        process = self.client.boot()
        network = self.wires.of(process, self.client.name)
        return CoordinatorLine(network, Peers(network=network, machine=process.machine))

    def host(self, name: str) -> Host:
        if name == STORAGE and self.storage is not None:
            return self.storage
        return self.coordinator if name == COORDINATOR else self.nodes[name]
