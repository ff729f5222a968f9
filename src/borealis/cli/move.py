"""`borealis move`: a running unit goes to another node, with its state."""

from __future__ import annotations

import json
import time

from borealis.cli.reaching import Reach
from borealis.cli.watching import console
from borealis.cli.words import span


def move_command(unit: str, node: str, diagram: str | None, reach: Reach, as_json: bool) -> None:
    """`u2`, or `traffic/u2` where several diagrams run."""
    before, slash, after = unit.partition("/")
    if slash:
        diagram, unit = before, after
    began = time.monotonic()
    with reach.client() as client:
        if as_json:
            answer = client.move(unit, node, diagram=diagram)
            print(json.dumps(answer.model_dump() | {"seconds": round(time.monotonic() - began, 3)}))
            return
        with console(stderr=True).status(f"moving {unit} to {node} ..."):
            client.move(unit, node, diagram=diagram)
    print(f"{unit} runs on {node} now; moved in {span((time.monotonic() - began) * 1e6)}")
