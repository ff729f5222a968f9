"""`borealis forget`: a named reader of a stream, or a node, will not come back."""

from __future__ import annotations

import json

from borealis.cli.reaching import Reach


def forget_command(name: str, reader: str | None, reach: Reach, as_json: bool) -> None:
    """With a reader, what its stream kept for it alone is gone; without, the name is a node's."""
    with reach.client() as client:
        if reader is None:
            client.forget_node(name)
        else:
            client.forget(name, reader)
    told = {"node": name} if reader is None else {"stream": name, "forgotten": reader}
    words = f"node {name} is forgotten" if reader is None else f"{name} keeps nothing for {reader} now"
    print(json.dumps(told) if as_json else words)
