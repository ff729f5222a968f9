"""A cluster of real processes to measure and to kill: `borealis up` in a home of its own, stopped whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import borealis
from borealis.cli import processes
from borealis.client.client import Client
from borealis.client.cluster_config import HOME, ClusterProcess, read_record, write_record
from borealis.errors import BorealisError, did_you_mean
from borealis.wire.messages import Takeover
from borealis.wire.status import ClusterStatus, ProtectionView, UnitView

from .measuring import Say

LOOK_S = 0.1  # between two looks at the status
PROTECTED_S = 180.0  # for a node to start again and a unit to be protected; on slow cores Spark alone takes 20 s
STORY_S = 60.0
HEARTBEATS_S = 1.5  # until the coordinator has heard the rest
COMMAND = [sys.executable, "-m", "borealis.cli"]


class Cluster:
    """Three nodes and a coordinator; nodes can be killed and started again."""

    def __init__(self, client: Client, say: Say) -> None:
        self.client, self.say = client, say

    def status(self) -> ClusterStatus:
        """How all stands; asked again while the coordinator has no time."""
        for _ in range(50):
            with suppress(BorealisError):
                return self.client.status()
            time.sleep(LOOK_S)
        return self.client.status()

    def unit(self, diagram: str, box: str) -> UnitView:
        """The unit that has this box."""
        return next(unit for unit in self.status().units if unit.diagram == diagram and box in unit.boxes)

    def protection(self, diagram: str, box: str) -> ProtectionView:
        """Of the unit that has this box."""
        kept = self.unit(diagram, box).protection
        assert kept is not None
        return kept

    def takeover(self, diagram: str, box: str, before: int) -> Takeover:
        """What the new primary of a unit says of how it became that, once it is known."""

        def known(_: ClusterStatus) -> bool:
            kept = self.protection(diagram, box)
            return kept.incarnation > before and kept.last_takeover is not None

        self.wait_for(known, "the story of the takeover", STORY_S)
        time.sleep(HEARTBEATS_S)  # reprocessing may still go on
        took = self.protection(diagram, box).last_takeover
        assert took is not None
        return took

    def kill(self, node: str) -> float:
        """SIGKILL to all of a node's processes at once, as a power cut would; when that was, by the monotonic clock."""
        part = self._part(node)
        others = [pid for pid in processes.left_behind(part) if pid != part.pid]
        at = time.monotonic()
        for pid in (part.pid, *others):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return at

    def start(self, node: str) -> None:
        """Start a killed node again, with the arguments it had."""
        record = read_record()
        assert record is not None
        old = self._part(node)
        fresh, _ = processes.start(node, old.arguments, Path(old.log), Path(record.data) / node)
        parts = [fresh if part.name == node else part for part in record.parts]
        write_record(record.model_copy(update={"parts": parts}))  # so that `down` knows it

    def mend(self) -> None:
        """Start every node that is dead, and wait until all are warm."""
        record = read_record()
        assert record is not None
        for part in record.parts:
            if part.name != "coordinator" and not processes.alive(part):
                self.start(part.name)
        self.wait_warm()

    def wait_warm(self) -> None:
        """Until every node is ready and its first trains, which are slow, are behind it."""
        warm = lambda status: all(node.spark == "ready" and node.warm for node in status.nodes)  # noqa: E731
        self.wait_for(warm, "all nodes to be warm", PROTECTED_S)

    def pids(self) -> list[int]:
        """Of the nodes that are alive; their JVMs and workers are their children."""
        return [node.pid for node in self.status().nodes if node.alive]

    def wait_protected(self, diagram: str, seconds: float = PROTECTED_S) -> None:
        """Until every unit and input of a diagram has all the protection it was promised."""
        self.wait_for(lambda status: _exposed(status, diagram) == [], f"{diagram} to be protected", seconds)

    def wait_for(self, holds: Callable[[ClusterStatus], bool], what: str, seconds: float) -> ClusterStatus:
        """Until the status says so."""
        deadline = time.monotonic() + seconds
        while not holds(status := self.status()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:.0f} s for {what}: {_exposed(status, None)}")
            time.sleep(LOOK_S)
        return status

    def _part(self, node: str) -> ClusterProcess:
        record = read_record()
        assert record is not None
        return next(part for part in record.parts if part.name == node)


def _exposed(status: ClusterStatus, diagram: str | None) -> list[str]:
    """What is not protected (yet), and why."""
    guarded = [(unit.diagram, unit.unit, unit.protection) for unit in status.units]
    guarded += [(stream.diagram, stream.arrow, stream.protection) for stream in status.streams]
    found = [f"{node.node}: {node.spark}" for node in status.nodes if node.spark != "ready"]
    for name, what, kept in guarded:
        if diagram in (None, name) and kept is not None and kept.state not in ("protected", "watching"):
            found.append(f"{what}: {kept.state} ({kept.why})")
    return found


def down_and_up(running: Cluster, nodes: int, storage: str) -> tuple[float, float, float]:
    """Stop all, and start it again with the same storage: how long each took, and when the last node was ready, by the
    monotonic clock."""
    record = read_record()
    assert record is not None
    began = time.monotonic()
    subprocess.run([*COMMAND, "down"], capture_output=True, check=True)
    down = time.monotonic()
    port = record.coordinator.rpartition(":")[2]
    up = [*COMMAND, "up", "--nodes", str(nodes), "--port", port, "--storage", storage, "--json"]
    subprocess.run(up, capture_output=True, check=True)
    ready = time.monotonic()
    return down - began, ready - down, ready


@contextmanager
def cluster(say: Say, nodes: int = 3, *, faults: bool = False, storage: str | None = None) -> Iterator[Cluster]:
    """The cluster, in a home of its own; with `faults`, nodes let themselves be cut off from streams."""
    with tempfile.TemporaryDirectory(prefix="borealis-bench-", ignore_cleanup_errors=True) as home, _at_home(home):
        say(f"starting {nodes} nodes ...")
        up = [*COMMAND, "up", "--nodes", str(nodes), "--port", "0", "--json", *(["--allow-faults"] if faults else [])]
        up += ["--storage", storage] if storage else []
        done = subprocess.run(up, capture_output=True, text=True, check=False)
        try:
            record = read_record()
            if done.returncode or record is None:
                raise RuntimeError(done.stderr.strip())
            with borealis.connect(record.coordinator) as client:
                yield Cluster(client, say)
        finally:
            subprocess.run([*COMMAND, "down"], capture_output=True, check=False)


def refuse_unknown(what: str, given: Iterable[str], there: Sequence[str]) -> None:
    """Of names that somebody gave, each must be one that is there."""
    for name in given:
        if name not in there:
            raise BorealisError(
                f"no {what} '{name}'", hint=did_you_mean(name, there) or f"there are {', '.join(there)}"
            )


@contextmanager
def _at_home(home: str) -> Iterator[None]:
    """All commands meet in this folder."""
    before = os.environ.get(HOME)
    os.environ[HOME] = home
    try:
        yield
    finally:
        os.environ.pop(HOME, None)
        if before is not None:
            os.environ[HOME] = before
