"""An expression computes one value from one tuple: where Spark would plan more than a projection, it is refused.

Spark types `explode(..)`, `sum(..) OVER (..)` and the like without a word, and a train would fail over them later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from borealis.diagram.boxes.base import Box
from borealis.diagram.spec import Input
from borealis.diagram.sql import calls
from borealis.errors import ExpressionError


class Refusal(NamedTuple):
    """Why something cannot stand in an expression over one tuple, and what can be done instead."""

    why: str
    hint: str


AGGREGATE = Refusal(
    "is an aggregate, it takes many tuples",
    'use an aggregate box: .aggregate(by=..., over=window("10 seconds"), total="sum(bytes)")',
)
WINDOW = Refusal(
    "looks at other tuples of its group, and a stream has no last one",
    'use an aggregate box, .aggregate(by=..., over=window("10 seconds"), ...); to look back one tuple, a join of the'
    " stream with itself",
)
GENERATOR = Refusal(
    "makes several tuples of one",
    "an expression gives one value for each tuple: compute within the array by transform, filter or aggregate, or send"
    " its elements as tuples",
)
WINDOWS = Refusal(
    "cuts time into windows",
    'windows are a part of the aggregate box: .aggregate(over=window("10 seconds"), ...); for the start of a window'
    " alone use time_bucket(INTERVAL '10' SECOND, ts)",
)
PLACE = Refusal(
    "tells where Spark happens to compute a tuple, not something of the tuple",
    "run(..., headers=True) gives each tuple its _id; uuid() makes one up",
)

TABLE = Refusal("gives a table, not a value", "an expression gives one value for each tuple")

# what Spark plans beside the projection, and which of its groups of functions that comes from
OPERATORS = {"Generate": GENERATOR, "Window": WINDOW, "Aggregate": AGGREGATE, "Filter": WINDOWS, "Expand": WINDOWS}
PLACES = {
    "MonotonicallyIncreasingID": "monotonically_increasing_id",
    "SparkPartitionID": "spark_partition_id",
    "InputFileName": "input_file_name",
    "InputFileBlockStart": "input_file_block_start",
    "InputFileBlockLength": "input_file_block_length",
}
GROUPS = {"agg_funcs": AGGREGATE, "window_funcs": WINDOW, "generator_funcs": GENERATOR, "table_funcs": TABLE}
# what Spark itself refuses for the same reasons, with words about queries
CONDITIONS = {
    "MISSING_GROUP_BY": AGGREGATE,
    "MISSING_AGGREGATION": AGGREGATE,
    "UNSUPPORTED_GROUPING_EXPRESSION": AGGREGATE,
    "UNSUPPORTED_EXPR_FOR_OPERATOR": AGGREGATE,
    "WINDOW_FUNCTION_WITHOUT_OVER_CLAUSE": WINDOW,
    "UNSUPPORTED_GENERATOR": GENERATOR,
    "UDTF_ALIAS_NUMBER_MISMATCH": GENERATOR,
    "NOT_A_SCALAR_FUNCTION": TABLE,
}
_NAMES = {
    "json_tuple": GENERATOR,
    "window": WINDOWS,
    "session_window": WINDOWS,
    "window_time": WINDOWS,
    **dict.fromkeys(PLACES.values(), PLACE),
}
_CLASS = re.compile(r'"class":"org\.apache\.spark\.sql\.catalyst\.expressions\.(\w+)"')


def require_per_tuple(box: Box, made: DataFrame, text: str = "") -> None:
    """Refuse an expression that Spark plans as more than a projection; `made` is a frame that selects it.

    Without a `text`, it is one of the box's.
    """
    for refusal in _found(made):
        if refusal is not AGGREGATE or box.kind not in ("aggregate", "resample"):
            raise refused(box, text, refusal)


def per_tuple(made: DataFrame) -> bool:
    """Whether all that a frame selects is computed from one tuple."""
    return not any(_found(made))


def _found(made: DataFrame) -> Iterator[Refusal]:
    plan = made._jdf.queryExecution().analyzed().toJSON()
    operators = {str(node["class"]).rpartition(".")[2] for node in json.loads(plan)}
    yield from (refusal for operator, refusal in OPERATORS.items() if operator in operators)
    if not PLACES.keys().isdisjoint(_CLASS.findall(plan)):
        yield PLACE


def refused(box: Box | Input, text: str, refusal: Refusal) -> ExpressionError:
    """An error that names the function, where it is known which one of the text it is."""
    if not text:
        each = (one for one in box.expressions if any(kind_of(name) is refusal for name in calls(one)))
        text = next(each, ", ".join(box.expressions))
    named = next((name for name in calls(text) if kind_of(name) is refusal), None)
    what = f"'{named}' in `{text}`" if named else f"OVER in `{text}`" if refusal is WINDOW else f"`{text}`"
    return expression_error(box, f"{what} {refusal.why}", refusal.hint)


def expression_error(box: Box | Input, what: str, hint: str) -> ExpressionError:
    """As `box.wrong`, of the kind that is about expressions."""
    error = box.wrong(what, hint)
    return ExpressionError(error.message, hint=error.hint)


def kind_of(name: str) -> Refusal | None:
    """Why a function cannot stand in an expression over one tuple, as Spark's own list of functions has it."""
    if name in _NAMES:
        return _NAMES[name]
    spark = SparkSession.active()
    java = spark._jvm
    assert java is not None
    identifier = java.org.apache.spark.sql.catalyst.FunctionIdentifier(name)
    catalog = spark._jsparkSession.sessionState().catalog()
    if not catalog.functionExists(identifier):
        return None
    return GROUPS.get(catalog.lookupFunctionInfo(identifier).getGroup())
