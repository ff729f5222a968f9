"""A cluster of real nodes in one thread for a test to play with: deploy, publish, read, kill, move, and look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import pyarrow as pa

from borealis.client.publisher import Publisher, Publishing
from borealis.client.subscriber import ReadOptions, Subscription
from borealis.coordinator.coordinator import Coordinator
from borealis.coordinator.layout import UnitAssignment
from borealis.coordinator.timings import TIMINGS, ClusterTimings
from borealis.diagram.deployment import Deployment
from borealis.retrying import Retries
from borealis.sim.cluster import NodeHost, SimCluster
from borealis.sim.kernel import Kernel, Process
from borealis.sim.plan import Weather
from borealis.sim.programs import Programs
from borealis.streams.section import Section, joined
from borealis.tuples import with_header
from borealis.wire.status import ClusterStatus

SOON_S = 30.0  # of simulated time, for what must happen
LOOK_S = 0.25  # between two looks at the status, which take long
RETRIES = Retries(give_up_s=60.0)


@dataclass
class Read:
    """What a reader got of a stream."""

    sections: list[Section] = field(default_factory=list)
    jumps: int = 0
    gaps: int = 0
    ended: bool = False

    @property
    def table(self) -> pa.Table:
        """With header columns, as `run(..., headers=True)` gives it; where no ids were left out."""
        whole = joined(self.sections)
        return with_header(pa.table(whole.rows), whole.first, whole.time)

    def column(self, name: str) -> list[Any]:
        return [value for section in self.sections for value in section.rows[name].to_pylist()]


class Simulated:
    """Nodes, a coordinator and a client, all well to begin with."""

    def __init__(
        self,
        programs: Programs,
        nodes: int = 3,
        seed: int = 1,
        weather: Weather | None = None,
        timings: ClusterTimings = TIMINGS,
    ) -> None:
        self.kernel = Kernel(seed)
        names = [f"node{n + 1}" for n in range(nodes)]
        self.cluster = SimCluster(self.kernel, names, programs, weather, timings=timings)
        self._line = self.cluster.start()
        self._publications = 0
        self._ending = False
        self.until(lambda: len(self.coordinator.cluster.members.alive()) == nodes)

    def __enter__(self) -> Simulated:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        died = self.kernel.errors
        self.kernel.dispose()
        assert error is not None or not died, died

    # -- time

    def live(self, seconds: float) -> None:
        self.kernel.run(self.kernel.now + seconds)

    def until(self, what: Callable[[], Any], within_s: float = SOON_S, each_s: float = 0.05) -> None:
        """Time passes until something is so."""
        last = self.kernel.now + within_s
        while not self._is(what):
            assert self.kernel.now < last, f"not within {within_s} s"
            self.live(each_s)

    def _is(self, what: Callable[[], Any]) -> bool:
        host = self.cluster.coordinator
        return host.coordinator is not None and host.alive and bool(what())

    def do(self, work: Callable[[Coordinator], Any]) -> Any:
        """A request to the coordinator, and its answer or error."""
        task = self.cluster.coordinator.do(work)
        self.until(lambda: not task.is_alive())
        return task.result(0)

    # -- the client

    @property
    def _client(self) -> Process:
        process = self.cluster.client.process
        assert process is not None
        return process

    def publish(self, stream: str, batches: Sequence[pa.RecordBatch], pause_s: float = 0.05) -> None:
        """In a thread of the client's, one batch after the other; the last few, and the end, when all `finish`."""
        self._publications += 1
        publishing = Publishing(name=f"p{self._publications}", retries=RETRIES)

        def work() -> None:
            publisher = Publisher(self._line, stream, publishing, machine=self._client.machine)
            for number, batch in enumerate(batches):
                while number >= 0.8 * len(batches) and not self._ending:
                    self._client.machine.clock.sleep(pause_s)
                publisher.send_batch(batch.cast(publisher.schema))
                self._client.machine.clock.sleep(pause_s)
            publisher.end()
            publisher.close(SOON_S)

        self._client.start(f"publish {stream}", work)

    def read(self, stream: str) -> Read:
        """In a thread of the client's, from the oldest tuple to the end."""
        found = Read()

        def work() -> None:
            options = ReadOptions(start="oldest", on_gap="continue", retries=RETRIES, first_s=SOON_S)
            subscription = Subscription(self._line, stream, options, machine=self._client.machine)
            for section in subscription.sections():
                found.sections.append(section)
            found.jumps, found.gaps, found.ended = subscription.jumps, subscription.gaps, subscription.ended

        self._client.start(f"read {stream}", work)
        return found

    def run(self, diagram: str, tables: Mapping[str, list[pa.RecordBatch]], streams: Iterable[str]) -> dict[str, Read]:
        """Publish to these inputs, and read these streams."""
        reads = {stream: self.read(f"{diagram}/{stream}") for stream in streams}
        for name, batches in tables.items():
            self.publish(f"{diagram}/{name}", batches)
        return reads

    def finish(self, reads: Mapping[str, Read]) -> None:
        """Everything is published and read to its end."""
        self._ending = True
        self.until(lambda: all(one.ended for one in reads.values()), 2 * SOON_S)

    # -- the cluster

    @property
    def coordinator(self) -> Coordinator:
        found = self.cluster.coordinator.coordinator
        assert found is not None
        return found

    def host(self, name: str) -> NodeHost:
        return self.cluster.nodes[name]

    def deploy(self, yaml: str, **how: Any) -> None:
        self.do(lambda coordinator: coordinator.deploy(Deployment(yaml=yaml, **how)))
        self.settle()

    def settle(self) -> None:
        """Until everything runs, and what shall be protected is."""
        self.until(self._all_runs, each_s=LOOK_S)

    def move(self, unit: str, node: str) -> None:
        self.do(lambda coordinator: coordinator.move(unit, node))

    def kill(self, name: str) -> None:
        self.host(name).kill()

    def status(self) -> ClusterStatus:
        return self.coordinator.status()

    def unit(self, name: str, diagram: str | None = None) -> UnitAssignment:
        """A unit or entry point, as the catalog has it."""
        layouts = self.coordinator.cluster.catalog.layouts()
        return next(
            part
            for layout in layouts
            if diagram in (None, layout.name)
            for part in (*layout.units, *layout.entries)
            if part.unit == name
        )

    def _all_runs(self) -> bool:
        status = self.status()
        shown = [one.protection for one in (*status.units, *(s for s in status.streams if s.entry))]
        return all(unit.state in ("running", "ended") for unit in status.units) and all(
            one is None or one.state in ("protected", "watching") for one in shown
        )

    def where(self, unit: str) -> dict[str, str]:
        """The nodes that have a unit or entry point, and its state there."""
        found: dict[str, str] = {}
        for name, host in self.cluster.nodes.items():
            here = [*host.node.units.items(), *host.node.entries.items()] if host.node and host.alive else []
            for (_, one), running in here:
                if one == unit:
                    found[name] = "standby" if running.standby else "runs"
        return found
