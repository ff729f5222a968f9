"""What each approach gives for each class of unit (Hwang table 3.2), what we add to it, and what is refused.

Ours is often more than the table: a stream keeps its ids through a takeover, and readers ask for the id they want next.
Where a backup comes to the same tuples under the same ids, what Hwang calls repeating is precise for the readers.
"""

from __future__ import annotations

from dataclasses import dataclass

from borealis.diagram.boxes.base import CLASSES
from borealis.diagram.protection import PARALLEL, Protection
from borealis.errors import DiagramError
from borealis.ha.classes import DETERMINISTIC, Classified

_STANDBY = ("repeating", "repeating", "repeating", "divergent")
TABLE = {
    approach: dict(zip(CLASSES, row, strict=True))
    for approach, row in {
        "amnesia": ("gap",) * 4,
        "passive": _STANDBY,
        "active": _STANDBY,
        "replicas": _STANDBY,
        "storage": _STANDBY,
        "upstream-backup": ("repeating", "convergent", "divergent", "divergent"),
    }.items()
}

_HELD = "its output is held until the backup has the checkpoint that made it"
_HELD_FOR_ALL = "its output is held until all its backups have the checkpoint that made it"
_KEPT = "its output is held until the checkpoint that made it is in storage"
_ORDERED = "each train's output is held until the backup has its merge order, in which it computes the same"
_BY_ID = "the backup comes to the same tuples under the same ids, and a reader asks for the id it wants next"
_REBUILT = "its state is built again from what upstream kept; then " + _BY_ID


@dataclass(frozen=True)
class Recovery:
    """What readers of a unit see when its node dies, and how that comes about."""

    kind: str  # precise, repeating, convergent, divergent, gap; none: it does not come back by itself
    how: str


def recovery_type(approach: str, kind: str) -> str:
    """Hwang's table 3.2, and gap for amnesia."""
    return TABLE[approach][kind]


def recovery_of(protection: Protection | None, classified: Classified) -> Recovery:
    """What is promised; `check_guarantee` says whether it can be."""
    if protection is None or protection.ha == "none":
        return Recovery("none", "nothing takes over: the unit and its state are gone")
    if protection.ha == "amnesia":
        return Recovery("gap", "the backup begins with nothing, at what is newest; ids jump, so that readers know")
    least = recovery_type(protection.ha, classified.kind)
    if protection.guarantee == "precise":
        return Recovery("precise", _precisely(protection, classified))
    if protection.guarantee == "gap":
        return Recovery("gap", f"no more is asked; as a rule it is {least}")
    if least == "divergent":
        return Recovery(least, "nothing is lost; ids jump, and behind the jump some tuples may come again, or differ")
    return Recovery(least, f"that is promised, but readers see precise recovery: {_BY_ID}")


def _precisely(protection: Protection, classified: Classified) -> str:
    approach = protection.ha
    if not classified.nondeterministic:
        stateful = any(span != 0 for span in classified.retention.values())
        return _REBUILT if approach == "upstream-backup" and stateful else _BY_ID
    if approach == "passive" and protection.further:
        return _HELD_FOR_ALL
    return {"passive": _HELD, "storage": _KEPT}.get(approach, _ORDERED)


def check_guarantee(protection: Protection | None, classified: Classified) -> None:
    """Raise a DiagramError, with the reason, if what is asked of an approach cannot be given for such a unit."""
    if protection is not None and protection.merge == "time" and classified.streams > 1:
        for stream, box in classified.timeless.items():
            reason = f"'merge: time' would wait for '{stream}', which does not tell how far it has come"
            raise protection.wrong(reason, f"let '{box}', which reads it, begin a unit of its own (--cut {box})")
    if protection is not None and protection.delay is not None and classified.revised:
        reason = f"'delay', where '{classified.revised[0]}' takes rows back: a fork may not have read those"
        raise protection.wrong(reason, "leave the delay out, or the key and history of the input")
    if protection is None or protection.guarantee is None:
        return
    approach, guarantee = protection.ha, protection.guarantee
    if approach == "none":
        raise protection.wrong(f"'{guarantee}' without an approach", "choose one, or leave the guarantee out")
    if approach == "amnesia" and guarantee != "gap":
        raise _impossible(protection, "it forgets all state", "choose passive, active or upstream-backup")
    if approach == "replicas" and guarantee != "precise":
        raise _impossible(protection, "readers go from one copy to another at any time", "leave the guarantee out")
    if guarantee == "precise" and classified.unsafe_effects:
        box = classified.unsafe_effects[0]
        reason = f"'{box}' may have written what its backup comes to in another order, or not again"
        by_time = "" if classified.random_boxes else "read streams by time (--merge time), "
        hint = f"{by_time}let its unit begin with it (--cut {box}), or guarantee no-loss"
        raise _impossible(protection, reason, hint)
    if guarantee == "gap" or approach not in (*PARALLEL, "upstream-backup"):
        return
    if guarantee == "precise" and classified.random_boxes:
        names = ", ".join(f"'{name}' ({classified.why[name][1]})" for name in classified.random_boxes)
        hint = "choose passive, which sends nothing that its backup does not have, or guarantee no-loss"
        raise _impossible(protection, f"the backup cannot compute the same again: {names}", hint)
    if approach == "upstream-backup":
        _refuse_rebuilding(protection, classified)


def _refuse_rebuilding(protection: Protection, classified: Classified) -> None:
    """From nothing, only state can be built again that depends on a stretch of input, and not on where it begins."""
    standby = "choose passive or active"
    if protection.guarantee == "precise" and classified.kind == DETERMINISTIC:
        why = ((name, reason) for name, (kind, reason) in classified.why.items() if kind == DETERMINISTIC)
        box, reason = next(why, ("a box", "its state depends on where its backup begins to read"))
        raise _impossible(protection, f"'{box}' cannot be built again exactly: {reason}", standby)
    endless = [arrow for arrow, span in classified.retention.items() if span is None]
    if endless:
        reason = f"the unit's state depends on all that ever came from {', '.join(endless)}, which no node keeps"
        raise _impossible(protection, reason, standby)


def _impossible(protection: Protection, reason: str, hint: str) -> DiagramError:
    return protection.wrong(f"{protection.ha} cannot give '{protection.guarantee}': {reason}", hint)
