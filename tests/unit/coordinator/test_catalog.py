"""The catalog: what was written is there after a restart, and one coordinator at a time has it."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from borealis.coordinator.catalog import VERSION, Catalog
from borealis.coordinator.http_errors import TakenError
from borealis.coordinator.layout import Layout, UnitAssignment, entry_point
from borealis.diagram.protection import Protection
from borealis.disk import LocalDisk
from borealis.errors import ClusterError
from borealis.machine import Machine
from borealis.storage import storage_at
from borealis.wire.status import NodeView

LAYOUT = Layout(
    name="traffic",
    yaml="borealis: 1",
    state="running",
    units=(
        UnitAssignment("u2", ("big",), ("packets",), ("big",), "node2"),
        UnitAssignment("u1", ("agg", "x"), ("big", "packets.late"), ("agg",), "node1", "node3"),
    ),
    entries=(entry_point("packets", "node2"), entry_point("alarms", "node1")),
    outputs={"per_source": "agg", "again": "agg"},
    cuts=("agg",),
    places={"agg": "node1"},
    buckets=4,
    columns={"agg": "src STRING"},
    since=12.5,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "catalog.sqlite"


def test_a_layout_comes_back_as_it_was(path: Path) -> None:
    first = Catalog(path)
    first.add(LAYOUT)
    first.close()
    again = Catalog(path)
    assert again.layouts() == [LAYOUT]
    assert again.layout("traffic") == LAYOUT
    assert again.layout("other") is None
    again.close()


def test_two_of_one_name_are_refused_and_the_first_stays(path: Path) -> None:
    catalog = Catalog(path)
    catalog.add(LAYOUT)
    other = Layout("traffic", "other", "deploying", (), ())
    with pytest.raises(TakenError, match="already"):
        catalog.add(other)
    assert catalog.layouts() == [LAYOUT]


def test_a_removed_diagram_leaves_nothing_but_its_name(path: Path) -> None:
    catalog = Catalog(path)
    catalog.add(LAYOUT)
    catalog.route("traffic", "u1", {"big": "grpc://a:1"})
    catalog.remove("traffic", unreached=["node2"])
    assert catalog.layouts() == []
    assert catalog.past() == {"traffic"}
    assert catalog.owed() == {("node2", "traffic")}
    catalog.settled("node2", "traffic")
    assert catalog.owed() == set()
    catalog.add(LAYOUT)
    assert catalog.past() == set()
    assert catalog.routes() == {}


def test_moving_and_moved(path: Path) -> None:
    catalog = Catalog(path)
    catalog.add(LAYOUT)
    catalog.moving("traffic", "u2", "node3")
    assert [u.moving_to for u in catalog.layouts()[0].units] == ["node3", "node3"]
    catalog.moved("traffic", "u2", "node3", 1)
    unit = catalog.layouts()[0].part("u2")
    assert unit is not None
    assert (unit.node, unit.moving_to) == ("node3", None)


def test_routes_are_kept_by_unit_and_arrow(path: Path) -> None:
    catalog = Catalog(path)
    catalog.add(LAYOUT)
    catalog.route("traffic", "u1", {"big": "grpc://a:1", "packets.late": "grpc://a:1"})
    catalog.route("traffic", "u1", {"big": "grpc://b:2"})
    assert catalog.routes() == {
        ("traffic", "u1", "big"): "grpc://b:2",
        ("traffic", "u1", "packets.late"): "grpc://a:1",
    }


def test_nodes_are_remembered_and_forgotten(path: Path) -> None:
    catalog = Catalog(path)
    facts = {"node": "node1", "http": "http://a:2", "host": "a", "alive": False, "state": "awaited", "spark": "unknown"}
    catalog.saw(NodeView(**facts, incarnation="i1", address="grpc://a:1", pid=7, seen=1.5))
    again = NodeView(**facts, incarnation="i2", address="grpc://a:9", pid=8, seen=2.5)
    catalog.saw(again)
    assert catalog.nodes() == [again]
    catalog.forget("node1")
    assert catalog.nodes() == []


def test_a_second_coordinator_is_refused_and_learns_which_has_it(path: Path) -> None:
    first = Catalog(path)
    first.held_by("http://127.0.0.1:7470")
    with pytest.raises(ClusterError) as refused:
        Catalog(path)
    assert str(path) in refused.value.message
    assert f"pid {os.getpid()}, http://127.0.0.1:7470" in refused.value.message
    first.add(LAYOUT)  # the one that has it is not disturbed
    first.close()
    Catalog(path).close()


def test_a_storage_is_of_one_cluster_at_a_time(path: Path, tmp_path: Path) -> None:
    storage, other = storage_at(str(tmp_path / "kept")), tmp_path / "other.sqlite"
    first = Catalog(path, storage=storage)
    first.add(LAYOUT)
    with pytest.raises(ClusterError, match="is in use by another cluster"):
        Catalog(other, storage=storage)
    first.close()
    second = Catalog(other, storage=storage)
    assert second.layouts() == [LAYOUT], "what another cluster has left there"
    second.close()


def test_the_lock_is_free_after_a_failed_start(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database, but long enough to look like a file of one" * 20)
    for _ in range(2):
        with pytest.raises(ClusterError, match="damaged or no catalog"):
            Catalog(path)


def test_another_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine (a)")
    with pytest.raises(ClusterError, match="no catalog of Borealis"):
        Catalog(path)
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]


@pytest.mark.parametrize("version", [1, VERSION - 1, VERSION + 1])
def test_a_catalog_of_another_version_is_refused(path: Path, version: int) -> None:
    Catalog(path).close()
    with sqlite3.connect(path) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (VERSION,)
        file.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(ClusterError, match=f"is of version {version}") as refused:
        Catalog(path)
    assert f"reads version {VERSION}" in refused.value.hint


def test_a_layout_that_is_damaged_is_told(path: Path) -> None:
    catalog = Catalog(path)
    catalog.add(LAYOUT)
    with catalog._writing() as db:
        db.execute("UPDATE diagrams SET layout = replace(layout, 'running', 'walking')")
    with pytest.raises(ClusterError, match="damaged or no catalog"):
        catalog.layouts()


def test_protection_comes_back_as_it_was(path: Path) -> None:
    kept = Protection(ha="active", guarantee="no-loss", interval="50 ms", ping="20 ms", misses=5, patience="900 ms")
    unit = UnitAssignment("u1", ("a",), ("p",), ("a",), "node1", None, kept, "node2", "node3", 7, 3)
    entry = replace(entry_point("p", "node1", kept), backup="node3", was="node2", incarnation=4, lives=2)
    layout = Layout("traffic", "borealis: 1", "running", (unit,), (entry,), epoch="abc")
    catalog = Catalog(path)
    catalog.add(layout)
    catalog.close()
    assert Catalog(path).layouts() == [layout]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match="cannot use catalog"):
        Catalog(tmp_path / "file" / "catalog.sqlite")


def test_what_a_killed_coordinator_had_not_committed_is_not_there(path: Path) -> None:
    """On a disk whose databases outlive their users."""

    class Outliving(LocalDisk):
        def __init__(self) -> None:
            self.kept = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)

        def database(self, path: Path) -> sqlite3.Connection:
            return self.kept

    machine = Machine(disk=Outliving())
    killed = Catalog(path, machine)
    killed.add(LAYOUT)
    killed._db.execute("BEGIN IMMEDIATE")
    killed._db.execute("DELETE FROM diagrams")
    killed._lock.close()
    again = Catalog(path, machine)
    assert again.layouts() == [LAYOUT]
    again.set_state("traffic", "undeploying")
    assert again.layouts()[0].state == "undeploying"
