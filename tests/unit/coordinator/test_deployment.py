"""Deploying: all of it or nothing, refused before anything is started wherever that can be known."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from stand_ins import Town, Yard, traffic, two_sides

from borealis.coordinator.deployment import deploy, undeploy, warnings
from borealis.coordinator.http_errors import AbsentError, MissingError, TakenError
from borealis.diagram import passes
from borealis.diagram.boxes.filter import Filter
from borealis.diagram.deployment import Deployment
from borealis.diagram.spec import Spec
from borealis.errors import BorealisError, ClusterError, DiagramError, ExpressionError, WireError


@pytest.fixture
def town(tmp_path: Path) -> Town:
    made = Town(tmp_path / "catalog.sqlite")
    made.beat()
    return made


def orders(town: Town) -> dict[str, list[str]]:
    """What each node was ordered, without the check."""
    return {name: [o for o in node.orders if o != "check"] for name, node in town.yard.nodes.items()}


def test_a_diagram_is_one_unit_unless_it_is_cut(town: Town) -> None:
    layout = deploy(town.cluster, Deployment(yaml=traffic()))
    assert layout.state == "running"
    assert [(u.unit, u.boxes, u.reads, u.gives, u.node) for u in layout.units] == [
        ("u1", ("big", "slim", "agg"), ("packets",), ("agg", "u1.errors"), "node1")
    ]
    assert [(e.input, e.node) for e in layout.entries] == [("packets", "node1")]
    assert orders(town)["node1"] == ["start traffic.in-packets", "start traffic.u1"]
    assert town.catalog.layouts() == [layout]
    assert layout.columns["agg"] == "src, window_start, window_end, n"
    assert layout.columns["u1.errors"].startswith("time TIMESTAMP, box STRING, expression STRING")


def test_what_passes_make_of_a_diagram_is_cut_and_deployed(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    def watched(spec: Spec) -> Spec:
        if any(box.name == "agg_seen" for box in spec.boxes):
            return spec
        seen = Filter(name="agg_seen", sources=("agg",), predicate="true")
        outputs = tuple(one.model_copy(update={"source": "agg_seen"}) for one in spec.outputs)
        return spec.model_copy(update={"boxes": (*spec.boxes, seen), "outputs": outputs})

    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES, watched))
    layout = deploy(town.cluster, Deployment(yaml=traffic(), cut=("slim",), ha="passive", guarantee="no-loss"))
    assert [unit.boxes for unit in layout.units] == [("big",), ("slim", "agg", "agg_seen")]
    assert layout.outputs == {"per_source": "agg_seen"}
    assert layout.yaml == traffic()  # users see what they drew
    started = [order for node in town.yard.nodes.values() for order in node.units.values() if order.unit == "u2"]
    assert {tuple(order.boxes) for order in started} == {("slim", "agg", "agg_seen")}
    assert warnings(layout) == []


def test_units_are_told_who_feeds_them_and_whom_they_feed(town: Town) -> None:
    deploy(town.cluster, Deployment(yaml=traffic(), cut=("slim", "agg"), place={"packets": "node3"}))
    addresses = {name: node.address for name, node in town.yard.nodes.items()}
    first, second, third = (town.yard[f"node{i}"].units["traffic", f"u{i}"] for i in (1, 2, 3))
    assert first.feeds == {"traffic/packets": addresses["node3"]}
    assert second.feeds == {"traffic/big": addresses["node1"]}
    assert third.feeds == {"traffic/slim": addresses["node2"]}
    assert (first.readers, second.readers, third.readers) == (
        {"big": ["traffic.u2"], "u1.errors": []},
        {"slim": ["traffic.u3"], "u2.errors": []},
        {"agg": [], "u3.errors": []},
    )
    assert town.catalog.routes() == {
        ("traffic", "u1", "packets"): addresses["node3"],
        ("traffic", "u2", "big"): addresses["node1"],
        ("traffic", "u3", "slim"): addresses["node2"],
    }
    assert town.yard["node3"].orders == ["start traffic.in-packets", "start traffic.u3"]


def test_entries_come_first_and_know_their_readers(town: Town) -> None:
    started = []
    for node in town.yard.nodes.values():
        node.before["start"] = lambda: started.append({s for n in town.yard.nodes.values() for s in n.entries})
    deploy(town.cluster, Deployment(yaml=two_sides(), cut=("both",)))
    assert started == [{"sides/left", "sides/right"}] * 2
    entries = {s: e for n in town.yard.nodes.values() for s, e in n.queues.items()}
    assert dict(entries["sides/left"].status().readers) == {"sides.u1": 0}
    assert dict(entries["sides/right"].status().readers) == {"sides.u2": 0}


def test_pieces_cut_evenly(town: Town) -> None:
    layout = deploy(town.cluster, Deployment(yaml=traffic(), units=3))
    assert [u.node for u in layout.units] == ["node1", "node2", "node3"]
    assert layout.cuts == ("slim", "agg")


def test_load_counts_units_that_heartbeats_do_not_tell_of_yet(town: Town) -> None:
    for number, node in enumerate(("node1", "node2", "node3", "node1"), 1):
        layout = deploy(town.cluster, Deployment(yaml=traffic(f"d{number}")))
        assert [u.node for u in layout.units] == [node]


# -- refused


def test_an_invalid_diagram_is_refused_and_no_node_is_asked(town: Town) -> None:
    for yaml in ("nothing", "borealis: 1\nname: x\n", traffic().replace("predicate: bytes > 10", "predicate: ''")):
        with pytest.raises(DiagramError):
            deploy(town.cluster, Deployment(yaml=yaml))
    with pytest.raises(DiagramError, match="cannot cut before 'aggg'"):
        deploy(town.cluster, Deployment(yaml=traffic(), cut=("aggg",)))
    with pytest.raises(DiagramError, match="cannot place 'nothing'"):
        deploy(town.cluster, Deployment(yaml=traffic(), place={"nothing": "node1"}))
    for name in ("an odd name", "..", "x" * 201):  # nodes have folders for diagrams
        with pytest.raises(DiagramError, match="cannot be deployed"):
            deploy(town.cluster, Deployment(yaml=traffic(name)))
    assert all(node.orders == [] for node in town.yard.nodes.values())


def test_what_does_not_type_is_refused_before_anything_is_started(town: Town) -> None:
    for node in town.yard.nodes.values():
        node.fail["check"] = ExpressionError("no column 'byte'", hint="did you mean 'bytes'?")
    with pytest.raises(ExpressionError, match="no column 'byte'"):
        deploy(town.cluster, Deployment(yaml=traffic()))
    assert orders(town) == {"node1": [], "node2": [], "node3": []}
    assert town.catalog.layouts() == []


def test_a_missing_node_is_refused_with_those_that_are_there(town: Town) -> None:
    with pytest.raises(MissingError) as missing:
        deploy(town.cluster, Deployment(yaml=traffic(), place={"per_source": "node4"}))
    assert missing.value.message == "there is no node 'node4' (nodes are node1, node2, node3)"
    town.beat("node1", "node3", seconds=60)
    with pytest.raises(AbsentError, match="node 'node2' has been silent for") as silent:
        deploy(town.cluster, Deployment(yaml=traffic(), place={"agg": "node2"}))
    assert silent.value.hint == "start it again, or choose another"
    assert missing.value.hint == "start it, or choose one that is there"  # another number is no misspelling
    assert all(node.orders == [] for node in town.yard.nodes.values())


def test_twice_under_one_name_is_refused_and_the_first_runs_on(town: Town) -> None:
    deploy(town.cluster, Deployment(yaml=traffic()))
    before = orders(town)
    with pytest.raises(TakenError, match="there is a diagram 'traffic' already"):
        deploy(town.cluster, Deployment(yaml=traffic()))
    assert orders(town) == before


def test_one_that_replaces_another_begins_where_that_ended(town: Town) -> None:
    """Placed as if the old one were not there; the old one runs on until the new one is known to be sound."""
    first = deploy(town.cluster, Deployment(yaml=traffic(), units=3))
    town.beat()
    before = orders(town)
    for node in town.yard.nodes.values():
        node.fail["check"] = ExpressionError("no column 'byte'")
    with pytest.raises(ExpressionError):
        deploy(town.cluster, Deployment(yaml=traffic(), replace=True))
    for node in town.yard.nodes.values():
        node.fail.clear()
    with pytest.raises(DiagramError):
        deploy(town.cluster, Deployment(yaml=traffic(), cut=("nothing",), replace=True))
    assert orders(town) == before
    assert town.catalog.layouts() == [first]
    queue = town.yard["node1"].queues["traffic/packets"]
    second = deploy(town.cluster, Deployment(yaml=traffic().replace("bytes > 10", "bytes > 20"), replace=True))
    assert [u.node for u in second.units] == ["node1"]
    assert "undeploy traffic" in orders(town)["node3"]
    assert {key for node in town.yard.nodes.values() for key in node.units} == {("traffic", "u1")}
    assert town.yard["node1"].queues["traffic/packets"] is not queue
    assert town.catalog.layouts() == [second]
    assert deploy(town.cluster, Deployment(yaml=traffic("new"), replace=True)).state == "running"  # nothing to replace


def test_twice_at_the_same_time_one_is_refused(town: Town) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        assert go_on.wait(30)

    town.yard["node1"].before["check"] = hold
    done: list[object] = []
    first = threading.Thread(target=lambda: done.append(deploy(town.cluster, Deployment(yaml=traffic()))))
    first.start()
    assert inside.wait(30)
    with pytest.raises(TakenError, match="is being deployed at this moment"):
        deploy(town.cluster, Deployment(yaml=traffic()))
    go_on.set()
    first.join(30)
    assert len(done) == 1


def test_without_nodes_nothing_can_be_deployed(tmp_path: Path) -> None:
    with pytest.raises(AbsentError, match="no node to run on"):
        deploy(Town(tmp_path / "catalog.sqlite").cluster, Deployment(yaml=traffic()))


def test_a_node_whose_spark_failed_gets_nothing(tmp_path: Path) -> None:
    town = Town(tmp_path / "catalog.sqlite", Yard(2))
    town.yard["node1"].spark = "failed"
    town.beat()
    assert deploy(town.cluster, Deployment(yaml=traffic())).units[0].node == "node2"
    town.yard["node2"].spark = "failed"
    town.beat()
    with pytest.raises(AbsentError, match="no node has a Spark"):
        deploy(town.cluster, Deployment(yaml=traffic("other")))


def test_what_this_catalog_does_not_know_is_not_mistaken_for_ours(town: Town, tmp_path: Path) -> None:
    deploy(town.cluster, Deployment(yaml=traffic()))
    fresh = Town(tmp_path / "other.sqlite", town.yard)
    fresh.beat()
    with pytest.raises(TakenError, match="node 'node1' runs a diagram 'traffic' that is not in this catalog"):
        deploy(fresh.cluster, Deployment(yaml=traffic()))
    assert undeploy(fresh.cluster, "traffic") == set()
    assert town.yard["node1"].units == {}


# -- failing in the middle


@pytest.mark.parametrize("action", ["entry", "start"])
@pytest.mark.parametrize("error", [ClusterError("no room here"), WireError("broke off")])
def test_a_failed_order_takes_everything_back(town: Town, action: str, error: BorealisError) -> None:
    town.yard["node2"].fail[action] = error
    places = {"packets": "node2", "big": "node1", "slim": "node2", "agg": "node3"}
    with pytest.raises(type(error), match=error.message):
        deploy(town.cluster, Deployment(yaml=traffic(), place=places))
    assert all(node.units == {} and node.entries == {} for node in town.yard.nodes.values())
    assert town.catalog.layouts() == []
    town.yard["node2"].fail.clear()
    assert deploy(town.cluster, Deployment(yaml=traffic(), place=places)).state == "running"


def test_what_may_have_begun_is_taken_back_too(town: Town) -> None:
    town.yard["node2"].lose["start"] = WireError("did not answer in time")
    with pytest.raises(WireError):
        deploy(town.cluster, Deployment(yaml=traffic(), place={"packets": "node1", "agg": "node2"}))
    assert town.yard["node2"].units == {}


def test_a_node_that_cannot_be_told_is_told_when_it_is_back(town: Town) -> None:
    node = town.yard["node2"]
    node.lose["start"] = WireError("did not answer in time")
    node.fail["undeploy"] = WireError("cannot be reached")
    with pytest.raises(WireError, match="did not answer"):
        deploy(town.cluster, Deployment(yaml=traffic(), place={"agg": "node2"}))
    assert list(node.units) == [("traffic", "u1")]
    assert town.catalog.owed() == {("node2", "traffic")}
    node.lose.clear()
    node.fail.clear()
    layout = deploy(
        town.cluster, Deployment(yaml=traffic(), place={"agg": "node2"})
    )  # dropped first, then started again
    assert node.orders[-3:] == ["undeploy traffic", "start traffic.in-packets", "start traffic.u1"]
    assert layout.state == "running"
    assert town.catalog.owed() == set()


# -- the end


def test_undeploy_stops_it_everywhere(town: Town) -> None:
    deploy(town.cluster, Deployment(yaml=traffic(), units=3))
    deploy(town.cluster, Deployment(yaml=traffic("other")))
    assert undeploy(town.cluster, "traffic") == set()
    assert [layout.name for layout in town.catalog.layouts()] == ["other"]
    assert {key for node in town.yard.nodes.values() for key in node.units} == {("other", "u1")}
    with pytest.raises(MissingError, match=r"no diagram 'traffic' \(there are other\)"):
        undeploy(town.cluster, "traffic")
    deploy(town.cluster, Deployment(yaml=traffic()))
