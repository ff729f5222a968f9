"""Cutting: pieces are connected, arrows lead forward, and a place is a wish that cuts only where it must."""

from __future__ import annotations

import pytest

from borealis.diagram import Diagram, window
from borealis.diagram.cut import Piece, cut, even_cuts
from borealis.diagram.spec import Spec
from borealis.errors import DiagramError

COLUMNS = "ts TIMESTAMP, k INT"


def chain() -> Spec:
    d = Diagram("chain")
    stream = d.input("a", COLUMNS).filter("k > 0", name="some").map({"k": "k"}, name="plain")
    stream.aggregate(by="k", over=window("2 seconds"), n="count(*)", name="per_key").output("out")
    return d.validate()


def shape(pieces: list[Piece]) -> list[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]]:
    return [(p.name, p.boxes, p.reads, p.gives) for p in pieces]


def test_a_connected_diagram_is_one_piece() -> None:
    assert shape(cut(chain())) == [("u1", ("some", "plain", "per_key"), ("a",), ("per_key", "u1.errors"))]


def test_a_box_that_is_named_begins_a_new_piece() -> None:
    assert shape(cut(chain(), ["per_key"])) == [
        ("u1", ("some", "plain"), ("a",), ("plain", "u1.errors")),
        ("u2", ("per_key",), ("plain",), ("per_key", "u2.errors")),
    ]


def test_one_place_takes_the_whole_piece_along() -> None:
    pieces = cut(chain(), places={"out": "node2"})
    assert [(p.boxes, p.place) for p in pieces] == [(("some", "plain", "per_key"), "node2")]


def test_neighbours_with_different_places_are_cut_apart() -> None:
    pieces = cut(chain(), places={"some": "node1", "per_key": "node2"})
    assert [(p.boxes, p.place) for p in pieces] == [(("some", "plain"), "node1"), (("per_key",), "node2")]


def test_the_place_of_an_input_is_no_boxs() -> None:
    assert [p.place for p in cut(chain(), places={"a": "node3"})] == [None]


def test_two_inputs_that_never_meet_are_two_pieces() -> None:
    d = Diagram("two")
    for name in ("a", "b"):
        d.input(name, COLUMNS).filter("k > 0", name=f"f{name}").output(f"o{name}")
    assert shape(cut(d.validate())) == [
        ("u1", ("fa",), ("a",), ("fa", "u1.errors")),
        ("u2", ("fb",), ("b",), ("fb", "u2.errors")),
    ]


def test_a_diagram_whose_tuples_shall_not_go_aside_has_no_stream_for_them() -> None:
    d = Diagram("strict", errors="fail")
    d.input("a", COLUMNS).filter("k > 0", name="fa").output("oa")
    assert shape(cut(d.validate())) == [("u1", ("fa",), ("a",), ("fa",))]


def test_a_branch_that_has_the_name_of_a_units_errors_is_refused() -> None:
    d = Diagram("same")
    d.input("a", COLUMNS).route(errors="k > 0", otherwise="rest", name="u1").errors.output("oa")
    with pytest.raises(DiagramError, match=r"'u1\.errors' is the stream of what fails in unit 'u1', and of a box"):
        cut(d.validate())


def test_boxes_that_read_one_input_stay_together_unless_they_are_cut() -> None:
    d = Diagram("fork")
    a = d.input("a", COLUMNS)
    a.filter("k > 0", name="plus").output("p")
    a.filter("k < 0", name="minus").output("m")
    spec = d.validate()
    assert [p.boxes for p in cut(spec)] == [("plus", "minus")]
    assert [p.boxes for p in cut(spec, ["minus"])] == [("plus",), ("minus",)]


def test_late_tuples_are_an_arrow_of_their_own() -> None:
    d = Diagram("late")
    a = d.input("a", COLUMNS)
    a.late.filter("k > 0", name="tardy").output("t")
    a.filter("k > 0", name="prompt").output("p")
    [piece] = cut(d.validate())
    assert piece.reads == ("a", "a.late")
    assert [p.reads for p in cut(d.validate(), ["tardy"])] == [("a.late",), ("a",)]


def test_pieces_never_wait_for_each_other_in_a_circle() -> None:
    """some -> middle -> both, and some -> both: cutting middle out must not put some and both into one piece."""
    d = Diagram("circle")
    some = d.input("a", COLUMNS).filter("k > 0", name="some")
    middle = some.filter("k > 1", name="middle")
    some.union(middle, name="both").output("out")
    pieces = cut(d.validate(), places={"some": "node1", "middle": "node2", "both": "node1"})
    assert [p.boxes for p in pieces] == [("some",), ("middle",), ("both",)]
    assert pieces[2].reads == ("some", "middle")


def test_an_output_of_an_input_needs_no_unit() -> None:
    d = Diagram("mirror")
    d.input("a", COLUMNS).output("same")
    assert cut(d.validate()) == []


def test_even_cuts() -> None:
    assert [p.boxes for p in cut(chain(), even_cuts(chain(), 3))] == [("some",), ("plain",), ("per_key",)]
    assert [p.boxes for p in cut(chain(), even_cuts(chain(), 2))] == [("some", "plain"), ("per_key",)]
    assert even_cuts(chain(), 1) == []


def test_what_is_not_there_cannot_be_cut_or_placed() -> None:
    with pytest.raises(DiagramError, match=r"cannot cut before 'per_kee'.*did you mean 'per_key'"):
        cut(chain(), ["per_kee"])
    with pytest.raises(DiagramError, match="cannot place 'nowhere'"):
        cut(chain(), places={"nowhere": "node1"})
    with pytest.raises(DiagramError, match="placed on node1 and on node2"):
        cut(chain(), places={"per_key": "node1", "out": "node2"})
