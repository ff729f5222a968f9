"""`borealis logs`: what a node or the coordinator of this home has logged; with `--follow` also over restarts."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import Annotated

from typer import Option

from borealis.cli import processes
from borealis.cli.ending import LOOK_EVERY_S, STOP
from borealis.cli.starting import PartName, log_of, part_of
from borealis.client.cluster_config import read_record
from borealis.errors import ClusterError, MachineError

PIECE_BYTES = 1 << 16


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
