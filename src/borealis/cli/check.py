"""`borealis check`: whether a diagram is sound, which takes no time, and its expressions type, which takes Spark."""

from __future__ import annotations

from borealis.cli.opening import load, start_spark
from borealis.cli.options import Json, Yaml
from borealis.cli.screen import answer, plural


def check(diagram: Yaml, json: Json = False) -> None:
    from borealis.diagram.cut import cut

    spec = load(diagram).validate()
    spark = start_spark()
    from borealis.spark.plan import check_plan

    check_plan(spec, spark)
    boxes, units = len(spec.boxes), len(cut(spec, local=True))
    facts = {"ok": True, "diagram": spec.name, "boxes": boxes, "units": units}
    answer(json, facts, f"ok: {spec.name} ({plural(boxes, 'box', 'boxes')}, {plural(units, 'unit')})")
