"""Resample: what the second stream gives as a map, waiting and looking up as a kernel, results as a map behind it."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, NumericType, StructType

from borealis.compile.boxes.aggregate import batch_call, call_types, check_call, lowered
from borealis.compile.boxes.bsort import has_order
from borealis.compile.expressions import Names, names_read
from borealis.compile.lowering import Lowering, unchanged
from borealis.compile.types import POSITION, require_groups, show, type_of, visible
from borealis.diagram.boxes.resample import Resample
from borealis.kernels.resample import VALUE, Resampling
from borealis.kernels.step import schema_text
from borealis.tuples import KIND, TIME

ROW = "__row"  # tells the tuples of the first stream apart
WHEN = "__when"  # the time of a tuple of the second


def check(box: Resample, sources: list[DataFrame]) -> None:
    first, second = (source.schema for source in sources)
    for name in box.by:
        kinds = [schema[name].dataType for schema in (first, second)]
        if kinds[0] != kinds[1]:
            seen = f"'{name}' is {show(kinds[0])} in '{box.sources[0]}' and {show(kinds[1])} in '{box.sources[1]}'"
            raise box.wrong(seen, "cast one of them with a map before the resample")
    require_groups(box, first, box.by)
    if box.value is not None:
        kind = second[box.value].dataType
        if box.how == "linear" and not isinstance(kind, NumericType):
            raise box.wrong(f"'{box.value}' is {show(kind)}, which has no values in between", "say how='previous'")
        if not has_order(kind):
            raise box.wrong(f"'{box.value}' is {show(kind)}, which has no order", "take one of its fields")
    for call in box.calls:
        for argument in call.arguments:
            kind = type_of(sources[1], argument, box)
            if not has_order(kind):
                raise box.wrong(f"`{argument}` is {show(kind)}, which has no order", "take one of its fields")
        check_call(box, call, sources[1])


def values(box: Resample) -> dict[str, str]:
    """What is taken from the second stream, beside its keys."""
    if box.value is not None:
        return {VALUE: f"CAST(`{box.value}` AS DOUBLE)" if box.how == "linear" else f"`{box.value}`"}
    arguments = dict.fromkeys(argument for call in box.calls for argument in call.arguments) or {"1": None}  # to count
    return {f"__x{i}": argument for i, argument in enumerate(arguments)}


# -- the batch form


def batch(box: Resample, inputs: list[DataFrame]) -> DataFrame:
    """A join by the window, then one group for each tuple of the first stream."""
    names = visible(inputs[0]).columns
    keys = [F.col(f"`{name}`").alias(f"__k{i}") for i, name in enumerate(box.by)]
    taken = [F.expr(text).alias(name) for name, text in values(box).items()]
    second = inputs[1].select(*keys, *taken, F.col(TIME).alias(WHEN))
    near = F.expr(f"{WHEN} > {TIME} - {box.window_us}L AND {WHEN} < {TIME} + {box.window_us}L")
    for i, name in enumerate(box.by):
        near = near & (F.col(f"`{name}`") == F.col(f"__k{i}"))
    if box.value is not None:
        near = near & F.col(VALUE).isNotNull()
    pairs = inputs[0].withColumn(ROW, F.monotonically_increasing_id()).join(second, near, "left")
    own = [F.first(F.col(f"`{name}`")).alias(f"__c{i}") for i, name in enumerate(names)]
    hidden = [F.first(name).alias(name) for name in (TIME, POSITION)]
    found = pairs.groupBy(ROW).agg(*own, *hidden, *(_picks() if box.value is not None else _calls(box)))
    found = found.withColumnsRenamed({f"__c{i}": name for i, name in enumerate(names)})
    finals = {box.added(names)[0]: _POINT[str(box.how)]} if box.value is not None else box.finals
    out = unchanged(names) | finals | {TIME: f"{TIME} + {box.waits_us}L"}
    return found.select(*(F.expr(text).alias(name) for name, text in out.items()), POSITION)


def _picks() -> list[Column]:
    """The last before and the first after, of several at one time the greatest."""
    before, after = f"FILTER (WHERE {WHEN} <= {TIME})", f"FILTER (WHERE {WHEN} >= {TIME})"
    return [
        F.expr(f"max({WHEN}) {before}").alias("__t0"),
        F.expr(f"max_by({VALUE}, struct({WHEN}, {VALUE})) {before}").alias("__v0"),
        F.expr(f"min({WHEN}) {after}").alias("__t1"),
        F.expr(f"max_by({VALUE}, struct(-{WHEN}, {VALUE})) {after}").alias("__v1"),
    ]


_POINT = {
    "previous": "__v0",
    "nearest": f"CASE WHEN __t1 IS NULL OR {TIME} - __t0 <= __t1 - {TIME} THEN __v0 ELSE __v1 END",
    "linear": f"CASE WHEN __t0 = __t1 THEN __v0 ELSE __v0 + (__v1 - __v0) "
    f"* (CAST({TIME} - __t0 AS DOUBLE) / CAST(__t1 - __t0 AS DOUBLE)) END",
}


def _calls(box: Resample) -> list[Column]:
    """The aggregates over the pairs; first and last go by time, then by the values of all arguments."""
    order = f"struct({', '.join([WHEN, *values(box)])})"
    column_of = {argument: name for name, argument in values(box).items()}
    calls = [call._replace(arguments=tuple(column_of[a] for a in call.arguments)) for call in box.calls]
    near = f"FILTER (WHERE {WHEN} IS NOT NULL)"
    return [batch_call(call, order, near).alias(f"__a{i}") for i, call in enumerate(calls)]


# -- the steps


def reads(box: Resample, sources: list[DataFrame], wanted: Mapping[str, Names]) -> list[Names]:
    """It gives all of the first stream."""
    return [frozenset(sources[0].columns), names_read(sources[1], values(box).values()) | frozenset(box.by)]


def lower(box: Resample, low: Lowering) -> None:
    first, second = box.sources
    given = f"{box.name}~values"
    low.map(box, second, given, unchanged(box.by) | values(box))
    own = [field for field in low.schema(first).fields if field.name != KIND]
    names = [field.name for field in own]
    calls, texts = lowered(box.calls, {argument: name for name, argument in values(box).items()})
    options = {
        "first": schema_text(low.arrow(first)),
        "second": schema_text(low.arrow(given)),
        "by": list(box.by),
        "window": box.window_us,
        "how": box.how,
        "calls": calls,
    }
    second_rows = low.empty(given)
    added = call_types(second_rows, texts) or second_rows.select(VALUE).schema.fields
    found, op = StructType([*own, *added]), "resample"
    if low.revised(first) or low.revised(given):
        found, op, options["history"] = found.add(KIND, ByteType()), "revised_resample", low.history(box)
    out, tables = f"{box.name}~found", Resampling.tables
    low.stateful(op, box, [first, given], out, found, by=[box.by, box.by], options=options, tables=tables)
    finals = {box.added(names)[0]: VALUE} if box.value is not None else box.finals
    low.map(box, out, box.name, unchanged(names) | finals)
