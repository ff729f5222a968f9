"""The oracle: it agrees with what plain Python and Spark's batch form say, and knows what it cannot know."""

from __future__ import annotations

from functools import cache

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from borealis.compile.batch import batch
from borealis.compile.unit import Compiled, compile_unit
from borealis.diagram import passes
from borealis.diagram.cut import cut
from borealis.diagram.spec import Spec
from borealis.errors import DiagramError
from borealis.sim.diagrams import DIAGRAMS, cuts_of, spec_of
from borealis.sim.history import History, Received, Shape, check, plain
from borealis.sim.oracle import Oracle, shape_of, truth_of
from borealis.sim.rows import Drawn
from borealis.sim.shapes import GROUPS, SHAPES, rows

pytestmark = pytest.mark.spark
COUNTS = {"left": 500, "right": 470, "other": 440, "fixed": 300, "tardy": 300}
INPUT = "borealis: 1\nname: d\ninputs:\n  a: {{columns: 'ts TIMESTAMP, k INT, s STRING', time: ts{}}}\n"
SLOW = ("corrected", "replayed", "rematched", "tardy")  # to compile, or to judge
SORT = "y: {bsort: {from: x, value: k, buffer: 3}}\n"


@cache
def compiled(name: str, spark: SparkSession) -> Compiled:
    return compile_unit(spec_of(name), spark)


def shapes(name: str, spark: SparkSession, cuts: tuple[str, ...] = ()) -> dict[str, Shape]:
    spec = spec_of(name)
    oracle = Oracle(spec, compiled(name, spark), rows)
    return {one.name: shape_of(oracle, cut(spec, cuts), one.name) for one in spec.outputs}


def made(boxes: str, spark: SparkSession, options: str = "") -> tuple[Spec, Compiled]:
    spec = passes.checked(Spec.from_yaml(INPUT.format(options) + boxes))
    return spec, compile_unit(spec, spark)


@pytest.mark.parametrize("name", GROUPS)
def test_it_says_what_plain_python_says(spark: SparkSession, name: str) -> None:
    for output, shape in shapes(name, spark).items():
        known = SHAPES[output]
        at = [shape.columns.index(column) for column in known.columns]
        assert sorted(tuple(row[i] for i in at) for row in shape.truth(COUNTS)) == sorted(known.truth(COUNTS))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "paired" else pytest.mark.long)  # each takes Spark long
        for name in DIAGRAMS
        if name not in GROUPS and not any(one.history for one in spec_of(name).inputs)  # it knows of no boundaries
    ],
)
def test_it_says_what_the_batch_form_says(spark: SparkSession, name: str) -> None:
    spec = spec_of(name)
    tables = {one.name: pa.table(rows(one.name, 0, COUNTS[one.name])) for one in spec.inputs}
    frames = {one: spark.createDataFrame(table) for one, table in tables.items()}
    truth = truth_of(spec, compiled(name, spark), tables)
    for output, frame in batch(spec, spark, frames).items():
        assert sorted(truth[output]) == sorted(plain(frame.toArrow())), output
        assert truth[output]


def test_drawn_rows_out_of_order_give_what_the_batch_form_gives(spark: SparkSession) -> None:
    boxes = (
        "boxes:\n  n: {aggregate: {from: a, by: [s], size: 20 ms, exprs: {n: count(*), k: sum(k)}}}\noutputs: {o: n}"
    )
    spec, unit = made(boxes, spark, ", slack: 3 ms")
    table = pa.table(Drawn(unit.inputs["a"], "ts", "3", spec.input("a").slack_us).rows(0, 300))
    truth = truth_of(spec, unit, {"a": table})
    frame = batch(spec, spark, {"a": spark.createDataFrame(table)})["o"]
    assert sorted(truth["o"]) == sorted(plain(frame.toArrow()))
    assert truth["a.late"] == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in SLOW else []) for name in DIAGRAMS]
)
def test_a_run_without_a_fault_is_right_under_every_cut(spark: SparkSession, name: str) -> None:
    for cuts in cuts_of(name):
        for output, shape in shapes(name, spark, cuts).items():
            received = [Received(number, 0, row) for number, row in enumerate(shape.truth(COUNTS))]
            for guarantee in ("gap", "no-loss", "precise"):
                one = History(
                    name, output, shape, "passive", guarantee, published=COUNTS, received=received, ended=True
                )
                assert check(one) == []
                lost = History(
                    name, output, shape, "passive", guarantee, published=COUNTS, received=received[:-1], ended=True
                )
                assert (check(lost) == []) is (guarantee == "gap")


