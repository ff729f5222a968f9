"""Laws of placement: everything has one place, hints are kept, the rest is balanced, and it is the same every time."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis.coordinator.http_errors import AbsentError
from borealis.coordinator.placement import Load, place
from borealis.diagram.cut import Piece

NODES = st.lists(st.sampled_from([f"node{i}" for i in range(1, 9)]), min_size=1, max_size=8, unique=True)


@st.composite
def loads(draw: st.DrawFn) -> list[Load]:
    return [
        Load(name, draw(st.integers(0, 5)), draw(st.floats(0, 4)), draw(st.integers(1, 8)), draw(st.booleans()))
        for name in draw(NODES)
    ]


@st.composite
def chains(draw: st.DrawFn, nodes: list[str], hints: bool = True) -> tuple[list[Piece], list[str]]:
    """Pieces that read inputs and one another's arrows."""
    inputs = [f"in{i}" for i in range(draw(st.integers(0, 4)))]
    pieces: list[Piece] = []
    for number in range(1, draw(st.integers(0, 10)) + 1):
        late = [name + ".late" for name in inputs]
        sources = st.sampled_from([*inputs, *late, *(p.gives[0] for p in pieces)] or ["none"])
        reads = tuple(draw(st.lists(sources, max_size=3, unique=True)))
        hint = draw(st.none() | st.sampled_from(nodes)) if hints else None
        pieces.append(Piece(name=f"u{number}", boxes=(f"b{number}",), reads=reads, gives=(f"b{number}",), place=hint))
    return pieces, inputs


@given(st.data())
def test_everything_has_one_place_and_hints_are_kept(data: st.DataObject) -> None:
    given_loads = data.draw(loads())
    nodes = [load.name for load in given_loads]
    pieces, inputs = data.draw(chains(nodes))
    places = {name: data.draw(st.sampled_from(nodes)) for name in inputs if data.draw(st.booleans())}
    units, entries = place(pieces, inputs, places, given_loads)
    assert list(units) == [piece.name for piece in pieces]
    assert list(entries) == inputs
    assert {*units.values(), *entries.values()} <= set(nodes)
    for piece in pieces:
        assert piece.place in (None, units[piece.name])
    for name in inputs:
        readers = [p.name for p in pieces if {name, name + ".late"} & set(p.reads)]
        if name in places:
            assert entries[name] == places[name]
        elif readers:
            assert entries[name] == units[readers[0]]


@given(st.data(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(data: st.DataObject, chance: random.Random) -> None:
    given_loads = data.draw(loads())
    pieces, inputs = data.draw(chains([load.name for load in given_loads]))
    shuffled = list(given_loads)
    chance.shuffle(shuffled)
    assert place(pieces, inputs, {}, given_loads) == place(pieces, inputs, {}, shuffled)


@given(st.data())
def test_units_without_hints_are_balanced_over_equal_nodes(data: st.DataObject) -> None:
    nodes = data.draw(NODES)
    pieces, inputs = data.draw(chains(nodes, hints=False))
    units, _ = place(pieces, inputs, {}, [Load(name) for name in nodes])
    count = Counter(dict.fromkeys(nodes, 0))
    count.update(units.values())
    assert max(count.values()) - min(count.values()) <= 1


@given(st.data())
def test_no_other_node_could_have_taken_a_unit_more_cheaply(data: st.DataObject) -> None:
    """Each unit goes where, at that moment, the units per core are fewest among nodes whose Spark works."""
    given_loads = data.draw(loads())
    pieces, inputs = data.draw(chains([load.name for load in given_loads], hints=False))
    units, _ = place(pieces, inputs, {}, given_loads)
    count = Counter({load.name: load.units for load in given_loads})
    able = [load for load in given_loads if load.ready] or given_loads
    cores = {load.name: load.cores for load in given_loads}
    for node in units.values():
        assert node in {load.name for load in able}
        assert all(count[node] * cores[o.name] <= count[o.name] * cores[node] for o in able)
        count[node] += 1


def test_no_node_at_all() -> None:
    with pytest.raises(AbsentError, match="no node to run on"):
        place([], ["in"], {}, [])
