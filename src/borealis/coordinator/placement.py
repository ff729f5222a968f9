"""Where units and entry points go, how they are protected, and where their backups go. Pure, and the same twice.

All goes where the user says, otherwise where there is least to do; a backup is on another node than its primary, and
those of one node are spread (see spreading).

>>> from borealis.diagram.cut import Piece
>>> first = Piece(name="u1", boxes=("a",), reads=("packets",), gives=("a",))
>>> pieces = [first, *(Piece(name=name, boxes=(name,), reads=("a",), gives=(name,)) for name in ("u2", "u3"))]
>>> place(pieces, ["packets"], {}, [Load("node1", units=1), Load("node2")])
({'u1': 'node2', 'u2': 'node1', 'u3': 'node2'}, {'packets': 'node2'})
>>> passive = Protection(ha="passive")
>>> units = [UnitAssignment(u, (u,), (), (u,), "node1", protection=passive) for u in ("u1", "u2", "u3")]
>>> [u.backup for u in with_backups(units, {}, [Load("node1"), Load("node2"), Load("node3")])]
['node2', 'node3', 'node2']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from borealis.coordinator.http_errors import AbsentError, MissingError
from borealis.coordinator.layout import UnitAssignment
from borealis.coordinator.recovery import unmeasured
from borealis.coordinator.spreading import Node, Shares, Work, by_share, spread
from borealis.diagram.cut import Piece
from borealis.diagram.deployment import Deployment
from borealis.diagram.protection import PARALLEL, Protection, chosen, protection_of
from borealis.diagram.spec import Spec, origin
from borealis.errors import ClusterError, DiagramError, did_you_mean
from borealis.ha.classes import classify
from borealis.ha.guarantees import check_guarantee
from borealis.ha.path_delays import with_shares

STANDBY_WEIGHT = 0.5  # of a standby that does not run in parallel, in units


@dataclass(frozen=True)
class Load:
    """How much a living node has to do already."""

    name: str
    units: float = 0  # standbys count for a part
    busy: float = 0.0  # of each second, the part that its trains take
    cores: int = 1
    ready: bool = True  # otherwise only what the user places there goes there


def place(
    pieces: Sequence[Piece], inputs: Sequence[str], places: Mapping[str, str], nodes: Sequence[Load]
) -> tuple[dict[str, str], dict[str, str]]:
    """A node for each unit, and for each input. An input without a place is where the first unit that reads it is.

    That places are nodes is for the caller to check.
    """
    if not nodes:
        raise AbsentError("there is no node to run on", hint="start one: borealis node, or borealis up --nodes 3")
    units = {piece.name: piece.place for piece in pieces if piece.place is not None}
    for piece in pieces:
        if piece.name not in units:
            units[piece.name] = _idlest(nodes, Counter(units.values()))
    entries: dict[str, str] = {}
    for name in inputs:
        first = next((p.name for p in pieces if name in (origin(arrow) for arrow in p.reads)), None)
        entries[name] = places.get(name) or (units[first] if first else _idlest(nodes, Counter(units.values())))
    return {piece.name: units[piece.name] for piece in pieces}, entries


def _idlest(nodes: Iterable[Load], given: Mapping[str, float]) -> str:
    """The node with the fewest units for its cores; among equals the one whose trains take least."""
    return min(nodes, key=lambda n: rank(n, given.get(n.name, 0))).name


def rank(node: Load, given: float = 0) -> tuple[bool, Fraction, float, str]:
    """The least comes first: able, few units for its cores, little to do."""
    return not node.ready, Fraction(node.units + given) / node.cores, node.busy, node.name


# -- protection


def protections(spec: Spec, pieces: Sequence[Piece], demand: Deployment) -> dict[str, Protection | None]:
    """That of each unit. A combination that cannot be given is refused with the reason."""
    found: dict[str, Protection | None] = {}
    for piece in pieces:
        protection = protection_of(spec, piece.boxes)
        if protection is not None or demand.ha is not None:
            protection = chosen(protection, **demand.protection)
        if protection is not None:
            check_guarantee(protection, classify(spec, piece, protection))
            protection = None if protection.ha == "none" else protection
        found[piece.name] = protection
    details = [name for name in demand.protection if name != "ha"] + ["backup"] * bool(demand.backup)
    if details and not any(found.values()):
        noun = f"number of {details[0]}" if details[0] in ("replicas", "backups") else details[0].replace("_", " ")
        raise DiagramError(
            f"a {noun} is asked for, but nothing is protected",
            hint="say how: --ha passive (or active, replicas, upstream-backup, amnesia), or protection: in the diagram",
        )
    return with_shares(pieces, found)


def entry_protection(name: str, units: Sequence[UnitAssignment]) -> Protection | None:
    """How an entry point is protected: all it takes in goes to its backup at once, unless amnesia suffices for all.

    Where a unit is kept in storage, so is what it reads again.

    It is watched as the first protected unit that reads it, or else any, is.
    """
    promised = {unit.unit: unit.protection for unit in units if unit.protection is not None}
    if not promised:
        return None
    reading = [unit.unit for unit in units if name in map(origin, unit.reads)]
    nearest = next(promised[unit] for unit in (*reading, *promised) if unit in promised)
    if {one.ha for one in promised.values()} == {"amnesia"}:
        return nearest
    stored = "storage" in {one.ha for one in promised.values()}
    how = {"ha": "storage", "checkpoint": None} if stored else {"ha": "passive", "checkpoint": "interval"}
    backups = max((one.backups or 0 for one in promised.values()), default=0)
    news: dict[str, Any] = how | {"guarantee": "precise", "reconcile": "local", "replicas": None}
    news["backups"] = backups if backups and not stored else None
    return nearest.model_copy(update=news)


def refuse_lonely(units: Sequence[UnitAssignment], alive: int) -> None:
    """Refuse a unit that wants a backup and gets none, unless its user takes that."""
    for unit in units:
        protection = unit.protection
        if unit.stored:
            continue
        if protection is not None and unit.backup is None and protection.without_backup == "refuse":
            there = "only one node is" if alive == 1 else "no other able node is"
            raise AbsentError(
                f"unit '{unit.unit}' shall have a backup ({protection.ha}), and {there} alive",
                hint="start another node, or take it without for now: --without-backup degrade",
            )
        if protection is not None and len(unit.copies) < unit.further and protection.without_backup == "refuse":
            shall, can = f"{protection.replicas} replicas", len(unit.nodes)
            if unit.checkpointed:
                shall, can = f"{protection.backups} backups", len(unit.nodes) - 1
            raise AbsentError(
                f"unit '{unit.unit}' shall have {shall}, each on a node of its own, and {can} can be had "
                f"({alive} nodes are alive)",
                hint="start more nodes, or take it with fewer for now: --without-backup degrade",
            )


# -- backups


def weight(protection: Protection | None) -> float:
    """What a standby costs its node, in units."""
    return 1.0 if protection is not None and protection.approach in PARALLEL else STANDBY_WEIGHT


def with_backups(
    units: Sequence[UnitAssignment], wanted: Mapping[str, str], nodes: Sequence[Load], shares: Shares | None = None
) -> list[UnitAssignment]:
    """The units with the nodes that stand by for them; None where no other node is able to.

    `shares` is what nodes would have to do for each other already.
    """
    _check(units, wanted)
    given: dict[str, float] = dict(Counter(unit.node for unit in units))
    shared, found = dict(shares or {}), list(units)
    protected = [number for number, unit in enumerate(units) if unit.protection is not None and not unit.stored]
    for number in sorted(protected, key=lambda number: units[number].unit not in wanted):
        unit = units[number]
        work = unmeasured("", unit).work
        by_rank = ranked(nodes, given, shared)
        chosen = wanted.get(unit.unit) or spread([work], able(nodes), shared, by_rank)[work.unit]
        unit = replace(unit, backup=chosen)
        if chosen is not None:
            shared[unit.node, chosen] = shared.get((unit.node, chosen), 0) + work.us
            given[chosen] = given.get(chosen, 0) + weight(unit.protection)
            unit = with_copies(unit, nodes, given)
        found[number] = unit.numbered()
    return found


def able(nodes: Iterable[Load]) -> list[Node]:
    """Those that may stand by."""
    return [Node(node.name, node.cores) for node in nodes if node.ready]


def ranked(nodes: Iterable[Load], given: Mapping[str, float], shares: Shares) -> Callable[[str], Any]:
    """What decides among nodes whose shares are equal: which has fewest units and standbys, and stands by for least."""
    ranks = {}
    for node in nodes:
        unable, units, busy, name = rank(node, given.get(node.name, 0))
        standing = sum(us for (_, to), us in shares.items() if to == node.name)
        ranks[node.name] = unable, units, Fraction(standing, node.cores), busy, name
    return ranks.__getitem__


def with_copies(unit: UnitAssignment, nodes: Sequence[Load], given: dict[str, float] | None = None) -> UnitAssignment:
    """The unit with as many further copies as it was promised, as far as there are nodes that have none of it."""
    given = {} if given is None else given
    while len(unit.copies) < unit.further:
        able = [node for node in nodes if node.ready and node.name not in unit.nodes]
        if not able:
            break
        chosen = _idlest(able, given)
        given[chosen] = given.get(chosen, 0) + weight(unit.protection)
        unit = unit.with_copies([*unit.copies, chosen])
    return unit


def entry_backup(entry: UnitAssignment, units: Sequence[UnitAssignment], loads: Sequence[Load]) -> UnitAssignment:
    """The entry point with its backup: by preference where that of its first reader is, or the reader itself.

    Of a reader with more than two copies two may be lost at once: then it is rather where none of these is.
    """
    if not entry.protected or entry.stored:
        return entry
    able = {load.name for load in loads if load.ready}
    first = next((u for u in units if set(entry.gives) & set(u.reads)), None)
    near: tuple[str | None, ...] = (first.backup, first.node) if first is not None else ()
    if first is not None and first.copies:
        apart = [load for load in loads if load.name not in first.nodes]
        near = (_idlest_other(entry.node, apart, {}), *first.copies)
    if entry.further:  # so has it
        near = first.nodes[1:] if first is not None else ()
    chosen = next((node for node in near if node in able and node != entry.node), None)
    found = replace(entry, backup=chosen or _idlest_other(entry.node, loads, {}))
    return with_copies(found, loads).numbered() if found.backup is not None else found.numbered()


def _idlest_other(primary: str, nodes: Iterable[Load], given: Mapping[str, float]) -> str | None:
    """The able node with least to do that is not the primary's."""
    others = [node for node in nodes if node.name != primary and node.ready]
    return _idlest(others, given) if others else None


