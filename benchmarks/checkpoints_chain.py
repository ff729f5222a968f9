"""A chain of four units in a simulated cluster, and what their checkpoints cost: tuples, bytes, messages, CPU.

Eight boxes, a map and a sorting buffer of twenty tuples in each unit, so that each tuple that comes in goes out. Nodes,
queues, guards and parcels are those of a real cluster, and run for real; Spark, sockets and clocks are simulated. So
what is counted is exact, and what takes time is told as CPU time of the code that captures, writes and reads it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from borealis.client.publisher import Publisher, Publishing
from borealis.client.subscriber import ReadOptions, Subscription
from borealis.diagram import passes
from borealis.diagram.cut import cut
from borealis.diagram.deployment import Deployment
from borealis.diagram.spec import Spec
from borealis.ha.min_max import Costs
from borealis.ha.primary import Passive, Primary
from borealis.node.guards import Guards
from borealis.node.parcel import Parcel
from borealis.node.primary import PrimaryGuard
from borealis.node.running import RunningUnit
from borealis.retrying import Retries
from borealis.sim import cluster as sim_cluster
from borealis.sim.cluster import SimCluster
from borealis.sim.kernel import Kernel
from borealis.sim.plan import Weather
from borealis.sim.programs import Programs
from borealis.streams.snapshot import QueueSnapshot
from borealis.wire.messages import ENTRY, Takeover
from borealis.wire.service import Service

UNITS = 4
BUFFER = 20  # tuples that each unit holds
PAYLOAD = "x" * 100  # of a tuple, beside three numbers
TICK_S = 0.01  # between two batches
ACK_S = 0.02  # between two acknowledgements of the client, who says what it has as it gets it
TRAIN_S = 0.01  # of a unit in a lane
WARM_S = 2.0
READY_S, LOOK_S = 60.0, 0.1
FED, SINK = "chain/rows", "chain/out"
RETRIES = Retries(give_up_s=60.0)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("payload", pa.string())])
START_US = 1_700_000_000_000_000


def diagram() -> str:
    """Its file."""
    boxes, last = "", "rows"
    for n in range(1, UNITS + 1):
        boxes += f"  m{n}: {{map: {{from: {last}, exprs: {{n: n, payload: payload}}}}}}\n"
        boxes += f"  s{n}: {{bsort: {{from: m{n}, value: n, buffer: {BUFFER}}}}}\n"
        last = f"s{n}"
    inputs = "  rows: {columns: 'ts TIMESTAMP, n BIGINT, payload STRING', time: ts}\n"
    return f"borealis: 1\nname: chain\ninputs:\n{inputs}boxes:\n{boxes}outputs:\n  out: {last}\n"


CUTS = [f"m{n}" for n in range(2, UNITS + 1)]
# two units on a node, and their backups on another; the input and its backup, which cost the same in all cases, apart
NODES = [f"node{n}" for n in range(1, 6)]
PLACE = {"rows": "node5", "m1": "node1", "m2": "node1", "m3": "node2", "m4": "node2"}
BACKUP = {"u1": "node3", "u2": "node3", "u3": "node4", "u4": "node4"}


# -- the baseline: all units of a node at once


@dataclass
class Round:
    """The units of a node that stop together."""

    number: int = 0
    began: float = float("-inf")


@dataclass
class Together(Passive):
    """By one clock for all units of a node."""

    round: Round = field(default_factory=Round, kw_only=True)
    _done: int = 0

    def _is_due(self, now: float, received: Mapping[str, int]) -> bool:
        if now - self.round.began >= self.interval_s:
            self.round.number, self.round.began = self.round.number + 1, now
        if self._done == self.round.number:
            return False
        self._done = self.round.number
        return True


@contextmanager
def together() -> Iterator[None]:
    """Units are checkpointed with all others of their node."""
    rounds: dict[int, Round] = defaultdict(Round)
    usual = RunningUnit.policy

    def policy(unit: RunningUnit, guard: Any, first: Any) -> Primary:
        made = usual(unit, guard, first)
        assert isinstance(made, Passive)
        same = (made.interval_s, made.merges_freely, made.nondeterministic, made.precise, made.first)
        return Together(*same, round=rounds[id(unit.machine)])

    with patch.object(RunningUnit, "policy", policy):
        yield


# -- counting


@dataclass
class Counts:
    """What went over the network while it was counted, and what checkpoints took."""

    checkpoints: int = 0  # of units
    tuples: int = 0  # of output in them
    bytes: int = 0
    cpu_s: float = 0.0  # of capturing, writing and reading them
    messages: int = 0  # all but pings, and what the input says to its backup
    sent: int = 0  # bytes of all of those
    by_unit: Counter[str] = field(default_factory=Counter)  # checkpoints

    def since(self, before: Counts) -> Counts:
        """What came on top."""
        news = {name: getattr(self, name) - getattr(before, name) for name in vars(self)}
        return Counts(**news)


class Meter:
    """Counts while it is open. Only the code that is measured runs in one thread, so CPU time is its own."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.capture, self.paste = Costs(), Costs()  # by bytes: capturing and writing one, and reading it

    def copy(self) -> Counts:
        return replace(self.counts, by_unit=Counter(self.counts.by_unit))

    def _timed(self, do: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **how: Any) -> Any:
            began = time.process_time()
            try:
                return do(*args, **how)
            finally:
                self.counts.cpu_s += time.process_time() - began

        return timed

    @contextmanager
    def counting(self) -> Iterator[None]:
        usual, receive, counts = PrimaryGuard.composing, Guards.receive, self.counts

        def composing(guard: PrimaryGuard, want: Any) -> Callable[[], Parcel]:
            is_unit = isinstance(guard.unit, RunningUnit) and want.kind == "delta"
            compose = self._timed(usual)(guard, want) if is_unit else usual(guard, want)

            def encoded() -> Parcel:
                parcel = compose()
                counts.checkpoints, counts.bytes = counts.checkpoints + 1, counts.bytes + len(parcel.encode())
                snapshots = [QueueSnapshot.from_bytes(data) for data in parcel.queues.values()]
                counts.tuples += sum(len(section) for one in snapshots for section in one.sections)
                counts.by_unit[guard.unit.order.unit] += 1
                return parcel

            return (lambda: self._told(encoded, compose)) if is_unit else compose

        def received(guards: Guards, data: bytes) -> Any:
            parcel = Parcel.decode(data)
            if not parcel.unit.startswith(ENTRY) and parcel.want.kind == "delta":
                began = time.process_time()
                _read(data)
                seconds = time.process_time() - began
                self.paste.learn(len(data), seconds)
                counts.cpu_s += seconds
            return receive(guards, data)

        with ExitStack() as stack:
            stack.enter_context(patch.object(PrimaryGuard, "composing", composing))
            stack.enter_context(patch.object(Guards, "receive", received))
            stack.enter_context(patch.object(sim_cluster, "Service", self._service()))
            yield

    def _told(self, encoded: Callable[[], Parcel], compose: Callable[[], Parcel]) -> Parcel:
        """What is measured is what the guard would have done; counting tuples is not in it."""
        began = time.process_time()
        size = len(compose().encode())
        seconds = time.process_time() - began
        self.capture.learn(size, seconds)
        self.counts.cpu_s += seconds
        return encoded()

    def _service(self) -> type[Service]:
        counts = self.counts

        class Counted(Service):
            def act(self, name: str, body: bytes) -> bytes:
                answer = super().act(name, body)
                if name != "ping" and not (name == "guard" and Parcel.decode(body).unit.startswith(ENTRY)):
                    counts.messages, counts.sent = counts.messages + 1, counts.sent + len(body) + len(answer)
                return answer

            def get(self, ticket: bytes, is_cancelled: Callable[[], bool]) -> tuple[pa.Schema, Any]:
                schema, feed = super().get(ticket, is_cancelled)
                return schema, _counted(feed, counts)

        return Counted


