"""Streams by the names people use."""

from __future__ import annotations

import pytest

from borealis.coordinator.http_errors import AmbiguousError
from borealis.coordinator.layout import Layout, UnitAssignment, entry_point
from borealis.coordinator.naming import find
from borealis.errors import StreamError


def layout(name: str, outputs: dict[str, str] | None = None) -> Layout:
    units = (
        UnitAssignment("u1", ("big", "slim"), ("packets",), ("slim",), "node1"),
        UnitAssignment("u2", ("agg",), ("slim", "packets.late"), ("agg",), "node2"),
    )
    entries = (entry_point("packets", "node3"),)
    return Layout(name, "", "running", units, entries, {"per_source": "agg"} if outputs is None else outputs)


ONE = [layout("traffic")]


@pytest.mark.parametrize(
    ("name", "stream", "node", "entry"),
    [
        ("packets", "traffic/packets", "node3", True),
        ("traffic/packets", "traffic/packets", "node3", True),
        ("packets.late", "traffic/packets.late", "node3", False),
        ("slim", "traffic/slim", "node1", False),
        ("per_source", "traffic/agg", "node2", False),
        ("traffic/per_source", "traffic/agg", "node2", False),
        ("traffic/agg", "traffic/agg", "node2", False),
    ],
)
def test_names(name: str, stream: str, node: str, entry: bool) -> None:
    found = find(ONE, name)
    assert (found.stream, found.node, found.entry) == (stream, node, entry)


def test_a_bare_name_that_two_diagrams_have_is_refused_with_both() -> None:
    two = [layout("traffic"), layout("test")]
    with pytest.raises(AmbiguousError) as several:
        find(two, "per_source")
    assert several.value.hint == "say which: test/per_source or traffic/per_source"
    assert find(two, "test/per_source").stream == "test/agg"


def test_an_output_may_have_the_name_of_another_arrow() -> None:
    odd = [layout("traffic", {"slim": "agg"})]
    assert find(odd, "traffic/slim").stream == "traffic/slim", "a full name is an arrow's first"
    with pytest.raises(AmbiguousError, match="say which: traffic/agg or traffic/slim"):
        find(odd, "slim")


def test_an_output_may_have_the_name_of_a_box_inside() -> None:
    odd = [layout("traffic", {"big": "agg"})]
    assert find(odd, "big").stream == "traffic/agg"
    assert find(odd, "traffic/big").stream == "traffic/agg"


@pytest.mark.parametrize("name", ["packets", "traffic/packets"])
def test_where_nothing_is_deployed_the_hint_says_how(name: str) -> None:
    with pytest.raises(StreamError, match=f"there is no stream '{name}': no diagram is deployed") as refused:
        find([], name)
    assert refused.value.hint == "deploy one first: borealis deploy DIAGRAM"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("packet", "there is no stream 'packet' (there are: agg, packets, packets.late, per_source, slim)", "packets"),
        ("trafic/agg", "there is no stream 'trafic/agg': no diagram 'trafic' is deployed", "traffic"),
        ("traffic/ag", "there is no stream 'traffic/ag' (there are:", "agg"),
        ("big", "'traffic/big' stays inside unit 'u1' and cannot be read from outside", "output"),
        ("traffic/big", "'traffic/big' stays inside unit 'u1'", "cut"),
        ("", "there is no stream ''", ""),
        ("/", "there is no stream '/'", ""),
    ],
)
def test_what_is_not_there(name: str, message: str, hint: str) -> None:
    with pytest.raises(StreamError) as missing:
        find(ONE, name)
    assert missing.value.message.startswith(message)
    assert hint in missing.value.hint
