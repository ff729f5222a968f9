"""The REST of the coordinator: what it answers, and how it refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Response
from prometheus_client.parser import text_string_to_metric_families
from stand_ins import Town, traffic, two_sides

from borealis import __version__
from borealis.coordinator.app import AppOptions, create_app
from borealis.coordinator.coordinator import Coordinator
from borealis.coordinator.http_auth import BODY_BYTES_MOST
from borealis.coordinator.membership import Member
from borealis.errors import ExpressionError, WireError
from borealis.gateway.stream_api import gateway
from borealis.streams.status import QueueStatus
from borealis.wire.messages import LogStatus, Problem, UnitStatus, Waiting


class Http:
    """Requests to an application in this process, each in a loop of its own."""

    def __init__(self, app: FastAPI, client: str = "127.0.0.1") -> None:
        self._way = ASGITransport(app, raise_app_exceptions=False, client=(client, 50_000))

    def request(self, method: str, path: str, **more: Any) -> Response:
        async def ask() -> Response:
            async with AsyncClient(transport=self._way, base_url="http://127.0.0.1") as http:
                return await http.request(method, path, **more)

        return asyncio.run(ask())

    def get(self, path: str, **more: Any) -> Response:
        return self.request("GET", path, **more)

    def post(self, path: str, **more: Any) -> Response:
        return self.request("POST", path, **more)

    def delete(self, path: str) -> Response:
        return self.request("DELETE", path)


class Rest(Town):
    """A town with its REST."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path)
        self.ended = 0
        self.app = create_app(Coordinator(self.cluster), AppOptions(**options, parts=[gateway]), end=self._end)
        self.http = Http(self.app)

    def _end(self) -> None:
        self.ended += 1

    def deploy(self, yaml: str | None = None, **more: Any) -> Response:
        return self.http.post("/v1/diagrams", json={"yaml": yaml or traffic(), **more})


@pytest.fixture
def town(tmp_path: Path) -> Rest:
    made = Rest(tmp_path / "catalog.sqlite")
    made.beat()
    return made


def problem(answer: Response, status: int, kind: str) -> Problem:
    assert answer.status_code == status, answer.text
    found = Problem.decode(answer.content)
    assert found.kind == kind
    return found


# -- diagrams


def test_deploy_look_and_undeploy(town: Rest) -> None:
    made = town.deploy(units=3, buckets=2)
    assert made.status_code == 201
    assert made.json()["units"] == {"u1": "node1", "u2": "node2", "u3": "node3"}
    assert town.yard["node1"].units["traffic", "u1"].buckets == 2
    town.beat()
    [listed] = town.http.get("/v1/diagrams").json()["diagrams"]
    assert (listed["diagram"], listed["state"]) == ("traffic", "running")
    one = town.http.get("/v1/diagrams/traffic").json()
    assert one["yaml"] == traffic()
    assert [unit["state"] for unit in one["running"]] == ["running"] * 3
    assert [s["stream"] for s in one["streams"] if s["outputs"]] == ["traffic/agg"]
    gone = town.http.delete("/v1/diagrams/traffic")
    assert gone.json() == {"v": 1, "diagram": "traffic", "untold": []}
    assert problem(town.http.get("/v1/diagrams/traffic"), 404, "ClusterError").message.startswith("there is no diagram")
    problem(town.http.delete("/v1/diagrams/traffic"), 404, "ClusterError")


def test_yaml_may_be_sent_as_it_is(town: Rest) -> None:
    made = town.http.post("/v1/diagrams", content=traffic(), headers={"content-type": "application/yaml"})
    assert made.status_code == 201
    again = town.http.post("/v1/diagrams", content=traffic(), headers={"content-type": "application/yaml"})
    assert "--replace" in again.text
    other = town.http.post("/v1/diagrams?replace=true", content=traffic(), headers={"content-type": "application/yaml"})
    assert other.status_code == 201
    assert town.deploy(replace=True).status_code == 201
    bad = town.http.post("/v1/diagrams", content=b"\xff\xfe", headers={"content-type": "application/yaml"})
    assert "UTF-8" in problem(bad, 400, "WireError").message


