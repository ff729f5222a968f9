"""Route: the number of each row's branch as a map, then a filter for each branch."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from borealis.compile.expressions import Names, names_read
from borealis.compile.lowering import Lowering, unchanged
from borealis.compile.types import require_boolean
from borealis.diagram.boxes.route import Route

BRANCH = "__branch"


def check(box: Route, sources: list[DataFrame]) -> None:
    for predicate in box.branches.values():
        require_boolean(box, sources[0], predicate)


def batch(box: Route, inputs: list[DataFrame]) -> dict[str, DataFrame]:
    rest, found = inputs[0], {}
    for name, predicate in box.branches.items():
        mine = F.coalesce(F.expr(predicate), F.lit(False))
        found[f"{box.name}.{name}"] = rest.where(mine)
        rest = rest.where(~mine)
    if box.otherwise is not None:
        found[f"{box.name}.{box.otherwise}"] = rest
    return found


def reads(box: Route, sources: list[DataFrame], wanted: Mapping[str, Names]) -> list[Names]:
    return [names_read(sources[0], box.branches.values()).union(*wanted.values())]


def lower(box: Route, low: Lowering) -> None:
    source, numbered = box.sources[0], f"{box.name}~numbered"
    same = unchanged(low.schema(source).names)
    cases = " ".join(f"WHEN ({predicate}) THEN {i}" for i, predicate in enumerate(box.branches.values()))
    low.map(box, source, numbered, same | {BRANCH: f"CASE {cases} ELSE {len(box.branches)} END"})
    for i, arrow in enumerate(box.arrows):
        low.filter(box, numbered, f"{arrow}~rows", f"{BRANCH} = {i}")
        low.map(box, f"{arrow}~rows", arrow, same)
