"""Where backups go: on another node than the primary, where there is least to do. Pure, and the same twice.

>>> passive = Protection(ha="passive")
>>> units = [UnitAssignment(u, (u,), (), (u,), "node1", protection=passive) for u in ("u1", "u2", "u3")]
>>> [u.backup for u in with_backups(units, {}, [Load("node1"), Load("node2"), Load("node3")])]
['node2', 'node3', 'node2']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from borealis.coordinator.http_errors import MissingError
from borealis.coordinator.layout import UnitAssignment
from borealis.coordinator.placement import Load, idlest, no_node, rank
from borealis.diagram.protection import Protection
from borealis.errors import ClusterError, did_you_mean

STANDBY_WEIGHT = 0.5  # of a standby that does not run in parallel, in units


def weight(protection: Protection | None) -> float:
    """What a standby costs its node, in units."""
    return 1.0 if protection is not None and protection.approach == "active" else STANDBY_WEIGHT


def with_backups(
    units: Sequence[UnitAssignment], wanted: Mapping[str, str], loads: Iterable[Load]
) -> list[UnitAssignment]:
    """The units with the nodes that stand by for them; None where no other node is able to."""
    nodes = {load.name: load for load in loads}
    _check(units, wanted, nodes)
    given: dict[str, float] = dict(Counter(unit.node for unit in units))
    found = []
    for unit in units:
        if unit.protection is not None:
            chosen = wanted.get(unit.unit) or idlest_other(unit.node, nodes.values(), given)
            unit = replace(unit, backup=chosen)
            if chosen is not None:
                given[chosen] = given.get(chosen, 0) + weight(unit.protection)
        found.append(unit)
    return found


def entry_backup(entry: UnitAssignment, units: Sequence[UnitAssignment], loads: Sequence[Load]) -> UnitAssignment:
    """The entry point with its backup: by preference where that of its first reader is, or the reader itself."""
    if not entry.protected:
        return entry
    able = {load.name for load in loads if load.ready}
    first = next((u for u in units if set(entry.gives) & set(u.reads)), None)
    near = (first.backup, first.node) if first is not None else ()
    chosen = next((node for node in near if node in able and node != entry.node), None)
    return replace(entry, backup=chosen or idlest_other(entry.node, loads, {}))


def idlest_other(primary: str, nodes: Iterable[Load], given: Mapping[str, float]) -> str | None:
    """The able node with least to do that is not the primary's."""
    others = [node for node in nodes if node.name != primary and node.ready]
    return idlest(others, given) if others else None


def candidates(place: UnitAssignment, loads: Iterable[Load]) -> list[str]:
    """Who may stand by for a place that has lost its backup: the one that was, then those with least to do."""
    others = sorted((n for n in loads if n.name != place.node and n.ready), key=rank)
    return sorted((n.name for n in others), key=lambda name: name not in (place.backup, place.was))


def _check(units: Sequence[UnitAssignment], wanted: Mapping[str, str], nodes: Mapping[str, Load]) -> None:
    known = {unit.unit: unit for unit in units}
    for name, node in wanted.items():
        if name not in known:
            hint = did_you_mean(name, known) or f"units are {', '.join(known)}"
            raise MissingError(f"there is no unit '{name}' that could have a backup on '{node}'", hint=hint)
        if node not in nodes:
            raise no_node(node, nodes)
        if known[name].protection is None:
            raise ClusterError(f"unit '{name}' is not protected, and needs no backup on '{node}'", hint="see --ha")
        if known[name].node == node:
            raise ClusterError(
                f"unit '{name}' runs on '{node}': its backup cannot be there, too", hint="choose another"
            )
