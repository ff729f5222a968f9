"""`borealis kill`: end a node as a power cut would, to see what the others do. Only on this machine."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Annotated

from typer import Argument

from borealis.cli import processes
from borealis.cli.options import ClusterOptions, Json
from borealis.cli.screen import answer, console
from borealis.client.cluster_config import ClusterProcess, read_record
from borealis.errors import ClusterError, did_you_mean
from borealis.wire.status import NodeView

END_S = 10.0


def kill(node: Annotated[str, Argument(help="The node.")], cluster: ClusterOptions, json: Json = False) -> None:
    with cluster.client() as client:
        nodes = client.nodes()
    found = next((one for one in nodes if one.node == node), None)
    if found is None:
        known = [one.node for one in nodes]
        listing = f"nodes are {', '.join(known)}" if known else "there is none"
        raise ClusterError(f"there is no node '{node}' ({listing})", hint=did_you_mean(node, known))
    part = _process(node, found)
    if part is None or not processes.send(part, signal.SIGKILL):
        raise ClusterError(
            f"node '{node}' (pid {found.pid}) has ended already", hint="'borealis status' shows the others"
        )
    processes.wait_end(part, END_S)
    answer(json, {"killed": node, "pid": part.pid}, f"killed {node} (pid {part.pid})")
    if part.arguments and not json:
        console().print(f"to start it again: borealis restart {node}", style="dim", soft_wrap=True, markup=False)


def _process(name: str, node: NodeView) -> ClusterProcess | None:
    """The node's process, which must be of this machine and surely a node; None if it has ended."""
    from borealis.cli.cluster_file import is_here

    host, pid = node.host, node.pid
    if not is_here(host):
        raise ClusterError(
            f"node '{name}' runs on {host}, this is {socket.gethostname()}", hint=f"kill it there: kill -9 {pid}"
        )
    record = read_record()
    for part in record.parts if record is not None else ():
        if part.name == name and part.pid == pid:
            return part
    started = processes.moment(pid)
    if started is None or pid <= 1 or pid == os.getpid():
        return None
    if not _is_node(pid):
        raise ClusterError(f"process {pid} of this machine is no node of Borealis", hint="is it another machine's pid?")
    return ClusterProcess(name=name, pid=pid, started=started, log="")


def _is_node(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True  # no such file system here; the start time must do
    return b"borealis" in command and b"node" in command
