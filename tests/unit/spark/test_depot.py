"""Files lent to executors elsewhere: what they get, what they are refused, and trains that never name a path."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from borealis import __version__
from borealis.errors import MachineError, WireError
from borealis.kernels.program import TRAIN_TAG, Packet
from borealis.spark import depot as depots
from borealis.spark import worker
from borealis.spark.depot import Depot, Loan
from borealis.spark.worker import LevelOutput
from borealis.state.cache import HELD_MOST, Cache
from borealis.state.delta import Change, Delta, TableSpec, pack
from borealis.state.log import StateLog
from borealis.trains.location import PIECE_BYTES, DepotAddress, ask, check_version, is_there, read
from borealis.trains.notices import NoticeFile, Troubles
from borealis.trains.results import BUCKET, FILE, PAYLOAD, TAG, Arrived
from borealis.wire.auth import Security

LOOPBACK = "127.0.0.1"
SCHEMA = pa.schema([(TAG, pa.int32()), (BUCKET, pa.int32()), (PAYLOAD, pa.binary()), (FILE, pa.string())])


@pytest.fixture
def depot() -> Iterator[Depot]:
    with Depot(LOOPBACK) as one:
        yield one


@pytest.fixture
def loan(depot: Depot, tmp_path: Path) -> Loan:
    root = tmp_path / "unit"
    (root / "trains").mkdir(parents=True)
    (tmp_path / "secret").write_text("not yours")
    return depot.lend(root)


@pytest.mark.parametrize("size", [1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 17])
def test_a_file_arrives_whole_and_aligned(loan: Loan, size: int) -> None:
    data = secrets.token_bytes(size)
    (loan.root / "trains" / "7.a b%.arrow").write_bytes(data)
    got = read(loan.location("trains/7.a b%.arrow"))
    assert got.to_pybytes() == data
    assert got.address % 64 == 0


def test_an_arrow_table_is_read_as_from_a_file(loan: Loan) -> None:
    table = pa.table({"k": np.arange(300_000), "s": [str(i) for i in range(300_000)]})
    path = loan.root / "rows.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    for location in (str(path), loan.location("rows.arrow")):
        with pa.ipc.open_file(read(location)) as reader:
            assert reader.read_all().equals(table)


def test_only_the_units_own_directory_is_lent(loan: Loan, tmp_path: Path) -> None:
    (loan.root / "way_out").symlink_to(tmp_path / "secret")
    for path in ("../secret", "/etc/passwd", str(tmp_path / "secret"), "way_out", "trains", "", "trains/../../secret"):
        with pytest.raises(WireError, match="there is no file"):
            read(loan.location(path))


def test_a_token_is_needed_and_no_message_tells_it(depot: Depot, loan: Loan) -> None:
    (loan.root / "x").write_text("mine")
    wrong = Loan(depot, loan.root, "A" * len(loan.token))
    with pytest.raises(WireError, match="no unit that runs here has this token") as told:
        read(wrong.location("x"))
    assert wrong.token not in str(told.value)
    assert not is_there(wrong.location("state"))
    assert is_there(loan.location("state"))
    depot.take_back(loan.token)
    assert not is_there(loan.location("state"))
    with pytest.raises(WireError, match="no unit that runs here") as told:
        read(loan.location("x"))
    assert loan.token not in str(told.value)


@pytest.mark.parametrize(
    "ticket",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b'{"v": 2, "token": "x", "path": "x"}',
        b'{"v": 1, "token": 5, "path": "x"}',
        b'{"v": 1, "token": "x"}',
        b"[" * 3000,
        json.dumps({"v": 1, "token": "x", "path": "a\0b"}).encode(),
        json.dumps({"v": 1, "token": "x" * 10_000, "path": "x"}).encode(),
    ],
)
def test_what_is_no_ticket_is_refused(depot: Depot, ticket: bytes) -> None:
    with flight.FlightClient(f"grpc+tcp://{LOOPBACK}:{depot.port}") as client:
        with pytest.raises(flight.FlightServerError, match="not a ticket of version 1"):
            client.do_get(flight.Ticket(ticket)).read_all()
        with pytest.raises(flight.FlightServerError, match="not a ticket of version 1"):
            list(client.do_action(flight.Action("there", ticket)))


def test_notices_reach_the_unit_and_nothing_else_can_be_written(loan: Loan) -> None:
    here = NoticeFile(loan.location("troubles/w.0"), 0)
    here.tell("a database is away " * 200)
    troubles = Troubles(loan.root / "troubles")
    assert [text for text, _ in troubles.now()] == [("a database is away " * 200)[:1000]]
    here.tell(None)
    assert troubles.now() == []
    assert NoticeFile(loan.location("troubles/w.0"), 3).given_up() == ""
    here.give_up("too long")
    assert NoticeFile(loan.location("troubles/w.0"), 3).given_up() == "too long"
    before = sorted(loan.root.rglob("*"))
    for path in ("program.json", "troubles/../x", "troubles/.x", "troubles/a/b", "troubles/" + "a" * 300):
        with pytest.raises(flight.FlightServerError, match="not a notice"):
            ask("tell", loan.location(path), text="x")
    with pytest.raises(flight.FlightServerError, match="not a notice"):
        ask("tell", loan.location("troubles/x"), text=5)
    assert sorted(loan.root.rglob("*")) == before
    loan.close()
    here.tell("nobody hears it")  # and nothing happens


def test_nothing_else_can_be_written_or_listed(depot: Depot, loan: Loan) -> None:
    with flight.FlightClient(f"grpc+tcp://{LOOPBACK}:{depot.port}") as client:
        with pytest.raises(NotImplementedError):
            list(client.list_flights())
        with pytest.raises(flight.FlightServerError, match="does not know 'delete'"):
            list(client.do_action(flight.Action("delete", DepotAddress.parse(loan.location("x")).ticket())))
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("x"), pa.schema([("x", pa.int64())]))
        with pytest.raises(NotImplementedError):
            writer.close()
    assert list(loan.root.iterdir()) == [loan.root / "trains"]


def test_a_node_that_is_gone_is_named_with_its_port(tmp_path: Path) -> None:
    with Depot(LOOPBACK) as gone:
        location = gone.lend(tmp_path).location("program.json")
        address = f"{LOOPBACK}:{gone.port}"
    with pytest.raises(WireError, match=f"cannot reach the node of this unit at {address} to read program.json"):
        read(location)
    assert not is_there(location)


def test_a_line_that_was_cut_is_laid_anew(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("one")
    with Depot(LOOPBACK) as first:
        port, token = first.port, first.lend(tmp_path).token
        assert read(f"depot://{LOOPBACK}:{port}/{token}/x").to_pybytes() == b"one"
    with Depot(LOOPBACK, port) as second:
        assert read(second.lend(tmp_path).location("x")).to_pybytes() == b"one"


def test_a_proxy_for_the_world_outside_is_not_asked(
    depot: Depot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://{LOOPBACK}:1")
    (tmp_path / "x").write_text("one")
    assert read(depot.lend(tmp_path).location("x")).to_pybytes() == b"one"


def test_a_port_that_is_taken_is_told(depot: Depot) -> None:
    with pytest.raises(MachineError, match=f"cannot lend files to executors at {LOOPBACK}:{depot.port}"):
        Depot(LOOPBACK, depot.port)


def test_a_train_abroad_names_no_path(loan: Loan) -> None:
    at = str(loan.root)
    train: dict[str, Any] = {
        "train": 3,
        "inputs": {"a": {"time": "ts", "cause": [1, 2], "bound": [], "rows": f"{at}/trains/3.a.arrow", "late": None}},
        "program": f"{at}/program.json",
        "state": f"{at}/state",
        "manifest": {"sums.0": [[0, 2]]},
        "results": f"{at}/results/3",
        "troubles": f"{at}/troubles",
    }
    told = loan.for_remote(train)
    assert at not in json.dumps(told)
    assert told["results"] is None
    assert told["troubles"] == loan.location("troubles")
    assert told["state"] == f"depot://{LOOPBACK}:{loan.depot.port}/{loan.token}/state"
    assert told["inputs"]["a"] == train["inputs"]["a"] | {"rows": loan.location("trains/3.a.arrow")}
    assert {k: told[k] for k in ("train", "manifest")} == {k: train[k] for k in ("train", "manifest")}


def test_an_executor_of_another_version_says_so() -> None:
    check_version({"train": 1})
    check_version({"train": 1, "version": __version__})
    with pytest.raises(MachineError, match=f"this executor has Borealis {__version__}, its node 0.0.1"):
        check_version({"train": 1, "version": "0.0.1"})


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_certificate_is_shown_and_checked(tmp_path: Path) -> None:
    security = _certificates(tmp_path)
    (tmp_path / "program.json").write_text("{}")
    with Depot("localhost", security=security) as one:
        loan = one.lend(tmp_path)
        location = loan.location("program.json")
        assert location.startswith("depots://localhost:")
        with pytest.raises(WireError):
            read(location)  # nobody has said whom to trust
        check_version(loan.for_remote({"program": str(tmp_path / "program.json")}))
        assert read(location).to_pybytes() == b"{}"


def _certificates(home: Path) -> Security:
    made = [
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
    ]
    files = ["-keyout", str(home / "key.pem"), "-out", str(home / "cert.pem")]
    subprocess.run(["openssl", *made, *files], check=True, capture_output=True)
    return Security(cert=home / "cert.pem", key=home / "key.pem", ca=home / "cert.pem")


# -- state


class Sums:
    """A kernel that adds up what deltas put."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}

    def apply(self, delta: Delta) -> None:
        self.rows |= {r["k"]: r["v"] for r in delta["t"].put.to_pylist()}


