"""The status has one form: as the coordinator builds it, over REST, for clients and for the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from served import Served
from stand_ins import Town, traffic

import borealis
from borealis.cli.ending import run_app
from borealis.cli.streams import described
from borealis.coordinator.deployment import deploy
from borealis.coordinator.status import nodes_view, streams_view, units_view
from borealis.diagram.deployment import Deployment
from borealis.errors import WireError
from borealis.wire.status import ClusterStatus, StreamView, UnitView, View

NODE = {"node", "alive", "state", "address", "http", "host", "pid", "spark", "incarnation"}
HEARD = NODE | {
    "master", "warm", "cores", "units", "standbys", "busy", "silent_s", "started", "version", "pool"
}  # fmt: skip
UNIT = {"diagram", "unit", "node", "boxes", "reads", "gives", "moving_to", "protection", "state", "error", "waiting"}
MEASURED = UNIT | {
    "trains", "trains_per_s", "train_ms", "rows_in", "rows_out", "rows_in_per_s", "rows_out_per_s", "state_bytes",
    "lag_rows", "inputs", "jumps", "boundary", "ended", "errors", "last_error", "refused", "runs", "fork", "hinders",
    "given_up", "busy_s",
}  # fmt: skip
STREAM = {"stream", "diagram", "arrow", "outputs", "columns", "entry", "node", "alive", "address", "backup"}
QUEUE = STREAM | {
    "epoch", "first_id", "next_id", "rows_per_s", "held_rows", "held_bytes", "dropped", "late", "readers", "boundary",
    "ended",
}  # fmt: skip


def keys(view: View) -> set[str]:
    return set(json.loads(view.model_dump_json()))


def test_what_is_not_known_is_no_key_of_the_json(tmp_path: Path) -> None:
    town = Town(tmp_path / "catalog.sqlite")
    town.beat()
    deploy(town.cluster, Deployment(yaml=traffic()))
    town.beat()
    [unit] = units_view(town.cluster)
    assert (keys(unit), unit.measured) == (MEASURED, True)
    assert [keys(node) for node in nodes_view(town.cluster)] == [HEARD] * 3
    streams = streams_view(town.cluster)
    assert [keys(stream) for stream in streams] == [QUEUE | ({"protection"} if s.entry else set()) for s in streams]
    again = town.restart()
    [unit] = units_view(again.cluster)
    assert (keys(unit), unit.state, unit.rows_in, unit.measured) == (UNIT, "awaited", 0, False)
    assert [keys(node) for node in nodes_view(again.cluster)] == [NODE | {"seen"}] * 3
    assert {keys(stream) <= STREAM | {"protection"} for stream in streams_view(again.cluster)} == {True}


def test_rest_clients_and_the_command_line_say_the_same(
    served: Served, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def calm(status: dict[str, Any]) -> dict[str, Any]:
        """Without what changes from one moment to the next."""
        status["coordinator"].pop("looks")
        for node in status["nodes"]:
            node.pop("silent_s")
        return status

    for name in served.nodes:
        served.beat(name)
    over_rest = calm(served.http.get("/v1/status").json())
    with borealis.connect(served.address) as client:
        status = client.status()
        assert [node.node for node in client.nodes()] == ["node1", "node2"]
        assert {stream.stream for stream in client.streams()} >= {"traffic/packets", "traffic/agg"}
    assert isinstance(status, ClusterStatus)
    assert {unit.node for unit in status.units} <= {"node1", "node2"}
    assert {unit.state for unit in status.units} == {"running"}
    assert calm(status.model_dump()) == over_rest
    monkeypatch.setenv("BOREALIS_COORDINATOR", served.address)
    assert run_app(["status", "--json"]) == 0
    assert calm(json.loads(capfd.readouterr().out)) == over_rest
    assert run_app(["ls", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == over_rest["streams"]
    assert run_app(["describe", "packets", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == next(s for s in over_rest["streams"] if s["arrow"] == "packets")

    async def ask() -> ClusterStatus:
        async with borealis.connect_async(served.address) as cluster:
            return await cluster.status()

    assert calm(asyncio.run(ask()).model_dump()) == over_rest


def test_openapi_shows_the_forms(served: Served) -> None:
    described = served.http.get("/openapi.json").json()
    forms = described["components"]["schemas"]

    def answer(path: str, method: str = "get", status: str = "200") -> str:
        content = described["paths"][path][method]["responses"][status]["content"]
        return str(content["application/json"]["schema"]["$ref"]).rpartition("/")[2]

    assert answer("/v1/status") == "ClusterStatus"
    assert answer("/v1/diagrams", "post", "201") == "Deployed"
    paths = ("health", "diagrams", "diagrams/{name}", "nodes", "streams", "locate")
    found = [answer(f"/v1/{path}") for path in paths]
    assert found == ["Health", "DiagramList", "DiagramDetails", "NodeList", "StreamList", "Location"]
    assert set(forms["ClusterStatus"]["properties"]) == set(served.http.get("/v1/status").json())
    assert forms["ClusterStatus"]["properties"]["units"]["items"]["$ref"].endswith("/UnitView")
    assert set(forms["UnitView"]["properties"]) >= MEASURED
    assert "orphan" in forms["UnitView"]["properties"]["state"]["enum"]
    for one in described["paths"].values():
        for operation in one.values():
            assert operation["responses"], "every request says what it answers"


def test_a_client_reads_what_a_newer_coordinator_says_and_refuses_what_makes_no_sense() -> None:
    facts = {"diagram": "d", "unit": "u", "node": "n", "state": "running"}
    assert UnitView.model_validate(facts | {"moons": 2}).model_dump() == facts
    with pytest.raises(WireError, match=r"bad ClusterStatus: nodes: Field required"):
        ClusterStatus.decode({"v": 1})
    with pytest.raises(WireError, match="a ClusterStatus of version 2"):
        ClusterStatus.decode({"v": 2})


def test_a_stream_in_words() -> None:
    where = {"node": "n1", "alive": True, "address": None, "backup": None}
    facts = {"stream": "d/a", "diagram": "d", "arrow": "a", "entry": True, "outputs": [], "columns": "n INT"} | where
    unknown = StreamView.model_validate(facts)
    assert described(unknown) == [("kind", "input"), ("columns", "n INT"), ("served by", "n1")]
    queue = {"epoch": "e", "next_id": 1200, "first_id": 1000, "held_rows": 200, "held_bytes": 10, "late": 3}
    known = StreamView.model_validate(facts | queue | {"ended": False, "readers": {"ada": 1100}, "alive": False})
    assert described(known)[2:] == [
        ("served by", "n1 (away)"),
        ("tuples", "1,200, 0.0 per s"),
        ("held", "200 tuples from id 1,000, 10 B"),
        ("late", "3"),
        ("state", "open"),
        ("reader", "ada, 100 behind"),
    ]
