"""Aggregate: arguments as a map, windows as a kernel, results as a map over what the kernel computed."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, NullType, NumericType
from pyspark.sql.window import Window as Partition

from borealis.diagram.boxes.aggregate import END, START, TIMED_OUT, Aggregate
from borealis.diagram.boxes.base import Box
from borealis.diagram.durations import CountWindow, Window
from borealis.kernels.aggregate import AggregateKernel
from borealis.kernels.count_windows import CountWindows
from borealis.kernels.step import schema_text
from borealis.kernels.timed_windows import TimedWindows
from borealis.plan.hidden import POSITION
from borealis.plan.lowering import Lowering
from borealis.plan.types import plain_column, show, type_of
from borealis.tuples import TIME

# types by which tuples of one time are not put in order; some Spark could sort, but not Arrow
UNSORTED = ("array", "map", "struct", "variant", "void", "interval", "calendar interval", "geometry", "geography")
OF_NUMBERS = ("sum", "avg", "stddev")  # the others take whatever can be compared, or anything
NUMBER, WINDOW, FIRST, LAST, COUNT, PART = "__number", "__window", "__first", "__last", "__count", "__part"


def check(box: Aggregate, sources: list[DataFrame]) -> None:
    for function, argument in box.calls:
        if argument != "*":
            require_number(box, function, argument, type_of(sources[0], argument, box))
            type_of(sources[0], f"{function}({argument})", box)
    for name in box.by:
        kind = sources[0].schema[name].dataType.typeName()
        if kind in ("array", "map", "struct", "variant"):
            raise box.wrong(f"cannot group by '{name}', a {kind.upper()}", "group by one of its fields")


def require_number(box: Box, function: str, argument: str, kind: DataType) -> None:
    """Refuse to add up what is no number; Spark would read text as numbers, and fail over the first that is none."""
    if function in OF_NUMBERS and not isinstance(kind, NumericType | NullType):
        hint = f"give it a number, such as {function}(CAST({argument} AS DOUBLE))"
        raise box.wrong(f"'{function}' in `{function}({argument})` takes a number, not {show(kind)}", hint)


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
    calls = [batch_call(function, argument, f"struct({TIME}, {POSITION})") for function, argument in box.calls]
    windows = _grouped(box, _with_starts(rows, box.size_us, box.slide_us), [FIRST], calls)
    end = F.expr(f"{FIRST} + {box.size_us}L")
    return windows.withColumns({LAST: end, TIME: end - 1})


def _count_windows(box: Aggregate, over: CountWindow, rows: DataFrame) -> DataFrame:
    newest = f"({NUMBER} div {over.slide}L)"
    oldest = f"greatest(0L, {newest} - {-(-over.size // over.slide) - 1}L)"
    holding = f"filter(sequence({oldest}, {newest}), w -> {NUMBER} - w * {over.slide}L < {over.size}L)"
    rows = _numbered(box, rows, []).withColumn(WINDOW, F.expr(f"explode({holding})"))
    if over.timeout_us is not None:
        opened = F.min(TIME).over(Partition.partitionBy(*_by(box), WINDOW))
        rows = rows.withColumn(FIRST, opened).where(f"{TIME} < {FIRST} + {over.timeout_us}L")
    more = [F.count("*").alias(COUNT), F.min(TIME).alias(FIRST), F.max(TIME).alias(LAST)]
    windows = _grouped(box, rows, [WINDOW], _ordered_calls(box) + more)
    if over.timeout_us is None:
        return windows.where(f"{COUNT} = {over.size}L").withColumn(TIME, F.col(LAST))
    windows = windows.withColumn(TIMED_OUT, F.expr(f"{COUNT} < {over.size}L"))
    over_at = f"{FIRST} + {over.timeout_us}L"
    end, time = (F.expr(f"IF({TIMED_OUT}, {at}, {LAST})") for at in (over_at, f"{over_at} - 1L"))
    return windows.withColumns({LAST: end, TIME: time})


def _timed_windows(box: Aggregate, over: Window, rows: DataFrame) -> DataFrame:
    rows = _numbered(box, _with_starts(rows, over.size_us, over.slide_us), [FIRST])
    times = F.collect_set(TIME).over(Partition.partitionBy(*_by(box), FIRST)).alias("__times")
    begins = (
        "aggregate(array_sort(__times), CAST(array() AS ARRAY<BIGINT>), (found, t) -> "
        f"IF(size(found) = 0 OR t >= element_at(found, -1) + {over.timeout_us}L, array_append(found, t), found))"
    )
    rows = rows.select("*", times).withColumn(PART, F.expr(f"array_max(filter({begins}, t -> t <= {TIME}))"))
    windows = _grouped(box, rows, [FIRST, PART], _ordered_calls(box))
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


def _numbered(box: Aggregate, rows: DataFrame, within: list[str]) -> DataFrame:
    """Each row with its number in its group, in order of time, then of the arguments, then as they came."""
    kinds = {argument: rows.select(F.expr(argument)).schema[0].dataType for _, argument in box.calls if argument != "*"}
    order = [TIME, *(F.expr(argument) for argument, kind in kinds.items() if sorted_by(kind)), POSITION]
    return rows.withColumn(NUMBER, F.row_number().over(Partition.partitionBy(*_by(box), *within).orderBy(*order)) - 1)


def _grouped(box: Aggregate, rows: DataFrame, window: list[str], calls: list[Column]) -> DataFrame:
    named = [call.alias(f"__a{i}") if i < len(box.calls) else call for i, call in enumerate(calls)]
    return rows.groupBy(*_by(box), *window).agg(*named, F.min(POSITION).alias(POSITION))


def _ordered_calls(box: Aggregate) -> list[Column]:
    return [batch_call(function, argument, NUMBER) for function, argument in box.calls]


def _by(box: Aggregate) -> list[Column]:
    return [F.col(f"`{name}`") for name in box.by]


def sorted_by(kind: DataType) -> bool:
    """Whether tuples of one time are put in order by values of this type."""
    return kind.typeName() not in UNSORTED


def batch_call(function: str, argument: str, order: str) -> Column:
    """An aggregate function over a group; first and last go by `order`."""
    if function in ("first", "last"):
        pick = "min_by" if function == "first" else "max_by"
        return F.expr(f"{pick}({argument}, {order})")
    return F.expr(f"{function}({argument})")


def lower(box: Aggregate, low: Lowering) -> None:
    source = box.sources[0]
    names = low.schema(source).names
    columns: list[str | None] = []
    arguments: dict[str, str] = {}
    for i, (_, argument) in enumerate(box.calls):
        plain = plain_column(argument, names)
        if argument != "*" and plain is None:
            arguments[f"__x{i}"] = argument
        columns.append(None if argument == "*" else plain or f"__x{i}")
    if arguments:
        used = dict.fromkeys([*box.by, *(c for c in columns if c is not None and c not in arguments)])
        keep = {name: f"`{name}`" for name in used}
        low.map(box, source, f"{box.name}~arguments", (keep | arguments).items())
        source = f"{box.name}~arguments"
    calls = [(f, c) for (f, _), c in zip(box.calls, columns, strict=True)]
    texts = [f"{f}({'*' if c is None else f'`{c}`'})" for f, c in calls]
    flag = [] if box.timeout is None else [F.first(F.lit(None).cast("boolean")).alias(TIMED_OUT)]
    grouped = (
        low.empty(source)
        .groupBy(*_by(box))
        .agg(
            F.first(F.lit(None).cast("timestamp")).alias(START),
            F.first(F.lit(None).cast("timestamp")).alias(END),
            *flag,
            *(F.expr(text).alias(f"__a{i}") for i, text in enumerate(texts)),
        )
    )
    options: dict[str, Any] = {"schema": schema_text(low.arrow(source)), "by": list(box.by), "calls": calls}
    match box.over:
        case CountWindow(size, slide, timeout):
            op, tables = "count_windows", CountWindows.tables
        case Window(size, slide, None as timeout):
            op, tables = "aggregate", AggregateKernel.tables
        case Window(size, slide, timeout):
            op, tables = "timed_windows", TimedWindows.tables
    options |= {"size": size, "slide": slide}
    if op != "aggregate":
        kinds = low.schema(source)
        options["timeout"] = timeout
        options["order"] = [c for c in dict.fromkeys(columns) if c is not None and sorted_by(kinds[c].dataType)]
    windows = f"{box.name}~windows"
    low.stateful(op, box, [source], windows, grouped.schema, by=[box.by], options=options, tables=tables)
    finals = {name: f"`{name}`" for name in (*box.by, *box.window_columns)} | box.finals
    low.map(box, windows, box.name, finals.items())
