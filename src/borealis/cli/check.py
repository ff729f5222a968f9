"""`borealis check`: whether a diagram is sound and its expressions type."""

from __future__ import annotations

import json
from pathlib import Path

from borealis.cli.opening import load, start_spark
from borealis.cli.words import plural
from borealis.diagram.cut import cut


def check_command(path: Path, as_json: bool) -> None:
    """Structure first, which takes no time; then types, which take Spark."""
    spec = load(path).validate()
    spark = start_spark()
    from borealis.spark.plan import check_plan

    check_plan(spec, spark)
    boxes, units = len(spec.boxes), len(cut(spec, local=True))
    if as_json:
        print(json.dumps({"ok": True, "diagram": spec.name, "boxes": boxes, "units": units}, ensure_ascii=False))
    else:
        print(f"ok: {spec.name} ({plural(boxes, 'box', 'boxes')}, {plural(units, 'unit')})")
