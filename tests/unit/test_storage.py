"""Storage by URI: one contract for a directory, for a file system of Arrow's, and for S3 (a server of moto's)."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import fs

from borealis.coordinator.catalog import Catalog
from borealis.coordinator.layout import Layout
from borealis.coordinator.process import Options, serve
from borealis.diagram.protection import Protection
from borealis.errors import ClusterError
from borealis.ha.primary import Want
from borealis.machine import HERE
from borealis.node.parcel import Parcel
from borealis.node.stored import Budget, Stored
from borealis.storage import RemoteDisk, Storage, placed, storage_at
from borealis.trains.commit_point import CommitPoint
from borealis.wire.messages import Guard, UnitOrder

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/bucket", method="PUT")):
            yield f"{host}:{port}"
    finally:
        server.stop()


@pytest.fixture(params=["directory", "arrow", pytest.param("s3", marks=pytest.mark.long)])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    if request.param == "directory":
        return storage_at(str(tmp_path / "kept"))
    if request.param == "arrow":
        below = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
        return Storage("arrow", Path("/kept"), replace(HERE, disk=RemoteDisk(below)))
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    at, name = request.getfixturevalue("s3"), tmp_path.name
    return storage_at(f"s3://bucket/{name}?scheme=http&region=us-east-1&endpoint_override={at}")


def test_a_file_that_grows(storage: Storage) -> None:
    disk, path = storage.machine.disk, storage.root / "a" / "log-1.bin"
    disk.make_directory(path.parent)
    file = disk.append_to(path)
    for piece in (b"one", b"", b"two", b"three"):
        file.write(piece)
        file.sync()
    assert (disk.read(path), disk.size(path), disk.names(path.parent)) == (b"onetwothree", 11, ["log-1.bin"])
    file.truncate(8)
    file.write(b"!")
    file.close()
    assert disk.read(path) == b"onetwoth!"
    again = disk.append_to(path)
    again.write(b"?")
    again.sync()
    again.close()
    assert disk.read(path) == b"onetwoth!?"
    disk.cut(path, 4)
    assert disk.read(path) == b"onet"


def test_whole_files_and_names(storage: Storage) -> None:
    disk, root = storage.machine.disk, storage.root
    disk.make_directory(root / "b")
    assert (disk.names(root / "b"), disk.exists(root / "b" / "x")) == ([], False)
    with pytest.raises(FileNotFoundError):
        disk.read(root / "b" / "x")
    disk.write_whole(root / "b" / "x", b"old")
    disk.write_whole(root / "b" / "x", b"new")
    disk.write_whole(root / "b" / "y", b"")
    assert (disk.read(root / "b" / "x"), disk.read(root / "b" / "y")) == (b"new", b"")
    disk.remove(root / "b" / "y")
    disk.remove(root / "b" / "never")
    assert disk.names(root / "b") == ["x"]
    disk.remove_all(root / "b")
    disk.remove_all(root / "b")
    assert not disk.exists(root / "b" / "x")


def parcel(kind: str, since: int, train: int, incarnation: int) -> Parcel:
    want = Want(kind, train, since, CommitPoint(train, 0, {}, {}))  # type: ignore[arg-type]
    return Parcel("d", "u1", incarnation, want, state={("box", 0): b"x" * 1000 + f"{train}".encode()})


def stored(storage: Storage, incarnation: int) -> Stored:
    guard = Guard(protection=Protection(ha="storage"), incarnation=incarnation)
    order = UnitOrder(diagram="d", unit="u1", yaml="", boxes=["b"], guard=guard, epoch="e-1")
    return Stored(storage, order, Budget(piece_bytes=500))


def test_a_unit_is_found_again(storage: Storage) -> None:
    first = stored(storage, 1)
    assert first.open() is None
    assert first.say(parcel("whole", 0, 0, 1)).verdict == "take"
    for train in (1, 2, 3):
        assert first.say(parcel("delta", train - 1, train, 1)).verdict == "take"
    second = stored(storage, 3)  # the first is not dead: it is held for dead
    history = second.open()
    assert history is not None
    assert [one.want.step.train for one in history] == [0, 1, 2, 3]
    assert first.say(parcel("delta", 3, 4, 1)).verdict == "deposed"
    assert second.say(parcel("delta", 3, 4, 3)).verdict == "take"
    assert second.wants_base()
    second.write_base(4, lambda: parcel("whole", 0, 4, 3))
    second.close()  # waits for the base, which does not rest
    first.close()
    third = stored(storage, 5)
    again = third.open()
    assert again is not None
    assert again.train == 4
    assert list(again)[-1].state == {("box", 0): b"x" * 1000 + b"4"}
    third.erase()
    assert storage.machine.disk.names(storage.root / "units" / "d" / "u1") == []


def test_what_is_no_storage() -> None:
    for uri in ("", "nowhere://x", "file://elsewhere/x"):
        with pytest.raises(ClusterError, match="no storage at"):
            storage_at(uri)


def test_a_directory_is_the_same_for_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert placed("kept") == str(tmp_path / "kept")
    assert storage_at("kept").root == storage_at(f"file://{tmp_path}/kept").root == tmp_path / "kept"


# -- one cluster at a time


@pytest.fixture
def uri(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a store where nothing can be locked."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{tmp_path.name}?scheme=http&region=us-east-1&endpoint_override={s3}"


@pytest.mark.long
def test_a_coordinator_that_answers_keeps_others_out(uri: str, tmp_path: Path) -> None:
    there, address = threading.Event(), list[str]()

    def announce(at: str) -> None:
        address.append(at)
        there.set()

    options = Options(tmp_path / "first.sqlite", port=0, storage=uri)
    first = threading.Thread(target=serve, args=(options, announce), daemon=True)
    first.start()
    assert there.wait(30)
    with pytest.raises(ClusterError, match=f"is in use by the cluster at {re.escape(address[0])}"):
        Catalog(tmp_path / "other.sqlite", storage=storage_at(uri))
    urllib.request.urlopen(urllib.request.Request(f"{address[0]}/v1/shutdown", method="POST")).close()
    first.join(30)
    assert not first.is_alive()
    Catalog(tmp_path / "other.sqlite", storage=storage_at(uri)).close()


@pytest.mark.long
def test_who_has_lost_it_changes_nothing_any_more(uri: str, tmp_path: Path) -> None:
    killed = Catalog(tmp_path / "killed.sqlite", storage=storage_at(uri))
    killed.held_by("http://127.0.0.1:1")
    other = Catalog(tmp_path / "other.sqlite", storage=storage_at(uri))
    other.held_by("http://127.0.0.1:2")
    other.add(Layout("d", "", "running", (), ()))
    with pytest.raises(ClusterError, match=r"belongs to the cluster at http://127\.0\.0\.1:2 now"):
        killed.add(Layout("e", "", "running", (), ()))
    killed.close()
    other.add(Layout("f", "", "running", (), ()))
    other.close()
    with closing(Catalog(tmp_path / "third.sqlite", storage=storage_at(uri))) as third:
        assert [layout.name for layout in third.layouts()] == ["d", "f"]
