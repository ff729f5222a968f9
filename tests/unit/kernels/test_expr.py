"""What the Arrow twins of Spark's expressions do at the edges; that they equal Spark is a law, tested elsewhere."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from borealis.compile.numeric_rules import cast
from borealis.compile.rules import DeclinedError
from borealis.errors import TrainError
from borealis.kernels.dates import time_of_text
from borealis.kernels.expr import Call, Column, Expr, Literal, column, evaluate, from_json, mask, sql, to_json
from borealis.kernels.regex import java_regex
from borealis.kernels.times import NoValueError

NAN = float("nan")
K, L = Column("k", "long"), Column("l", "long")
V, W = Column("v", "double"), Column("w", "double")
ONE, ZERO = Literal("1", "long"), Literal("0", "long")


def test_a_plain_column_is_not_copied() -> None:
    table = pa.table({"v": [1.0, 2.0]})
    before = table.column("v").chunk(0).buffers()[1].address
    assert column(V, table, pa.float64()).chunk(0).buffers()[1].address == before


def test_a_constant_becomes_a_full_column_of_the_wanted_type() -> None:
    table = pa.table({"v": [1.0, 2.0]})
    assert column(ONE, table, pa.int64()).equals(pa.array([1, 1]))
    assert column(Literal(None, "string"), table, pa.string()).equals(pa.nulls(2, pa.string()))
    assert mask(Literal("true", "boolean"), table).equals(pa.array([True, True]))
    assert mask(Literal(None, "boolean"), table).equals(pa.array([False, False]))


@pytest.mark.parametrize("batch", [pa.table, lambda columns: pa.RecordBatch.from_pydict(columns)])
def test_tables_and_batches_alike(batch: object) -> None:
    rows = batch({"k": pa.array([1, None, -3]), "l": pa.array([2, 2, 2])})  # type: ignore[operator]
    assert evaluate(Call("remainder", (K, L), "long"), rows).to_pylist() == [1, None, -1]
    assert mask(Call("gt", (K, ZERO), "boolean"), rows).to_pylist() == [True, False, False]


def test_many_chunks() -> None:
    chunks = pa.chunked_array([[1, None], [], [5]], pa.int64())
    table = pa.table({"k": chunks, "l": chunks})
    assert evaluate(Call("remainder", (K, L), "long"), table).to_pylist() == [0, None, 0]
    lazy = Call("case", (Call("gt", (K, ONE), "boolean"), Call("add", (K, L), "long")), "long")
    assert evaluate(lazy, table).to_pylist() == [None, None, 10]


def test_nan_is_above_everything_and_equals_itself() -> None:
    table = pa.table({"v": [NAN, NAN, 1.0, None], "w": [NAN, float("inf"), NAN, NAN]})
    results = {f: evaluate(Call(f, (V, W), "boolean"), table).to_pylist() for f in ("eq", "gt", "ge", "lt", "le")}
    assert results == {
        "eq": [True, False, False, None],
        "gt": [False, True, False, None],
        "ge": [True, True, False, None],
        "lt": [False, False, True, None],
        "le": [True, False, True, None],
    }


def test_errors_name_the_expression_and_say_what_to_do() -> None:
    table = pa.table({"k": [1, 2**63 - 1], "l": [1, 0]})
    with pytest.raises(TrainError, match=r"overflow in `k \+ 1`.*try_add"):
        evaluate(Call("add", (K, ONE), "long"), table)
    with pytest.raises(TrainError, match=r"division by zero in `k % l`.*try_mod"):
        evaluate(Call("remainder", (K, L), "long"), table)
    ratio = Call("divide", (Call("cast", (K,), "double"), Call("cast", (L,), "double")), "double")
    with pytest.raises(TrainError, match=r"division by zero in `k / l`.*try_divide"):
        evaluate(ratio, table)


def test_casts_that_fail_name_the_value_and_the_cast() -> None:
    table = pa.table({"s": ["7", "seven"], "k": [1, 2**40]})
    s = Column("s", "string")
    for expr, told in (
        (Call("convert", (K,), "integer"), r"overflow in `CAST\(k AS INT\)`.*try_cast"),
        (Call("convert", (s,), "integer"), r"'seven' is no whole number in `CAST\(s AS INT\)`.*try_cast"),
        (Call("convert", (s,), "decimal(5,2)"), r"'seven' is no number in `CAST\(s AS DECIMAL\(5,2\)\)`"),
        (Call("convert", (s,), "boolean"), r"'7' is no BOOLEAN"),
        (Call("to_date", (s,), "date"), r"'7' is no time"),
        (Call("convert", (s,), "timestamp"), r"'7' is no time"),
        (
            Call("floor", (Call("multiply", (V, Literal("1e300", "double")), "double"),), "long"),
            r"overflow in `floor\(v",
        ),
    ):
        rows = table.append_column("v", pa.array([0.0, 1.0]))
        with pytest.raises(TrainError, match=told):
            evaluate(expr, rows)
        assert len(evaluate(expr, rows.slice(0, 0))) == 0


def test_decimals_know_their_errors() -> None:
    m, n = Column("m", "decimal(38,0)"), Column("n", "decimal(38,0)")
    table = pa.table({"m": [Decimal(10**37)] * 2, "n": [Decimal(0), Decimal(10**38 - 1)]}, schema=pa.schema(
        {"m": pa.decimal128(38, 0), "n": pa.decimal128(38, 0)}))  # fmt: skip
    with pytest.raises(TrainError, match=r"overflow in `m \* n`.*try_multiply"):
        evaluate(Call("multiply", (m, n), "decimal(38,0)"), table)
    with pytest.raises(TrainError, match=r"division by zero in `m / n`.*try_divide"):
        evaluate(Call("divide", (m, n), "decimal(38,6)"), table)
    zero = Literal("0", "decimal(38,0)")
    safe = Call("case", (Call("gt", (n, zero), "boolean"), Call("divide", (m, n), "decimal(38,6)")), "decimal(38,6)")
    assert evaluate(safe, table).to_pylist() == [None, Decimal("0.100000")]


def test_of_equals_the_first_is_greatest() -> None:
    table = pa.table({"v": [0.0, -0.0, NAN, None], "w": [-0.0, 0.0, 1.0, 2.0]})
    for function in ("greatest", "least"):
        found = evaluate(Call(function, (V, W), "double"), table).to_pylist()
        assert [str(x) for x in found[:2]] == ["0.0", "-0.0"]
        assert found[3] == 2.0
        assert str(found[2]) == ("nan" if function == "greatest" else "1.0")


def test_nothing_raises_on_null_or_without_rows() -> None:
    table = pa.table({"k": pa.array([None], pa.int64()), "l": [0]})
    assert evaluate(Call("remainder", (K, L), "long"), table).to_pylist() == [None]
    assert evaluate(Call("int_divide", (K, L), "long"), table).to_pylist() == [None]
    assert len(evaluate(Call("remainder", (ONE, ZERO), "long"), table.slice(0, 0))) == 0


GUARD = Call("not", (Call("eq", (L, ZERO), "boolean"),), "boolean")
REST = Call("remainder", (K, L), "long")


@pytest.mark.parametrize(
    ("expr", "answer"),
    [
        (Call("case", (GUARD, REST), "long"), [1, None, None]),
        (Call("case", (GUARD, REST, Literal("9", "long")), "long"), [1, 9, 9]),
        (Call("and", (GUARD, Call("gt", (REST, ZERO), "boolean")), "boolean"), [True, False, None]),
        (
            Call("or", (Call("eq", (L, ZERO), "boolean"), Call("gt", (REST, ZERO), "boolean")), "boolean"),
            [True, True, None],
        ),
        (Call("coalesce", (Call("case", (GUARD, K), "long"), L), "long"), [7, 0, None]),
    ],
)
def test_a_branch_not_taken_does_not_raise(expr: Expr, answer: list[object]) -> None:
    table = pa.table({"k": [7, 5, 5], "l": [2, 0, None]})
    assert evaluate(expr, table).to_pylist() == answer


def test_a_branch_taken_raises() -> None:
    table = pa.table({"k": [7, 5], "l": [2, 0]})
    with pytest.raises(TrainError, match="division by zero"):
        evaluate(Call("case", (GUARD, K, REST), "long"), table)


def test_a_filter_does_not_raise_on_a_row_that_a_null_fails() -> None:
    table = pa.table({"k": [7, 5], "l": [2, 0], "v": [1.0, None]})
    predicate = Call(
        "and", (Call("gt", (REST, ZERO), "boolean"), Call("gt", (V, Literal("0.0", "double")), "boolean")), "boolean"
    )
    assert mask(predicate, table).to_pylist() == [True, False]
    with pytest.raises(TrainError):
        evaluate(predicate, table)
    denied = Call(
        "not",
        (Call("and", (Call("is_null", (V,), "boolean"), Call("lt", (REST, ZERO), "boolean")), "boolean"),),
        "boolean",
    )
    with pytest.raises(TrainError):
        mask(denied, table)


def test_in_knows_unknown() -> None:
    table = pa.table({"k": [1, 5, None]})
    for size in (3, 20):
        items = tuple(Literal(str(i), "long") for i in range(10, 10 + size))
        assert evaluate(Call("in", (K, ONE, *items), "boolean"), table).to_pylist() == [True, False, None]
        with_null = Call("in", (K, ONE, Literal(None, "long"), *items), "boolean")
        assert evaluate(with_null, table).to_pylist() == [True, None, None]


def test_json_there_and_back() -> None:
    expr = Call("case", (GUARD, REST, Literal(None, "long")), "long")
    assert from_json(json.loads(json.dumps(to_json(expr)))) == expr
    with pytest.raises(TrainError, match="not an expression"):
        from_json(["call", "__import__", "long", []])


def test_an_expression_reads_like_sql() -> None:
    assert (
        sql(Call("multiply", (Call("add", (K, ONE), "long"), Call("negate", (L,), "long")), "long")) == "(k + 1) * -l"
    )


def call(function: str, kind: str, *args: Expr) -> Call:
    return Call(function, args, kind)


def text(value: str) -> Literal:
    return Literal(value, "string")


def number(value: int) -> Literal:
    return Literal(str(value), "integer")


S, T = Column("s", "string"), Column("t", "string")


@pytest.mark.parametrize(
    ("expr", "answer"),
    [
        (call("upper", "string", S), ["STRASSE", "ΟΔΌΣ", "\ua7dcX", None]),
        (call("lower", "string", call("upper", "string", S)), ["strasse", "οδός", "\u019bx", None]),
        (call("substring", "string", S, number(-3), number(2)), ["aß", "δό", "\u019b", None]),
        (call("left", "string", S, number(-1)), ["", "", "", None]),
        (call("right", "string", S, number(2)), ["ße", "ός", "\u019bx", None]),
        (call("rpad", "string", S, number(8), text("-=")), ["straße-=", "οδός-=-=", "\u019bx-=-=-=", None]),
        (call("lpad", "string", S, number(2), text("-")), ["st", "οδ", "\u019bx", None]),
        (call("position", "integer", S, text("ό")), [0, 3, 0, None]),
        (call("position", "integer", S, text("")), [1, 1, 1, None]),
        (call("locate", "integer", text("r"), S, Literal(None, "integer")), [0, 0, 0, 0]),
        (call("translate", "string", S, text("ßόx"), text("so")), ["strase", "οδoς", "\u019b", None]),
        (call("concat_ws", "string", text("-"), T, S), ["t-straße", "οδός", "\u019bx", "t"]),
        (call("concat_ws", "string", T, S), ["straße", None, None, ""]),
        (call("split_part", "string", S, text("ß"), number(2)), ["e", "", "", None]),
    ],
)
def test_texts_go_by_code_points(expr: Expr, answer: list[object]) -> None:
    table = pa.table({"s": ["straße", "οδός", "\u019bx", None], "t": ["t", None, None, "t"]})
    assert evaluate(expr, table).to_pylist() == answer
    assert evaluate(expr, table.slice(1)).to_pylist() == answer[1:]
    assert len(evaluate(expr, table.slice(0, 0))) == 0


def test_sigma_at_the_end_of_a_word_beside_letters_that_python_may_not_know() -> None:
    words = pa.table({"s": ["AΣ", "AΣ\u0897", "AΣ\u1c89", "\u1c89Σ", "AΣ\u0295B"]})
    lower = evaluate(call("lower", "string", S), words).to_pylist()
    assert lower == ["aς", "aς\u0897", "aσ\u1c8a", "\u1c8aς", "aς\u0295b"]


def test_a_part_that_is_not_there_is_an_error_that_says_what_to_do() -> None:
    second = call("split_item", "string", S, text(","), number(-1), number(1))
    assert evaluate(second, pa.table({"s": ["a,b", None, ",,"]})).to_pylist() == ["b", None, ""]
    with pytest.raises(TrainError, match=r"no part 1 among 1 in `split\(s, ','\)\[1\]`.*split_part"):
        evaluate(second, pa.table({"s": ["a,b", "a"]}))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a$", ["a", "a\n", "a\r\n", "a\u2028"]),
        ("^a.$", ["ab", "ab\n"]),
        ("[^,]+$", ["a", "a\n", "a\r\n", "a\u2028", "ab", "ab\n", "\r\n", "a\x0bb"]),
        ("^$", ["\r\n"]),
        ("\\s", ["a\n", "a\r\n", "ab\n", "\r\n", "a\x0bb"]),
    ],
)
def test_a_pattern_ends_where_java_says_that_a_line_ends(pattern: str, found: list[str]) -> None:
    texts = ["a", "a\n", "a\r\n", "a\u2028", "ab", "ab\n", "\r\n", "a\x0bb"]
    regex = java_regex(pattern)
    assert regex is not None
    hits = evaluate(call("rlike", "boolean", S, text(regex.regex)), pa.table({"s": texts})).to_pylist()
    assert [one for one, hit in zip(texts, hits, strict=True) if hit] == found


@pytest.mark.parametrize(
    "pattern",
    [
        "(a)\\1",
        "a(?=b)",
        "\\bx",
        "(?i)a",
        "a++",
        "[a&&b]",
        "[[a]]",
        "\\r$",
        "a{2000}",
        "(ab)*",
        "\\p{L}",
        "a{,2}",
        "(a",
        "$a",
    ],
)
def test_a_pattern_that_java_may_read_differently_is_not_translated(pattern: str) -> None:
    assert java_regex(pattern) is None


TS, D, N = Column("ts", "timestamp"), Column("d", "date"), Column("n", "integer")
DAY_US = 86_400_000_000


@pytest.mark.parametrize(
    ("expr", "answer"),
    [
        (call("year", "integer", D), [1970, 1969, 5881580, -5877641, None]),
        (call("weekofyear", "integer", D), [1, 1, 28, 26, None]),
        (call("date_add", "date", D, number(1)), [1, 0, -(2**31), -(2**31) + 1, None]),
        (call("last_day", "date", D), [30, -1, -(2**31) + 19, -(2**31) + 7, None]),
        (call("hour", "integer", TS), [0, 23, 4, 19, None]),
        (call("unix_seconds", "long", TS), [0, -1, 9223372036854, -9223372036855, None]),
        (call("unix_timestamp", "long", TS), [0, 0, 9223372036854, -9223372036854, None]),
        (call("date_of", "date", TS), [0, -1, 106751991, -106751992, None]),
    ],
)
def test_times_have_one_calendar_whatever_the_year(expr: Expr, answer: list[object]) -> None:
    days = pa.array([0, -1, 2**31 - 1, -(2**31), None], pa.int32()).cast(pa.date32())
    micros = pa.array([0, -1, 2**63 - 1, -(2**63), None], pa.int64()).cast(pa.timestamp("us", "UTC"))
    made = evaluate(expr, pa.table({"d": days, "ts": micros}))
    assert (made.cast(pa.int32()) if pa.types.is_date(made.type) else made).to_pylist() == answer


def test_times_that_overflow_raise() -> None:
    far = pa.table({
        "ts": pa.array([2**63 - 1], pa.int64()).cast(pa.timestamp("us", "UTC")),
        "d": pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
    })  # fmt: skip
    for expr in (
        call("plus_micros", "timestamp", TS, Literal("1", "long")),
        call("plus_months", "timestamp", TS, number(1)),
        call("add_months", "date", D, number(1)),
        call("date_to_timestamp", "timestamp", D),
    ):
        with pytest.raises(TrainError, match=r"overflow.*filter out times"):
            evaluate(expr, far)
    with pytest.raises(TrainError, match="'2024-02-30' is no time"):
        evaluate(call("to_date", "date", S), pa.table({"s": ["2024-02-29", "2024-02-30"]}))


def test_a_time_without_a_date_is_one_of_today_in_its_zone() -> None:
    now = datetime.datetime(1970, 1, 2, 23, 30, tzinfo=datetime.UTC)
    assert time_of_text("1:00", now) == DAY_US + 3600 * 10**6
    assert time_of_text("T01:00:00+01:00", now) == 2 * DAY_US  # there it is the third already
    with pytest.raises(NoValueError):
        time_of_text(" T1:00", now)
    table = pa.table({"s": ["12:30", "2024-05-01", None]})
    before = datetime.datetime.now(datetime.UTC)
    found = evaluate(Call("text_to_timestamp", (Column("s", "string"),), "timestamp"), table).to_pylist()
    days = {at.date() for at in (before, datetime.datetime.now(datetime.UTC))}  # midnight may pass between
    assert found[0] in [datetime.datetime.combine(day, datetime.time(12, 30), datetime.UTC) for day in days]
    assert found[1:] == [datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC), None]


def test_a_constant_time_without_a_date_is_left_to_spark_which_knows_the_day_of_each_train() -> None:
    fields = {"dataType": "timestamp", "timeZoneId": "UTC"}
    with pytest.raises(DeclinedError):
        cast(fields, [Literal("12:30", "string")])
    assert cast(fields, [Literal("2024-05-01 12:30", "string")]) == Literal("2024-05-01 12:30:00", "timestamp")
    assert cast(fields, [Column("s", "string")]) == Call("text_to_timestamp", (Column("s", "string"),), "timestamp")
