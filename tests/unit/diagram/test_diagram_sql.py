"""SQL text comes apart where it should, and nowhere else."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from borealis.diagram import join_columns, sql
from borealis.errors import DiagramError

WORDS = [
    "left.a",
    "right.b",
    " AND ",
    " OR ",
    "sum",
    "count(*)",
    "CASE ",
    " END ",
    " BETWEEN ",
    "__a0",
    "distinct ",
    "é",
]
SIGNS = [" ", "=", "(", ")", "'", '"', "`", "/*", "*/", "--", "\n", ",", "\\", "<", ">", "a INT", "MAP<STRING, INT>"]
SCRAPS = st.lists(st.sampled_from(WORDS + SIGNS)).map("".join)


@given(st.one_of(st.text(), SCRAPS))
@example("(" * 5000 + ")" * 5000)
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (sql.tokens, sql.split_aggregates, join_columns.split_join, sql.columns_of_ddl, join_columns.mentioned):
        with suppress(DiagramError):
            read(text)


@given(st.one_of(st.text(), SCRAPS))
def test_tokens_joined_are_the_text(text: str) -> None:
    with suppress(DiagramError):
        assert "".join(t.text for t in sql.tokens(text)) == text


@pytest.mark.parametrize(
    ("text", "outer", "calls"),
    [
        ("count(*)", "__a0", [("count",)]),
        ("COUNT( * )", "__a0", [("count",)]),
        ("sum(a) / count(*)", "__a0 / __a1", [("sum", "a"), ("count",)]),
        ("round(max(a) - min(a), 2)", "round(__a0 - __a1, 2)", [("max", "a"), ("min", "a")]),
        ("sum(a) + SUM( A )", "__a0 + __a0", [("sum", "a")]),
        ("sum('a') + sum('A')", "__a0 + __a1", [("sum", "'a'"), ("sum", "'A'")]),
        ("mean(a) + avg(a)", "__a0 + __a0", [("avg", "a")]),
        ("stddev_samp(a)", "__a0", [("stddev", "a")]),
        ("max(greatest(a, b))", "__a0", [("max", "greatest(a, b)")]),
        ("sum(a -- why\n + 1)", "__a0", [("sum", "a + 1")]),
        ("concat('sum(x)', max(`sum(y)`))", "concat('sum(x)', __a0)", [("max", "`sum(y)`")]),
        ("CASE WHEN sum(a)THEN 1 END", "CASE WHEN __a0 THEN 1 END", [("sum", "a")]),
        ("sum(CASE WHEN first THEN 1 END)", "__a0", [("sum", "CASE WHEN first THEN 1 END")]),
        ("last(s.count)", "__a0", [("last", "s.count")]),
        (r"max('it\'s (') || \"x\"".replace('\\"', '"'), '__a0 || "x"', [("max", r"'it\'s ('")]),
        ("max_by(a, b) + max_by( A,b )", "__a0 + __a0", [("max_by", "a", "b")]),
        ("count(DISTINCT a, f(b, c))", "__a0", [("count_distinct", "a", "f(b, c)")]),
        ("approx_count_distinct(a, 0.1) - count(distinct a)", "__a0 - __a0", [("count_distinct", "a")]),
        ("every(a) = any(a) OR some(b LIKE ANY ('x(', 'y'))", "__a0 = __a1 OR __a2", [
            ("bool_and", "a"), ("bool_or", "a"), ("bool_or", "b LIKE ANY ('x(', 'y')")]),
        ("count_if(a > 1)", "__a0", [("count", "CASE WHEN a > 1 THEN 1 END")]),
        ("mode(a, true)", "__a0", [("mode", "a")]),
        ("array_agg(a)[0]", "__a0[0]", [("collect_list", "a")]),
    ],
)  # fmt: skip
def test_split_aggregates(text: str, outer: str, calls: list[tuple[str, ...]]) -> None:
    assert sql.split_aggregates(text) == (outer, [sql.CallText(function, tuple(args)) for function, *args in calls])


@pytest.mark.parametrize(
    ("text", "parameter", "numbers"),
    [
        ("median(a)", "0.5", [0.5]),
        ("percentile(a, 0.95)", "0.95", [0.95]),
        ("percentile(a, 1e-2D)", "1e-2D", [0.01]),
        ("percentile(a, array(0, .5 , 1))", "array(0, .5 , 1)", [0, 0.5, 1]),
    ],
)
def test_percentages_are_read(text: str, parameter: str, numbers: list[float]) -> None:
    assert sql.split_aggregates(text)[1] == [sql.CallText("percentile", ("a",), parameter)]
    assert sql.percentages(parameter) == numbers


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("sum(count(*))", "aggregate 'count' inside aggregate 'sum'"),
        ("sum(DISTINCT a)", "only count takes it"),
        ("max(DISTINCT a)", "leave DISTINCT out"),
        ("count(DISTINCT *)", "only count takes *"),
        ("count(ALL a)", "leave ALL out"),
        ("max_by(a)", "takes two arguments, not 1"),
        ("corr(a, b, c)", "takes two arguments, not 3"),
        ("percentile(a)", "takes a column and a percentage, not 1"),
        ("percentile(a, b)", "'b' is not a percentage"),
        ("percentile(a, array(0.5, 2))", "is not a percentage. Hint: write numbers between 0 and 1"),
        ("mode() WITHIN GROUP (ORDER BY a)", "takes one argument, not 0"),
        ("sum(a) FILTER (WHERE b)", "FILTER after 'sum'"),
        ("sum(a) OVER (PARTITION BY b)", "OVER after 'sum'"),
        ("first(a) IGNORE NULLS", "IGNORE after 'first'"),
        ("a + 1", "no aggregate in 'a + 1'. Hint: use one of count,"),
        ("cuont(a)", "did you mean 'count'?"),
        ("kurtosis(a) + sum(b)", "no aggregate 'kurtosis'"),
        ("sum()", "takes one argument, not 0"),
        ("first(a, true)", "takes one argument, not 2"),
        ("count(a, b)", "takes * or one argument, not 2"),
        ("sum(*)", "only count takes *"),
        ("sum(__a0)", "reserved"),
        ("sum(a", "a ')' is missing"),
        ("sum(a))", "without its opening bracket"),
        ("sum('a)", "an unclosed '"),
        ("sum(a) /* x", "an unclosed /*"),
        ("", "no aggregate"),
    ],
)
def test_split_aggregates_refuses(text: str, part: str) -> None:
    with pytest.raises(DiagramError) as e:
        sql.split_aggregates(text)
    assert part in str(e.value)


@pytest.mark.parametrize(
    ("text", "keys", "residual"),
    [
        ("left.k = right.k", [("left.k", "right.k")], None),
        ("right.k == left.k", [("left.k", "right.k")], None),
        ("LEFT.k = Right.k", [("LEFT.k", "Right.k")], None),
        ("(left.a = right.a and (left.b = right.b))", [("left.a", "right.a"), ("left.b", "right.b")], None),
        ("left.k = right.k AND left.v < right.v", [("left.k", "right.k")], "left.v < right.v"),
        ("left.a BETWEEN 1 AND right.b AND left.k = right.k", [("left.k", "right.k")], "left.a BETWEEN 1 AND right.b"),
        ("left.a = right.a OR left.b = right.b", [], "left.a = right.a OR left.b = right.b"),
        ("left.k = right.k AND (left.a = 1 OR right.b = 2)", [("left.k", "right.k")], "(left.a = 1 OR right.b = 2)"),
        (
            "CASE WHEN left.a = 1 AND right.b = 2 THEN true END",
            [],
            "CASE WHEN left.a = 1 AND right.b = 2 THEN true END",
        ),
        ("NOT left.a = right.a", [], "NOT left.a = right.a"),
        ("left.a = right.a IS NULL", [], "left.a = right.a IS NULL"),
        ("left.a = right.a = right.b", [], "left.a = right.a = right.b"),
        ("left.a <=> right.a", [], "left.a <=> right.a"),
        ("left.a <= right.a", [], "left.a <= right.a"),
        ("left.a = left.b", [], "left.a = left.b"),
        ("left.a + right.a = right.b", [], "left.a + right.a = right.b"),
        ("left.a + b = right.c", [], "left.a + b = right.c"),
        ("left.a = 1", [], "left.a = 1"),
        ("(left.a, left.b) = (right.a, right.b)", [], "(left.a, left.b) = (right.a, right.b)"),
        ("left(left.a, 2) = right.b", [("left(left.a, 2)", "right.b")], None),
        ("CAST(left.a AS INT) = right.b + 1", [("CAST(left.a AS INT)", "right.b + 1")], None),
        (
            "left.`a = b` = right.s -- AND 1\nAND 'x AND y' = right.t",
            [("left.`a = b`", "right.s")],
            "'x AND y' = right.t",
        ),
        ("left.end = right.case AND left.and = right.or", [("left.end", "right.case"), ("left.and", "right.or")], None),
    ],
)
def test_split_join(text: str, keys: list[tuple[str, str]], residual: str | None) -> None:
    assert join_columns.split_join(text) == (keys, residual)


def test_columns_of_ddl() -> None:
    text = "ts TIMESTAMP, src STRING, d DECIMAL(10,2), m MAP<STRING, ARRAY<INT>>, `odd, name` INT, 名前 STRING NOT NULL"
    assert sql.columns_of_ddl(text) == [
        ("ts", "TIMESTAMP"),
        ("src", "STRING"),
        ("d", "DECIMAL(10,2)"),
        ("m", "MAP<STRING, ARRAY<INT>>"),
        ("odd, name", "INT"),
        ("名前", "STRING NOT NULL"),
    ]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (" ", "no columns"),
        ("a INT,", "an empty place between commas"),
        ("a", "column 'a' has no type"),
        ("a: INT", "is not a name and a type"),
        ("'a' INT", "is not a column"),
        ("a INT, A STRING", "columns 'a' and 'A' differ only in case"),
        ("a INT, a STRING", "column 'a' appears twice"),
        ("_id INT", "column name '_id' is reserved"),
        ("_Time INT", "reserved"),
        ("__x INT", "reserved"),
        ("`` INT", "a column has an empty name"),
        ("`a``b` INT", "column name 'a`b' has ` in it"),
        ("`${env:HOME}` INT", "has ${ in it"),
    ],
)
def test_columns_of_ddl_refuses(text: str, part: str) -> None:
    with pytest.raises(DiagramError) as e:
        sql.columns_of_ddl(text)
    assert part in str(e.value)
    assert e.value.hint


def test_names_that_only_look_reserved() -> None:
    assert [name for name, _ in sql.columns_of_ddl("_identity INT, id INT, _x INT")] == ["_identity", "id", "_x"]
