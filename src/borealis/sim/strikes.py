"""The faults of a plan, as they happen to a cluster, and what is left of it then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from borealis.coordinator import protecting
from borealis.coordinator.coordinator import Coordinator
from borealis.errors import BorealisError
from borealis.node.primary import PrimaryGuard
from borealis.node.running import UnitKey
from borealis.sim.cluster import Host, SimCluster
from borealis.sim.disk import SimDisk
from borealis.sim.plan import COORDINATOR, STORAGE, Fault

BREAK_S = 0.01  # so soon after a batch connections break at the latest
FOLLOW_S = 0.01  # between looks for a node that has taken over

Successor = tuple[str, UnitKey, int]  # a node, what it took over, as which incarnation


class Strikes:
    """Faults that come and heal, and which units no node has a copy of any more."""

    def __init__(self, cluster: SimCluster, chance: Random, note: Callable[[str, str], None]) -> None:
        self.cluster, self._kernel, self._chance, self._note = cluster, cluster.kernel, chance, note
        self.lost: set[UnitKey] = set()  # units of which no copy was left
        self.struck: set[str] = set()  # units that were taken over
        self.moved: set[str] = set()  # units that were ordered elsewhere
        self.silent: dict[str, float] = {}  # inputs to which nothing is published until then
        self._copies: dict[UnitKey, set[str]] = {}  # of each unit: nodes that have all of it
        self._aimed: list[tuple[float, Callable[[], None]]] = []  # what is to come so long after the next batch
        self._mended = False

    def strike(self, fault: Fault) -> None:
        self._note("fault", f"{fault.what} {' '.join(fault.nodes)}".strip())
        if fault.what == "silence":
            self.silent[fault.nodes[0]] = max(
                self._kernel.now + fault.until - fault.at, self.silent.get(fault.nodes[0], 0.0)
            )
            return
        hosts = [self.cluster.host(name) for name in fault.nodes]
        wires, names = self.cluster.wires, set(self.cluster.nodes) | {COORDINATOR, "client"}
        last = fault.until - fault.at
        match fault.what:
            case "kill" | "crash" | "wipe" | "power cut" | "flipped bit":
                if fault.amount:
                    self._aimed.append((fault.amount, lambda: self._blow(fault)))
                else:
                    self._blow(fault)
            case "kill successor":
                self._follow(fault, self._successors())
            case "cut off" | "cut one way":
                wires.cut(fault.nodes, sorted(names - set(fault.nodes)), both=fault.what == "cut off")
                self._kernel.at(last, self._heal)
            case "cut pair":
                wires.cut(fault.nodes[:1], fault.nodes[1:])
                self._kernel.at(last, self._heal)
            case "break connections":
                self._aimed.append((self._chance.uniform(0.0, BREAK_S), lambda: self._break(fault.amount)))
            case "pause":
                for host in hosts:
                    if host.process is not None and host.alive:
                        host.process.pause()
                        self._kernel.at(last, host.process.resume)
            case "slow":
                for host in hosts:
                    if host.process is not None:
                        host.process.slow = fault.amount
                        self._kernel.at(last, lambda host=host: self._at_full_speed(host))  # type: ignore[misc]
            case "full disk":
                for host in hosts:
                    host.disk.limit = host.disk.used + int(fault.amount)
                    self._kernel.at(last, lambda host=host: self._make_room(host))  # type: ignore[misc]
            case "failing disk":
                for host in hosts:
                    host.disk.failing.update(dict.fromkeys(("write", "sync"), int(fault.amount)))
            case "move":
                self.cluster.coordinator.do(lambda coordinator: self._move(coordinator, fault.nodes[0]))
            case "exchange":
                self.cluster.coordinator.do(lambda coordinator: self._exchange(coordinator, fault.amount))

    def _move(self, coordinator: Coordinator, node: str) -> None:
        """A unit that is elsewhere, as is its backup, moves to this node."""
        units = [u for u in coordinator.status().units if u.node != node and u.state != "orphan"]
        for unit in [u for u in units if u.protection is None or u.protection.backup != node][:1]:
            self.moved.add(unit.unit)
            try:
                coordinator.move(unit.unit, node, unit.diagram)
                self._note("fault", f"{unit.unit} has moved to {node}")
            except BorealisError as error:
                self._note("fault", f"{unit.unit} does not move to {node}: {error}")

    def _exchange(self, coordinator: Coordinator, chance: float) -> None:
        """A unit or an input begins to get another backup."""
        cluster = coordinator.cluster
        able = [member.name for member in cluster.members.alive() if member.status.spark == "ready"]
        found = [
            (layout, place, node)
            for layout in cluster.catalog.layouts()
            for place in layout.parts()
            if place.checkpointed and place.backup and place.moving_to is None and len(place.copies) == place.further
            for node in able
            if node not in place.nodes
        ]
        for layout, place, node in found[int(chance * len(found)) :][:1]:
            what = f"the backup of {place.unit}"
            try:
                with cluster.at_work(layout.name, "changed", wait=0):
                    protecting.begin_exchange(cluster, layout, place, node)
                self._note("fault", f"{what} is to move to {node}")
            except BorealisError as error:
                self._note("fault", f"{what} does not move to {node}: {error}")

    def published(self) -> None:
        """A batch was: what waited for that comes in a moment."""
        aimed, self._aimed = self._aimed, []
        for delay, strike in aimed:
            self._kernel.at(delay, strike)

    def _blow(self, fault: Fault) -> None:
        for host in [self.cluster.host(name) for name in fault.nodes] if not self._mended else ():
            self._note("fault", f"{host.name} is killed")
            self._kill(host, fault)
            self._kernel.at(fault.until - fault.at, lambda host=host: self._restart(host))  # type: ignore[misc]
        storage = self.cluster.storage
        if fault.what == "power cut" and storage is not None and not self._mended:
            storage.disk.crash(self._chance)

    def _break(self, part: float) -> None:
        if not self._mended:
            self._note("fault", f"{self.cluster.wires.break_some(part)} calls break")

    def _follow(self, fault: Fault, known: set[Successor]) -> None:
        """Look for a node that has taken over and has a backup again, and kill it."""
        found = sorted(self._successors() - known)
        if found:
            blow = replace(fault, nodes=(found[0][0],), until=fault.at + 1.0)
            self._kernel.at(fault.amount, lambda: self._blow(blow))
        elif not self._mended:
            self._kernel.at(FOLLOW_S, lambda: self._follow(fault, known))

    def _successors(self) -> set[Successor]:
        """Those that have taken over, and have a backup that knows everything."""
        found = set()
        for name, host in self.cluster.nodes.items():
            for key, guard in host.node.guards.primaries.items() if host.alive and host.node is not None else ():
                if guard.guard.incarnation > 1 and guard.policy.joined and guard.policy.known:
                    found.add((name, key, guard.guard.incarnation))
        return found

    def _heal(self) -> None:
        self._note("fault", "the network is whole again")
        self.cluster.wires.heal()

    def _make_room(self, host: Host) -> None:
        host.disk.limit = None

    def _at_full_speed(self, host: Host) -> None:
        if host.process is not None:
            host.process.slow = 1.0

    def _kill(self, host: Any, fault: Fault) -> None:
        if not host.alive:
            return
        if host.name != COORDINATOR:
            self._count_copies(host.name)
        host.kill()
        if fault.what in ("crash", "power cut"):
            host.disk.crash(self._chance)
        elif fault.what == "wipe":
            host.disk = SimDisk(host.disk.sync_s)
        elif fault.what == "flipped bit":
            host.disk.flip(self._chance)

    def _restart(self, host: Any) -> None:
        if not host.alive:
            self._note("fault", f"{host.name} starts again")
            host.start()

    def mend(self) -> None:
        self._mended = True
        self.cluster.wires.heal()
        if self.cluster.storage is not None:
            self._make_room(self.cluster.storage)
            self.cluster.storage.disk.failing.clear()
        for host in (self.cluster.coordinator, *self.cluster.nodes.values()):
            self._make_room(host)
            host.disk.failing.clear()
            if host.process is not None:
                host.process.resume()
                host.process.slow = 1.0
            self._restart(host)

    def _count_copies(self, dying: str) -> None:
        """A node is about to die: which units have no copy left then? That is more than protection is promised for."""
        for key, copies in self._all_copies().items():
            self._copies[key] = copies - {dying}
            if not self._copies[key] and key not in self.lost:
                self.lost.add(key)
                self._note("run", f"no copy of {key[1]} is left")
            if dying in copies:
                self.struck.add(key[1])

    def _all_copies(self) -> dict[UnitKey, set[str]]:
        found = dict(self._copies)
        best: dict[UnitKey, int] = {}
        for name, host in self.cluster.nodes.items():
            if not host.alive or host.node is None:
                continue
            for key in [*host.node.units, *host.node.entries]:
                unit = host.node.running(key)
                if unit is None or unit.standby:
                    continue
                guard = host.node.guards.primaries.get(key)
                incarnation = guard.guard.incarnation if guard is not None else 1
                if incarnation >= best.get(key, 0):
                    best[key] = incarnation
                    found[key] = {name, *self._standing_by(guard)}
        return found

    def _standing_by(self, guard: PrimaryGuard | None) -> set[str]:
        """Nodes that have all that a primary has: its backup, and further copies; or storage, which never dies."""
        if guard is None:
            return set()
        if guard.stored is not None:
            return {STORAGE}
        copies = guard.links.copies.machines.items()  # those of checkpoints may have heard of another primary only
        names = {name for name, machine in copies if guard.links.gates or machine.known}
        if guard.policy.joined and guard.policy.known:
            names.add(guard.guard.partner_node)
        return {name for name in names if self._is_ready(name, guard.unit.key)}

    def _is_ready(self, name: str, key: UnitKey) -> bool:
        host = self.cluster.nodes.get(name)
        node = host.node if host is not None and host.alive else None
        standby = node.guards.standbys.get(key) if node is not None else None
        return standby is not None and standby.ready