def test_refused_deployments(town: Rest) -> None:
    assert problem(town.deploy("nothing"), 400, "DiagramError").message == "not a diagram"
    assert "node9" in problem(town.deploy(place={"agg": "node9"}), 404, "ClusterError").message
    problem(town.deploy(cut=["nothing"]), 400, "DiagramError")
    problem(town.deploy(units=0), 400, "WireError")
    assert "cuts: Extra inputs" in problem(town.deploy(cuts=["agg"]), 400, "WireError").message
    bad = town.http.post("/v1/diagrams", content=b"{")
    problem(bad, 400, "WireError")
    town.yard["node1"].fail["check"] = ExpressionError("no column 'byte'", hint="did you mean 'bytes'?")
    assert problem(town.deploy(), 400, "ExpressionError").hint == "did you mean 'bytes'?"
    town.yard["node1"].fail = {"start": WireError("broke off")}
    problem(town.deploy(), 503, "WireError")
    town.yard["node1"].fail.clear()
    assert town.deploy().status_code == 201
    problem(town.deploy(), 409, "ClusterError")


def test_a_body_that_is_too_large_is_refused(town: Rest) -> None:
    answer = town.http.post("/v1/diagrams", content=b"x" * (BODY_BYTES_MOST + 1))
    problem(answer, 413, "WireError")


def test_move(town: Rest) -> None:
    town.deploy()
    answer = town.http.post("/v1/units/u1/move", json={"node": "node2"})
    assert answer.json() == {"v": 1, "diagram": "traffic", "unit": "u1", "node": "node2"}
    answer = town.http.post("/v1/units/traffic%2Fu1/move", json={"node": "node3"})
    assert answer.json() == {"v": 1, "diagram": "traffic", "unit": "u1", "node": "node3"}
    problem(town.http.post("/v1/units/u1/move", json={"node": "node3"}), 409, "ClusterError")
    problem(town.http.post("/v1/units/u1/move", json={"node": "node9"}), 404, "ClusterError")
    problem(town.http.post("/v1/units/u9/move", json={"node": "node2"}), 404, "ClusterError")
    problem(town.http.post("/v1/units/u1/move", json={}), 400, "WireError")
    problem(town.http.post("/v1/units/u1/move", json={"node": "node1", "diagram": "other"}), 404, "ClusterError")


# -- nodes


def test_heartbeats_over_http(town: Rest) -> None:
    node = town.yard.add("node4")
    assert town.http.post("/v1/nodes", content=node.status().encode()).status_code == 200
    found = {n["node"]: n for n in town.http.get("/v1/nodes").json()["nodes"]}
    assert (found["node4"]["alive"], found["node4"]["state"], found["node4"]["spark"]) == (True, "alive", "ready")
    assert [known.node for known in town.catalog.nodes()] == ["node1", "node2", "node3", "node4"]


def test_a_node_of_another_version_is_told_so_whatever_else_it_says(town: Rest) -> None:
    heartbeat = json.loads(town.yard.add("node4").status().encode())
    answer = town.http.post("/v1/nodes", json=heartbeat | {"version": "9.0", "v": 3, "new": [], "units": "many"})
    refused = problem(answer, 409, "ClusterError")
    assert refused.message == f"node 'node4' is Borealis 9.0, the coordinator is {__version__}"
    refused = problem(town.http.post("/v1/nodes", json=heartbeat | {"v": 2}), 409, "ClusterError")
    assert refused.message == "node 'node4' speaks version 2 of the messages, the coordinator 1"
    for bad in (b"", b"[]", b"17", json.dumps(heartbeat | {"new": 1}).encode(), b'{"v": 1}'):
        problem(town.http.post("/v1/nodes", content=bad), 400, "WireError")
    assert not town.cluster.members.lives("node4")


def test_a_catalog_that_cannot_be_written_turns_no_node_away(town: Rest, caplog: pytest.LogCaptureFixture) -> None:
    """A node would take that for a refusal, and end; and so would all the others."""
    heartbeat = town.yard.add("node4").status().encode()
    town.catalog._db.execute("PRAGMA query_only=ON")  # as when the disk is full
    assert town.http.post("/v1/nodes", content=heartbeat).status_code == 200
    assert town.cluster.members.lives("node4")
    assert "cannot use catalog" in caplog.text
    problem(town.deploy(), 503, "ClusterError")
    town.catalog._db.execute("PRAGMA query_only=OFF")
    assert town.deploy().status_code == 201


