"""A cluster for tests: its commands, what they said, and conditions to wait for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import borealis
from borealis.client.client import Client
from borealis.hosts import free_ports
from proxy import Proxy

PATIENCE_S = 120.0
START_US = 1_700_000_000_000_000
SOURCES = 20
TRAFFIC = """\
borealis: 1
name: {name}
inputs:
  packets: {{columns: 'ts TIMESTAMP, src STRING, bytes INT', time: ts, slack: 1 second{more}}}
boxes:
  large: {{filter: {{from: packets, predicate: bytes > 100}}}}
  kilo: {{map: {{from: large, exprs: {{src: src, bytes: bytes}}}}}}
  per_source:
    aggregate: {{from: kilo, by: [src], size: 4 seconds, slide: 1 second, exprs: {{n: count(*), b: sum(bytes)}}}}
outputs:
  per_source: per_source
"""


def wait_for(what: Callable[[], Any], told: str, seconds: float = PATIENCE_S, every_s: float = 0.1) -> Any:
    """The first answer that is true; a test that waits in vain says for what."""
    until = time.monotonic() + seconds
    while not (answer := what()):
        if time.monotonic() > until:
            raise AssertionError(f"waited {seconds:.0f} s in vain: {told}")
        time.sleep(every_s)  # between looks at something outside this process
    return answer


class City:
    """Runs `borealis` commands with a home of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = os.environ | {"BOREALIS_HOME": str(root / "home"), "COLUMNS": "200"}
        self.environment.pop("BOREALIS_COORDINATOR", None)
        self._background: list[subprocess.Popen[bytes]] = []
        self.proxies: dict[str, Proxy] = {}  # by the node that others reach through it

    def run(self, *arguments: str, fails: bool = False) -> str:
        """A command to its end; its standard output, or what it said on standard error if it is to fail."""
        done = subprocess.run(
            [sys.executable, "-m", "borealis.cli", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert (done.returncode != 0) == fails, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        if fails:
            assert "Traceback" not in done.stderr, done.stderr
        return done.stderr if fails else done.stdout

    def start(self, *arguments: str, out: Path) -> subprocess.Popen[bytes]:
        """A command in the background; what it says goes to a file."""
        with out.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "borealis.cli", *arguments],
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT if out.suffix == ".log" else subprocess.DEVNULL,
            )
        self._background.append(process)
        return process

    def up(self, nodes: int, fronted: Sequence[str] = (), storage: Path | None = None) -> dict[str, Any]:
        """Start it; nodes that are `fronted` are reached through a proxy."""
        parts: dict[str, dict[str, Any]] = {f"node{n}": {"name": f"node{n}"} for n in range(1, nodes + 1)}
        port, *ports = free_ports(1 + 2 * len(fronted))
        for number, node in enumerate(fronted):
            at, behind = ports[2 * number : 2 * number + 2]
            self.proxies[node] = Proxy(at, behind)
            parts[node] |= {"port": behind, "announce": self.proxies[node].address}
        file = self.root / "cluster.yaml"
        made = {"coordinator": {"port": port}, "nodes": list(parts.values()), "allow_faults": True}
        made |= {"storage": str(storage)} if storage is not None else {}
        file.write_text(json.dumps(made))  # which is YAML, too
        told: dict[str, Any] = json.loads(self.run("up", "--config", str(file), "--json"))
        return told

    def down(self) -> None:
        """End everything that was started."""
        for process in self._background:
            if process.poll() is None:
                process.kill()
            process.wait(10)
        self.run("down")
        for proxy in self.proxies.values():
            proxy.close()

    def status(self) -> dict[str, Any]:
        """What `borealis status --json` says, without a process of its own: tests ask often."""
        with self.connect() as client:
            told: dict[str, Any] = json.loads(client.status().model_dump_json())
        return told

    def connect(self) -> Client:
        """A client in this process."""
        return borealis.connect(self.record()["coordinator"])

    def undeploy(self, *diagrams: str) -> None:
        """Behind a test."""
        with self.connect() as client:
            for diagram in diagrams:
                client.undeploy(diagram)

    def node(self, name: str) -> dict[str, Any]:
        """One node of the status."""
        found: dict[str, Any] = next(n for n in self.status()["nodes"] if n["node"] == name)
        return found

    def diagram(self, name: str, more: str = "") -> Path:
        """A diagram file: large packets per source, in windows of four seconds."""
        path = self.root / f"{name}.yaml"
        path.write_text(TRAFFIC.format(name=name, more=more))
        return path

    def record(self) -> dict[str, Any]:
        """What `up` remembers of the cluster."""
        told: dict[str, Any] = json.loads((self.root / "home" / "cluster.json").read_text())
        return told

    def kill(self, part: str) -> None:
        """kill -9 of a process that `up` started."""
        pid = next(p["pid"] for p in self.record()["parts"] if p["name"] == part)
        os.kill(pid, signal.SIGKILL)

    def bring_back(self, node: str) -> None:
        """Start a node again that is dead."""
        assert f"{node} runs again" in self.run("restart", node)


def packets(root: Path, rows: int, seed: int = 1) -> Path:
    """A file of packets, a thousand per second of stream time."""
    rng = np.random.default_rng(seed)
    table = pa.table(
        {
            "ts": pa.array(START_US + np.arange(rows) * 1000, pa.timestamp("us", "UTC")),
            "src": pa.array([f"10.0.0.{i}" for i in rng.integers(0, SOURCES, rows)]),
            "bytes": pa.array(rng.integers(40, 1500, rows), pa.int32()),
        }
    )
    path = root / f"packets-{rows}-{seed}.parquet"
    pq.write_table(table, path)
    return path


def expected(path: Path) -> Counter[tuple[Any, ...]]:
    """What the diagram makes of a file, told in plain Python: (source, end of window in seconds, count, bytes)."""
    counts: Counter[tuple[str, int]] = Counter()
    sums: Counter[tuple[str, int]] = Counter()
    table = pq.read_table(path)
    seconds = (np.asarray(table["ts"].cast(pa.int64())) // 1_000_000).tolist()
    for second, src, size in zip(seconds, table["src"].to_pylist(), table["bytes"].to_pylist(), strict=True):
        if size > 100:
            for end in range(second + 1, second + 5):
                counts[src, end] += 1
                sums[src, end] += size
    return Counter((src, end, n, sums[src, end]) for (src, end), n in counts.items())


def seen(lines: Iterable[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """The same from rows of the output."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in lines:
        end = np.datetime64(str(row["window_end"]).removesuffix("Z").split("+")[0].replace(" ", "T"), "s").astype(int)
        found[row["src"], int(end), row["n"], row["b"]] += 1
    return found


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that is still being written."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
