"""`borealis restart`: start a part of this home's cluster again that has ended, in the background."""

from __future__ import annotations

import json
import time

from borealis.cli import processes
from borealis.cli.starting import COORDINATOR, Patience, only_one, start_again
from borealis.client.cluster_config import Part, Record, home, read_record
from borealis.errors import ClusterError, did_you_mean


def restart_command(name: str, patience: Patience) -> None:
    """With the arguments that it had, so with its data; it belongs to the cluster as before."""
    began = time.monotonic()
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
        start_again(record, {name: part.arguments}, patience)
        part = part_of(read_record(), name)
    seconds = time.monotonic() - began
    if patience.quiet:
        print(json.dumps({"started": name, "pid": part.pid, "seconds": round(seconds, 3)}))
    else:
        print(f"{name} runs again (pid {part.pid}), after {seconds:.1f} s")


def part_of(record: Record | None, name: str) -> Part:
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
