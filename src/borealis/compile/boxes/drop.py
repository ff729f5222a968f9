"""Drop: a filter of what is left; the chance is Spark's own xxhash64, which has a twin in Arrow."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, MapType, NumericType, StructType, VariantType

from borealis.compile.expressions import Names, names_read
from borealis.compile.lowering import Lowering
from borealis.compile.types import require_boolean, show, type_of, types_in, visible
from borealis.diagram.boxes.drop import PARTS, Drop

NOT_NEGATIVE = 2**63 - 1  # all bits but the sign


def check(box: Drop, sources: list[DataFrame]) -> None:
    schema = sources[0].schema
    if box.where is not None:
        require_boolean(box, sources[0], box.where)
    if box.utility is not None:
        kind = type_of(sources[0], box.utility, box)
        if not isinstance(kind, NumericType):
            raise box.wrong(f"`{box.utility}` is {show(kind)}, not a number", "let a utility go from 0 to 1")
    for name in box.key:
        if not hashable(schema[name].dataType):
            raise box.wrong(f"'{name}' is {show(schema[name].dataType)}, which has no hash", "drop by another key")
    if box.rate is not None and not hashed(box, schema):
        raise box.wrong("no column has a hash to choose by", "drop by a condition: where='...'")


def batch(box: Drop, inputs: list[DataFrame]) -> DataFrame:
    return inputs[0].where(F.expr(left(box, visible(inputs[0]).schema)))


def reads(box: Drop, sources: list[DataFrame], wanted: Mapping[str, Names]) -> list[Names]:
    texts = [text for text in (box.where, box.utility) if text is not None]
    by = hashed(box, sources[0].schema) if box.rate is not None else []
    return [wanted[box.name] | names_read(sources[0], texts) | frozenset(by)]


def lower(box: Drop, low: Lowering) -> None:
    source = box.sources[0]
    low.filter(box, source, box.name, left(box, low.columns(source)))


def left(box: Drop, schema: StructType) -> str:
    """What is true of the tuples that stay."""
    dropped = []
    if box.where is not None:
        dropped.append(f"coalesce(({box.where}), false)")
    if box.utility is not None:
        dropped.append(f"coalesce(CAST(({box.utility}) AS DOUBLE) < {float(box.below or 0)!r}D, false)")
    if box.rate is not None:
        columns = ", ".join(f"`{name}`" for name in hashed(box, schema))
        chance = f"(xxhash64({columns}, {box.seed}L) & {NOT_NEGATIVE}L) % {PARTS}L"
        dropped.append(f"{chance} < {box.parts}L")
    return f"NOT ({' AND '.join(dropped)})"


def hashed(box: Drop, schema: StructType) -> list[str]:
    """The columns that the choice is made by."""
    return list(box.key) or [field.name for field in schema.fields if hashable(field.dataType)]


def hashable(kind: DataType) -> bool:
    """Whether Spark has a hash of it: not of a map, nor of anything with a map inside."""
    return not any(isinstance(one, MapType | VariantType) for one in types_in(kind))
