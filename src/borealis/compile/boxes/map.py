"""Map: expressions, in Arrow where all have a twin there, else in Catalyst."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from borealis.compile.expressions import Names, names_read
from borealis.compile.lowering import Lowering
from borealis.compile.types import POSITION, check_types
from borealis.diagram.boxes.map import Map
from borealis.tuples import TIME


def check(box: Map, sources: list[DataFrame]) -> None:
    check_types(sources[0], box.exprs.values(), box)


def batch(box: Map, inputs: list[DataFrame]) -> DataFrame:
    return inputs[0].select(*(F.expr(sql).alias(name) for name, sql in box.exprs.items()), TIME, POSITION)


def reads(box: Map, sources: list[DataFrame], wanted: Mapping[str, Names]) -> list[Names]:
    """It computes all its columns, for one that nothing reads may still fail."""
    return [names_read(sources[0], box.exprs.values())]


def lower(box: Map, low: Lowering) -> None:
    low.map(box, box.sources[0], box.name, box.exprs)
