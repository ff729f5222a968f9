"""Columns: each box can stand on the columns that reach it; what expressions name is Spark's to check."""

from __future__ import annotations

from borealis.diagram.spec import Spec


def check(spec: Spec) -> Spec:
    columns = {i.name: i.names for i in spec.inputs}
    columns |= {side: i.side_columns(side) for i in spec.inputs for side in i.sides}
    for box in spec.topological():
        inputs = [columns[source] for source in box.sources]
        box.check(inputs)
        columns |= box.arrow_columns(inputs)
    return spec