def candidates(
    place: UnitAssignment, loads: Sequence[Load], work: Work | None = None, shares: Shares | None = None
) -> list[str]:
    """Nodes that may stand by for a place that has lost its backup: further copies first, which run already, then the
    one that was, then those that would be done with it first, and last one where it failed; among equals those with
    least to do.
    """
    by_rank, near = ranked(loads, {}, shares or {}), (place.backup, place.was)
    work = work or unmeasured("", place).work
    others = by_share(work, able(loads), shares or {}, by_rank)
    order = lambda name: (name not in place.copies, name == place.failed_on, name not in near)  # noqa: E731
    return sorted((node.name for node in others), key=order)


def _check(units: Sequence[UnitAssignment], wanted: Mapping[str, str]) -> None:
    known = {unit.unit: unit for unit in units}
    for name, node in wanted.items():
        if name not in known:
            hint = did_you_mean(name, known) or f"units are {', '.join(known)}"
            raise MissingError(f"there is no unit '{name}' that could have a backup on '{node}'", hint=hint)
        if known[name].stored:
            raise ClusterError(f"unit '{name}' is kept in storage, and has no backup", hint="leave --backup out")
        if known[name].protection is None:
            raise ClusterError(f"unit '{name}' is not protected, and needs no backup on '{node}'", hint="see --ha")
        if known[name].node == node:
            raise ClusterError(
                f"unit '{name}' runs on '{node}': its backup cannot be there, too", hint="choose another"
            )