def _read(data: bytes) -> None:
    """What a backup does with a parcel before it takes it in."""
    for snapshot in Parcel.decode(data).queues.values():
        QueueSnapshot.from_bytes(snapshot)


class _counted:  # noqa: N801
    """A feed, counted as it is pushed."""

    def __init__(self, feed: Any, counts: Counts) -> None:
        self._feed, self._counts = feed, counts

    def __iter__(self) -> _counted:
        return self

    def __next__(self) -> Any:
        batch, words = next(self._feed)
        self._counts.messages += 1
        self._counts.sent += batch.nbytes + len(words)
        return batch, words

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)


# -- a run


@dataclass(frozen=True)
class Story:
    """What is run: how units are protected, and what is fed."""

    protection: Mapping[str, Any]
    rows_per_s: int = 3000
    seconds: float = 20.0  # that are counted
    kill: str = ""  # a node, half-way


@dataclass
class Told:
    """What came of it."""

    counts: Counts
    rows: int  # that came out while it was counted
    silence_ms: float = 0.0  # the longest
    takeovers: list[Takeover] = field(default_factory=list)
    missing: int = 0  # tuples that were to come at the end, and did not
    wrong: int = 0  # that came out of order, or twice
    capture: Costs = field(default_factory=Costs)
    paste: Costs = field(default_factory=Costs)


