"""Filter: a predicate, in Arrow where it has a twin there, else in Catalyst."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from borealis.compile.expressions import Names, names_read
from borealis.compile.lowering import Lowering
from borealis.compile.types import require_boolean
from borealis.diagram.boxes.filter import Filter


def check(box: Filter, sources: list[DataFrame]) -> None:
    require_boolean(box, sources[0], box.predicate)


def batch(box: Filter, inputs: list[DataFrame]) -> DataFrame:
    return inputs[0].where(F.expr(box.predicate))


def reads(box: Filter, sources: list[DataFrame], wanted: Mapping[str, Names]) -> list[Names]:
    return [wanted[box.name] | names_read(sources[0], [box.predicate])]


def lower(box: Filter, low: Lowering) -> None:
    low.filter(box, box.sources[0], box.name, box.predicate)
