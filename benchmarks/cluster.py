"""Three to twenty servers that back each other up: which server backs up what, and what is checkpointed when (Hwang
figures 4.8 to 4.10). A simulation in simulated time, so that it is the same everywhere; costs are passed in.

`assignment`: where the backups of a server's units are. `random`; `round-robin`, each on the next server; `balanced`,
what the coordinator does: spread by expected recovery load, and chosen again at the end of each epoch. `schedule`: what
an idle server captures or pastes: what waited longest (`round-robin`), or what helps the slowest share (`min-max`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean
from typing import Any

from borealis.coordinator.spreading import Node, Work, rechosen, spread

from .cluster_model import BUSY, STEADY, Cluster, Kind, Schedule, Server, Unit
from .cluster_scheduling import min_max, round_robin
from .recovery_plot import refuse_without_matplotlib

QUERIES = ("servers", "mix", "load")
SHOWN = ("figure", "assignment", "schedule", "servers", "type_2_units", "load", "recovery_s", "captures_per_s", "ratio")
SERVERS = (3, 5, 7, 9, 12, 16, 20)
MIX = range(9)  # units of type 2 beside four of type 1
LOADS = tuple(0.672 + 0.028 * n for n in MIX)  # the same loads, by the rates of inputs
FIVE = 5
WARM_S, SECONDS, QUICK_S = 20.0, 60.0, 20.0
EPOCH_S = 10.0  # every server has been round by then
SEEDS = 3  # of what is drawn, if nothing is said
BASE = ("random", "round-robin")

Assign = Callable[[Sequence[Server], Random], None]


@dataclass(frozen=True)
class Options:
    """What is to be simulated."""

    only: tuple[str, ...] = ()
    runs: int = SEEDS
    quick: bool = False
    plot: str | None = None


# -- assignments


def at_random(servers: Sequence[Server], chance: Random) -> None:
    for server in servers:
        for unit in server.units:
            unit.backup = chance.choice([other.number for other in servers if other is not server])


def in_turn(servers: Sequence[Server], chance: Random) -> None:
    """Each unit at the server behind that of the one before it; which comes first is drawn."""
    for server in servers:
        others = [other.number for other in servers if other is not server]
        first = chance.randrange(len(others))
        for number, unit in enumerate(server.units):
            unit.backup = others[(first + number) % len(others)]


def balanced(servers: Sequence[Server], chance: Random) -> None:
    """As the coordinator assigns them, by the load of each: among equals to the one that stands by for least."""
    order = [server.number for server in servers]
    chance.shuffle(order)
    standing: dict[int, tuple[int, float]] = dict.fromkeys(order, (0, 0.0))
    shares: dict[tuple[str, str], int] = {}
    nodes = [Node(str(number)) for number in order]
    for unit in sorted((unit for server in servers for unit in server.units), key=lambda unit: -unit.load):
        work = _work(unit, unit.load)
        chosen = spread([work], nodes, shares, lambda name: (standing[int(name)], order.index(int(name))))[work.unit]
        unit.backup = int(chosen or unit.primary)
        shares[work.node, str(unit.backup)] = shares.get((work.node, str(unit.backup)), 0) + work.us
        count, load = standing[unit.backup]
        standing[unit.backup] = count + 1, load + unit.load


def _work(unit: Unit, seconds: float) -> Work:
    backup = None if unit.backup < 0 else str(unit.backup)
    return Work(str(unit.number), str(unit.primary), round(seconds * 1e6), backup)


ASSIGNMENTS: dict[str, Assign] = {"random": at_random, "round-robin": in_turn, "balanced": balanced}
SCHEDULES: dict[str, Schedule] = {"round-robin": round_robin, "min-max": min_max}


class Epochs:
    """Chooses one backup again at the end of each epoch, by what units took on average."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sums: dict[int, float] = {}
        self._looks = 0
        self.changes = 0

    def look(self) -> None:
        cluster = self._cluster
        self._looks += 1
        for server in cluster.servers:
            for unit in server.units:
                self._sums[unit.number] = self._sums.get(unit.number, 0.0) + cluster.unit_s(unit, cluster.now)
        if self._looks * 0.1 >= EPOCH_S:
            self._end()

    def _end(self) -> None:
        units = {str(unit.number): unit for server in self._cluster.servers for unit in server.units}
        works = [_work(unit, self._sums[unit.number] / self._looks) for unit in units.values() if unit.waits]
        change = rechosen(works, [Node(str(server.number)) for server in self._cluster.servers])
        if change is not None:
            units[change.unit].next_backup = int(change.to)
            self.changes += 1
        self._sums, self._looks = {}, 0


