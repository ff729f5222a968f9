"""The commands for clusters without Spark: what they refuse, what they show, how a failed start ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from borealis.cli import cluster_plan, deploy, processes, status
from borealis.cli.cells import TextRows
from borealis.cli.ending import run_app
from borealis.cli.processes import join
from borealis.cli.send import SendOptions, whole_batches
from borealis.cli.up import UpOptions
from borealis.client.cluster_config import (
    ClusterProcess,
    ClusterRecord,
    Whereabouts,
    how_to_start,
    read_record,
    record_path,
    write_record,
)
from borealis.client.subscriber import parse_start
from borealis.errors import BorealisError
from borealis.hosts import free_ports
from borealis.wire.status import ClusterStatus

YAML = Path(__file__).parents[3] / "examples" / "traffic.yaml"


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("BOREALIS_TOKEN", "BOREALIS_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BOREALIS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BOREALIS_COORDINATOR", f"127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a wrong command gets."""
    assert run_app([str(a) for a in arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["up", "--nodes", "0"], "--nodes"),
        (["up", "--config", "nowhere.yaml"], "cannot read 'nowhere.yaml'"),
        (["up", "--config", "c.yaml", "--nodes", "2"], "--config says it all"),
        (["up", "--config", "open.yaml"], "no token protects the cluster"),
        (["up", "--config", "elsewhere.yaml"], "say which of them this is: --host NAME"),
        (["up", "--token-file", "nowhere"], "cannot read the token file"),
        (["up", "--config", "tls.yaml"], "c.pem': No such file"),
        (["up", "--port", "0", "--data", "token"], "cannot keep the cluster's data in"),
        (["up", "--port", "0", "--data", "/proc/here"], "give a folder of yours with --data"),
        (["deploy"], "Missing argument"),
        (["deploy", "nowhere.yaml"], "cannot read 'nowhere.yaml'"),
        (["deploy", YAML, "--place", "per_source"], "is not NAME=VALUE. Hint: write --place per_source=node2"),
        (["deploy", YAML, "--place", "a=x", "--place", "a=y"], "--place a is given twice"),
        (["deploy", YAML, "--units", "0"], "--units"),
        (["deploy", YAML, "--backup", "u2"], "is not NAME=VALUE. Hint: write --backup u2=node3"),
        (["deploy", YAML, "--misses", "0"], "--misses"),
        (["send", "packets"], "Missing argument"),
        (["send", "packets", "nowhere.csv"], "no file 'nowhere.csv'"),
        (["send", "packets", "a.csv", "--rate", "0"], "--rate"),
        (["tail", "per_source", "--from", "yesterday"], "--from 'yesterday' is no place in a stream"),
        (["tail", "per_source", "--limit", "0"], "--limit"),
        (["status", "--coordinator", "here:there"], "'here:there' is no address"),
        (["status", "--token-file", "nowhere"], "cannot read the token file 'nowhere'"),
        (["move", "u1"], "Missing argument"),
        (["node", "--master", "local[2]", "--cores", "2"], "says how many cores already"),
        (["node", "--master", "nonsense://x"], "is no master of Spark. Hint: write local[2], spark://HOST:7077"),
        (["node", "--name", "a b"], "a node cannot be called 'a b'. Hint: use letters"),
        (["node", "--name", ".."], "a node cannot be called '..'. Hint: use letters"),
        (["node", "--coordinator", "10.0.0.1:7470"], "which cannot reach a node at 127.0.0.1. Hint: give the"),
        (["node", "--announce", "here"], "--announce 'here' is no address. Hint: write HOST:PORT"),
        (["node", "--announce", "192.0.2.1:7480"], "192.0.2.1:7480: open to other machines, and no token given"),
        (["node", "--data", "/proc/here"], "cannot keep the node's data in '/proc/here'"),
        (["node", "--tls-cert", "a.pem"], "--tls-cert and --tls-key go together"),
        (["node", "--conf", "spark.x"], "is not NAME=VALUE"),
        (["node", "--host", "0.0.0.0"], "open to other machines, and no token given"),
        (["coordinator", "--host", "0.0.0.0"], "open to other machines, and no token given"),
        (["coordinator", "--tls-key", "a.pem"], "--tls-cert and --tls-key go together"),
    ],
)
def test_a_wrong_command_gets_one_line(
    arguments: list[object], says: str, capfd: pytest.CaptureFixture[str], clean: Path
) -> None:
    (clean / "c.yaml").write_text("nodes: [{name: a}]")
    (clean / "open.yaml").write_text("coordinator: {host: 192.0.2.1}\nnodes: [{name: a, host: 192.0.2.1}]")
    (clean / "token").write_text("secret")
    (clean / "elsewhere.yaml").write_text(
        "coordinator: {host: 192.0.2.1}\ntoken_file: token\nnodes: [{name: a, host: 192.0.2.1}]"
    )
    (clean / "tls.yaml").write_text("nodes: [{name: a}]\ntls: {cert: c.pem, key: k.pem}")
    (clean / "a.csv").write_text("n\n1\n")
    assert says in refused(capfd, *arguments)
    assert not (clean / "home" / "logs").exists(), "nothing was started"


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["deploy", str(YAML)],
        ["undeploy", "traffic"],
        ["send", "packets", "a.csv"],
        ["tail", "per_source"],
        ["move", "u1", "node2"],
        ["kill", "node2"],
        ["status", "--watch"],
        ["status", "--json"],
    ],
)
def test_without_a_coordinator_the_line_says_how_to_start_one(
    arguments: list[str], capfd: pytest.CaptureFixture[str], clean: Path
) -> None:
    (clean / "a.csv").write_text("n\n1\n")
    line = refused(capfd, *arguments)
    address = os.environ["BOREALIS_COORDINATOR"]
    assert line == f"error: no coordinator at {address}. Hint: start one with 'borealis up'\n"


