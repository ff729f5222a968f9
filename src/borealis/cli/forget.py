"""`borealis forget` and `borealis forget-node`: a named reader of a stream, or a node, will not come back."""

from __future__ import annotations

import json

from borealis.cli.reaching import Reach


def forget_command(stream: str, reader: str, reach: Reach, as_json: bool) -> None:
    """What the stream kept for this reader alone is gone."""
    with reach.client() as client:
        client.forget(stream, reader)
    told = {"stream": stream, "forgotten": reader}
    print(json.dumps(told) if as_json else f"{stream} keeps nothing for {reader} now")


def forget_node_command(node: str, reach: Reach, as_json: bool) -> None:
    """It is shown no longer."""
    with reach.client() as client:
        client.forget_node(node)
    print(json.dumps({"node": node}) if as_json else f"node {node} is forgotten")
