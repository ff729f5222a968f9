"""Union: rows of several flows by cause."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from borealis.compile.expressions import Names
from borealis.compile.lowering import Lowering
from borealis.compile.types import show
from borealis.diagram.boxes.union import Union


def check(box: Union, sources: list[DataFrame]) -> None:
    first = sources[0].schema
    for name, other in zip(box.sources[1:], sources[1:], strict=True):
        for a, b in zip(first.fields, other.schema.fields, strict=True):
            if a.dataType != b.dataType:
                ours, theirs = show(a.dataType), show(b.dataType)
                raise box.wrong(
                    f"column '{a.name}' is {ours} in '{box.sources[0]}' and {theirs} in '{name}'",
                    f'cast one of them: map({a.name}="CAST({a.name} AS {show(a.dataType)})", ...)',
                )


def batch(box: Union, inputs: list[DataFrame]) -> DataFrame:
    out = inputs[0]
    for other in inputs[1:]:
        out = out.union(other.select(*(f"`{c}`" for c in out.columns)))
    return out


def reads(box: Union, sources: list[DataFrame], wanted: Mapping[str, Names]) -> list[Names]:
    return [wanted[box.name] for _ in sources]


def lower(box: Union, low: Lowering) -> None:
    names = low.carried(box.name)
    low.union(box, [low.only(box, source, names) for source in box.sources], box.name)
