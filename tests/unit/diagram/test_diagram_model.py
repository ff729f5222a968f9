"""Drawing a diagram, and what follows from its arrows."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from borealis.diagram import Diagram, Input, window
from borealis.diagram.cut import cut, part_of
from borealis.errors import DiagramError

SCHEMA = "ts TIMESTAMP, k STRING, v INT"


def test_the_example_of_the_tour() -> None:
    d = Diagram("traffic")
    packets = d.input("packets", "ts TIMESTAMP, src STRING, dst STRING, bytes INT", time="ts", slack="2 seconds")
    big = packets.filter("bytes > 100").map(src="src", kb="bytes / 1024.0")
    out = big.aggregate(by=["src"], over=window("10 seconds", "1 second"), n="count(*)", kb="sum(kb)")
    assert out.output("per_source") is None  # type: ignore[func-returns-value]
    spec = d.validate()
    assert out.columns == ["src", "window_start", "window_end", "n", "kb"]
    assert [box.name for box in spec.topological()] == ["filter_1", "map_1", "aggregate_1"]
    assert spec.paces() == {"packets": 1_000_000}
    assert spec.columns("packets.late") == spec.columns("packets") == ["ts", "src", "dst", "bytes"]
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert hash(pickle.loads(pickle.dumps(spec))) == hash(spec)


def test_names_are_given_where_none_is() -> None:
    d = Diagram("d")
    a = d.input("filter_2", SCHEMA)
    assert a.filter("v > 0").source == "filter_1"
    assert a.filter("v > 1").source == "filter_3"
    assert a.filter("v > 1", name="mine").source == "mine"
    assert a.map({"name": "v", "self": "v"}, name="m", exprs="k").columns == ["name", "self", "exprs"]
    assert a.aggregate(over="1 second", exprs={"by": "count(*)"}, name="g").columns[-1] == "by"
    assert a.union(a, name="u").source == "u"


def test_a_box_of_every_kind_can_be_named() -> None:
    a = Diagram("d").input("a", SCHEMA)
    named = [
        a.filter("v > 0", name="b0"),
        a.drop(0.5, name="b1"),
        a.union(a, name="b2"),
        a.join(a, on="left.k = right.k", within="1 second", name="b3"),
        a.bsort("v", buffer=3, name="b4"),
        a.sql_read("SELECT n FROM t WHERE k = :k", gives="n INT", name="b5"),
        a.sql_write("INSERT INTO t (k) VALUES (:k)", name="b6"),
        a.map(k="k", name="b7"),
        a.aggregate(over="1 second", n="count(*)", name="b8"),
        a.resample(a, "v", "previous", window="1 second", name="b9"),
        a.with_columns(n="v", name="b10"),
        a.select("k", name="b11"),
        a.drop_columns("k", name="b12"),
    ]
    assert [one.source for one in named] == [f"b{i}" for i in range(13)]
    assert a.route({"name": "v > 0"}, name="r")["name"].source == "r.name"


def test_what_was_meant_as_a_column_called_name_is_refused() -> None:
    a = Diagram("d").input("a", SCHEMA)
    for meant in ("k", "upper(k)"):
        with pytest.raises(DiagramError, match=r"is the name of the box. Hint: a column called name comes in a dict"):
            a.map(name=meant)
    with pytest.raises(DiagramError, match="is the name of the box"):
        a.aggregate(over="1 second", name="count(*)")


def test_columns_are_kept_chosen_and_dropped() -> None:
    a = Diagram("d").input("a", SCHEMA)
    assert a.with_columns({"name": "v"}, v="v + 1").columns == [*a.columns, "name"]
    assert a.select("v", "k", w="v * 2").columns == ["v", "k", "w"]
    assert a.drop_columns("v").columns == [c for c in a.columns if c != "v"]
    for wrong in (lambda: a.select("V"), lambda: a.drop_columns("w")):
        with pytest.raises(DiagramError, match=r"no column '.' \(has: "):
            wrong()


def test_a_failed_addition_leaves_no_trace() -> None:
    d = Diagram("d")
    a = d.input("a", SCHEMA)
    narrow = a.map(k="k")
    before = d.spec
    other = Diagram("e").input("a", SCHEMA)
    wrong: list[Any] = [
        lambda: d.input("a", SCHEMA),
        lambda: a.filter("("),
        lambda: a.map(),
        lambda: a.map(x=1),  # type: ignore[arg-type]
        lambda: a.aggregate(by="kk", over=window("1 s"), n="count(*)"),
        lambda: a.aggregate(by="k", n="count(*)"),
        lambda: a.join(a, on="left.k = right.k"),
        lambda: a.join(a, on="left.k = right.k", within="0 s"),
        lambda: a.join(other, on="left.k = right.k", within="1 s"),
        lambda: a.union(),
        lambda: a.union(other),
        lambda: a.union(narrow),
        lambda: a.late.late,
        lambda: a.output("no name"),
        lambda: d.stream("b"),
    ]
    for add in wrong:
        with pytest.raises(DiagramError) as e:
            add()
        assert e.value.hint or "text" in e.value.message
    assert d.spec is before
    with pytest.raises(DiagramError, match="two inputs are called 'a'"):
        d.input("a", SCHEMA)
    a.output("o")
    with pytest.raises(DiagramError, match="two outputs are called 'o'"):
        a.output("o")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"columns": "k STRING"}, "no time column is named, and there is no TIMESTAMP column"),
        ({"columns": "a TIMESTAMP, b TIMESTAMP"}, "and there are 2 TIMESTAMP columns. Hint: name one as time: a or b"),
        ({"columns": SCHEMA, "time": "tss"}, "no column 'tss' (has: ts, k, v). Hint: did you mean 'ts'?"),
        ({"columns": SCHEMA, "time": "TS"}, "did you mean 'ts'?"),
        ({"columns": SCHEMA, "time": "k"}, "the time column 'k' is STRING"),
        ({"columns": "ts TIMESTAMP_NTZ", "time": "ts"}, "the time column 'ts' is TIMESTAMP_NTZ"),
        ({"columns": SCHEMA, "slack": "much"}, "'much' is not a duration"),
        ({"columns": SCHEMA, "idle": "0 s"}, "'idle' must be more than zero"),
        ({"columns": SCHEMA, "late": "drop"}, "'late': input should be 'keep', 'fail' or 'revise'"),
        ({"columns": SCHEMA, "key": "ts"}, "a key without a history"),
        ({"columns": SCHEMA, "late": "revise"}, "late: revise without a history"),
        ({"columns": SCHEMA, "history": "1 hour"}, "a history that nothing can correct"),
        ({"columns": SCHEMA, "key": "no", "history": "1 hour"}, "no column 'no'"),
        ({"columns": ""}, "no columns"),
    ],
)
def test_wrong_inputs(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DiagramError) as e:
        Input(name="p", **fields)
    assert str(e.value).startswith("input 'p': ")
    assert message in str(e.value)


def test_units_are_connected_pieces() -> None:
    d = Diagram("d")
    a, b, c, e = (d.input(name, SCHEMA) for name in "abce")
    b.union(c).output("bc")
    a.filter("v > 0").output("pos")
    a.late.filter("v > 0").output("late_pos")
    e.output("e")
    spec = d.validate()
    pieces = cut(spec, local=True)
    units = [part_of(spec, piece) for piece in pieces]
    found = zip(pieces, units, strict=True)
    assert [(p.name, [i.name for i in u.inputs], [o.name for o in u.outputs]) for p, u in found] == [
        ("u1", ["a"], ["pos", "late_pos"]),
        ("u2", ["b", "c"], ["bc"]),
        ("u3", ["e"], ["e"]),
    ]
    assert [len(u.boxes) for u in units] == [2, 1, 0]
    assert all(u.name == "d" for u in units)
    assert [piece.boxes for piece in cut(spec)] == [piece.boxes for piece in pieces[:2]]  # and so on a cluster


def paced(*windows: tuple[str, str], within: str = "", every: str | None = None) -> int:
    d = Diagram("d")
    a = d.input("a", SCHEMA, every=every)
    for size, slide in windows:
        a.filter("v > 0").aggregate(over=window(size, slide), n="count(*)")
    if within:
        a.join(d.input("b", SCHEMA), on="left.k = right.k", within=within)
    return d.spec.paces()["a"]


def test_paces() -> None:
    assert paced() == 1_000_000
    assert paced(("10 s", "4 s")) == 2_000_000
    assert paced(("10 s", "10 s"), ("15 s", "15 s")) == 5_000_000
    assert paced(within="10 ms") == 10_000
    assert paced(("10 s", "1 s"), within="30 s") == 1_000_000
    assert paced(("10 s", "1 s"), within="300 ms") == 250_000
    assert paced(("10 s", "1 s"), within="300 ms", every="7 s") == 7_000_000
    assert paced(("3000000019 us", "3000000019 us"), within="1 s") == 1  # a prime has no nearer divisor


def test_lookups_suggest() -> None:
    d = Diagram("d")
    d.input("packets", SCHEMA).filter("v > 0")
    with pytest.raises(DiagramError, match=r"no input 'packet'.*did you mean 'packets'"):
        d.spec.input("packet")
    with pytest.raises(DiagramError, match=r"no box 'filter'.*did you mean 'filter_1'"):
        d.spec.box("filter")
    with pytest.raises(DiagramError, match=r"did you mean 'packets.late'"):
        d.spec.columns("packets.lat")
