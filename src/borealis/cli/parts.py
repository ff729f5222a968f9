"""`borealis down`, `restart`, `logs` and `kill`: the parts of this home's cluster, processes of this machine."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from borealis.cli import processes
from borealis.cli.ending import LOOK_EVERY_S, STOP
from borealis.cli.options import ClusterOptions, Json
from borealis.cli.screen import answer, console, plural
from borealis.cli.starting import COORDINATOR, log_of, only_one, start_again
from borealis.client.cluster_config import ClusterProcess, ClusterRecord, find, home, read_record, record_path
from borealis.clock import WALL
from borealis.errors import BorealisError, ClusterError, MachineError, did_you_mean

if TYPE_CHECKING:
    from borealis.wire.status import NodeView

END_S = 10.0
PIECE_BYTES = 1 << 16  # of a log
PartName = Annotated[str, Argument(metavar="NODE", help="The node, or coordinator.")]


def part_of(record: ClusterRecord | None, name: str) -> ClusterProcess:
    """A part of this home, whether it runs or not."""
    if record is None:
        raise ClusterError(f"no cluster of {home()} runs", hint="start one with 'borealis up'")
    found = next((part for part in record.parts if part.name == name), None)
    if found is None:
        known = [part.name for part in record.parts]
        raise ClusterError(
            f"'{name}' is no part of the cluster of {home()} (it has {', '.join(known) or 'none'})",
            hint=did_you_mean(name, known) or "start it where it belongs: on its machine, with its BOREALIS_HOME",
        )
    return found


def down(json: Json = False) -> None:
    record = read_record()
    if record is None:
        answer(json, {"stopped": [], "killed": []}, f"no cluster of {home()} runs")
        return
    running = [part.name for part in record.parts if processes.alive(part)]
    others = _others(record)
    err = console(stderr=True)
    killed = processes.stop(record.parts, say=None if json else lambda text: err.print(text, style="yellow"))
    record_path().unlink(missing_ok=True)
    stopped = [name for name in running if name not in killed]
    gone = len(record.parts) - len(running)
    words = [f"stopped {plural(len(running), 'process', 'processes')}"]
    words += [f"{', '.join(killed)} killed"] if killed else []
    words += [f"{gone} had ended before"] if gone else []
    answer(json, {"stopped": stopped, "killed": killed, "others": others}, "; ".join(words))
    for other in () if json else others:
        err.print(f"still running, for it was not started from this home: {other}", style="yellow", soft_wrap=True)


def _others(record: ClusterRecord) -> list[str]:
    """What else belongs to the cluster, started from elsewhere; that is to be stopped there."""
    from borealis.client.coordinator import CoordinatorRequests  # here: a home without a cluster does not wait for it

    try:
        with CoordinatorRequests(find(record.coordinator)) as coordinator:
            status = coordinator.status()
    except BorealisError:
        return []  # the coordinator has ended
    ours = {part.pid for part in record.parts}
    found = {"coordinator": status.coordinator.pid} | {node.node: node.pid for node in status.nodes if node.alive}
    return [f"{name} (pid {pid})" for name, pid in found.items() if pid not in ours]


def restart(
    name: PartName,
    wait: Annotated[float, Option(min=1, help="Seconds until it must be ready.")] = 180,
    json: Json = False,
) -> None:
    began = WALL.now()
    with only_one():
        record = read_record()
        part = part_of(record, name)
        assert record is not None
        if processes.alive(part):
            raise ClusterError(f"{name} runs (pid {part.pid})", hint=f"'borealis kill {name}' would end it")
        if not part.arguments:
            raise ClusterError(f"how {name} was started is not known", hint="start it with 'borealis up'")
        coordinator = next((one for one in record.parts if one.name == COORDINATOR), None)
        if coordinator is not None and name != COORDINATOR and not processes.alive(coordinator):
            raise ClusterError(
                "the coordinator has ended", hint="'borealis up' starts all that is missing, 'restart coordinator' it"
            )
        start_again(record, {name: part.arguments}, wait, json)
        part = part_of(read_record(), name)
    seconds = WALL.now() - began
    facts = {"started": name, "pid": part.pid, "seconds": round(seconds, 3)}
    answer(json, facts, f"{name} runs again (pid {part.pid}), after {seconds:.1f} s")


def logs(
    name: PartName,
    follow: Annotated[bool, Option("--follow", "-f", help="And what comes, until stopped.")] = False,
    lines: Annotated[int | None, Option("--lines", "-n", min=1, help="The last lines; all if left out.")] = None,
) -> None:
    log = _log(name)
    try:
        with STOP.deferred():
            at = _show(log, 0 if lines is None else _start_of(log, lines))
            while follow:
                STOP.sleep(LOOK_EVERY_S)  # no event tells when a file grows
                at = _show(log, at)
    except OSError as error:
        raise MachineError(f"cannot read {log}: {error.strerror}", hint="check the file and its rights") from None


def _log(name: str) -> Path:
    """Where it is; a log outlives its cluster until the next one."""
    record, usual = read_record(), log_of(name)
    if record is None and usual.is_file() and usual.parent == log_of("-").parent:
        return usual
    part = part_of(record, name)
    if not part.log:
        state = "runs" if processes.alive(part) else "ran"
        raise ClusterError(f"{name} {state} in a terminal (pid {part.pid})", hint="what it says is there")
    return Path(part.log)


def _start_of(log: Path, lines: int) -> int:
    """Where the last so many lines begin."""
    with log.open("rb") as file:
        last = deque(file, maxlen=lines)
        return file.tell() - sum(len(line) for line in last)


def _show(log: Path, at: int) -> int:
    """Print from there on; a log that has become shorter is another one. Where it ended."""
    with log.open("rb") as file:
        if file.seek(0, 2) < at:
            at = 0
        file.seek(at)
        while piece := file.read(PIECE_BYTES):
            sys.stdout.buffer.write(piece)
            at += len(piece)
    sys.stdout.buffer.flush()
    return at


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