def test_a_worker_elsewhere_catches_up_by_fetched_deltas(depot: Depot, tmp_path: Path) -> None:
    """Two workers that take turns at random: each fetches what it missed, and never loads the whole twice."""
    fetched: list[str] = []

    def noted(location: str) -> pa.Buffer:
        fetched.append(location)
        return read(location)

    key, root, chance = ("box", 0), depot.lend(tmp_path).location("state"), np.random.default_rng(3)
    workers = [Cache[Sums](noted, is_there) for _ in range(2)]
    log = StateLog(tmp_path / "state", {"box": (TableSpec("t", ("k",)),)})
    for train in range(1, 20):
        worker = workers[int(chance.integers(2))]
        kernel = worker.take(root, key, train - 1, log.manifest().get("box.0", []), Sums)
        assert kernel.rows == {k: k * k for k in range(1, train)}
        delta = {"t": Change(pa.table({"k": [train], "v": [train * train]}))}
        kernel.apply(delta)
        worker.give(root, key, train, kernel)
        log.commit(train, {key: pack(delta)})
    log.close()
    assert [w.reloads for w in workers] == [1, 1]
    assert len(fetched) == len(set(fetched)) == 18  # each delta by the worker that had not made it
    assert all(f.startswith("depot://") for f in fetched)


