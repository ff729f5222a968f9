"""`borealis explain`: what a diagram computes, what each box promises, and where it runs."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text
from rich.tree import Tree
from typer import Option

from borealis.cli.opening import load, start_spark
from borealis.cli.options import Json, Yaml
from borealis.cli.screen import console

if TYPE_CHECKING:
    from borealis.diagram.boxes.base import Box
    from borealis.diagram.cut import Piece
    from borealis.diagram.spec import Spec

Names = list[str] | None


@dataclass(frozen=True)
class ProtectionOptions:
    """What is asked about protection, and about cutting as `deploy` would."""

    ha: Annotated[
        str | None,
        Option(metavar="APPROACH", help="Show only protection: with amnesia, passive, active or upstream-backup."),
    ] = None
    guarantee: Annotated[str | None, Option(metavar="WHAT", help="gap, no-loss or precise.")] = None
    place: Annotated[Names, Option(metavar="NAME=NODE", help="With --ha: as if it were deployed so.")] = None
    cut: Annotated[Names, Option(metavar="BOX", help="With --ha: begin a new unit here.")] = None
    units: Annotated[int | None, Option(min=1, help="With --ha: cut into about so many units.")] = None

    def __bool__(self) -> bool:
        return any(vars(self).values())


def explain(diagram: Yaml, asked: ProtectionOptions, json: Json = False) -> None:
    from borealis.cli.explain_ha import drawn_protection, protected

    spec = load(diagram).validate()
    guarded = protected(spec, asked) if asked or spec.protection else {}
    facts = guarded if asked else explained(spec, start_spark()) | guarded  # protection alone takes no Spark
    if json:
        print(dumps(facts, ensure_ascii=False, indent=2))
        return
    parts = [] if asked else [drawn(facts)]
    console().print(Group(*parts, *([drawn_protection(guarded)] if guarded else [])))


def explained(spec: Spec, spark: Any) -> dict[str, Any]:
    """All there is to say about a diagram."""
    from borealis.diagram.cut import cut, part_of
    from borealis.ha.classes import classify, most_general

    pieces = cut(spec, local=True)
    return {
        "diagram": spec.name,
        "class": most_general(classify(spec, piece).kind for piece in pieces),
        "units": [_unit(part_of(spec, piece), piece, spark) for piece in pieces],
    }


def _unit(spec: Spec, piece: Piece, spark: Any) -> dict[str, Any]:
    from borealis.compile.unit import compile_unit
    from borealis.diagram.durations import show
    from borealis.ha.classes import classify

    classes, compiled, paces = classify(spec, piece), compile_unit(spec, spark), spec.paces()
    return {
        "unit": piece.name,
        "class": classes.kind,
        "runs": "in a lane" if compiled.one_level else "in micro-batches",
        "hinders": compiled.hinders or "",
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
        "boxes": [_box(box, compiled, *classes.why[box.name]) for box in spec.topological()],
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
        "stateful": box.stateful,
        "runs": compiled.where[box.name],
    }


def _types(schema: Any) -> dict[str, str]:
    from borealis.compile.types import show as show_type

    return {f.name: show_type(f.dataType) for f in schema.fields}


def _plan(compiled: Any, spark: Any) -> str:
    """The physical plan of a unit, as Spark prints it."""
    from borealis.spark.query import Query

    nobody: Any = None  # the query is not started, so that no one is asked for trains
    frame = Query(spark, compiled, nobody, nobody, Path("unit")).plan()
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
            for arrow, columns in box["gives"].items():
                node.add(_columns(columns, "" if arrow == box["name"] else f"{arrow}: "))
        for output, source in unit["outputs"].items():
            tree.add(Text.assemble("output ", (output, "bold"), f": from {source}"))
        parts += [tree, Panel(Text(unit["plan"]), title=f"Spark plan of {unit['unit']}", title_align="left")]
    return Group(*parts)


def _columns(columns: dict[str, str], head: str = "") -> Text:
    return Text(head + ", ".join(f"{name} {kind}" for name, kind in columns.items()), style="dim")