def test_a_name_in_use_is_refused_while_its_holder_answers(town: Rest) -> None:
    holder = town.yard["node1"]
    other = holder.status().model_copy(update={"incarnation": "2", "address": "grpc://127.0.0.1:99"})
    refused = problem(town.http.post("/v1/nodes", content=other.encode()), 409, "ClusterError")
    assert "belongs to node 'node1', which is alive (pid 4242 on here)" in refused.message
    town.yard.down.add("node1")  # killed, and started again at once: three seconds need not pass
    assert town.http.post("/v1/nodes", content=other.encode()).status_code == 200
    assert town.cluster.address("node1") == "grpc://127.0.0.1:99"


def test_a_heartbeat_of_the_dead_that_was_under_way_keeps_a_name_from_nobody(
    town: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node was killed twice: what the second process sent comes while the third is being let in."""
    status = town.yard["node1"].status()
    dead, alive = (status.model_copy(update={"incarnation": n, "address": f"grpc://127.0.0.1:9{n}"}) for n in "23")
    town.yard.down.add("node1")
    under_way, answers = [dead], town.cluster._answers

    def meanwhile(holder: Member) -> bool:
        if under_way:
            town.cluster.heard(under_way.pop())
        return answers(holder)

    monkeypatch.setattr(town.cluster, "_answers", meanwhile)
    assert town.http.post("/v1/nodes", content=alive.encode()).status_code == 200
    assert town.cluster.address("node1") == alive.address


def test_a_node_can_be_told_to_go(town: Rest) -> None:
    assert town.http.delete("/v1/nodes/node3").status_code == 200
    assert town.yard["node3"].stopped
    assert [n["node"] for n in town.http.get("/v1/nodes").json()["nodes"]] == ["node1", "node2"]
    problem(town.http.delete("/v1/nodes/node3"), 404, "ClusterError")
    assert "alive" in problem(town.http.delete("/v1/nodes/node2?only_dead=true"), 409, "ClusterError").message
    problem(town.http.delete("/v1/nodes/node9?only_dead=true"), 404, "ClusterError")
    assert not town.yard["node2"].stopped
    town.clock.advance(10)
    assert town.http.delete("/v1/nodes/node2").status_code == 200, "a dead one is forgotten"
    assert not town.yard["node2"].stopped


# -- where and how


def test_locate(town: Rest) -> None:
    town.deploy(place={"packets": "node2"})
    for name in ("packets", "traffic/packets"):
        found = town.http.get("/v1/locate", params={"stream": name}).json()
        assert found == {
            "v": 1,
            "stream": "traffic/packets",
            "address": town.yard["node2"].address,
            "entry": True,
            "node": "node2",
            "fallback": None,
            "incarnation": 0,
            "replicated": False,
            "copies": [],
        }
    assert town.http.get("/v1/locate?stream=per_source").json()["stream"] == "traffic/agg"
    assert problem(town.http.get("/v1/locate?stream=packet"), 404, "StreamError").hint == "did you mean 'packets'?"
    problem(town.http.get("/v1/locate"), 400, "WireError")
    town.deploy(traffic("other"))
    assert problem(town.http.get("/v1/locate?stream=packets"), 409, "StreamError").hint == (
        "say which: other/packets or traffic/packets"
    )
    town.clock.advance(4)
    away = problem(town.http.get("/v1/locate?stream=traffic/packets"), 503, "StreamError")
    assert away.message == "stream 'traffic/packets' is on node 'node2', which has been silent for 4 s"


def test_streams(town: Rest) -> None:
    town.deploy(two_sides())
    town.beat()
    found = {s["stream"]: s for s in town.http.get("/v1/streams").json()["streams"]}
    assert set(found) == {"sides/left", "sides/left.late", "sides/right", "sides/right.late", "sides/both"} | {
        "sides/u1.errors"
    }
    assert found["sides/left.late"]["outputs"] == ["too_late"]
    assert (found["sides/left"]["entry"], found["sides/both"]["entry"]) == (True, False)
    assert found["sides/both"]["next_id"] == 0


def test_status_tells_rates_lag_and_boundaries(town: Rest) -> None:
    town.deploy()
    node = town.yard["node1"]
    for second in range(4):
        unit = UnitStatus(
            diagram="traffic",
            unit="u1",
            state="running",
            boxes=["big"],
            rows_in=500 * second,
            rows_out=50 * second,
            trains=10 * second,
            train_ms=20.0,
            busy_s=0.2 * second,
            inputs={"traffic/packets": 500 * second},
            lag_rows=3,
            boundary=second * 1_000_000,
            waiting=[Waiting(why="a database is away", seconds=second)] if second == 3 else [],
        )
        queue = QueueStatus(
            stream="traffic/packets",
            epoch="e",
            first_id=0,
            next_id=700 * second,
            boundary=2**63 - 1,
            held_rows=900,
            held_bytes=99,
            dropped=0,
            readers={"traffic.u1": 500 * second},
        )
        town.clock.advance(1)
        town.cluster.heard(node.status().model_copy(update={"units": [unit], "queues": [queue]}))
    status = town.http.get("/v1/status").json()
    assert status["coordinator"]["version"] == __version__
    [unit] = status["units"]
    assert (unit["rows_in_per_s"], unit["rows_out_per_s"], unit["trains_per_s"]) == (500, 50, 10)
    assert (unit["state"], unit["waiting"]) == ("waiting", [{"why": "a database is away", "seconds": 3.0}])
    assert (unit["lag_rows"], unit["boundary"], unit["ended"]) == (600, 3_000_000, False)
    stream = next(s for s in status["streams"] if s["stream"] == "traffic/packets")
    assert (stream["rows_per_s"], stream["held_rows"], stream["held_bytes"]) == (700, 900, 99)
    assert (stream["boundary"], stream["ended"]) == (None, True)
    assert next(n for n in status["nodes"] if n["node"] == "node1")["busy"] == 0.2


def test_status_names_the_node_whose_disk_is_full(town: Rest) -> None:
    log = LogStatus(stream="traffic/packets", path="/data", held_bytes=9, free_bytes=0)
    full = log.model_copy(update={"error": "the disk of node1 is full: no", "full": True})
    broken = log.model_copy(update={"error": "Input/output error", "stream": "traffic/others"})
    node = town.yard["node1"]
    town.cluster.heard(node.status().model_copy(update={"logs": [log, full, broken]}))
    until = "traffic/others takes nothing until that is mended and the node started again"
    assert town.http.get("/v1/status").json()["troubles"] == [
        {
            "node": "node1",
            "why": "the disk of node1 is full: no; traffic/packets takes nothing until there is room",
        },
        {"node": "node1", "why": f"Input/output error; {until}"},
    ]
    town.cluster.heard(node.status())
    assert town.http.get("/v1/status").json()["troubles"] == []


def test_status_of_what_is_lost_failed_awaited_or_unknown(town: Rest, tmp_path: Path) -> None:
    town.deploy(units=3)
    town.beat()
    town.yard["node2"].states["traffic", "u2"] = "failed"
    town.yard.down.add("node3")
    for _ in range(4):
        town.beat()

    def states(rest: Rest) -> dict[str, str]:
        return {u["unit"]: u["state"] for u in rest.http.get("/v1/status").json()["units"]}

    assert states(town) == {"u1": "running", "u2": "failed", "u3": "lost"}
    shown = {n["node"]: (n["state"], n["units"]) for n in town.http.get("/v1/nodes").json()["nodes"]}
    assert shown == {"node1": ("alive", 1), "node2": ("alive", 1), "node3": ("dead", 0)}
    assert "lost with node3" in town.http.get("/v1/status").json()["units"][2]["error"]
    assert town.http.get("/v1/diagrams").json()["diagrams"][0]["state"] == "failed"
    town.catalog.close()
    again = Rest(tmp_path / "catalog.sqlite")
    again.yard = town.yard
    assert states(again) == {"u1": "awaited", "u2": "awaited", "u3": "awaited"}
    nodes = again.http.get("/v1/nodes").json()["nodes"]
    assert [(n["node"], n["state"], n["alive"]) for n in nodes] == [(f"node{i}", "awaited", False) for i in (1, 2, 3)]
    fresh = Rest(tmp_path / "other.sqlite")
    fresh.cluster.heard(town.yard["node1"].status())
    assert states(fresh) == {"u1": "orphan"}


# -- who may ask


def test_health_and_the_openapi_page(town: Rest) -> None:
    assert town.http.get("/v1/health").json()["ok"] is True
    assert town.http.get("/docs").status_code == 200
    described = town.http.get("/openapi.json").json()
    assert "yaml" in str(described["paths"]["/v1/diagrams"]["post"]["requestBody"])


def test_the_front_says_what_is_where_and_it_is_there(town: Rest) -> None:
    where = town.http.get("/").json()["where"]
    page = town.http.get("/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert page.headers["content-type"].startswith("text/html")
    for path in where:
        assert town.http.get(path).status_code == 200
        assert f'href="{path}"' in page.text


def test_figures_of_the_whole_cluster(town: Rest) -> None:
    """Those of each node with its name; a node that is dead has none but that it is."""
    town.deploy(units=2, place={"packets": "node1"})
    town.beat()
    [unit, *_] = town.http.get("/v1/status").json()["units"]
    town.beat("node1", "node2", seconds=town.cluster.timings.dead_after_s)
    answer = town.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert answer.text.count("# TYPE borealis_unit_running") == 1

    def labelled(family: str) -> dict[str, float]:
        return {sample.labels["node"]: sample.value for sample in found[family].samples}

    assert labelled("borealis_node_up") == {"node1": 1, "node2": 1, "node3": 0}
    assert set(labelled("borealis_node_start_time_seconds")) == {"node1", "node2"}
    assert labelled("borealis_stream_tuples")["node1"] == 0
    states = {(s.labels["diagram"], s.labels["unit"], s.labels["state"]) for s in found["borealis_unit_state"].samples}
    assert ("traffic", unit["unit"], "running") in states


def test_what_is_not_there_is_a_problem_too(town: Rest) -> None:
    problem(town.http.get("/v1/nothing"), 404, "WireError")
    problem(town.http.request("PUT", "/v1/diagrams"), 405, "WireError")


def test_a_defect_of_ours_is_a_problem_too(town: Rest) -> None:
    town.catalog.layouts = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    assert "ZeroDivisionError" in problem(town.http.get("/v1/diagrams"), 500, "BorealisError").message


def test_the_token_is_asked_for_everywhere_but_for_health(tmp_path: Path) -> None:
    town = Rest(tmp_path / "catalog.sqlite", token="secret")
    for path in ("/v1/status", "/v1/streams/x", "/v1/nothing", "/v1/nodes", "/metrics"):
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "secret"},
            {"authorization": "Bearer é"},
        ):
            answer = town.http.get(path, headers=[(k.encode(), v.encode()) for k, v in headers.items()])
            problem(answer, 401, "WireError")
    problem(town.http.post("/v1/shutdown"), 401, "WireError")
    assert town.ended == 0
    assert town.http.get("/v1/health").status_code == 200
    good = {"authorization": "Bearer secret"}
    assert town.http.get("/v1/status", headers=good).status_code == 200
    assert town.http.get("/v1/status", headers=good | {"host": "elsewhere"}).status_code == 200
    assert town.http.post("/v1/shutdown", headers=good).json()["stopping"] is True
    assert town.ended == 1


def test_without_a_token_web_pages_are_kept_out(town: Rest) -> None:
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}, {"origin": "null"}):
        problem(town.http.post("/v1/shutdown", headers=headers), 403, "WireError")
    assert town.http.get("/v1/status", headers={"host": "localhost:7470"}).status_code == 200
    assert town.http.get("/v1/status", headers={"host": "[::1]:7470"}).status_code == 200
    assert town.ended == 0


def test_shutdown_without_a_token_is_for_this_machine(town: Rest) -> None:
    problem(Http(town.app, "10.0.0.7").post("/v1/shutdown"), 403, "WireError")
    problem(Http(town.app, "10.0.0.7").post("/v1/shutdown", headers={"authorization": "Bearer x"}), 403, "WireError")
    assert town.ended == 0
    assert Http(town.app, "127.0.0.1").post("/v1/shutdown").json()["stopping"] is True
    assert town.ended == 1
