"""What `borealis explain` says of classes; it needs no Spark for that."""

from __future__ import annotations

from borealis import Diagram
from borealis.diagram.cut import cut
from borealis.ha.classes import Classified, classify, most_general

COLUMNS = "ts TIMESTAMP, k STRING, v INT"


def classes(d: Diagram) -> list[dict[str, str]]:
    """The class of each box, unit by unit."""
    return [{name: kind for name, (kind, _) in found.why.items()} for found in classified(d)]


def classified(d: Diagram) -> list[Classified]:
    spec = d.validate()
    return [classify(spec, piece) for piece in cut(spec, local=True)]


def test_chance_and_several_streams_make_boxes_arbitrary() -> None:
    d = Diagram("odd")
    a, b = d.input("a", COLUMNS), d.input("b", COLUMNS)
    a.filter("v > 1", name="plain").output("plain")
    a.map(k="k", r="rand()").output("chance")
    a.join(b, on="left.k = right.k", within="1 second", name="both").output("both")
    assert classes(d) == [{"plain": "repeatable", "map_1": "arbitrary", "both": "arbitrary"}]


def test_branches_of_one_stream_are_merged_in_its_order() -> None:
    d = Diagram("branches")
    a = d.input("a", COLUMNS)
    a.filter("v > 1", name="high").union(a.filter("v < 0", name="low"), name="either").output("either")
    d.input("b", COLUMNS).output("as_it_is")
    assert classes(d) == [{"high": "repeatable", "low": "repeatable", "either": "repeatable"}, {}]
    assert most_general(found.kind for found in classified(d)) == "repeatable"