class Run:
    """One story, in simulated time."""

    def __init__(self, programs: Programs, story: Story, meter: Meter) -> None:
        self.story, self.meter = story, meter
        self.kernel = Kernel(1, 0.0, 0.0)
        self.cluster = SimCluster(self.kernel, NODES, programs, Weather(preempt=0.0, late=0.0, train_s=TRAIN_S))
        self.line = self.cluster.start()
        self.fed = 0
        self.came: list[tuple[float, int]] = []
        self.got: list[int] = []
        self._stopped = False

    def play(self) -> Told:
        try:
            return self._play()
        finally:
            self.kernel.dispose()

    def _play(self) -> Told:
        story = self.story
        self._until(lambda: len(self._coordinator.cluster.members.alive()) == len(NODES))
        how: Any = {"yaml": diagram(), "cut": CUTS, "place": PLACE}
        how |= {"backup": BACKUP} if story.protection.get("ha", "none") != "none" else {}
        wish = Deployment(**how, **story.protection)
        task = self.cluster.coordinator.do(lambda coordinator: coordinator.deploy(wish))
        self._until(lambda: not task.is_alive())
        task.result(0)
        self._until(self._all_runs)
        client = self.cluster.client.process
        assert client is not None
        client.start("feed", self._feed)
        client.start("read", self._read)
        self._live(WARM_S)
        before, rows, began = self.meter.copy(), len(self.got), self.kernel.now
        self._live(story.seconds / 2)
        if story.kill:
            self.cluster.nodes[story.kill].kill()
        self._live(story.seconds / 2)
        found = Told(self.meter.copy().since(before), len(self.got) - rows)
        found.capture, found.paste = self.meter.capture, self.meter.paste
        moments = [at for at, _ in self.came if at >= began]
        found.silence_ms = 1000 * max(late - early for early, late in pairwise(moments))
        found.takeovers = self._takeovers()
        self._stopped = True
        self._until(lambda: len(self.got) >= self.fed)
        found.missing = self.fed - len(set(self.got))
        found.wrong = sum(number != n for n, number in enumerate(self.got))
        return found

    @property
    def _coordinator(self) -> Any:
        found = self.cluster.coordinator.coordinator
        assert found is not None
        return found

    def _live(self, seconds: float) -> None:
        self.kernel.run(self.kernel.now + seconds)

    def _until(self, what: Callable[[], Any]) -> None:
        last = self.kernel.now + READY_S
        while self.cluster.coordinator.coordinator is None or not what():
            if self.kernel.now > last:
                raise TimeoutError(f"not within {READY_S:.0f} simulated seconds")
            self._live(LOOK_S)

    def _all_runs(self) -> bool:
        status = self._coordinator.status()
        return all(unit.state == "running" for unit in status.units) and all(
            one.protection is None or one.protection.state in ("protected", "watching") for one in status.units
        )

    def _takeovers(self) -> list[Takeover]:
        nodes = [host.node for host in self.cluster.nodes.values() if host.alive and host.node is not None]
        return [t for node in nodes for g in node.guards.primaries.values() for t in g.takeovers if g.unit.feeds]

    def _feed(self) -> None:
        machine = self.cluster.client.process.machine  # type: ignore[union-attr]
        publisher = Publisher(self.line, FED, Publishing(name="feed", retries=RETRIES), machine=machine)
        began = self.kernel.now
        while not self._stopped:
            stop = round((self.kernel.now - began) * self.story.rows_per_s)
            if stop > self.fed:
                n = pa.array(range(self.fed, stop), pa.int64())
                at = pa.array([START_US + i * 1_000_000 // self.story.rows_per_s for i in range(self.fed, stop)])
                columns = [at.cast(SCHEMA.field("ts").type), n, pa.array([PAYLOAD] * (stop - self.fed))]
                publisher.send_batch(pa.record_batch(columns, schema=SCHEMA).cast(publisher.schema))
                self.fed = stop
            machine.clock.sleep(TICK_S)
        publisher.end()
        publisher.close(READY_S)

    def _read(self) -> None:
        machine = self.cluster.client.process.machine  # type: ignore[union-attr]
        options = ReadOptions(start="oldest", reader="sink", retries=RETRIES, first_s=READY_S, ack_every_s=ACK_S)
        subscription = Subscription(self.line, SINK, options, machine=machine)
        for section in subscription.sections():
            if len(section):
                self.came.append((self.kernel.now, len(section)))
                self.got += section.rows["n"].to_pylist()


def prepare(programs: Programs) -> None:
    """Have Spark compile the units, which takes longer than any simulated moment."""
    spec = passes.checked(Spec.from_yaml(diagram()))
    programs.types(spec)
    for piece in cut(spec, CUTS):
        programs.compiled(spec, 1, piece)
    for one in spec.inputs:
        programs.input_schema(one)
        programs.time_of(one)


def told(programs: Programs, story: Story, *, all_together: bool = False) -> Told:
    """Play one."""
    meter = Meter()
    with ExitStack() as stack:
        if all_together:
            stack.enter_context(together())
        stack.enter_context(meter.counting())
        return Run(programs, story, meter).play()
