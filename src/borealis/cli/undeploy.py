"""`borealis undeploy`: a diagram stops; its state and streams are gone."""

from __future__ import annotations

import json

from borealis.cli.reaching import Reach


def undeploy_command(name: str, reach: Reach, as_json: bool) -> None:
    """Wait until nothing of it runs."""
    with reach.client() as client:
        client.undeploy(name)
    print(json.dumps({"undeployed": name}) if as_json else f"undeployed {name}")
