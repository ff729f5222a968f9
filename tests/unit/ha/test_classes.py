"""The class of a unit, and how far back its state reaches."""

from __future__ import annotations

import pytest

from borealis.diagram import Diagram, Spec, window
from borealis.diagram.cut import Piece, cut
from borealis.diagram.protection import Protection
from borealis.errors import DiagramError
from borealis.ha.classes import Classified, classify
from borealis.ha.guarantees import check_guarantee
from borealis.ha.retention import retention_horizon, retention_of
from borealis.tuples import LAST_TIME

COLUMNS = "ts TIMESTAMP, k INT, v INT"
SECOND = 1_000_000


def units(d: Diagram, *cuts: str) -> tuple[Spec, list[Piece]]:
    spec = d.validate()
    return spec, cut(spec, cuts)


def only(d: Diagram) -> Classified:
    spec, [piece] = units(d)
    return classify(spec, piece)


def kinds(found: Classified) -> dict[str, str]:
    return {name: kind for name, (kind, _) in found.why.items()}


def test_a_chain_has_the_weakest_class_of_its_boxes() -> None:
    d = Diagram("chain")
    some = d.input("a", COLUMNS).filter("k > 0", name="some").map({"k": "k"}, name="plain")
    some.output("some")
    spec, [piece] = units(d)
    assert classify(spec, piece).kind == "repeatable"
    some.aggregate(by="k", over=window("2 seconds"), n="count(*)", name="per_key").output("out")
    found = only(d)
    assert (found.kind, found.streams, found.random_boxes, found.nondeterministic) == (
        "convergent-capable",
        1,
        (),
        False,
    )
    assert kinds(found) == {"some": "repeatable", "plain": "repeatable", "per_key": "convergent-capable"}
    assert all(why for _, why in found.why.values())


def test_a_union_of_one_stream_is_repeatable() -> None:
    d = Diagram("one")
    a = d.input("a", COLUMNS)
    a.filter("k > 0").union(a.filter("v > 0"), name="both").join(a, on="left.k = right.k", within="1 s").output("out")
    found = only(d)
    assert found.kind == "repeatable"
    assert found.why["both"] == (
        "repeatable",
        "all it merges comes from one stream, a, in the order of that",
    )


def test_where_streams_meet_all_that_follows_is_arbitrary() -> None:
    d = Diagram("two")
    a, b = (d.input(name, COLUMNS) for name in "ab")
    pairs = a.filter("k > 0", name="some").join(b, on="left.k = right.k", within="1 s", name="pairs")
    pairs.aggregate(by="k", over=window("1 s"), n="count(*)", name="per").output("out")
    found = only(d)
    assert (found.kind, found.streams) == ("arbitrary", 2)
    assert kinds(found) == {"some": "repeatable", "pairs": "arbitrary", "per": "arbitrary"}
    assert found.why["pairs"][1] == "a and b meet here as they arrive"
    assert found.why["per"][1] == "a and b are merged before it as they arrive"
    spec, pieces = units(d, "per")
    assert [classify(spec, piece).kind for piece in pieces] == ["arbitrary", "convergent-capable"]


def test_streams_that_are_read_by_time_are_as_one() -> None:
    d = Diagram("two")
    a, b = (d.input(name, COLUMNS) for name in "ab")
    pairs = a.filter("k > 0", name="some").join(b, on="left.k = right.k", within="1 s", name="pairs")
    pairs.aggregate(by="k", over=window("1 s"), n="count(*)", name="per").output("out")
    a.union(b, name="both").map({"k": "rand()"}, name="dice").output("chance")
    spec, [piece] = units(d)
    found = classify(spec, piece, Protection(ha="active", merge="time"))
    expected = {"some": "repeatable", "pairs": "repeatable", "per": "convergent-capable", "both": "repeatable"}
    assert kinds(found) == expected | {"dice": "arbitrary"}
    assert found.why["both"][1] == "a and b are read by time, in an order of their own"
    assert kinds(classify(spec, piece, Protection(ha="active")))["both"] == "arbitrary"


def test_a_stream_without_boundaries_cannot_be_read_by_time_beside_others() -> None:
    d = Diagram("tardy")
    a = d.input("a", COLUMNS, late="keep")
    a.filter("k > 0", name="some").output("some")
    a.late.filter("k > 0", name="tardy").output("tardy")
    protection = Protection(ha="active", merge="time")
    spec, [piece] = units(d)
    with pytest.raises(DiagramError, match=r"would wait for 'a.late', .*--cut tardy"):
        check_guarantee(protection, classify(spec, piece, protection))
    check_guarantee(Protection(ha="active"), classify(spec, piece))
    for piece in units(d, "tardy")[1]:
        check_guarantee(protection, classify(spec, piece, protection))