def test_a_coordinator_that_died_is_told_with_the_command_that_starts_it_again(
    capfd: pytest.CaptureFixture[str], clean: Path
) -> None:
    address = os.environ.pop("BOREALIS_COORDINATOR")
    gone = ClusterProcess(
        name="coordinator", pid=4242, started="boot 1", log="/there/log", arguments=["coordinator", "--port", "1"]
    )
    write_record(ClusterRecord(coordinator=address, data=str(clean), parts=[gone]))
    line = refused(capfd, "status")
    assert line.startswith(f"error: no coordinator at {address}. Hint: it has ended, its log is /there/log;")
    assert line.endswith("To start it again: borealis restart coordinator\n")


def test_a_coordinator_elsewhere_is_not_started_here() -> None:
    assert "on that machine" in how_to_start(Whereabouts("192.0.2.1", 7470))


def test_a_home_that_cannot_be_is_told(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOREALIS_HOME", "/proc/here")
    assert "cannot keep the cluster's home in '/proc/here'" in refused(capfd, "up", "--port", "0")
    monkeypatch.setenv("BOREALIS_HOME", __file__)
    for command in ("up", "down"):
        assert "set BOREALIS_HOME to a folder of yours" in refused(capfd, command)


def test_the_commands_start_without_spark() -> None:
    code = (
        "import sys; from borealis.cli.ending import run_app\n"
        "assert run_app(['--version']) == run_app(['--help']) == run_app(['run', '--help']) == 0\n"
        "for command in ('up', 'down', 'deploy', 'send', 'tail', 'status', 'move', 'kill', 'restart', 'logs',\n"
        "                'node', 'coordinator'):\n"
        "    assert run_app([command, '--help']) == 0\n"
        "assert run_app(['status']) == 2\n"
        "assert run_app(['up', '--config', 'nowhere']) == 2\n"
        "assert not {'pyspark', 'fastapi'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("borealis 0.")
    assert "--rows-per-train" in done.stdout


# -- up and down


def test_down_without_a_cluster_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_app(["down"]) == 0
    assert "no cluster of" in capfd.readouterr().out
    assert run_app(["down", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"stopped": [], "killed": []}


def a_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)


def a_part(name: str, process: subprocess.Popen[bytes], log: str = "", *arguments: str) -> ClusterProcess:
    started = processes.moment(process.pid) or ""
    return ClusterProcess(name=name, pid=process.pid, started=started, log=log, arguments=list(arguments))


def test_up_refuses_another_cluster_where_one_runs_and_down_stops_what_is_left(
    capfd: pytest.CaptureFixture[str], clean: Path
) -> None:
    with a_process() as one, a_process() as gone:
        parts = [a_part("coordinator", one), a_part("node1", gone)]
        gone.kill()
        gone.wait()
        write_record(ClusterRecord(coordinator="127.0.0.1:1", data=str(clean / "data"), parts=parts))
        assert "coordinator at 127.0.0.1:1, and its --port is 1, not 2" in refused(capfd, "up", "--port", "2")
        assert f"its --data is {clean / 'data'}, not {clean / 'x'}" in refused(capfd, "up", "--data", "x")
        (clean / "token").write_text("secret")
        assert "its --token-file is None, not" in refused(capfd, "up", "--token-file", "token")
        assert "coordinator runs (pid" in refused(capfd, "restart", "coordinator")
        assert "how node1 was started is not known" in refused(capfd, "restart", "node1")
        assert run_app(["down"]) == 0
        assert capfd.readouterr().out == "stopped 1 process; 1 had ended before\n"
        assert one.wait(10) == -signal.SIGTERM
    assert read_record() is None


def test_up_again_starts_what_is_missing_as_it_was_started(clean: Path) -> None:
    started = {"coordinator": ["coordinator", "--port", "7001"], "node1": ["node", "--name", "node1", "--cores", "3"]}
    parts = [ClusterProcess(name=n, pid=4242, started="boot 1", log="", arguments=a) for n, a in started.items()]
    by_hand = ClusterProcess(name="mine", pid=4243, started="boot 1", log="", arguments=["node", "--name", "mine"])
    record = ClusterRecord(coordinator="127.0.0.1:7001", data=str(clean / "data"), parts=[*parts, by_hand])
    assert cluster_plan.wanted(record, UpOptions()) == started | {"mine": ["node", "--name", "mine"]}
    more = cluster_plan.wanted(record, UpOptions(nodes=2, port=0, cores_per_node=2))
    assert list(more) == ["coordinator", "node1", "node2"]
    assert {name: more[name] for name in started} == started
    at = ["--coordinator", "127.0.0.1:7001", "--host", "127.0.0.1", "--port", "0", "--cores", "2"]
    assert more["node2"] == ["node", "--name", "node2", *at, "--data", str(clean / "data" / "node2")]
    secure = record.model_copy(update={"ca": "ca.pem"})
    with pytest.raises(BorealisError, match="add them to its --config"):
        cluster_plan.wanted(secure, UpOptions(nodes=2))


def test_restart_is_for_what_has_ended_here(capfd: pytest.CaptureFixture[str], clean: Path) -> None:
    assert "no cluster of" in refused(capfd, "restart", "node1")
    gone = ClusterProcess(name="coordinator", pid=4242, started="boot 1", log="", arguments=["coordinator"])
    parts = [gone, gone.model_copy(update={"name": "node1"})]
    write_record(ClusterRecord(coordinator="127.0.0.1:1", data=str(clean), parts=parts))
    assert "'nod1' is no part of the cluster" in refused(capfd, "restart", "nod1")
    assert "'borealis up' starts all that is missing" in refused(capfd, "restart", "node1")


def test_what_is_started_by_hand_from_this_home_belongs_to_its_cluster_and_down_ends_it(
    capfd: pytest.CaptureFixture[str], clean: Path
) -> None:
    port = free_ports(1)[0]
    gone = ClusterProcess(
        name="coordinator", pid=4242, started="boot 1", log="x", arguments=["coordinator", "--port", "1"]
    )
    write_record(ClusterRecord(coordinator=f"127.0.0.1:{port}", data=str(clean), parts=[gone]))
    command = [sys.executable, "-m", "borealis.cli", "coordinator", "--port", str(port), "--catalog", "c.sqlite"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as by_hand:
        assert by_hand.stdout is not None
        assert "coordinator at" in by_hand.stdout.readline()
        record = read_record()
        assert record is not None
        [part] = record.parts
        assert (part.pid, part.log) == (by_hand.pid, "")
        assert part.arguments[-2:] == ["--catalog", str(clean / "c.sqlite")], "wherever it is started again"
        assert "coordinator runs in a terminal" in refused(capfd, "logs", "coordinator")
        join("127.0.0.1", port, "coordinator", ["coordinator"])
        join("127.0.0.1", port + 1, "of another cluster", ["node"])
        assert read_record() == record, "a living part keeps its name, and other clusters are others"
        assert run_app(["down"]) == 0
        assert capfd.readouterr().out == "stopped 1 process\n"
        assert by_hand.wait(10) == 0


def test_a_process_by_hand_that_does_not_end_is_killed_and_its_shell_is_not() -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        assert os.getsid(one.pid) == os.getsid(0), "this test's session"
        assert processes.stop([a_part("node1", one)], grace_s=0.05) == ["node1"]
        assert one.wait(10) == -signal.SIGKILL


def test_logs_are_shown_followed_and_outlive_their_cluster(capfd: pytest.CaptureFixture[str], clean: Path) -> None:
    assert "no cluster of" in refused(capfd, "logs", "node1")
    log = clean / "home" / "logs" / "node1.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\nthree\n")
    for arguments, shown in ((["-n", "2"], "two\nthree\n"), ([], "one\ntwo\nthree\n"), (["-n", "9"], log.read_text())):
        assert run_app(["logs", "node1", *arguments]) == 0
        assert capfd.readouterr().out == shown
    part = ClusterProcess(name="node1", pid=4242, started="boot 1", log=str(log), arguments=["node"])
    write_record(ClusterRecord(coordinator="127.0.0.1:1", data=str(clean), parts=[part]))
    assert "'node7' is no part of the cluster" in refused(capfd, "logs", "node7")
    command = [sys.executable, "-m", "borealis.cli", "logs", "node1", "--follow", "-n", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "three\n"
        with log.open("a") as file:
            file.write("four\n")
        assert following.stdout.readline() == "four\n"
        log.write_text("anew\n")
        assert following.stdout.readline() == "anew\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(20) == 130


def test_up_refuses_a_port_that_is_taken(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is taken" in refused(capfd, "up", "--port", port)
    assert not record_path().exists()


@pytest.mark.long
def test_a_part_that_dies_while_starting_takes_the_others_along(clean: Path) -> None:
    environment = os.environ | {"JAVA_HOME": "/nowhere", "PATH": str(clean)}
    command = [sys.executable, "-m", "borealis.cli", "up", "--nodes", "1", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: node1 ended while starting")
    assert "Spark needs Java" in last
    assert "node1 said at last:" in done.stderr
    log = clean / "home" / "logs" / "node1.log"
    assert str(log) in last
    assert "Spark needs Java" in log.read_text()
    assert not record_path().exists()
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(clean) not in running


@pytest.mark.long
def test_a_coordinator_with_a_token_is_waited_for(clean: Path) -> None:
    (clean / "token").write_text("secret")
    environment = os.environ | {"JAVA_HOME": "/nowhere", "PATH": str(clean)}
    command = [sys.executable, "-m", "borealis.cli", "up", "--port", "0", "--token-file", "token"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert "coordinator: ready" in done.stderr or "Spark needs Java" in done.stderr.splitlines()[-1]
    assert "no coordinator" not in done.stderr


def test_the_plan_of_a_cluster_file_names_what_runs_here_and_what_to_type_elsewhere(clean: Path) -> None:
    (clean / "token").write_text("secret")
    (clean / "cluster.yaml").write_text(
        "coordinator: {host: one, port: 7000}\n"
        "token_file: token\n"
        "tls: {cert: c.pem, key: k.pem, ca: ca.pem}\n"
        "nodes:\n"
        "  - {name: node1, host: one, cores: 2}\n"
        "  - {name: node2, host: two, port: 7481, master: 'spark://m:7077', data: '/var/node 2'}\n"
    )
    made = cluster_plan.plan(UpOptions(config=clean / "cluster.yaml", host="one"))
    assert list(made.here) == ["coordinator", "node1"]
    assert made.here["node1"][:7] == ["node", "--name", "node1", "--coordinator", "one:7000", "--host", "one"]
    assert made.here["coordinator"][-6:] == [
        "--tls-cert", str(clean / "c.pem"), "--tls-key", str(clean / "k.pem"), "--tls-ca", str(clean / "ca.pem"),
    ]  # fmt: skip
    [(what, typed)] = made.elsewhere.items()
    assert what == "node2 on two"
    assert typed.startswith("borealis node --name node2 --coordinator one:7000 --host two --port 7481")
    assert "--master spark://m:7077 --data '/var/node 2' --token-file" in typed
    assert made.coordinator.url == "https://one:7000"
    assert made.coordinator.token == "secret"


def test_up_nodes_are_named_and_share_nothing() -> None:
    made = cluster_plan.plan(UpOptions(nodes=3, port=7001, cores_per_node=2))
    assert list(made.here) == ["coordinator", "node1", "node2", "node3"]
    data = [arguments[arguments.index("--data") + 1] for name, arguments in made.here.items() if name != "coordinator"]
    assert len(set(data)) == 3
    assert all(arguments[arguments.index("--cores") + 1] == "2" for arguments in list(made.here.values())[1:])
    assert made.elsewhere == {}


def test_all_nodes_of_a_cluster_have_pools_of_one_size(clean: Path) -> None:
    made = cluster_plan.plan(UpOptions(nodes=2, port=7001, pool=3))
    assert [typed[typed.index("--pool") + 1] for name, typed in made.here.items() if name != "coordinator"] == ["3"] * 2
    (clean / "cluster.yaml").write_text("pool: 0\nnodes: [{name: node1}]\n")
    typed = cluster_plan.plan(UpOptions(config=clean / "cluster.yaml")).here["node1"]
    assert typed[typed.index("--pool") + 1] == "0"
    assert "--pool" not in cluster_plan.plan(UpOptions(nodes=1, port=7001)).here["node1"]


# -- what is shown

TAKEOVER = {"at": 1_767_268_991.0, "incarnation": 2, "primary": "node2", "detection_ms": 240.0, "takeover_ms": 31.0,
            "reprocess_ms": 120.0, "trains": 3, "jumped": False}  # fmt: skip
STATUS: dict[str, Any] = {
    "v": 1,
    "coordinator": {"version": "0.1.0", "incarnation": "c", "address": "http://127.0.0.1:7470", "pid": 4241,
                    "catalog": "/c.sqlite", "started": 1_767_268_000.0, "looks": 7},
    "nodes": [
        {"node": "node1", "alive": True, "state": "alive", "spark": "ready", "warm": True, "master": "local[1]",
         "cores": 1, "units": 1, "busy": 0.25, "pid": 4242, "address": "grpc://127.0.0.1:7481", "host": "vm",
         "http": "http://127.0.0.1:8481", "incarnation": "n"},
        {"node": "node2", "alive": False, "state": "awaited", "spark": "unknown", "pid": 4243,
         "address": "grpc://127.0.0.1:7482", "host": "vm", "http": "http://127.0.0.1:8482", "incarnation": "m",
         "seen": 1_767_268_000.0},
    ],
    "diagrams": [{"diagram": "traffic", "state": "failed", "since": 1.0, "units": {"u1": "node1"}, "buckets": 1,
                  "entries": {"packets": "node1"}, "backups": {}, "outputs": {}, "cuts": [], "places": {}}],
    "units": [
        {"diagram": "traffic", "unit": "u1", "node": "node1", "moving_to": "node2", "state": "moving", "rows_in": 12345,
         "rows_in_per_s": 1999.9, "rows_out_per_s": 10.0, "trains": 7, "train_ms": 85.0, "lag_rows": 77,
         "state_bytes": 2_500_000, "boundary": 1_767_225_600_000_000, "ended": False, "error": "", "runs": "in lanes",
         "protection": {"approach": "passive", "guarantee": "precise", "incarnation": 2, "backup": None,
                        "state": "alone", "since": 1_767_268_991.0, "why": "node2 does not answer",
                        "stale_ms": 0.0, "recovery_ms": 0.0, "last_takeover": TAKEOVER}},
        {"diagram": "traffic", "unit": "u2", "node": "node2", "state": "failed", "error": "a train failed: no"},
        {"diagram": "traffic", "unit": "u3", "node": "node2", "state": "waiting", "error": "",
         "waiting": [{"why": "box 'w': database x cannot be used", "seconds": 75.2}]},
    ],
    "streams": [
        {"stream": "traffic/agg", "diagram": "traffic", "arrow": "agg", "outputs": ["per_source"], "entry": False,
         "columns": "n INT", "node": "node1", "alive": True, "address": "grpc://127.0.0.1:7481", "backup": None,
         "epoch": "e", "first_id": 380, "next_id": 500, "rows_per_s": 10.0, "held_rows": 120, "held_bytes": 4096,
         "dropped": 3, "readers": {"traffic.u2": 480, "ada": 400}, "boundary": None, "ended": True},
        {"stream": "traffic/packets", "diagram": "traffic", "arrow": "packets", "outputs": [], "entry": True,
         "columns": "n INT", "node": "node2", "alive": False, "address": None, "backup": "node1",
         "protection": {"approach": "passive", "guarantee": "precise", "incarnation": 1, "backup": "node1",
                        "state": "protected", "since": 1.0, "why": "", "stale_ms": 2.5, "recovery_ms": 330.0}},
    ],
    "unprotected": [
        {"diagram": "traffic", "what": "u1", "seconds": 12.3, "state": "alone", "since": 1_767_268_991.0,
         "why": "node2 does not answer"}
    ],
    "troubles": [{"diagram": "traffic", "node": "node2", "what": "unit u2 is lost", "why": "it does not answer"}],
}  # fmt: skip


def read(status: dict[str, Any] = STATUS) -> ClusterStatus:
    return ClusterStatus.decode(status)


def window(width: int = 160, height: int = 60) -> Console:
    return Console(width=width, height=height, record=True, file=open(os.devnull, "w"))


def printed(thing: object, width: int = 160) -> str:
    out = window(width)
    out.print(thing)
    return out.export_text()


def test_the_status_says_all() -> None:
    text = printed(status.shown(read()))
    for part in (
        "1 of 2 nodes alive",
        "25 %",
        "awaited",
        "node1 > node2",
        "12,345",
        "2,000",
        "85 ms",
        "77 rows",
        "2.5 MB",
        "2026-01-01 00:00:00",
        "agg (per_source)",
        "packets (input)",
        "ada (of 2)",
        "ended",
        "traffic/u2: a train failed: no",
        "traffic/u3 waits, for 1 min 15 s so far: box 'w': database x cannot be used",
        "trouble: traffic: node2: unit u2 is lost: it does not answer",
    ):
        assert part in text, text
    [row] = [line for line in text.splitlines() if "agg (per_source)" in line]
    assert " 100 " in row  # ada is a hundred tuples behind


def test_the_status_tells_the_story_of_a_takeover_and_shouts_at_its_end() -> None:
    text = printed(status.shown(read()))
    at = datetime.fromtimestamp(1_767_268_991.0).strftime("%H:%M:%S")
    lines = [line.rstrip() for line in text.splitlines()]
    assert f"u1 took over from node2 {at}: detection 240 ms, takeover 31 ms, reprocessing 120 ms" in lines
    assert lines[-1] == "UNPROTECTED: u1 of traffic for 12 s: node2 does not answer"
    alone, kept = [line for line in lines if "passive, precise" in line]
    assert alone.split()[0] == "u1"
    assert f"alone since {at}: node2 does not answer" in alone
    assert kept.split() == [
        "input",
        "packets",
        "passive,",
        "precise",
        "node1",
        "protected",
        "1",
        "2",
        "ms",
        "~",
        "330",
        "ms",
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_window_loses_columns_but_no_names(width: int) -> None:
    lines = [line.split() for line in printed(status.shown(read()), width).splitlines()]
    head, unit = next((a, c) for a, _, c in zip(lines, lines[1:], lines[2:], strict=False) if a[:1] == ["unit"])
    assert head[:3] == ["unit", "node", "state"]
    assert unit[:6] == ["u1", "node1", ">", "node2", "moving", "12,345"]
    [node] = [line for line in lines if line[:2] == ["node1", "alive"]]
    assert ("grpc://127.0.0.1:7481" in node) == (width >= 100)
    [stream] = [line for line in lines if line[:1] == ["agg"]]
    assert stream[-1] == ("ended" if width >= 100 else "3"), "lost tuples are shown where there are some"
    [alone] = [line for line in lines if line[:2] == ["u1", "-"] or line[:2] == ["u1", "passive,"]]
    assert "alone" in alone


def a_large_status(nodes: int) -> ClusterStatus:
    node, unit, stream = STATUS["nodes"][0], STATUS["units"][0], STATUS["streams"][0]
    more = {
        "nodes": [node | {"node": f"node{i}"} for i in range(nodes)] + STATUS["nodes"][1:],
        "units": [unit | {"unit": f"u{i}", "state": "running"} for i in range(nodes)] + STATUS["units"][1:],
        "streams": [stream | {"arrow": f"agg{i}"} for i in range(nodes)],
    }
    return read(STATUS | more)


@pytest.mark.parametrize(("nodes", "height"), [(1, 60), (3, 24), (25, 24), (3, 6), (3, 4)])
def test_what_is_watched_fits_its_window(nodes: int, height: int) -> None:
    out = window(80, height)
    out.print(status.fitting(a_large_status(nodes), out))
    lines = out.export_text().splitlines()
    assert len(lines) < height
    text = "\n".join(lines)
    assert "UNPROTECTED: u1 of traffic for 12 s" in text
    if height == 24:
        assert "streams: agg0 500 (10/s, 100 behind, 3 lost)" in text
        assert "alone: u0" in text
        assert "u0 took over from node2" in text
        assert "failed" in text
        assert ("u2    node2" in text) == (nodes == 3)
    elif height == 60:
        assert "slowest reader" in text, "nothing is folded where there is room"
    else:
        assert ("and 3 more: see 'borealis status'" in text) == (height == 4)


def test_the_status_of_an_empty_cluster_is_short() -> None:
    empty = {key: [] for key, value in STATUS.items() if isinstance(value, list)}
    assert printed(status.shown(read(STATUS | empty))).startswith(
        "coordinator http://127.0.0.1:7470: 0 of 0 nodes alive"
    )


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, bytes]]]:
    """An HTTP server that knows the status above and remembers what it was asked."""
    asked: list[tuple[str, str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            asked.append((self.command, self.path, body))
            diagram = STATUS["diagrams"][0] | {"warnings": ["look out"]}
            moved = {"diagram": "traffic", "unit": "u2", "node": "node3"}
            told = {"/v1/diagrams": diagram, "/v1/units/u2/move": moved}.get(self.path, STATUS)
            reply = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("BOREALIS_COORDINATOR", f"127.0.0.1:{http.server_address[1]}")
        yield asked
        http.shutdown()


def test_orders_reach_the_coordinator_as_it_wants_them(
    coordinator: list[tuple[str, str, bytes]], capfd: pytest.CaptureFixture[str]
) -> None:
    place = ["--place", "per_source=node2", "--cut", "map_1", "--buckets", "2"]
    assert run_app(["deploy", str(YAML), *place]) == 0
    method, path, body = coordinator[0]
    sent = json.loads(body)
    assert (method, path) == ("POST", "/v1/diagrams")
    assert sent["place"] == {"per_source": "node2"}
    assert sent["cut"] == ["map_1"]
    assert sent["buckets"] == 2
    assert "name: traffic" in sent["yaml"]
    assert not {"ha", "guarantee", "interval", "ping", "misses", "without_backup", "backup"} & sent.keys()
    shown = capfd.readouterr().out
    assert "borealis send packets FILE" in shown
    assert "warning: look out" in shown
    assert run_app(["move", "traffic/u2", "node3"]) == 0
    assert run_app(["undeploy", "traffic", "--json"]) == 0
    assert run_app(["status", "--json"]) == 0
    assert [(m, p, b) for m, p, b in coordinator[2:]] == [
        ("POST", "/v1/units/u2/move", b'{"node":"node3","diagram":"traffic"}'),
        ("DELETE", "/v1/diagrams/traffic", b""),
        ("GET", "/v1/status", b""),
    ]
    assert json.loads(capfd.readouterr().out.splitlines()[-1]) == STATUS


def test_protection_is_asked_for_as_the_coordinator_wants_it(
    coordinator: list[tuple[str, str, bytes]], capfd: pytest.CaptureFixture[str]
) -> None:
    ha = ["--ha", "passive", "--guarantee", "precise", "--interval", "500 ms", "--ping", "50 ms", "--misses", "4"]
    rest = ["--without-backup", "degrade", "--backup", "u2=node3", "--merge", "time", "--bucket", "50 ms"]
    assert run_app(["deploy", str(YAML), *ha, *rest]) == 0
    sent = json.loads(coordinator[0][2])
    assert {key: value for key, value in sent.items() if key not in ("yaml", "cut", "place", "buckets")} == {
        "ha": "passive",
        "guarantee": "precise",
        "interval": "500 ms",
        "ping": "50 ms",
        "misses": 4,
        "without_backup": "degrade",
        "merge": "time",
        "bucket": "50 ms",
        "backup": {"u2": "node3"},
    }
    shown = capfd.readouterr().out
    assert "passive, precise" in shown
    assert "UNPROTECTED: u1 of traffic for 12 s: node2 does not answer" in shown


def test_down_tells_what_was_started_by_hand(
    coordinator: list[tuple[str, str, bytes]], capfd: pytest.CaptureFixture[str], clean: Path
) -> None:
    with a_process() as one:
        part = ClusterProcess(
            name="node1", pid=one.pid, started=processes.moment(one.pid) or "", log=str(clean / "log")
        )
        write_record(ClusterRecord(coordinator=os.environ["BOREALIS_COORDINATOR"], data=str(clean), parts=[part]))
        assert run_app(["down"]) == 0
    [pid] = [node["pid"] for node in STATUS["nodes"] if node["node"] == "node1"]
    assert f"still running, for it was not started from this home: node1 (pid {pid})" in capfd.readouterr().err


def test_after_a_deployment_the_commands_are_those_that_work(capfd: pytest.CaptureFixture[str]) -> None:
    mine = STATUS["diagrams"][0] | {"outputs": {"per_source": "agg"}}
    other = mine | {"diagram": "other", "entries": {}}
    deploy.show("traffic", read(STATUS | {"diagrams": [mine]}))
    assert "borealis tail per_source\n" in capfd.readouterr().out
    deploy.show("traffic", read(STATUS | {"diagrams": [mine, other]}))
    told = capfd.readouterr().out
    assert "borealis tail traffic/per_source\n" in told
    assert "borealis send packets FILE\n" in told


def test_watching_shows_the_status_again_and_again(
    coordinator: list[tuple[str, str, bytes]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "EVERY_S", 0.02)
    monkeypatch.setattr(status.STOP, "_wished", None)
    user = threading.Thread(target=interrupt_behind, args=(coordinator, 3), daemon=True)
    user.start()
    assert run_app(["status", "--watch", "--json"]) == 130
    user.join(60)
    first, second, *_ = capfd.readouterr().out.splitlines()
    assert json.loads(first) == json.loads(second) == STATUS


def interrupt_behind(asked: list[tuple[str, str, bytes]], count: int) -> None:
    """As a user does with Ctrl-C, when so much was asked for."""
    deadline = time.monotonic() + 60
    while len(asked) < count and time.monotonic() < deadline:
        time.sleep(0.005)
    if len(asked) >= count:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_a_broken_diagram_never_reaches_the_coordinator(
    coordinator: list[tuple[str, str, bytes]], capfd: pytest.CaptureFixture[str], clean: Path
) -> None:
    (clean / "broken.yaml").write_text(YAML.read_text().replace("from: packets", "from: pakets"))
    assert "did you mean 'packets'?" in refused(capfd, "deploy", "broken.yaml")
    assert coordinator == []


def test_kill_ends_nodes_of_this_machine_only(
    coordinator: list[tuple[str, str, bytes]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no node 'nod1' (nodes are node1, node2). Hint: did you mean 'node1'?" in refused(
        capfd, "kill", "nod1"
    )
    with a_process() as one, a_process() as stranger:
        monkeypatch.setitem(STATUS["nodes"][0], "pid", one.pid)
        monkeypatch.setitem(STATUS["nodes"][0], "host", "192.0.2.1")
        assert "node 'node1' runs on 192.0.2.1" in refused(capfd, "kill", "node1")
        monkeypatch.setitem(STATUS["nodes"][0], "host", socket.gethostname())
        monkeypatch.setitem(STATUS["nodes"][1], "host", socket.gethostname())
        monkeypatch.setitem(STATUS["nodes"][1], "pid", stranger.pid)
        assert "is no node of Borealis" in refused(capfd, "kill", "node2")
        part = ClusterProcess(name="node1", pid=one.pid, started=processes.moment(one.pid) or "", log="")
        write_record(ClusterRecord(coordinator="127.0.0.1:1", data="data", parts=[part]))
        assert run_app(["kill", "node1", "--json"]) == 0
        assert json.loads(capfd.readouterr().out) == {"killed": "node1", "pid": one.pid}
        assert one.wait(10) == -signal.SIGKILL
        assert stranger.poll() is None
        assert "has ended already" in refused(capfd, "kill", "node1")
        stranger.kill()


# -- rows in and out


def test_batches_of_a_name_are_the_same_whatever_the_rate() -> None:
    assert SendOptions(publisher="ada").rows == SendOptions(rate=5, publisher="ada").rows
    assert SendOptions(rate=5).rows == 1
    assert SendOptions(rate=20_000).rows == 1_000
    assert SendOptions(rate=1, batch_rows=7).rows == 7


def test_whole_batches_keep_every_row_in_its_place() -> None:
    table = pa.table({"n": range(1000)})
    for cuts in ([1000], [1, 999], [7] * 143, [333, 333, 334], []):
        parts, at = [], 0
        for n in cuts:
            parts += table.slice(at, n).to_batches()
            at += n
        got = list(whole_batches(iter(parts), 64))
        assert [b.num_rows for b in got[:-1]] == [64] * (len(got) - 1)
        assert [n for b in got for n in b.column(0).to_pylist()] == list(range(min(at, 1000)))


def test_a_tail_is_shown_in_columns_that_grow(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    show = TextRows(followed=True).batch
    show(pa.record_batch({"src": ["a"], "kb": [1.5]}))
    show(pa.record_batch({"src": ["b" * 12, None], "kb": [2.25, 3.0]}))
    show(pa.record_batch({"src": ["c"], "kb": [4.0]}))
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert lines == [
        "src  kb",
        "a    1.5",
        "src           kb",
        "bbbbbbbbbbbb  2.25",
        "-             3",
        "c             4",
    ]


def test_what_is_no_place_in_a_stream_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert [parse_start(text) for text in ("oldest", "newest", "17", "-1")] == ["oldest", "newest", 17, None]
    assert run_app(["tail", "packets", "--from", "-1"]) == 2
    assert "--from '-1' is no place in a stream" in capfd.readouterr().err
