"""Columns: each box can stand on the columns that reach it; what expressions name is Spark's to check."""

from __future__ import annotations

from borealis.diagram.spec import LATE, Spec


def check(spec: Spec) -> Spec:
    columns = {arrow: i.names for i in spec.inputs for arrow in (i.name, i.name + LATE)}
    for box in spec.topological():
        inputs = [columns[source] for source in box.sources]
        box.check(inputs)
        columns |= box.arrow_columns(inputs)
    return spec
