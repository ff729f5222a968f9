"""Revisions: what is important as a map, then a kernel that knows what readers have or will have.

The batch form knows no boundaries, and nothing in it ever changes: it gives what stands.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from borealis.compile.lowering import Lowering, to_arrow, unchanged
from borealis.compile.types import require_boolean
from borealis.diagram.boxes.revisions import Revisions
from borealis.kernels.revisions import FORMS, IMPORTANT
from borealis.kernels.step import schema_text
from borealis.tuples import KIND


def check(box: Revisions, sources: list[DataFrame]) -> None:
    if box.important is not None:
        require_boolean(box, sources[0], box.important)


def batch(box: Revisions, inputs: list[DataFrame]) -> DataFrame:
    return inputs[0]


def lower(box: Revisions, low: Lowering) -> None:
    source = box.sources[0]
    schema = low.schema(source)
    plain = T.StructType([field for field in schema.fields if field.name != KIND])
    if box.important is not None:
        judged = f"{box.name}~judged"
        low.map(box, source, judged, unchanged(plain.names) | {IMPORTANT: f"coalesce(({box.important}), false)"})
        source = judged
    options = {"schema": schema_text(to_arrow(plain)), "history": box.history_us, "revisions": box.revisions}
    low.stateful(
        "revisions",
        box,
        [source],
        box.name,
        schema if box.revisions == "all" else plain,
        options=options,
        by=[()] if box.stateful else None,  # one order of all rows, and no pair apart
        tables=FORMS[box.revisions].tables,
        behind_us=box.behind_us,
    )