def traits(shape: Shape) -> dict[str, bool]:
    found = {name: getattr(shape, name) for name in ("windows", "stateless", "arbitrary", "known", "diverges")}
    return {name: True for name, value in (found | {"judged": shape.plausible is None}).items() if value}


def test_what_is_known_of_an_output_follows_from_the_boxes_before_it(spark: SparkSession) -> None:
    single, merging = shapes("single", spark), shapes("merging", spark)
    assert traits(single["chain"]) == {"stateless": True, "known": True, "judged": True}
    assert traits(single["aggregate"]) == {"windows": True, "known": True, "judged": True}
    assert traits(single["two"]) == {"known": True}
    assert traits(merging["union"]) == {"stateless": True, "arbitrary": True, "known": True, "judged": True}
    assert traits(merging["join"]) == {"arbitrary": True, "known": True, "judged": True}


def test_where_a_diagram_is_cut_counts(spark: SparkSession) -> None:
    whole, apart = shapes("counted", spark), shapes("counted", spark, ("counted",))
    assert traits(whole["counted"]) == {"arbitrary": True, "known": True}
    assert traits(apart["counted"]) == {"arbitrary": True, "known": True, "diverges": True}
    assert traits(shapes("routed", spark)["shown"]) == {"stateless": True, "known": True, "judged": True}
    assert traits(shapes("routed", spark, ("again",))["shown"])["arbitrary"]


@pytest.mark.parametrize(
    ("boxes", "options", "known"),
    [
        ("n: {aggregate: {from: x, count: 3, exprs: {n: count(*)}}}", "", False),
        ("n: {aggregate: {from: x, size: 1 second, exprs: {n: first(k)}}}", "", False),
        ("n: {aggregate: {from: x, size: 1 second, exprs: {n: 'max(k) + sum(k)'}}}", "", True),
        ("n: {bsort: {from: x, value: k, buffer: 3}}", "", True),
        (f"{SORT}  n: {{aggregate: {{from: y, size: 1 second, exprs: {{n: count(*)}}}}}}", "", False),
        ("n: {filter: {from: x, predicate: rand() < 0.5}}", "", False),
        ("n: {filter: {from: x, predicate: k > 1}}", ", idle: 1 second", False),
        ("n: {filter: {from: x, predicate: k > 1}}", ", full: drop", False),
    ],
)
def test_what_a_merge_the_clock_or_chance_decide_is_not_known(
    spark: SparkSession, boxes: str, options: str, known: bool
) -> None:
    merge = "  f: {filter: {from: a, predicate: k > 2}}\n  x: {union: {from: [a, f]}}\n  "
    spec = passes.checked(Spec.from_yaml(INPUT.format(options) + f"boxes:\n{merge}{boxes}\noutputs: {{o: n}}"))
    oracle = Oracle(spec, compiled("single", spark), rows)  # it is not asked for rows
    assert shape_of(oracle, cut(spec, ("x",)), "o").known is known
    if "aggregate" in boxes or "bsort" in boxes:  # in one unit, all comes from one stream
        assert shape_of(oracle, cut(spec), "o").known


def test_what_spark_or_a_database_would_do_is_refused(spark: SparkSession) -> None:
    spec, unit = made('boxes:\n  m: {map: {from: a, exprs: {s: "soundex(s)"}}}\noutputs: {o: m}', spark)
    with pytest.raises(DiagramError, match="box 'm' runs in Spark's Catalyst"):
        truth_of(spec, unit, {})
    asks = "{from: a, statement: 'SELECT m FROM t WHERE k = :k', gives: m BIGINT, database: 'sqlite:///x.db'}"
    spec, unit = made(f"boxes:\n  r: {{sql_read: {asks}}}\noutputs: {{o: r}}", spark)
    with pytest.raises(DiagramError, match="a database is no part of a simulation"):
        truth_of(spec, unit, {})
