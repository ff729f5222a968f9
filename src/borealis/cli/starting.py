"""Starting processes of a cluster and waiting until they are ready; `up` and `restart` do it."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from borealis.cli import processes
from borealis.cli.watching import console
from borealis.client.cluster_config import Part, Record, Whereabouts, find, home, make_folder, register
from borealis.errors import BorealisError, ClusterError, MachineError, WireError

if TYPE_CHECKING:
    from borealis.client.coordinator import CoordinatorClient
    from borealis.wire.status import NodeView

LOOK_EVERY_S = 0.1  # at processes and coordinator while they start
WAIT_S = 180.0
COORDINATOR = "coordinator"
UNAUTHORIZED = 401  # HTTP


@dataclass(frozen=True)
class Patience:
    """How long to wait until all is ready, and whether to say meanwhile how far it is."""

    seconds: float = WAIT_S
    quiet: bool = False


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


def start_again(record: Record, missing: Mapping[str, Sequence[str]], patience: Patience) -> list[NodeView]:
    """Start parts, each with its arguments, beside those of the record that run; the nodes among them when all are
    ready. When one dies while it starts, the others that were started now are stopped again.
    """
    processes.stop([part for part in record.parts if part.name in missing])  # what a dead part may have left behind
    parts: list[Part] = []
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, arguments in missing.items():
            part, running[name] = processes.start(
                name, arguments, log_of(name), Path(record.data) / name, again=log_of(name).exists()
            )
            parts.append(part)
            register(part)
        return wait_ready(find(record.coordinator), parts, running, patience)
    except BaseException:
        processes.stop(parts)
        raise


def wait_ready(
    where: Whereabouts, parts: Sequence[Part], running: Mapping[str, subprocess.Popen[bytes]], patience: Patience
) -> list[NodeView]:
    """Wait until all parts are; what the coordinator says of the nodes among them."""
    from borealis.client.coordinator import (
        CoordinatorClient,  # here, while the parts are starting: it takes a moment, too
    )

    deadline = time.monotonic() + patience.seconds
    with _show(patience.quiet) as show, CoordinatorClient(where) as coordinator:
        while True:
            for part in parts:
                if running[part.name].poll() is not None:
                    raise _died(part, running[part.name].returncode, patience.quiet)
            nodes = _nodes(coordinator)
            doing = {part.name: _doing(part, nodes) for part in parts}
            show(doing)
            failed = [part for part in parts if doing[part.name] == "Spark failed"]
            if failed:
                raise _died(failed[0], None, patience.quiet)
            if nodes is not None and all(what == "ready" for what in doing.values()):
                return [node for node in nodes if node.node in doing]
            if time.monotonic() > deadline:
                late = ", ".join(f"{name} ({what})" for name, what in doing.items() if what != "ready")
                raise ClusterError(f"not ready within {patience.seconds:.0f} s: {late}", hint=f"see {home() / 'logs'}")
            time.sleep(LOOK_EVERY_S)  # for processes to tell the coordinator, which tells us only when asked


def _nodes(coordinator: CoordinatorClient) -> list[NodeView] | None:
    """The nodes that have reported; None while the coordinator does not answer."""
    try:
        return coordinator.nodes()
    except WireError as error:
        if getattr(error, "status", None) == UNAUTHORIZED:
            raise
        return None


def _doing(part: Part, nodes: list[NodeView] | None) -> str:
    if part.name == COORDINATOR:
        return "starting" if nodes is None else "ready"
    found = next((node for node in nodes or () if node.node == part.name), None)
    if found is None or not found.alive or found.pid != part.pid:  # or it is the one that was
        return "starting"
    return {"starting": "starting Spark", "failed": "Spark failed"}.get(found.spark, found.spark)


def _died(part: Part, code: int | None, quiet: bool) -> BorealisError:
    lines = processes.last_lines(part.log)
    if lines and not quiet:
        err = console(stderr=True)
        err.print(f"{part.name} said at last:", style="bold")
        for line in lines:
            err.print(f"  {line}", markup=False, soft_wrap=True, style="dim")
    told = next((line for line in reversed(lines) if line.startswith("error: ")), "").removeprefix("error: ")
    said, _, hint = told.partition(" Hint: ")
    ended = "could not start Spark" if code is None else f"ended while starting (exit code {code})"
    message = f"{part.name} {ended}" + (f": {said.rstrip('.')}" if said else "")
    return MachineError(message, hint=f"{hint}; its log is {part.log}" if hint else f"its log is {part.log}")


class _Lines:
    """What each part is doing, a line when that changes."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._began = time.monotonic()

    def __call__(self, doing: dict[str, str]) -> None:
        err = console(stderr=True)
        for name, what in doing.items():
            if self._last.get(name) != what:
                err.print(f"{time.monotonic() - self._began:5.1f} s  {name}: {what}", markup=False)
        self._last = dict(doing)


class _Live:
    """What each part is doing, in place."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._began = time.monotonic()

    def __call__(self, doing: dict[str, str]) -> None:
        table = Table.grid(padding=(0, 2))
        for name, what in doing.items():
            table.add_row(name, Text(what, style="green" if what == "ready" else "yellow"))
        table.add_row("", Text(f"{time.monotonic() - self._began:.0f} s", style="dim"))
        self._live.update(table, refresh=True)


@contextlib.contextmanager
def _show(quiet: bool) -> Iterator[Any]:
    err = console(stderr=True)
    if quiet:
        yield lambda _: None
    elif err.is_terminal:
        with Live(console=err, auto_refresh=False, transient=True) as live:
            yield _Live(live)
    else:
        yield _Lines()
