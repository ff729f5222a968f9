"""Starting processes of a cluster and waiting until they are ready; `up` and `restart` do it."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from borealis.cli import processes
from borealis.cli.screen import Screen, grid
from borealis.client.cluster_config import ClusterProcess, ClusterRecord, Whereabouts, find, home, make_folder, register
from borealis.clock import WALL
from borealis.errors import BorealisError, ClusterError, MachineError, WireError

if TYPE_CHECKING:
    from borealis.client.coordinator import CoordinatorRequests
    from borealis.wire.status import NodeView

ASK_EVERY_S = 0.1  # at processes and coordinator while they start
COORDINATOR = "coordinator"
UNAUTHORIZED = 401  # HTTP


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Two commands that start parts of one home at the same time would start some twice."""
    make_folder(home(), "the cluster's home", "set BOREALIS_HOME to a folder of yours")
    with (home() / "up.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ClusterError(
                f"another 'borealis up' or 'restart' is starting a cluster in {home()}", hint="wait for it"
            ) from None
        yield


def log_of(name: str) -> Path:
    """Where a part's log is that was started in the background."""
    return home() / "logs" / f"{name}.log"


def start_again(record: ClusterRecord, missing: Mapping[str, list[str]], wait_s: float, quiet: bool) -> list[NodeView]:
    """Start parts beside those of the record that run; the nodes among them when all are ready."""
    processes.stop([part for part in record.parts if part.name in missing])  # what a dead part may have left behind
    return start_parts(find(record.coordinator), missing, Path(record.data), wait_s, quiet, again=True)


def start_parts(
    where: Whereabouts,
    arguments: Mapping[str, list[str]],
    data: Path,
    wait_s: float,
    quiet: bool,
    again: bool = False,
) -> list[NodeView]:
    """Start parts, each with its arguments; what the coordinator says of the nodes among them when all are ready.

    When one dies while it starts, the others are stopped. `again`: their logs go on.
    """
    started: list[tuple[ClusterProcess, subprocess.Popen[bytes]]] = []
    try:
        for name, given in arguments.items():
            started.append(processes.start(name, given, log_of(name), data / name, again=again))
            register(started[-1][0])  # after each, so that `down` knows all of them whatever happens to us
        return _wait_ready(where, started, wait_s, quiet)
    except BaseException:
        processes.stop(part for part, _ in started)
        raise


def _wait_ready(
    where: Whereabouts,
    started: Sequence[tuple[ClusterProcess, subprocess.Popen[bytes]]],
    wait_s: float,
    quiet: bool,
) -> list[NodeView]:
    from borealis.client.coordinator import CoordinatorRequests  # here: it takes a moment, while the parts start

    before: dict[str, str] = {}
    with Screen(quiet) as screen, CoordinatorRequests(where) as coordinator:
        while True:
            for part, process in started:
                if process.poll() is not None:
                    raise _died(part, process.returncode, screen)
            nodes = _nodes(coordinator)
            doing = {part.name: _doing(part, nodes) for part, _ in started}
            seconds = screen.seconds
            changes = (f"{seconds:5.1f} s  {name}: {what}" for name, what in doing.items() if before.get(name) != what)
            states = [(name, Text(what, "green" if what == "ready" else "yellow")) for name, what in doing.items()]
            screen.show(grid([*states, ("", Text(f"{seconds:.0f} s", "dim"))]), changes)
            before = doing
            failed = [part for part, _ in started if doing[part.name] == "Spark failed"]
            if failed:
                raise _died(failed[0], None, screen)
            if nodes is not None and all(what == "ready" for what in doing.values()):
                return [node for node in nodes if node.node in doing]
            if seconds > wait_s:
                late = ", ".join(f"{name} ({what})" for name, what in doing.items() if what != "ready")
                raise ClusterError(f"not ready within {wait_s:.0f} s: {late}", hint=f"see {home() / 'logs'}")
            WALL.sleep(ASK_EVERY_S)  # for processes to tell the coordinator, which tells us only when asked


def _nodes(coordinator: CoordinatorRequests) -> list[NodeView] | None:
    """The nodes that have reported; None while the coordinator does not answer."""
    try:
        return coordinator.nodes()
    except WireError as error:
        if getattr(error, "status", None) == UNAUTHORIZED:
            raise
        return None


def _doing(part: ClusterProcess, nodes: list[NodeView] | None) -> str:
    if part.name == COORDINATOR:
        return "starting" if nodes is None else "ready"
    found = next((node for node in nodes or () if node.node == part.name), None)
    if found is None or not found.alive or found.pid != part.pid:  # or it is the one that was
        return "starting"
    return {"starting": "starting Spark", "failed": "Spark failed"}.get(found.spark, found.spark)


def _died(part: ClusterProcess, code: int | None, screen: Screen) -> BorealisError:
    lines = processes.last_lines(part.log)
    if lines and not screen.quiet:
        screen.out.print(f"{part.name} said at last:", style="bold")
        for line in lines:
            screen.out.print(f"  {line}", markup=False, soft_wrap=True, style="dim")
    error = next((line for line in reversed(lines) if line.startswith("error: ")), "").removeprefix("error: ")
    why, _, hint = error.partition(" Hint: ")
    ended = "could not start Spark" if code is None else f"ended while starting (exit code {code})"
    message = f"{part.name} {ended}" + (f": {why.rstrip('.')}" if why else "")
    return MachineError(message, hint=f"{hint}; its log is {part.log}" if hint else f"its log is {part.log}")