def test_kernels_of_runs_that_are_over_are_forgotten(depot: Depot, tmp_path: Path) -> None:
    cache, loans = Cache[Sums](read, is_there), [depot.lend(tmp_path) for _ in range(HELD_MOST)]
    for loan in loans:
        cache.give(loan.location("state"), ("box", 0), 1, Sums())
    for loan in loans[1:]:
        depot.take_back(loan.token)
    cache.give(depot.lend(tmp_path).location("state"), ("box", 0), 1, Sums())
    assert len(cache._held) == 2


# -- results that cannot go by way of a file


def test_large_results_pass_in_pieces_and_come_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PIECE_BYTES_MOST", 1000)
    plan = {"train": 4, "results": None}
    sent = [
        Packet(TRAIN_TAG, 0, json.dumps(plan).encode()),
        Packet(5, 0, b"small"),
        Packet(5, 0, bytes(range(250)) * 20),
    ]
    sent += [Packet(6, 1, b"x" * 1000), Packet(6, 1, b"y" * 1001), Packet(6, 1, b"")]
    batches = list(LevelOutput(plan, 0, 0, SCHEMA).packets(sent))
    assert max(b.nbytes for b in batches) < 1200
    assert batches == list(LevelOutput(plan, 0, 0, SCHEMA).packets(sent))  # a second attempt sends the very same
    arrived = Arrived(iter(batches))
    assert arrived.train == plan
    assert [(p.tag, p.bucket, bytes(p.payload)) for p in arrived.packets] == [
        (p.tag, p.bucket, p.payload) for p in sent
    ]
    shuffled = [batches[i] for i in np.random.default_rng(1).permutation(len(batches))]
    assert sorted(bytes(p.payload) for p in Arrived(iter(shuffled)).packets) == sorted(p.payload for p in sent)
    with pytest.raises(WireError, match="of 1 results of a train only pieces came"):
        Arrived(iter(b for b in batches if b.column(FILE)[0].as_py() != batches[2].column(FILE)[0].as_py()))


SETTINGS = {"spark.driver.host": LOOPBACK}


def test_one_depot_for_all_units_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Conf:
        def get(self, name: str, default: str | None = None) -> str | None:
            return SETTINGS.get(name, default)

    class Session:  # what `lend` asks of a session, without a JVM
        conf = Conf()
        sparkContext = type("Context", (), {"master": "spark://elsewhere:7077"})  # noqa: N815 - Spark's name

    a, b = depots.lend(Session(), tmp_path), depots.lend(Session(), tmp_path)
    assert a is not None
    assert b is not None
    assert a.depot is b.depot
    assert a.token != b.token
    a.close()
    assert is_there(b.location("state"))
    b.close()
    assert not is_there(b.location("state"))
    monkeypatch.setitem(SETTINGS, "spark.borealis.depot.port", "http")
    with pytest.raises(MachineError, match=r"spark\.borealis\.depot\.port=http is no port"):
        depots.lend(Session(), tmp_path)
    Session.sparkContext.master = "local[2, 3]"
    assert depots.lend(Session(), tmp_path) is None
