"""`borealis check`: whether a diagram is sound, and its expressions type. `borealis explain`: what it computes, what
boxes promise, where they run, and what survives a node's death.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from dataclasses import dataclass
from json import dumps
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text
from rich.tree import Tree
from typer import Option

from borealis.cli.opening import load, start_spark
from borealis.cli.options import Json, Names, Yaml, pairs
from borealis.cli.screen import answer, console, plural, size
from borealis.diagram.boxes.base import Box
from borealis.diagram.cut import Piece, cut, even_cuts, part_of
from borealis.diagram.durations import show
from borealis.diagram.protection import GUARANTEES, Protection, ProtectOptions, chosen, protection_of
from borealis.diagram.spec import Spec
from borealis.errors import BorealisError, DiagramError
from borealis.ha.behind import warnings
from borealis.ha.classes import Classified, classify, most_general
from borealis.ha.guarantees import TABLE, check_guarantee, recovery_of, recovery_type

if TYPE_CHECKING:
    from borealis.compile.kept import Kept, Load

NO_TIME = show(0)
RATE_EXAMPLE = "1000, or quotes=1000"


@dataclass(frozen=True)
class ProtectionOptions:
    """What is asked about protection, and about cutting as `deploy` would."""

    ha: Annotated[
        str | None,
        Option(
            metavar="APPROACH",
            help="Show only protection: with amnesia, passive, active, replicas, upstream-backup or storage.",
        ),
    ] = None
    guarantee: Annotated[str | None, Option(metavar="WHAT", help="gap, no-loss or precise.")] = None
    merge: Annotated[str | None, Option(metavar="arrival|time", help="How several streams become one.")] = None
    backups: Annotated[int | None, Option(metavar="N", help="With passive: how many.")] = None
    place: Annotated[Names, Option(metavar="NAME=NODE", help="With --ha: as if it were deployed so.")] = None
    cut: Annotated[Names, Option(metavar="BOX", help="With --ha: begin a new unit here.")] = None
    units: Annotated[int | None, Option(min=1, help="With --ha: cut into about so many units.")] = None

    def __bool__(self) -> bool:
        return any(vars(self).values())


@dataclass(frozen=True)
class LoadOptions:
    """What an estimate of the state of boxes starts from."""

    rate: Annotated[
        Names,
        Option(metavar="[INPUT=]ROWS", help="Rows a second, to estimate what corrections make boxes keep: 1000."),
    ] = None
    groups: Annotated[
        int | None,
        Option(min=1, help="Groups of an aggregate, for the same estimate: 1000, if there are so many rows."),
    ] = None

    def load(self, spec: Spec) -> Load:
        from borealis.compile.kept import Load

        every = [one for one in self.rate or () if "=" not in one]
        named = pairs("--rate", [one for one in self.rate or () if "=" in one], RATE_EXAMPLE, "ROWS")
        for name in named:
            spec.input(name)
        rates = {name: _rate(text) for name, text in named.items()}
        rate = _rate(every[-1]) if every else Load.rate
        return Load(rates, rate, self.groups or Load.groups)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < inf:
        raise BorealisError(f"--rate '{text}' is no number of rows a second", hint=f"write --rate {RATE_EXAMPLE}")
    return rate


def explain(diagram: Yaml, asked: ProtectionOptions, expected: LoadOptions, json: Json = False) -> None:
    spec = load(diagram).validate()
    guarded = protected(spec, asked) if asked or spec.protection else {}
    facts = guarded
    if not asked:  # protection alone takes no Spark
        rows = expected.load(spec)
        facts = explained(spec, start_spark(), rows) | guarded
    if json:
        print(dumps(facts, ensure_ascii=False, indent=2))
        return
    parts = [] if asked else [drawn(facts)]
    parts += [_protection_tree(unit) for unit in guarded.get("protection", ())]
    notes = [Text(f"warning: {one}", style="yellow") for one in guarded.get("warnings", ())]
    console().print(Group(*parts, *notes))


def check(diagram: Yaml, json: Json = False) -> None:
    spec = load(diagram).validate()
    spark = start_spark()
    from borealis.spark.plan import check_plan

    check_plan(spec, spark)
    boxes, units = len(spec.boxes), len(cut(spec, local=True))
    facts = {"ok": True, "diagram": spec.name, "boxes": boxes, "units": units}
    answer(json, facts, f"ok: {spec.name} ({plural(boxes, 'box', 'boxes')}, {plural(units, 'unit')})")


def explained(spec: Spec, spark: Any, load: Load) -> dict[str, Any]:
    pieces = cut(spec, local=True)
    return {
        "diagram": spec.name,
        "class": most_general(classify(spec, piece).kind for piece in pieces),
        "units": [_unit(part_of(spec, piece), piece, spark, load) for piece in pieces],
    }


def _unit(spec: Spec, piece: Piece, spark: Any, load: Load) -> dict[str, Any]:
    from borealis.compile.kept import kept
    from borealis.compile.unit import compile_unit

    classes, compiled, paces = classify(spec, piece), compile_unit(spec, spark), spec.paces()
    keeps = kept(spec, compiled, load)
    return {
        "unit": piece.name,
        "class": classes.kind,
        "runs": "in a lane" if compiled.one_level else "in micro-batches",
        "hinders": compiled.hinders or "",
        "backup": "image" if compiled.one_level else "query",  # what one keeps that does not run in parallel
        "inputs": [
            {
                "name": one.name,
                "columns": _types(compiled.schemas[one.name]),
                "time": one.time,
                "slack": one.slack,
                "idle": one.idle,
                "boundary_every": show(paces[one.name]),
                "late": one.late,
            }
            for one in spec.inputs
        ],
        "boxes": [
            _box(box, compiled, *classes.why[box.name]) | _keeps(keeps.get(box.name)) for box in spec.topological()
        ],
        "outputs": {o.name: o.source for o in spec.outputs},
        "plan": _plan(compiled, spark),
    }


def _box(box: Box, compiled: Any, kind: str, why: str) -> dict[str, Any]:
    return {
        "name": box.name,
        "kind": box.kind,
        "does": box.describe(),
        "from": list(box.sources),
        "gives": {arrow: _types(compiled.schemas[arrow]) for arrow in box.arrows},
        "class": kind,
        "why": why,
        "stateful": box.stateful or bool(compiled.tables.get(box.name)),
        "runs": compiled.where[box.name],
    }


def _keeps(kept: Kept | None) -> dict[str, Any]:
    """What a box keeps because rows may be corrected; rows and bytes are estimates."""
    if kept is None:
        return {}
    span = None if kept.for_us is None else show(kept.for_us)
    return {"keeps": {"history": span, "about_rows": kept.rows, "about_bytes": kept.bytes}}


def _types(schema: Any) -> dict[str, str]:
    from borealis.compile.types import show as show_type

    return {f.name: show_type(f.dataType) for f in schema.fields}


def _plan(compiled: Any, spark: Any) -> str:
    """The physical plan of a unit, as Spark prints it."""
    from borealis.spark.query import Query

    no_trains: Any = None  # the query is not started, so that it asks for none
    frame = Query(spark, compiled, no_trains, no_trains, Path("unit")).plan()
    printed = io.StringIO()
    with redirect_stdout(printed):
        frame.explain(mode="simple")
    return printed.getvalue().replace("== Physical Plan ==", "").strip()


def drawn(facts: dict[str, Any]) -> RenderableType:
    """The same, for people."""
    parts: list[RenderableType] = [
        Text.assemble((facts["diagram"], "bold"), ", ", (facts["class"], "cyan"), " as a whole"),
    ]
    for unit in facts["units"]:
        why = f": {unit['hinders']}" if unit["hinders"] else ""
        why += "; a backup keeps a started query of its own" if unit["backup"] == "query" else ""
        tree = Tree(
            Text.assemble("unit ", (unit["unit"], "bold"), " runs ", (unit["runs"], "green"), why), guide_style="dim"
        )
        for one in unit["inputs"]:
            idle = f", idle after {one['idle']}" if one["idle"] else ""
            how = f"time {one['time']}, slack {one['slack']}{idle}, a boundary every {one['boundary_every']}"
            node = tree.add(Text.assemble("input ", (one["name"], "bold"), f": {how}"))
            node.add(_columns(one["columns"]))
        for box in unit["boxes"]:
            node = tree.add(Text.assemble((box["name"], "bold"), f": {box['does']}"))
            state = "stateful" if box["stateful"] else "stateless"
            node.add(Text.assemble(f"from {', '.join(box['from'])}; {state}; ", (box["runs"], "green")))
            node.add(Text.assemble((box["class"], "cyan"), f": {box['why']}"))
            if "keeps" in box:
                node.add(_kept_text(box["keeps"]))
            for arrow, columns in box["gives"].items():
                node.add(_columns(columns, "" if arrow == box["name"] else f"{arrow}: "))
        for output, source in unit["outputs"].items():
            tree.add(Text.assemble("output ", (output, "bold"), f": from {source}"))
        parts += [tree, Panel(Text(unit["plan"]), title=f"Spark plan of {unit['unit']}", title_align="left")]
    return Group(*parts)


def _kept_text(keeps: dict[str, Any]) -> Text:
    if keeps["history"] is None:
        return Text("what it keeps for corrections has no bound in time")
    much = f"{keeps['about_rows']:,} rows, {size(keeps['about_bytes'])}"
    return Text(f"keeps {keeps['history']} for corrections: about {much} (an estimate: see --rate)")


def _columns(columns: dict[str, str], head: str = "") -> Text:
    return Text(head + ", ".join(f"{name} {kind}" for name, kind in columns.items()), style="dim")


# -- protection


def protected(spec: Spec, asked: ProtectionOptions) -> dict[str, Any]:
    if not spec.protection and asked.ha is None:
        hint = "add --ha passive (or amnesia, active, replicas, upstream-backup, storage)"
        raise DiagramError(f"diagram '{spec.name}' says nothing of protection", hint=hint)
    cuts = [*(asked.cut or ()), *(even_cuts(spec, asked.units) if asked.units and asked.units > 1 else ())]
    pieces = cut(spec, cuts, pairs("--place", asked.place, "per_source=node2"))
    chosen_of = {piece.name: _chosen(spec, piece, asked) for piece in pieces}
    units = [_protected_unit(spec, piece, chosen_of[piece.name]) for piece in pieces]
    return {"diagram": spec.name, "protection": units, "warnings": warnings(spec, pieces, chosen_of)}


def _chosen(spec: Spec, piece: Piece, asked: ProtectionOptions) -> Protection | None:
    found = protection_of(spec, piece.boxes)
    if found is not None or asked.ha is not None:
        options = {"ha": asked.ha, "guarantee": asked.guarantee, "merge": asked.merge, "backups": asked.backups}
        found = chosen(found, **cast(ProtectOptions, options))
    return found


def _protected_unit(spec: Spec, piece: Piece, found: Protection | None) -> dict[str, Any]:
    classified = classify(spec, piece, found)
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
        "table": {
            approach: {
                "recovery_type": recovery_type(approach, classified.kind),
                "guarantees": {g: _outcome(Protection(ha=approach, guarantee=g), classified) for g in GUARANTEES},
            }
            for approach in TABLE
        },
    }


def _asked(protection: Protection | None, classified: Classified) -> dict[str, Any]:
    approach = protection.ha if protection is not None else "none"
    return {
        "approach": approach,
        "guarantee": protection.guarantee if protection is not None else None,
        "checkpoint": protection.checkpoint if protection is not None else None,
        "backups": protection.backups if protection is not None else None,
        "recovery_type": recovery_type(approach, classified.kind) if approach in TABLE else None,
    } | _outcome(protection, classified)


def _outcome(protection: Protection | None, classified: Classified) -> dict[str, Any]:
    """What is given, or why it is refused."""
    try:
        check_guarantee(protection, classified)
    except DiagramError as error:
        return {"recovery": None, "refused": error.message, "hint": error.hint}
    found = recovery_of(protection, classified)
    return {"recovery": found.kind, "how": found.how}


def _protection_tree(unit: dict[str, Any]) -> Tree:
    arrows = f": reads {', '.join(unit['reads'])}; gives {', '.join(unit['gives'])}; "
    title = Text.assemble("protection of unit ", (unit["unit"], "bold"), arrows, (unit["class"], "cyan"))
    tree = Tree(title, guide_style="dim")
    for box in unit["boxes"]:
        node = tree.add(Text.assemble((box["name"], "bold"), f": {box['does']}"))
        node.add(Text.assemble((box["class"], "cyan"), f": {box['why']}"))
    reaches = unit["reach_back"]
    each = (f"{arrow} {'without bound' if reach is None else reach}" for arrow, reach in reaches.items())
    stateless = set(reaches.values()) == {NO_TIME}
    tree.add(Text("no state" if stateless else f"state reaches back: {', '.join(each)}"))
    asked = unit["asked"]
    what = Text.assemble((asked["approach"], "bold"), f", {asked['guarantee']}" if asked["guarantee"] else "")
    if asked["checkpoint"] not in (None, "interval"):
        what.append(f", {asked['checkpoint']} checkpoints")
    if asked["backups"] is not None:
        what.append(f", {plural(asked['backups'], 'backup')}")
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