# -- one run


def recovery(
    kinds: Sequence[Kind], servers: int, assignment: str, schedule: str, seed: int, seconds: float
) -> tuple[float, float]:
    """The mean of what deaths would take, in seconds; and captures a second of a server."""
    chance = Random(f"{assignment} {servers} {seed}")
    made = [Server(number) for number in range(servers)]
    for server in made:
        for kind in kinds:
            number = server.number * 1_000 + len(server.units)
            server.units.append(Unit(number, kind, kind.load, server.number))
    ASSIGNMENTS[assignment](made, chance)
    cluster = Cluster(made, SCHEDULES[schedule])
    epochs = Epochs(cluster) if assignment == "balanced" else None
    found: list[float] = []

    def look() -> None:
        if epochs is not None:
            epochs.look()
        if cluster.now >= WARM_S:
            found.append(cluster.recovery_s(cluster.now))

    cluster.run(WARM_S + seconds, look)
    return fmean(found), cluster.captures / servers / (WARM_S + seconds)


def case(options: Options, kinds: Sequence[Kind], servers: int, assignment: str, schedule: str) -> dict[str, Any]:
    """The mean over seeds of one way to run one cluster."""
    seeds, seconds = (2, QUICK_S) if options.quick else (options.runs, SECONDS)
    found = [recovery(kinds, servers, assignment, schedule, seed, seconds) for seed in range(seeds)]
    return {
        "assignment": assignment,
        "schedule": schedule,
        "servers": servers,
        "type_2_units": sum(kind.name == STEADY.name for kind in kinds),
        "load": round(sum(kind.load for kind in kinds), 3),
        "recovery_s": round(fmean(one[0] for one in found), 4),
        "captures_per_s": round(fmean(one[1] for one in found), 2),
    }


# -- the figures


def usual(steady: int = 4) -> list[Kind]:
    return [BUSY] * 4 + [STEADY] * steady


def by_servers(options: Options) -> list[dict[str, Any]]:
    """Figure 4.8. `ratio` is to random assignment with round-robin scheduling."""
    found = []
    for servers in SERVERS[:3] if options.quick else SERVERS:
        lines = [case(options, usual(), servers, a, s) for a in ASSIGNMENTS for s in SCHEDULES]
        base = next(one["recovery_s"] for one in lines if (one["assignment"], one["schedule"]) == BASE)
        found += [{"figure": "4.8"} | one | {"ratio": round(base / one["recovery_s"], 2)} for one in lines]
    return found


def by_mix(options: Options) -> list[dict[str, Any]]:
    """Figure 4.9: units of type 2 are added, which cost much for the little that they do."""
    return _schedules(options, "4.9", [usual(steady) for steady in MIX])


def by_load(options: Options) -> list[dict[str, Any]]:
    """Figure 4.10: the same loads, by more rows instead of more units."""
    whole = sum(kind.load for kind in usual())
    return _schedules(options, "4.10", [[replace(k, load=k.load * load / whole) for k in usual()] for load in LOADS])


def _schedules(options: Options, figure: str, mixes: Sequence[Sequence[Kind]]) -> list[dict[str, Any]]:
    found = []
    for kinds in mixes:
        lines = [case(options, kinds, FIVE, "balanced", schedule) for schedule in SCHEDULES]
        base = lines[0]["recovery_s"]
        found += [{"figure": figure} | one | {"ratio": round(base / one["recovery_s"], 2)} for one in lines]
    return found


FIGURES = {"servers": by_servers, "mix": by_mix, "load": by_load}


def run(options: Options, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """All figures that are asked for."""
    if options.plot:
        refuse_without_matplotlib()
    lines = []
    for name in options.only or QUERIES:
        say(f"{name} ...")
        lines += FIGURES[name](options)
    if options.plot:
        from .cluster_plot import plot

        plot(lines, options.plot)
    return lines
