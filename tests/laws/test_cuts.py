"""Cut-invariance and the oracle, box by box: the same story in any trains, on any workers, gives the same outputs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from chance import ARROW, DDL, random_story
from chance import COLUMNS as PLAIN
from harness import (
    Luck,
    Story,
    check_truth,
    compiled,
    differences,
    exactly,
    examples,
    pieces_of,
    random_places,
    run_sources,
    run_story,
    without_header,
)
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from borealis.diagram.durations import count_window, window
from borealis.diagram.model import Diagram
from borealis.trains.intake import Admission
from postgres import Embedded

pytestmark = pytest.mark.spark
SEEDS = st.integers(0, 2**32 - 1)
ROWS = st.sampled_from([25, 12, 30, 5, 2, 1, 0])  # the first one comes first: a law with one example has rows
DATABASES = tempfile.TemporaryDirectory(prefix="borealis-test-")  # removed when Python ends

# every type that can be aggregated, under its own name
TYPES = {
    "y": "TINYINT", "h": "SMALLINT", "k": "INT", "n": "BIGINT", "f": "FLOAT", "v": "DOUBLE", "m": "DECIMAL(10,2)",
    "z": "DECIMAL(38,0)", "s": "STRING", "x": "BINARY", "b": "BOOLEAN", "d": "DATE", "u": "TIMESTAMP",
}  # fmt: skip
WIDE = "ts TIMESTAMP, " + ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
NUMBERS = [c for c, kind in TYPES.items() if pa.types.is_floating(ARROW[kind]) or pa.types.is_integer(ARROW[kind])]


def calls(columns: str) -> dict[str, str]:
    """Every function over every one of these columns whose type it takes."""
    found = {"rows": "count(*)", "mean": "sum(v) / count(*)", "range": "max(k) - min(k)"}
    for c in columns:
        functions = ["count", "min", "max", "first", "last"]
        functions += ["sum", "avg"] if c in [*NUMBERS, "m", "z"] else []
        functions += ["stddev"] if c in NUMBERS else []
        found |= {f"{function}_{c}": f"{function}({c})" for function in functions}
    return found


# functions that take two arguments, that compare, and that keep values
MORE = {
    "far": "max_by(s, v)", "near": "min_by(k, s)", "pairs": "count(DISTINCT s, k)", "about": "approx_count_distinct(v)",
    "half": "median(v)", "tenths": "percentile(k, array(0.1, 0.9))", "usual": "mode(s)", "often": "mode(v)",
    "listed": "collect_list(v)", "named": "collect_set(s)", "floats": "collect_set(v)", "every": "every(b)",
    "some": "bool_or(b)", "var": "var_pop(k)", "vars": "variance(v)", "pop": "stddev_pop(m)", "corr": "corr(k, n)",
    "cov": "covar_samp(k, v)", "covs": "covar_pop(n, m)", "times": "count_if(k > 0)", "texts": "collect_list(s)",
}  # fmt: skip


def filter_() -> Diagram:
    d = Diagram("filter")
    d.input("a", WIDE, slack="1 second", time="ts").filter("k > 0 OR v < 1").output("out")
    return d


def map_() -> Diagram:
    d = Diagram("map")
    a = d.input("a", WIDE, slack="1 second", time="ts")
    a.map(k="k + 1", v="v * 2", s="coalesce(s, 'none')", m="m", u="u", x="x").output("out")
    return d


def route() -> Diagram:
    d = Diagram("route")
    a = d.input("a", WIDE, slack="1 second", time="ts")
    high, low, rest = a.route(high="k > 1", low="k < 1 OR v < 1", otherwise="rest")
    high.output("high")
    low.union(rest).aggregate(by="s", over=window("2 seconds"), n="count(*)").output("others")
    rest.route(never="false", always="s > 'a'").always.output("odd")
    return d


def union_() -> Diagram:
    d = Diagram("union")
    a, b = (d.input(name, DDL, slack="1 second") for name in "ab")
    a.filter("k > 0").union(b, a.filter("v < 1")).output("out")
    return d


def drop() -> Diagram:
    d = Diagram("drop")
    a = d.input("a", WIDE, slack="1 second", time="ts")
    a.drop(0.4, seed=3).output("out")
    a.drop(0.5, key=["s", "f"]).drop(0.3, seed=1).output("keys")
    a.drop(0.7, where="k > 0").output("some")
    a.drop(utility="v / 4", below=0.3).output("worth")
    return d


def bsort() -> Diagram:
    d = Diagram("bsort")
    a = d.input("a", WIDE, slack="1 second", time="ts")
    a.bsort("v", buffer=4).output("out")
    a.bsort("length(s)", buffer=3, by=["k", "f"]).filter("k > 0").output("groups")
    a.drop(0.3).bsort("m", buffer=1000).output("everything")
    return d


def resample() -> Diagram:
    d = Diagram("resample")
    a, b = (d.input(name, DDL, slack="1 second") for name in "ab")
    a.resample(b, "v", "linear", window="2 seconds", by="k").output("line")
    a.resample(b, "s", "previous", window="3 seconds", by=["b", "s"]).output("before")
    a.resample(b, "m", "nearest", window="1 second").aggregate(
        by=["m_right"], over=window("3 seconds", "2 seconds"), n="count(*)", last="max(n)"
    ).output("windows")
    near = {"rows": "count(*)", "mean": "avg(v)", "range": "max(n) - min(n)", "more": "sum(v + n) + k", "f": "first(d)"}
    near |= {"best": "max_by(s, v)", "kinds": "count(DISTINCT s, b)", "half": "median(v)", "usual": "mode(s)"}
    near |= {"listed": "collect_list(v)", "named": "collect_set(s)", "corr": "corr(n, v)", "all": "every(b)"}
    a.resample(b, window="2 seconds", by="k", exprs=near, g="last(s)").output("near")
    return d


def tumbling() -> Diagram:
    d = Diagram("tumbling")
    a = d.input("a", WIDE, slack="1 second", time="ts")
    a.aggregate(by=["k", "s"], over=window("2 seconds"), exprs=calls("".join(TYPES))).output("out")
    return d


def sliding() -> Diagram:
    d = Diagram("sliding")
    a = d.input("a", WIDE, slack="1 second", time="ts")
    a.aggregate(by=["k"], over=window("3 seconds", "2 seconds"), exprs=calls("kvms")).output("out")
    a.aggregate(by=["v", "m"], over=window("5 seconds", "1 second"), n="count(*)", s="max(s)").output("more")
    a.aggregate(by="b", over=window("4 seconds", "2 seconds"), exprs=MORE).output("kept")
    return d


def gaps() -> Diagram:
    d = Diagram("gaps")
    a = d.input("a", WIDE, slack="1 second", time="ts")
    a.aggregate(by=["f", "b"], over=window("1 second", "3 seconds"), exprs=calls("nfzx")).output("out")
    return d


def keyless() -> Diagram:
    d = Diagram("keyless")
    a = d.input("a", WIDE, slack="3 seconds", time="ts")
    a.aggregate(over=window("4 seconds", "2 seconds"), exprs=calls("yhbdu")).output("out")
    a.late.aggregate(by="d", over=window("4 seconds"), n="count(*)").output("tardy")
    return d


def counted() -> Diagram:
    d = Diagram("counted")
    a = d.input("a", WIDE, slack="1 second", time="ts")
    a.aggregate(by=["k"], over=count_window(3, 2), exprs=calls("vms")).output("out")
    a.aggregate(by=["s", "f"], over=count_window(4, timeout="2 seconds"), exprs=calls("knu")).output("timed")
    a.aggregate(by="b", over=count_window(2, 5), n="count(*)", x="first(x)", e="sum(v + k)").output("gaps")
    a.aggregate(by="h", over=count_window(4, 3), exprs=MORE).output("kept")
    every = a.aggregate(over=count_window(5, 1, timeout="700 ms"), n="count(*)", last="last(d)", v="avg(v)")
    every.aggregate(by="timed_out", over=count_window(2), n="sum(n)").output("twice")
    return d


def timed() -> Diagram:
    d = Diagram("timed")
    a = d.input("a", WIDE, slack="1 second", time="ts")
    a.aggregate(by=["k"], over=window("3 seconds", "2 seconds", timeout="500 ms"), exprs=calls("vms")).output("out")
    a.aggregate(by=["b"], over=window("10 seconds", timeout="1 second"), exprs=calls("hdx")).output("long")
    a.aggregate(over=window("1 second", "3 seconds", timeout="1 us"), n="count(*)", e="first(v + k)").output("gaps")
    a.aggregate(by="h", over=window("4 seconds", "2 seconds", timeout="1 second"), exprs=MORE).output("kept")
    a.late.aggregate(by="d", over=window("20 seconds", timeout="3 seconds"), n="count(*)").output("tardy")
    return d


def join() -> Diagram:
    d = Diagram("join")
    a, b = (d.input(name, DDL, slack="1 second") for name in "ab")
    a.join(b, on="left.k = right.k", within="2 seconds").output("out")
    a.join(b, on="left.s = right.s AND left.m = right.m AND left.n <= right.n", within="3 seconds").output("text")
    b.map(k="k", w="v").join(a.map(v="v"), on="left.w < right.v", within="250 ms").output("theta")
    return d


def chain() -> Diagram:
    """Two stateful boxes with different keys in a row, an aggregate of an aggregate, a filter after a join."""
    d = Diagram("chain")
    a, b = (d.input(name, DDL, slack="1 second") for name in "ab")
    both = a.join(b.map(k="k", s2="s", w="v"), on="left.k = right.k", within="3 seconds").filter("n < 6 OR s2 > 'a'")
    per = both.aggregate(by=["s2"], over=window("3 seconds", "1 second"), n="count(*)", total="sum(w)")
    per.aggregate(by=["n"], over=window("5 seconds"), groups="count(*)", most="max(total)").output("out")
    a.union(a.late, b).aggregate(by="d", over=window("2 seconds"), n="count(*)").output("everything")
    return d


def sqlite(*statements: str) -> str:
    """The URL of a new database in which these were run."""
    made = Embedded(Path(tempfile.mkdtemp(dir=DATABASES.name)) / "test.db")
    made.run(*statements)
    return made.url


def asked() -> Diagram:
    """Questions to a table that does not change; some have two answers, some have none."""
    d = Diagram("asked")
    a = d.input("a", WIDE, slack="1 second", time="ts")
    rows = "(0, 'x', 1.5), (1, 'y', NULL), (1, '8', 2.25), (3, 'x', 4)"
    url = sqlite("CREATE TABLE t (k INT, s TEXT, w REAL)", f"INSERT INTO t VALUES {rows}")
    ask = "SELECT s, w FROM t WHERE k = :k ORDER BY s"
    a.sql_read(ask, gives="t STRING, w DOUBLE", database=url, stable=True).output("out")
    ask = "SELECT w, s FROM t WHERE k = :k AND :k < 3 -- some of which are no numbers"
    read = a.sql_read(ask, gives="w2 DOUBLE, number INT", missing="null", database=url, stable=True)
    read.aggregate(by="k", over=window("2 seconds"), n="count(*)", w="max(w2)").output("fit")
    read.bad.map(k="k", n="n").output("unfit")
    return d


def written() -> Diagram:
    d = Diagram("written")
    a = d.input("a", WIDE, slack="1 second", time="ts")
    url, values = sqlite(f"CREATE TABLE t ({', '.join(TYPES)})"), ", ".join(f":{name}" for name in TYPES)
    kept = a.sql_write(f"INSERT INTO t VALUES ({values})", database=url)
    kept.aggregate(by="s", over=window("2 seconds"), n="count(*)").output("out")
    kept.bad.output("bad")
    return d


BOXES = [
    *(filter_, route, map_, union_, drop, bsort, resample),
    *(tumbling, sliding, gaps, keyless, counted, timed, join, chain),
    *(asked, written),
]
LONG = [
    route,
    bsort,
    resample,
    tumbling,
    sliding,
    keyless,
    counted,
    timed,
    chain,
    asked,
    written,
]  # they take longest to compile
BY_VALUE = [counted]  # tuples of one time count in the order of their values, not as they come


def story_of(diagram: Diagram, rng: Random, rows: int, *, distinct: bool = True) -> Story:
    spec = diagram.validate()
    columns = {i.name: TYPES if i.columns == WIDE else PLAIN for i in spec.inputs}
    return random_story(rng, spec, columns, rows, distinct=distinct, tardy=rng.choice([0, 0.1]))


def unlucky(rng: Random) -> Luck:
    """Workers that come and go."""
    chances = (rng.choice([0, 0, 0.15]) for _ in range(3))
    return Luck(Random(rng.random()), rng.randint(1, 3), *chances, stretches=rng.choice([2, 4, 24]))


@pytest.mark.parametrize(
    "box", [pytest.param(b, marks=[pytest.mark.long] if b in LONG else [], id=b.__name__) for b in BOXES]
)
def test_the_laws_hold_for_a_box(spark: SparkSession, box: Callable[[], Diagram]) -> None:
    """All of them in one test: to compile the box takes longer than a law."""
    diagram = box()
    the_cut_changes_nothing_and_neither_do_workers(diagram, spark, 1 if box is tumbling else 2)  # it has most columns
    the_engine_is_the_oracle(diagram, spark, distinct=box not in BY_VALUE)
    if box in (union_, sliding, chain):
        batches_of_the_sources_and_sizes_of_trains_change_nothing(diagram, spark)


def the_cut_changes_nothing_and_neither_do_workers(diagram: Diagram, spark: SparkSession, times: int) -> None:
    @examples(times)
    @given(SEEDS, ROWS)
    def law(seed: int, rows: int) -> None:
        rng = Random(seed)
        story = story_of(diagram, rng, rows, distinct=rng.random() < 0.3)
        results = []
        for buckets in (1, 2):
            unit = compiled(story.spec.to_yaml(), spark, buckets)
            whole = run_story(story, unit)
            places = random_places(rng, len(story.events))
            assert exactly(run_story(story, unit, places, unlucky(rng))) == exactly(whole)
            results.append(whole)
        for name, table in results[0].items():
            assert differences(results[1][name], without_header(table)) == []

    law()


def the_engine_is_the_oracle(diagram: Diagram, spark: SparkSession, *, distinct: bool) -> None:
    @examples(1)
    @given(SEEDS, st.integers(10, 40))
    def law(seed: int, rows: int) -> None:
        rng = Random(seed)
        story = story_of(diagram, rng, rows, distinct=distinct)
        unit = compiled(story.spec.to_yaml(), spark, 1)
        outputs = run_story(story, unit, random_places(rng, len(story.events)), unlucky(rng))
        check_truth(story, outputs, spark)

    law()


def batches_of_the_sources_and_sizes_of_trains_change_nothing(diagram: Diagram, spark: SparkSession) -> None:
    @examples(2)
    @given(SEEDS, ROWS)
    def law(seed: int, rows: int) -> None:
        rng = Random(seed)
        story = story_of(diagram, rng, rows, distinct=False)
        unit = compiled(story.spec.to_yaml(), spark, rng.choice([1, 2]))
        outputs = []
        for most in (500_000, rng.choice([1, 2, 7])):
            sources = {name: pieces_of(table, rng) for name, table in story.tables.items()}
            outputs.append(exactly(run_sources(story.spec, unit, sources, Admission(most), unlucky(rng))))
        assert outputs[0] == outputs[1]

    law()
