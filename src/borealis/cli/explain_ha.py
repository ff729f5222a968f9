"""`borealis explain --ha`: what each unit of a diagram gets from an approach when its node dies, and why."""

from __future__ import annotations

from typing import Any, cast

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from borealis.cli.explain import ProtectionOptions
from borealis.cli.options import pairs
from borealis.diagram.cut import Piece, cut, even_cuts
from borealis.diagram.durations import show
from borealis.diagram.protection import GUARANTEES, Protection, ProtectOptions, chosen, protection_of
from borealis.diagram.spec import Spec
from borealis.errors import DiagramError
from borealis.ha.behind import warnings
from borealis.ha.classes import Classified, classify
from borealis.ha.guarantees import TABLE, check_guarantee, recovery_of, recovery_type

NO_TIME = show(0)


def protected(spec: Spec, asked: ProtectionOptions) -> dict[str, Any]:
    """All there is to say about the protection of a diagram."""
    if not spec.protection and asked.ha is None:
        hint = "add --ha passive (or amnesia, active, upstream-backup)"
        raise DiagramError(f"diagram '{spec.name}' says nothing of protection", hint=hint)
    cuts = [*(asked.cut or ()), *(even_cuts(spec, asked.units) if asked.units and asked.units > 1 else ())]
    pieces = cut(spec, cuts, pairs("--place", asked.place, "per_source=node2"))
    chosen_of = {piece.name: _chosen(spec, piece, asked) for piece in pieces}
    units = [_unit(spec, piece, chosen_of[piece.name]) for piece in pieces]
    return {"diagram": spec.name, "protection": units, "warnings": warnings(spec, pieces, chosen_of)}


def _chosen(spec: Spec, piece: Piece, asked: ProtectionOptions) -> Protection | None:
    found = protection_of(spec, piece.boxes)
    if found is not None or asked.ha is not None:
        found = chosen(found, **cast(ProtectOptions, {"ha": asked.ha, "guarantee": asked.guarantee}))
    return found


def _unit(spec: Spec, piece: Piece, found: Protection | None) -> dict[str, Any]:
    classified = classify(spec, piece)
    return {
        "unit": piece.name,
        "reads": list(piece.reads),
        "gives": list(piece.gives),
        "class": classified.kind,
        "boxes": [
            {"name": name, "does": spec.box(name).describe(), "class": kind, "why": why}
            for name, (kind, why) in classified.why.items()
        ],
        "reach_back": {arrow: None if us is None else show(us) for arrow, us in classified.retention.items()},
        "asked": _asked(found, classified),
        "table": {approach: _approach(approach, classified) for approach in TABLE},
    }


def _asked(protection: Protection | None, classified: Classified) -> dict[str, Any]:
    if protection is None:
        return {"approach": "none", "guarantee": None, "recovery_type": None} | _outcome(None, classified)
    approach = protection.ha
    return {
        "approach": approach,
        "guarantee": protection.guarantee,
        "recovery_type": recovery_type(approach, classified.kind) if approach in TABLE else None,
    } | _outcome(protection, classified)


def _approach(approach: str, classified: Classified) -> dict[str, Any]:
    outcomes = {g: _outcome(Protection(ha=approach, guarantee=g), classified) for g in GUARANTEES}
    return {"recovery_type": recovery_type(approach, classified.kind), "guarantees": outcomes}


def _outcome(protection: Protection | None, classified: Classified) -> dict[str, Any]:
    """What is given, or why it is refused."""
    try:
        check_guarantee(protection, classified)
    except DiagramError as error:
        return {"recovery": None, "refused": error.message, "hint": error.hint}
    found = recovery_of(protection, classified)
    return {"recovery": found.kind, "how": found.how}


def drawn_protection(facts: dict[str, Any]) -> RenderableType:
    """The same, for people."""
    told = [Text(f"warning: {one}", style="yellow") for one in facts["warnings"]]
    return Group(*(_tree(unit) for unit in facts["protection"]), *told)


def _tree(unit: dict[str, Any]) -> Tree:
    arrows = f": reads {', '.join(unit['reads'])}; gives {', '.join(unit['gives'])}; "
    title = Text.assemble("protection of unit ", (unit["unit"], "bold"), arrows, (unit["class"], "cyan"))
    tree = Tree(title, guide_style="dim")
    for box in unit["boxes"]:
        node = tree.add(Text.assemble((box["name"], "bold"), f": {box['does']}"))
        node.add(Text.assemble((box["class"], "cyan"), f": {box['why']}"))
    tree.add(Text(_state(unit["reach_back"])))
    asked = unit["asked"]
    what = Text.assemble((asked["approach"], "bold"), f", {asked['guarantee']}" if asked["guarantee"] else "")
    node = tree.add(what)
    if asked["recovery_type"]:
        place = "3.3" if asked["approach"] == "amnesia" else "table 3.2"
        node.add(Text.assemble(f"recovery type (Hwang, {place}): ", (asked["recovery_type"], "cyan")))
    if asked["recovery"] is None:
        node.add(Text.assemble(("refused", "red"), f": {asked['refused']}"))
        node.add(Text(f"hint: {asked['hint']}"))
    else:
        node.add(Text.assemble("given: ", (asked["recovery"], "green"), f": {asked['how']}"))
    return tree


def _state(reaches: dict[str, str | None]) -> str:
    if set(reaches.values()) == {NO_TIME}:
        return "no state"
    each = (f"{arrow} {'without bound' if reach is None else reach}" for arrow, reach in reaches.items())
    return f"state reaches back: {', '.join(each)}"
