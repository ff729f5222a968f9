"""What protection a user asks for when deploying, over what the diagram's file says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from borealis.coordinator.http_errors import AbsentError
from borealis.coordinator.layout import UnitAssignment
from borealis.diagram.cut import Piece
from borealis.diagram.deployment import Deployment
from borealis.diagram.protection import Protection, chosen, protection_of
from borealis.diagram.spec import Spec, origin
from borealis.errors import DiagramError
from borealis.ha.classes import classify
from borealis.ha.guarantees import check_guarantee


def protections(spec: Spec, pieces: Sequence[Piece], demand: Deployment) -> dict[str, Protection | None]:
    """That of each unit. A combination that cannot be given is refused with the reason."""
    found: dict[str, Protection | None] = {}
    for piece in pieces:
        protection = protection_of(spec, piece.boxes)
        if protection is not None or demand.ha is not None:
            protection = chosen(protection, **demand.protection)
        if protection is not None:
            check_guarantee(protection, classify(spec, piece))
            protection = None if protection.ha == "none" else protection
        found[piece.name] = protection
    said = [name for name in demand.protection if name != "ha"] + ["backup"] * bool(demand.backup)
    idle = next(iter(said), None)
    if idle is not None and not any(found.values()):
        raise DiagramError(
            f"a {idle.replace('_', ' ')} is asked for, but nothing is protected",
            hint="say how: --ha passive (or active, upstream-backup, amnesia), or protection: in the diagram",
        )
    return found


def entry_protection(name: str, units: Sequence[UnitAssignment]) -> Protection | None:
    """How an entry point is protected: all it takes in goes to its backup at once, unless amnesia suffices for all.

    It is watched as the first protected unit that reads it, or else any, is.
    """
    promised = {unit.unit: unit.protection for unit in units if unit.protection is not None}
    if not promised:
        return None
    reading = [unit.unit for unit in units if name in map(origin, unit.reads)]
    nearest = next(promised[unit] for unit in (*reading, *promised) if unit in promised)
    if {one.ha for one in promised.values()} == {"amnesia"}:
        return nearest
    return nearest.model_copy(update={"ha": "passive", "guarantee": "precise"})


def refuse_lonely(units: Sequence[UnitAssignment], protected: Mapping[str, Protection | None], alive: int) -> None:
    """Refuse a unit that wants a backup and gets none, unless its user takes that."""
    for unit in units:
        protection = protected[unit.unit]
        if protection is not None and unit.backup is None and protection.without_backup == "refuse":
            there = "no node is" if not alive else "only one node is" if alive == 1 else "no other able node is"
            raise AbsentError(
                f"unit '{unit.unit}' shall have a backup ({protection.ha}), and {there} alive",
                hint="start another node, or take it without for now: --without-backup degrade",
            )
