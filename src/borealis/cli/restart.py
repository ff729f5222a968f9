"""`borealis restart`: start a part of this home's cluster again that has ended, with its arguments and so its data."""

from __future__ import annotations

import time
from typing import Annotated

from typer import Option

from borealis.cli import processes
from borealis.cli.options import Json
from borealis.cli.screen import answer
from borealis.cli.starting import COORDINATOR, PartName, only_one, part_of, start_again
from borealis.client.cluster_config import read_record
from borealis.errors import ClusterError


def restart(
    name: PartName,
    wait: Annotated[float, Option(min=1, help="Seconds until it must be ready.")] = 180,
    json: Json = False,
) -> None:
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
        start_again(record, {name: part.arguments}, wait, json)
        part = part_of(read_record(), name)
    seconds = time.monotonic() - began
    facts = {"started": name, "pid": part.pid, "seconds": round(seconds, 3)}
    answer(json, facts, f"{name} runs again (pid {part.pid}), after {seconds:.1f} s")
