"""Aggregate: arguments as a map, windows as a kernel, results as a map over what the kernel computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.window import Window as Partition

from borealis.compile.expressions import Names, names_read
from borealis.compile.lowering import Lowering, to_arrow, unchanged
from borealis.compile.types import POSITION, require_groups, show, type_of, types_in
from borealis.diagram import sql
from borealis.diagram.boxes.aggregate import END, START, TIMED_OUT, Aggregate
from borealis.diagram.boxes.base import Box
from borealis.diagram.durations import CountWindow, Window
from borealis.kernels.accumulators import AggregateCall, accumulator, undoable
from borealis.kernels.aggregate import AggregateKernel
from borealis.kernels.count_windows import CountWindows
from borealis.kernels.program import MAKERS
from borealis.kernels.step import Step, schema_text
from borealis.kernels.timed_windows import TimedWindows
from borealis.tuples import KIND, TIME

# types by which nothing is put in order; some Spark could sort, but not Arrow
UNSORTED = ("map", "variant", "void", "interval", "calendar interval", "geometry", "geography")
NUMERIC = ("sum", "avg", "stddev", "stddev_pop", "var_samp", "var_pop", "percentile", "corr", "covar_pop", "covar_samp")
COMPARING = ("min", "max", "count_distinct", "collect_set", "mode")  # these the values, and two others their second one
NUMBER, WINDOW, FIRST, LAST, COUNT, PART = "__number", "__window", "__first", "__last", "__count", "__part"
ARRIVAL = f"struct({TIME}, {POSITION})"
REVISED = {  # the kernel of each for rows that may be taken back
    "aggregate": "revised_windows",
    "count_windows": "revised_count_windows",
    "timed_windows": "revised_timed_windows",
}


def check(box: Aggregate, sources: list[DataFrame]) -> None:
    for call in box.calls:
        check_call(box, call, sources[0])
    require_groups(box, sources[0].schema, box.by)
    if box.history_at is not None and all(_undone(box, call, sources[0]) for call in box.calls):
        why = "all its functions can be undone, so that it keeps no rows anyway"
        raise box.wrong(f"history_at: {why}", "leave history_at out")


def _undone(box: Box, call: sql.CallText, source: DataFrame) -> bool:
    """Whether a row can be taken off the result, so that no others are needed when it goes."""
    names = [str(i) for i in range(len(call.arguments))]
    typed = [T.StructField(name, type_of(source, text, box)) for name, text in zip(names, call.arguments, strict=True)]
    result = to_arrow(T.StructType([T.StructField("of", type_of(source, call.text, box))])).field("of").type
    made = AggregateCall(call.function, names[0] if names else None, result, tuple(names[1:]))
    return undoable(accumulator(made, to_arrow(T.StructType(typed))))


def check_call(box: Box, call: sql.CallText, source: DataFrame) -> None:
    """Refuse an aggregate that Spark does not know, or that no kernel computes."""
    kinds = [type_of(source, argument, box) for argument in call.arguments]
    type_of(source, call.text, box)
    for i, (argument, kind) in enumerate(zip(call.arguments, kinds, strict=True)):
        if isinstance(kind, T.NullType):
            continue
        if call.function in NUMERIC and not isinstance(kind, T.NumericType):
            hint = f"give it a number, such as {call.function}(CAST({argument} AS DOUBLE))"
            raise box.wrong(f"'{call.function}' in `{call.text}` takes a number, not {show(kind)}", hint)
        compares = call.function in COMPARING or (call.function in ("max_by", "min_by") and i == 1)
        if compares and not sorted_by(kind):
            seen = f"'{call.function}' of `{argument}`, {show(kind)}, whose values cannot be put in order here"
            raise box.wrong(seen, "take one of its fields, or cast it to STRING")


def batch(box: Aggregate, inputs: list[DataFrame]) -> DataFrame:
    match box.over:
        case CountWindow() as over:
            windows = _count_windows(box, over, inputs[0])
        case Window(timeout_us=None):
            windows = _time_windows(box, inputs[0])
        case over:
            windows = _timed_windows(box, over, inputs[0])
    return windows.select(
        *(F.col(f"`{name}`") for name in box.by),
        F.expr(f"timestamp_micros({FIRST})").alias(START),
        F.expr(f"timestamp_micros({LAST})").alias(END),
        *([] if box.timeout is None else [TIMED_OUT]),
        *(F.expr(sql).alias(name) for name, sql in box.finals.items()),
        TIME,
        POSITION,
    )


def _time_windows(box: Aggregate, rows: DataFrame) -> DataFrame:
    windows = _grouped(box, _with_starts(rows, box.size_us, box.slide_us), [FIRST], ARRIVAL)
    end = F.expr(f"{FIRST} + {box.size_us}L")
    return windows.withColumns({LAST: end, TIME: end - 1})


def _count_windows(box: Aggregate, over: CountWindow, rows: DataFrame) -> DataFrame:
    newest = f"({NUMBER} div {over.slide}L)"
    oldest = f"greatest(0L, {newest} - {-(-over.size // over.slide) - 1}L)"
    holding = f"filter(sequence({oldest}, {newest}), w -> {NUMBER} - w * {over.slide}L < {over.size}L)"
    rows = _numbered(box, rows).withColumn(WINDOW, F.expr(f"explode({holding})"))
    if over.timeout_us is not None:
        opened = F.min(TIME).over(Partition.partitionBy(*_by(box), WINDOW))
        rows = rows.withColumn(FIRST, opened).where(f"{TIME} < {FIRST} + {over.timeout_us}L")
    more = [F.count("*").alias(COUNT), F.min(TIME).alias(FIRST), F.max(TIME).alias(LAST)]
    windows = _grouped(box, rows, [WINDOW], NUMBER, *more)
    if over.timeout_us is None:
        return windows.where(f"{COUNT} = {over.size}L").withColumn(TIME, F.col(LAST))
    windows = windows.withColumn(TIMED_OUT, F.expr(f"{COUNT} < {over.size}L"))
    over_at = f"{FIRST} + {over.timeout_us}L"
    end, time = (F.expr(f"IF({TIMED_OUT}, {at}, {LAST})") for at in (over_at, f"{over_at} - 1L"))
    return windows.withColumns({LAST: end, TIME: time})


def _timed_windows(box: Aggregate, over: Window, rows: DataFrame) -> DataFrame:
    rows = _with_starts(rows, over.size_us, over.slide_us)
    times = F.collect_set(TIME).over(Partition.partitionBy(*_by(box), FIRST)).alias("__times")
    begins = (
        "aggregate(array_sort(__times), CAST(array() AS ARRAY<BIGINT>), (found, t) -> "
        f"IF(size(found) = 0 OR t >= element_at(found, -1) + {over.timeout_us}L, array_append(found, t), found))"
    )
    rows = rows.select("*", times).withColumn(PART, F.expr(f"array_max(filter({begins}, t -> t <= {TIME}))"))
    windows = _grouped(box, rows, [FIRST, PART], ARRIVAL)
    end, timeout = f"{FIRST} + {over.size_us}L", f"{PART} + {over.timeout_us}L"
    return windows.withColumns(
        {LAST: F.expr(end), TIMED_OUT: F.expr(f"{timeout} < {end}"), TIME: F.expr(f"least({end}, {timeout}) - 1L")}
    )


def _with_starts(rows: DataFrame, size: int, slide: int) -> DataFrame:
    """Each row once for every window of time it is in."""
    newest = f"{TIME} - pmod({TIME}, {slide}L)"
    oldest = f"{newest} - {(-(-size // slide) - 1) * slide}L"
    starts = f"explode(filter(sequence({oldest}, {newest}, {slide}L), s -> s + {size}L > {TIME}))"
    return rows.withColumn(FIRST, F.expr(starts))


def _numbered(box: Aggregate, rows: DataFrame) -> DataFrame:
    """Each row with its number in its group, in order of time, then of the arguments, then as they came."""
    texts = dict.fromkeys(argument for call in box.calls for argument in call.arguments)
    kinds = {argument: rows.select(F.expr(argument)).schema[0].dataType for argument in texts}
    order = [TIME, *(F.expr(argument) for argument, kind in kinds.items() if sorted_by(kind)), POSITION]
    return rows.withColumn(NUMBER, F.row_number().over(Partition.partitionBy(*_by(box)).orderBy(*order)) - 1)


def _grouped(box: Aggregate, rows: DataFrame, window: list[str], order: str, *more: Column) -> DataFrame:
    calls = [batch_call(call, order).alias(f"__a{i}") for i, call in enumerate(box.calls)]
    return rows.groupBy(*_by(box), *window).agg(*calls, *more, F.min(POSITION).alias(POSITION))


def _by(box: Aggregate) -> list[Column]:
    return [F.col(f"`{name}`") for name in box.by]


def sorted_by(kind: T.DataType) -> bool:
    """Whether the kernels put values of this type in order, as Spark does; text with a collation they do not."""
    plain = (one for one in types_in(kind) if not isinstance(one, T.ArrayType | T.StructType))
    return all(one.typeName() not in UNSORTED and "collate" not in one.simpleString() for one in plain)


def batch_call(call: sql.CallText, order: str, where: str = "") -> Column:
    """An aggregate function over a group, or over those of its rows that a FILTER clause leaves.

    `order` is what first and last go by, what collect_list is in, and what tells equal ones apart for max_by, min_by.
    """
    arguments = call.arguments
    match call.function:
        case "first":
            return F.expr(f"min_by({arguments[0]}, {order}) {where}")
        case "last":
            return F.expr(f"max_by({arguments[0]}, {order}) {where}")
        case "max_by" | "min_by":
            value, by = arguments
            return F.expr(f"{call.function}({value}, IF({by} IS NULL, NULL, struct({by}, {order}))) {where}")
        case "collect_list":
            pairs = f"collect_list(IF({arguments[0]} IS NULL, NULL, struct({order} AS o, {arguments[0]} AS v))) {where}"
            compared = "(a, b) -> IF(a.o < b.o, -1, IF(a.o > b.o, 1, 0))"
            return F.expr(f"transform(array_sort({pairs}, {compared}), p -> p.v)")
        case "collect_set":
            return F.expr(f"array_sort({call.text} {where})")
        case "mode":
            return F.expr(f"mode({arguments[0]}, true) {where}")
    return F.expr(f"{call.text} {where}")


def reads(box: Aggregate, sources: list[DataFrame], wanted: Mapping[str, Names]) -> list[Names]:
    """Of what comes again the same."""
    texts = dict.fromkeys(argument for call in box.calls for argument in call.arguments)
    return [names_read(sources[0], texts) | frozenset(box.by) for _ in sources]


def lower(box: Aggregate, low: Lowering) -> None:
    source = box.sources[0]
    names = low.schema(source).names
    columns: dict[str, str] = {}  # of each argument
    arguments: dict[str, str] = {}
    for argument in dict.fromkeys(argument for call in box.calls for argument in call.arguments):
        plain = sql.plain_column(argument, names)
        if plain is None:
            arguments[f"__x{len(arguments)}"] = argument
        columns[argument] = plain or f"__x{len(arguments) - 1}"
    sources = list(box.sources)
    if arguments:
        used = dict.fromkeys([*box.by, *(c for c in columns.values() if c not in arguments)])
        for i, one in enumerate(box.sources):
            sources[i] = f"{box.name}~arguments{i or ''}"
            low.map(box, one, sources[i], unchanged(used) | arguments)
    needed = {*box.by, *columns.values(), *low.telling(source)}
    source = sources[0]
    calls, texts = lowered(box.calls, columns)
    kinds = low.schema(source)
    types = {START: T.TimestampType(), END: T.TimestampType(), TIMED_OUT: T.BooleanType()}
    window = [T.StructField(name, types[name]) for name in box.window_columns]
    schema = T.StructType([*(kinds[name] for name in box.by), *window, *call_types(low.empty(source), texts)])
    plain = pa.schema([field for field in low.arrow(source) if field.name in needed])
    options: dict[str, Any] = {"schema": schema_text(plain), "by": list(box.by), "calls": calls}
    match box.over:
        case CountWindow(size, slide, timeout):
            op, tables = "count_windows", CountWindows.tables
        case Window(size, slide, None as timeout):
            op, tables = "aggregate", AggregateKernel.tables
        case Window(size, slide, timeout):
            op, tables = "timed_windows", TimedWindows.tables
    options |= {"size": size, "slide": slide}
    if op != "aggregate":
        options["timeout"] = timeout
    if op == "count_windows":  # which tuples are in a window must not hang on their order of arrival
        options["order"] = [c for c in dict.fromkeys(columns.values()) if sorted_by(kinds[c].dataType)]
    if low.revised(source):
        op, options["history"] = REVISED[op] if box.replay is None else "replayed_windows", low.history(box)
        schema = schema.add(KIND, T.ByteType())
        step = Step(op, box.name, [source], box.name, True, schema_text(to_arrow(schema)), options)
        tables = MAKERS[op](step).tables  # what it keeps may hang on its functions
    windows = f"{box.name}~windows"
    low.stateful(op, box, sources, windows, schema, by=[box.by] * len(sources), options=options, tables=tables)
    finals = unchanged((*box.by, *box.window_columns)) | box.finals
    low.map(box, windows, box.name, finals)


def call_types(frame: DataFrame, texts: list[str]) -> list[T.StructField]:
    """The columns of what a kernel computes for calls over a frame's columns."""
    columns = [F.expr(text).alias(f"__a{i}") for i, text in enumerate(texts)]
    return frame.agg(*columns).schema.fields if columns else []


def lowered(calls: list[sql.CallText], columns: Mapping[str, str]) -> tuple[list[Any], list[str]]:
    """Calls over the columns that have their arguments: as a kernel reads them, and as Spark does, for their types."""
    steps, texts = [], []
    for call in calls:
        mine = [columns[argument] for argument in call.arguments]
        steps.append((call.function, mine, sql.percentages(call.parameter) if call.parameter else []))
        texts.append(call._replace(arguments=tuple(f"`{name}`" for name in mine)).text)
    return steps, texts
