"""The types of all arrows of a diagram."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType, TimestampType

from borealis.diagram.spec import Input, Spec
from borealis.errors import DiagramError
from borealis.plan.boxes import batch_arrows, form_of
from borealis.plan.hidden import hidden, visible
from borealis.plan.types import empty, first_line, require_carried, told


def analyze(spec: Spec, spark: SparkSession) -> dict[str, StructType]:
    """The Spark schema of every arrow, by the input or box it comes from; raises on the first that does not type."""
    frames: dict[str, DataFrame] = {}
    for one in spec.inputs:
        frames[one.name] = frames[f"{one.name}.late"] = empty(spark, input_schema(one))
    for box in spec.topological():
        sources = [frames[s] for s in box.sources]
        form_of(box).check(box, sources)
        with told(box, [c for s in sources for c in s.columns]):
            found = batch_arrows(box, [hidden(s) for s in sources])
        for arrow, out in found.items():
            schema = visible(out).schema
            require_carried(box, schema)
            frames[arrow] = empty(spark, schema)
    return {name: frame.schema for name, frame in frames.items()}


def input_schema(one: Input) -> StructType:
    """The declared columns as Spark types."""
    try:
        schema = StructType.fromDDL(one.columns)
    except PySparkException as error:
        raise DiagramError(
            f"input '{one.name}': {first_line(error)}", hint="columns are Spark SQL: 'ts TIMESTAMP, n INT'"
        ) from error
    if not isinstance(schema[one.time].dataType, TimestampType):
        raise DiagramError(f"input '{one.name}': time column '{one.time}' is not a TIMESTAMP", hint="declare it so")
    return schema