def test_what_is_written_must_come_again() -> None:
    d = Diagram("billing")
    a, b = (d.input(name, COLUMNS) for name in "ab")
    written = a.union(b).sql_write("INSERT INTO t VALUES (:k)", database="sqlite:///t.db", name="billed")
    written.output("out")
    assert only(d).unsafe_effects == ("billed",)
    spec, [piece] = units(d)
    assert classify(spec, piece, Protection(ha="passive", merge="time")).unsafe_effects == ()
    spec, pieces = units(d, "billed")
    assert [classify(spec, piece).unsafe_effects for piece in pieces] == [(), ()]
    d = Diagram("chance")
    some = d.input("a", COLUMNS).sql_write("INSERT INTO t VALUES (:k)", database="sqlite:///t.db", name="before")
    some = some.filter("rand() < 0.5").filter("k > 0")
    some.sql_write("INSERT INTO t VALUES (:k)", database="sqlite:///t.db", name="after").output("out")
    assert only(d).unsafe_effects == ("after",)


def test_late_tuples_are_a_stream_of_their_own() -> None:
    d = Diagram("late")
    a = d.input("a", COLUMNS)
    a.filter("k > 0", name="good").output("out")
    a.late.filter("k > 0", name="bad").output("tardy")
    found = only(d)
    assert (found.kind, found.streams) == ("repeatable", 2)  # two streams, but nothing that both reach
    a.union(a.late, name="both").output("all")
    assert kinds(only(d)) == {"good": "repeatable", "bad": "repeatable", "both": "arbitrary"}


@pytest.mark.parametrize(
    ("expression", "chance"),
    [
        ("rand() < 0.5", True),
        ("k > 0 AND Rand(42) < 0.5", True),
        ("`uuid` ( ) > 'a'", True),
        ("ts < current_timestamp", True),
        ("ts < current_timestamp()", True),
        ("unix_timestamp() > k", True),
        ("unix_timestamp(ts) > k", False),
        ("'rand()' > 'a'", False),
        ("k > 0 -- rand()", False),
        ("k.rand > 0", False),
    ],
)
def test_chance_and_the_clock_make_a_box_arbitrary(expression: str, chance: bool) -> None:
    d = Diagram("chance")
    d.input("a", COLUMNS).filter(expression, name="some").output("out")
    found = only(d)
    assert found.kind == ("arbitrary" if chance else "repeatable")
    assert found.random_boxes == (("some",) if chance else ())


# -- how far back


def test_boxes_in_a_row_add_up_and_the_longest_way_counts() -> None:
    d = Diagram("long")
    a, b = (d.input(name, COLUMNS) for name in "ab")
    per = a.aggregate(by="k", over=window("10 s", "3 s"), v="sum(v)").map(k="k", v="v")
    pairs = per.join(b, on="left.k = right.k", within="2 s").map(k="k", v="v")
    pairs.aggregate(by="k", over=window("1 s", "5 s"), n="count(*)").output("out")
    a.filter("k > 0").output("other")
    spec, [piece] = units(d)
    assert retention_of(spec, piece) == {"a": 13 * SECOND, "b": 3 * SECOND}
    assert classify(spec, piece).retention == retention_of(spec, piece)


def test_a_unit_without_state_needs_nothing() -> None:
    d = Diagram("none")
    a = d.input("a", COLUMNS)
    a.union(a.late).filter("k > 0", name="some").output("out")
    spec, [piece] = units(d)
    assert retention_of(spec, piece) == {"a": 0, "a.late": 0}
    assert retention_horizon(spec, piece, {"some": 5}) == {"a": LAST_TIME, "a.late": LAST_TIME}


def test_state_made_of_late_tuples_reaches_back_for_ever() -> None:
    d = Diagram("late")
    a = d.input("a", COLUMNS)
    a.late.filter("k > 0", name="bad").join(a, on="left.k = right.k", within="1 s", name="pairs").output("out")
    spec, [piece] = units(d)
    assert retention_of(spec, piece) == {"a": None, "a.late": None}
    spec, [first, second] = units(d, "pairs")  # also where it comes from another unit
    assert retention_of(spec, first) == {"a.late": 0}
    assert retention_of(spec, second) == {"a": None, "bad": None}
    assert retention_horizon(spec, second, {"pairs": 5}) == {"a": None, "bad": None}


def test_each_outlet_has_its_boundary() -> None:
    d = Diagram("fork")
    a = d.input("a", COLUMNS)
    a.aggregate(by="k", over=window("10 s"), n="count(*)", name="per").output("out")
    a.late.filter("k > 0", name="bad").output("tardy")  # has no boundary before the end
    spec, [piece] = units(d)
    assert retention_of(spec, piece) == {"a": 10 * SECOND, "a.late": 0}
    found = retention_horizon(spec, piece, {"per": 30 * SECOND, "bad": -(2**63)})
    assert found == {"a": 20 * SECOND, "a.late": LAST_TIME}


def test_where_rows_come_again_a_unit_is_what_its_history_is() -> None:
    d = Diagram("again")
    a = d.input("a", COLUMNS, key="k", history="1 hour").filter("v > 1", name="some")
    windows = a.aggregate(over=window("2 seconds"), most="max(v)", history_at="a", name="windows")
    windows.filter("most > 3", name="behind").output("o")
    spec, [first, second] = units(d, "behind")
    found = classify(spec, first)
    classes = {"a~history": "deterministic", "some": "repeatable", "some~again~windows": "repeatable"}
    assert kinds(found) == classes | {"windows": "convergent-capable"}
    assert (found.kind, found.streams, found.retention) == ("deterministic", 1, {"a": None})
    assert retention_of(spec, second) == {"windows": 0}
