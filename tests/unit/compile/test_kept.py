"""How long boxes keep what may be corrected, and about how much that is."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from borealis.cli.explain import LoadOptions, _keeps, _kept_text
from borealis.compile.analyze import analyze
from borealis.compile.kept import Kept, Load, kept
from borealis.compile.unit import compile_unit
from borealis.diagram import Diagram, window
from borealis.diagram.passes.revisions import kept_by
from borealis.errors import BorealisError

SECOND, HOUR = 1_000_000, 3_600_000_000


def ticker() -> Diagram:
    d = Diagram("ticker")
    quotes = d.input("quotes", "ts TIMESTAMP, id INT, symbol STRING, price DOUBLE", key="id", history="5 hours")
    late = d.input("late", "ts TIMESTAMP, id INT", late="revise", history="1 hour")
    plain = d.input("plain", "ts TIMESTAMP, id INT")
    long = quotes.aggregate(by="symbol", over=window("2 hours"), n="count(*)", name="long")
    long.output("long")
    long.aggregate(over=window("1 hour"), most="max(n)", name="short").output("short", revisions="final")
    quotes.filter("id > 1", name="some").join(late, on="left.id = right.id", within="1 minute", name="pairs").output(
        "pairs", important="price > 100"
    )
    quotes.map(s="symbol", price="price").aggregate(
        by="s", over=window("2 hours", "30 minutes"), most="max(price)", history_at="quotes", name="again"
    ).output("again")
    plain.aggregate(over=window("1 hour"), n="count(*)", name="uncorrected").output("uncorrected")
    return d


def test_each_box_keeps_its_input_s_history_and_its_window() -> None:
    assert kept_by(ticker().validate()) == {
        "quotes~history": 5 * HOUR + HOUR // 2,  # a pane of `again` may have begun so much earlier
        "again": 7 * HOUR,
        "long": 7 * HOUR,
        "short": 6 * HOUR,
        "pairs": 5 * HOUR + 60 * SECOND,
        "short~revisions": 5 * HOUR,
        "pairs~revisions": 5 * HOUR,
    }


def test_rows_and_bytes_are_estimated(spark: SparkSession) -> None:
    spec = ticker().validate()
    found = kept(spec, compile_unit(spec, spark), Load({"late": 10}, rate=100, groups=7))
    many, former = 100 * 5.5 * 3600, 5.5 * 3600  # of a hundred rows one is replaced
    size = many * (24 + 8 + 4 + 20 + 8) + former * (32 + 8 + 4 + 20 + 8)
    assert found["quotes~history"] == Kept(11 * HOUR // 2, many + former, size)
    assert {name: one.rows for name, one in found.items()} == {
        "quotes~history": many + former,
        "again": 7 * 14,  # panes, and no rows
        "long": 7 * 4,  # panes of two hours, seven hours long
        "short": 7 * 6 // 2,
        "pairs": (100 + 10) * (5 * 3600 + 60),
        "short~revisions": 5,
        "pairs~revisions": (100 + 10) * 5 * 36,
    }
    shown = _kept_text(_keeps(found["quotes~history"])["keeps"])
    assert str(shown) == "keeps 330 minutes for corrections: about 1,999,800 rows, 128.1 MB (an estimate: see --rate)"


def test_there_is_no_history_to_move_where_functions_are_undone(spark: SparkSession) -> None:
    d = Diagram("d")
    p = d.input("p", "ts TIMESTAMP, id INT, v DOUBLE, n INT", key="id", history="1 hour")
    p.aggregate(over=window("1 minute"), a="count(v)", b="sum(n)", c="sum(v)", history_at="p").output("some")
    analyze(d.validate(), spark)
    p.aggregate(over=window("1 minute"), a="count(*) + sum(n)", history_at="p", name="all").output("none")
    with pytest.raises(BorealisError, match="box 'all': history_at: all its functions can be undone"):
        analyze(d.validate(), spark)


def test_rates_are_of_all_inputs_or_of_one() -> None:
    spec = ticker().validate()
    assert LoadOptions(rate=["50", "late=0.5"], groups=3).load(spec) == Load({"late": 0.5}, 50.0, 3)
    assert LoadOptions().load(spec) == Load()
    for wrong, why in (("many", "'many' is no number"), ("-1", "no number"), ("nobody=1", "no input 'nobody'")):
        with pytest.raises(BorealisError, match=why):
            LoadOptions(rate=[wrong]).load(spec)
