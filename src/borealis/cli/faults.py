"""`borealis cut` and `heal`: a node is cut off from a stream, as if the network was, and reads it again."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from borealis.cli.options import ClusterOptions, Json, StreamName
from borealis.cli.screen import answer
from borealis.errors import ClusterError, did_you_mean
from borealis.wire.messages import CutOff, Done

NodeName = Annotated[str, Argument(metavar="NODE", help="The node whose units read it.")]


def cut(stream: StreamName, node: NodeName, cluster: ClusterOptions, json: Json = False) -> None:
    full = _say(stream, node, cluster, cut=True)
    answer(json, {"stream": full, "node": node, "cut": True}, f"{node} is cut off from {full}: 'borealis heal' ends it")


def heal(stream: StreamName, node: NodeName, cluster: ClusterOptions, json: Json = False) -> None:
    full = _say(stream, node, cluster, cut=False)
    answer(json, {"stream": full, "node": node, "cut": False}, f"{node} reads {full} again")


def _say(stream: str, node: str, cluster: ClusterOptions, *, cut: bool) -> str:
    with cluster.client() as client:
        found = client.locate(stream).stream
        nodes = {one.node: one.address for one in client.nodes() if one.alive}
        if node not in nodes:
            hint = did_you_mean(node, nodes) or f"there are: {', '.join(nodes) or 'none'}"
            raise ClusterError(f"no node '{node}' is alive", hint=hint)
        with client.peer(nodes[node]) as peer:
            peer.act("cut", CutOff(stream=found, cut=cut), Done)
    return found
