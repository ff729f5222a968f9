"""`borealis forget`: a named reader of a stream will not come back."""

from __future__ import annotations

import json

from borealis.cli.reaching import Reach


def forget_command(stream: str, reader: str, reach: Reach, as_json: bool) -> None:
    """What was kept for it alone is gone."""
    with reach.client() as client:
        client.forget(stream, reader)
    told = {"stream": stream, "forgotten": reader}
    print(json.dumps(told) if as_json else f"{stream} keeps nothing for {reader} now")
