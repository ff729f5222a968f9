"""Route: each branch is a stream of its own, and the first predicate that is true wins."""

from __future__ import annotations

import pytest

from borealis.diagram.cut import cut
from borealis.diagram.model import Diagram, Stream
from borealis.errors import DiagramError


def events() -> Stream:
    return Diagram("alarms").input("events", "ts TIMESTAMP, sev INT, src STRING")


def test_branches_are_streams() -> None:
    branches = events().route(urgent="sev > 7", normal="sev > 3", otherwise="rest")
    assert [s.source for s in branches] == ["route_1.urgent", "route_1.normal", "route_1.rest"]
    assert branches.urgent == branches["urgent"]
    assert branches.rest.columns == ["ts", "sev", "src"]
    with pytest.raises(DiagramError, match=r"no branch 'urgnt'.*did you mean 'urgent'"):
        branches["urgnt"]
    with pytest.raises(DiagramError, match="no branch 'other'"):
        branches.other  # noqa: B018


def test_without_otherwise_the_rest_goes_nowhere() -> None:
    stream = events()
    assert [s.source for s in stream.route(urgent="sev > 7")] == ["route_1.urgent"]
    assert stream.diagram.spec.box("route_1").describe() == "route urgent where sev > 7"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "a route without branches"),
        ({"urgent": "  "}, "the predicate of 'urgent' is empty"),
        ({"urgent": "sev > 7", "otherwise": "urgent"}, "two branches are called 'urgent'"),
        ({"urgent": "sev > 7", "otherwise": "the rest"}, "branch 'the rest' is not a usable name"),
    ],
)
def test_what_is_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(DiagramError, match=message):
        events().route(**arguments)


def test_it_survives_being_written_down() -> None:
    stream = events()
    urgent, rest = stream.route(urgent="sev > 7", otherwise="rest")
    urgent.output("now")
    rest.filter("src > 'a'").output("later")
    again = Diagram.from_yaml(stream.diagram.to_yaml())
    assert again.spec == stream.diagram.spec
    assert again.stream("route_1.rest").columns == ["ts", "sev", "src"]
    with pytest.raises(DiagramError, match="no input or box 'route_1'"):
        again.stream("route_1")


def test_branches_can_be_cut_apart() -> None:
    stream = events()
    urgent, rest = stream.route(urgent="sev > 7", otherwise="rest")
    urgent.map(src="src").output("now")
    rest.filter("src > 'a'").output("later")
    first, now, later = cut(stream.diagram.validate(), cuts=["map_1", "filter_1"])
    assert (first.boxes, first.gives) == (("route_1",), ("route_1.urgent", "route_1.rest", "u1.errors"))
    assert (now.reads, later.reads) == (("route_1.urgent",), ("route_1.rest",))


def test_a_branch_that_nobody_reads_is_no_fault_but_a_route_is() -> None:
    stream = events()
    stream.route(urgent="sev > 7", otherwise="rest").rest.output("later")
    stream.diagram.validate()
    stream.route(urgent="sev > 7")
    with pytest.raises(DiagramError, match="box 'route_2': leads to no output"):
        stream.diagram.validate()


def test_protecting_a_branch_protects_its_box() -> None:
    stream = events()
    stream.route(urgent="sev > 7").urgent.protect(ha="passive").output("now")
    assert [p.name for p in stream.diagram.spec.protection] == ["route_1"]
