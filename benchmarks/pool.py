"""What started queries cost that wait for a takeover, and how fast one is: `borealis bench pool`.

One unit after the other is deployed on node1, protected by passive standby on node2, until there are eight; their
inputs are on node3. After each the processes of node2 are weighed, while nothing is sent: memory, threads, and cores
over ten seconds. Memory is proportional (PSS): what processes share counts once. Then packets come, and `kill -9` hits
all of node1 at once: told is for how long the readers of each unit hear nothing, the first of them and the last.

All of this is done for a pool of one query, and for one of eight, in which each unit finds a query as if it had one of
its own; `asked` is what the pool must hold.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil

from borealis.client.client import Client
from borealis.client.publisher import Publisher
from borealis.errors import BorealisError

from .measuring import Lines, Say, meter, part_by_part, terminable
from .recovery_cluster import Cluster, cluster
from .recovery_ours import GOES_ON_S, LAST, Reader, Sender, aggregate
from .recovery_packets import Feed, packets
from .recovery_sums import silence_ms

UNITS = 8
POOLS = (1, UNITS)
QUERIES = tuple(f"pool-{size}" for size in POOLS)
ROWS_PER_S = 200  # of each unit
SETTLE_S = 6.0  # after a unit is protected: its image is tried on, and the garbage of its deployment goes
IDLE_S = 10.0
FED_S = 8.0  # before the kill
SHOWN = ("query", "units", "kind", "mb", "threads", "cores", "processes", "silence_ms", "last_ms", "given")


@dataclass(frozen=True)
class Options:
    """What to measure. `only` names pools."""

    only: tuple[str, ...] = ()
    runs: int = 3  # kills, each in a cluster of its own
    quick: bool = False

    @property
    def counts(self) -> tuple[int, ...]:
        """After how many units a node is weighed."""
        return (0, 1, UNITS) if self.quick else tuple(range(UNITS + 1))


def run(options: Options, say: Say) -> Lines:
    """The figures of each pool."""
    pools = [size for size in POOLS if not options.only or f"pool-{size}" in options.only]
    with terminable():
        runs = 1 if options.quick else options.runs
        parts: dict[str, Callable[[], Lines]] = {}
        for number in range(runs):  # by turns
            for size in pools:
                parts[f"pool-{size}, {number + 1}"] = partial(_of, size, options.counts if not number else (), say)
        found = part_by_part(parts, say)
    weights = [line for line in found if "mb" in line or "error" in line]
    return weights + [line for size in pools for line in _kills(size, found)]


def _kills(size: int, found: Lines) -> Lines:
    """The medians over all units and runs, and of the last unit of each run."""
    killed = [line for line in found if line["query"] == f"pool-{size}" and "silences" in line]
    if not killed:
        return []
    silences = [one for line in killed for one in line["silences"]]
    return [
        {
            "query": f"pool-{size}",
            "units": UNITS,
            "kind": "takeover",
            "runs": len(killed),
            "silence_ms": round(statistics.median(silences)),
            "first_ms": round(statistics.median(min(line["silences"]) for line in killed)),
            "last_ms": round(statistics.median(max(line["silences"]) for line in killed)),
            "given": killed[-1]["given"],
            "silences": [round(one) for one in silences],
        }
    ]


def _of(size: int, counts: Sequence[int], say: Say) -> Lines:
    """One cluster, with a pool of this size."""
    found: Lines = []
    with cluster(say, pool=size) as town:
        town.wait_warm()
        for units in range(UNITS + 1):
            if units:
                _deploy(town, units)
            if units in counts:
                found += _weighed(town, size, units, say)
        found.append(_killed(town, size, say))
    return found


def _deploy(town: Cluster, number: int) -> None:
    name = f"d{number}"
    place = {"packets": "node3", LAST: "node1"}
    town.client.deploy(aggregate(name), place=place, ha="passive", guarantee="precise", backup={"u1": "node2"})
    town.wait_protected(name)


def _weighed(town: Cluster, size: int, units: int, say: Say) -> Lines:
    """The processes of node2, by kind."""
    time.sleep(SETTLE_S)
    node = next(node for node in town.status().nodes if node.node == "node2")
    head = psutil.Process(node.pid)
    kinds: dict[str, list[psutil.Process]] = {"node": [head], "jvm": [], "workers": []}
    for child in head.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            kinds["jvm" if child.name() == "java" else "workers"].append(child)
    meters = {kind: meter([one.pid for one in those]) for kind, those in kinds.items() if kind != "node"}
    whole = meter([node.pid])
    time.sleep(IDLE_S)
    used = {kind: read() for kind, read in meters.items()}
    used["jvm"] -= used["workers"]  # which are its children
    used["node"] = whole() - used["jvm"] - used["workers"]
    found: Lines = []
    for kind, those in kinds.items():
        line: dict[str, Any] = {"query": f"pool-{size}", "units": units, "kind": kind, "processes": len(those)}
        weights = [_weight(one) for one in those]
        line |= {"mb": round(sum(w[0] for w in weights), 1), "threads": sum(w[1] for w in weights)}
        line |= {"cores": round(used[kind] / IDLE_S, 4), "ready": node.pool.ready, "images": node.pool.images}
        found.append(line)
    sums = {name: round(sum(line[name] for line in found), 4) for name in ("processes", "mb", "threads", "cores")}
    found.append(found[0] | {"kind": "all"} | sums)
    say(f"pool of {size}, {units} units: {found[-1]['mb']:.0f} MB, {found[-1]['cores']:.3f} cores")
    return found


def _weight(process: psutil.Process) -> tuple[float, int]:
    """Proportional memory in megabytes, and threads."""
    try:
        return process.memory_full_info().pss / 1e6, process.num_threads()
    except psutil.NoSuchProcess:
        return 0.0, 0


def _killed(town: Cluster, size: int, say: Say) -> dict[str, Any]:
    """Packets come to all units, and their node dies."""
    client: Client = town.client
    names = [f"d{number}" for number in range(1, UNITS + 1)]
    readers = [Reader(client, f"{name}/{LAST}") for name in names]
    publishers: list[Publisher] = [client.publisher(f"{name}/packets") for name in names]
    data = packets().faster(ROWS_PER_S)
    feeds = [Feed(data, [Sender(one)]) for one in publishers]
    try:
        for feed in feeds:
            feed.start()
        for reader in readers:
            reader.wait_new(0.0, GOES_ON_S)
        time.sleep(FED_S)
        killed = town.kill("node1")
        for reader in readers:
            reader.wait_new(killed + 0.5, GOES_ON_S)
        silences = [silence_ms(reader.arrivals.when, killed) for reader in readers]
    finally:
        for feed in feeds:
            feed.abandon()
        for reader in readers:
            reader.stop()
        for one in publishers:
            with suppress(BorealisError):
                one.abandon()
    given = next(node.pool.given for node in town.status().nodes if node.node == "node2")
    say(f"pool of {size}, {UNITS} units: silence {', '.join(f'{one:.0f}' for one in sorted(silences))} ms")
    return {"query": f"pool-{size}", "silences": silences, "given": given}
