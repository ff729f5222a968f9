"""The commands of a cluster as a user types them: the whole path, moves, restarts, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from city import City, expected, json_lines, packets, seen, wait_for

from borealis.errors import BorealisError

pytestmark = pytest.mark.timeout(400)


def test_send_tail_move_and_status(city: City) -> None:
    file = packets(city.root, 30_000)
    told = city.run("deploy", str(city.diagram("whole")), "--cut", "per_source", "--place", "kilo=node1",
                    "--place", "per_source=node2")  # fmt: skip
    assert "2 units" in told
    out = city.root / "whole.jsonl"
    tail = city.start("tail", "whole/per_source", "--from", "oldest", "--json", out=out)
    sending = city.start("send", "whole/packets", str(file), "--rate", "6000", "--end", out=city.root / "send.log")
    wait_for(lambda: json_lines(out), "first results")
    moved = city.run("move", "whole/u2", "node3")
    assert "node3" in moved
    figures = ("rows_in", "rows_out", "trains", "state_bytes")
    wait_for(
        lambda: min(_units(city, "whole")["u2"].get(f, 0) for f in figures) > 0, "a heartbeat tells of the moved unit"
    )
    assert {name: unit["node"] for name, unit in _units(city, "whole").items()} == {"u1": "node1", "u2": "node3"}
    assert sending.wait(60) == 0, (city.root / "send.log").read_text()
    assert tail.wait(60) == 0  # the stream has ended
    assert seen(json_lines(out)) == expected(file)
    text = city.run("status")
    assert re.search(r"u2\s+.*node3", text)
    assert "undeployed whole" in city.run("undeploy", "whole")
    assert "whole" not in [d["diagram"] for d in json.loads(city.run("status", "--json"))["diagrams"]]


def test_python_and_curl(city: City) -> None:
    city.run("deploy", str(city.diagram("python", ", key: [ts, src], history: 1 hour")))
    coordinator = city.record()["coordinator"]
    rows = [{"ts": f"2023-11-14T22:13:{20 + i:02d}Z", "src": "a", "bytes": 200 + i} for i in range(8)]
    body = "".join(json.dumps(row) + "\n" for row in rows)
    answer = httpx.post(f"http://{coordinator}/v1/streams/python/packets", content=body, timeout=30)
    assert answer.status_code == 200, answer.text
    with city.connect() as client, client.subscribe("python/per_source", start="oldest") as results:
        first = next(iter(results.rows()))
    assert (first["src"], first["n"], first["b"]) == ("a", 1, 200)
    with httpx.stream(
        "GET", f"http://{coordinator}/v1/streams/python/per_source", params={"from": "oldest"}, timeout=30
    ) as events:
        data = next(line for line in events.iter_lines() if line.startswith("data:"))
    assert json.loads(data.removeprefix("data:"))["n"] == 1
    bad = httpx.post(f"http://{coordinator}/v1/streams/python/packets", content='{"ts": 1, "src": []}\n', timeout=30)
    assert bad.status_code == 400
    assert "line 1" in bad.text
    with city.connect() as client, client.publisher("python/packets") as out:
        out.replace(rows[0] | {"bytes": 300})
        out.delete([(rows[1]["ts"], "a"), (rows[1]["ts"], "b")])
    told = city.run("tail", "python/per_source", "--from", "oldest", "--limit", "22", "--json")
    changes = [json.loads(line) for line in told.splitlines()]
    came, went = (seen(row for row in changes if row["_kind"][0] == sign) for sign in "+-")
    sums = sorted((end - 1_700_000_001, n, b) for _, end, n, b in (came - went).elements())
    assert sums == [(0, 1, 300), (1, 1, 300), (2, 2, 502), (3, 3, 705), (4, 3, 609), (5, 4, 814)]
    wait_for(lambda: _units(city, "python")["u1"]["refused"].get("packets.conflict") == 1, "what was not there")
    assert re.search(r"python/packets\s+input\s+_kind STRING, ts TIMESTAMP", city.run("ls"))
    kept = city.connect().subscribe("python/per_source", reader="ada")
    next(iter(kept))
    kept.stop()
    kept_for = re.compile(r"served by\s+node\d.*reader\s+ada, \d+ behind", re.DOTALL)
    wait_for(lambda: kept_for.search(city.run("describe", "python/per_source")), "a heartbeat tells of the reader")
    assert json.loads(city.run("describe", "python/packets", "--json"))["entry"]
    assert "keeps nothing for ada" in city.run("forget", "python/per_source", "ada")
    city.undeploy("python")


def test_the_page_on_nodes_runs(
    city: City, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(__file__).parents[2]
    city.run("deploy", str(root / "examples" / "traffic.yaml"))
    monkeypatch.setenv("BOREALIS_COORDINATOR", city.record()["coordinator"])
    blocks = re.findall(r"^```python\n(.*?)^```", (root / "docs" / "nodes.md").read_text(), re.MULTILINE | re.DOTALL)
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"docs/nodes.md, block {number}", "exec"), {})
    assert "'src': 'a'" in capsys.readouterr().out
    city.undeploy("traffic")


def test_a_killed_coordinator_is_not_missed_and_finds_its_nodes_again(city: City) -> None:
    file = packets(city.root, 25_000, seed=2)
    city.run("deploy", str(city.diagram("orphan")), "--units", "2")
    out = city.root / "orphan.jsonl"
    city.start("tail", "orphan/per_source", "--from", "oldest", "--json", out=out)
    sending = city.start("send", "orphan/packets", str(file), "--rate", "5000", "--end", out=city.root / "send2.log")
    wait_for(lambda: json_lines(out), "first results")
    city.kill("coordinator")
    before = len(json_lines(out))
    wait_for(lambda: len(json_lines(out)) > before + 40, "results while there is no coordinator")
    assert "borealis restart coordinator" in city.run("status", fails=True)
    city.run("restart", "coordinator")
    wait_for(lambda: len([n for n in _nodes(city) if n["alive"]]) == 3, "all nodes are back at the new coordinator")
    assert sending.wait(60) == 0
    wait_for(lambda: {u["state"] for u in city.status()["units"]} <= {"running", "ended"}, "all units are known again")
    wait_for(lambda: sum(seen(json_lines(out)).values()) >= sum(expected(file).values()), "all results")
    assert seen(json_lines(out)) == expected(file)
    city.undeploy("orphan")


def _units(city: City, diagram: str) -> dict[str, dict[str, Any]]:
    return {u["unit"]: u for u in city.status()["units"] if u["diagram"] == diagram}


def _nodes(city: City) -> list[dict[str, object]]:
    try:
        return list(city.status()["nodes"])
    except BorealisError:
        return []


def test_what_is_refused(city: City) -> None:
    good = city.diagram("refused")
    city.run("deploy", str(good))
    assert "already" in city.run("deploy", str(good), fails=True)
    assert "node9" in city.run("deploy", str(city.diagram("other")), "--place", "kilo=node9", fails=True)
    wrong = city.root / "wrong.yaml"
    wrong.write_text(good.read_text().replace("bytes > 100", "byte > 100").replace("refused", "wrong"))
    assert "bytes" in city.run("deploy", str(wrong), fails=True)
    wrong.write_text(good.read_text().replace("bytes > 100", "bytes + 100").replace("refused", "wrong"))
    assert "wrong" not in [u["diagram"] for u in city.status()["units"]]
    assert "large" in city.run("deploy", str(wrong), fails=True)
    file = packets(city.root, 10, seed=3)
    assert "there is no stream" in city.run("send", "refused/packet", str(file), fails=True)
    assert "per_source" in city.run("send", "refused/per_source", str(file), fails=True)
    other = city.root / "other.csv"
    other.write_text("a,b\n1,2\n")
    assert "ts" in city.run("send", "refused/packets", str(other), fails=True)
    assert "node9" in city.run("move", "refused/u1", "node9", fails=True)
    assert "u7" in city.run("move", "refused/u7", "node1", fails=True)
    assert [u["state"] for u in city.status()["units"] if u["diagram"] == "refused"] == ["running"]
    second = city.run("coordinator", "--port", "0", "--catalog", f"{city.record()['data']}/catalog.sqlite", fails=True)
    assert "catalog" in second
    assert "token" in city.run("node", "--coordinator", city.record()["coordinator"], "--host", "0.0.0.0", fails=True)
    city.undeploy("refused")


def test_a_node_of_another_version_is_refused(city: City) -> None:
    code = (
        "import borealis.version, sys\n"
        "borealis.version.__version__ = '9.9.9'\n"
        "from borealis.cli import main\n"
        f"sys.argv = ['borealis', 'node', '--name', 'newer', '--coordinator', '{city.record()['coordinator']}']\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=city.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "9.9.9" in done.stderr
    assert "newer" not in [n["node"] for n in city.status()["nodes"]]


def test_metrics(city: City) -> None:
    answer = httpx.get(f"{city.node('node1')['http']}/metrics", timeout=30)
    assert answer.status_code == 200
    assert "borealis_spark_ready 1.0" in answer.text
    names = {line.split()[2] for line in answer.text.splitlines() if line.startswith("# TYPE")}
    assert all(re.fullmatch(r"borealis_[a-z_]+", n) for n in names)
