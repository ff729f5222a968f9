"""Borealis: continuous queries on Apache Spark that stay fast and correct.

A diagram says what to compute; `run` computes it:

    from borealis import Diagram, replay, run, window

    d = Diagram("traffic")
    packets = d.input("packets", "ts TIMESTAMP, src STRING, bytes INT", time="ts", slack="2 seconds")
    packets.aggregate(by="src", over=window("10 seconds", "1 second"), n="count(*)").output("per_source")
    run(d, inputs={"packets": replay("packets.parquet")}, outputs={"per_source": "out.parquet"})

A cluster (`borealis up --nodes 3`) runs it for as long as anybody wants:

    cluster = borealis.connect()
    cluster.deploy(d)
    cluster.publish("packets", rows)
    for row in cluster.subscribe("per_source"):
        print(row)
"""

from __future__ import annotations

from typing import Any

from borealis.diagram import Diagram, window
from borealis.errors import BorealisError
from borealis.ingest.sources import replay, rows

__version__ = "0.1.0"
__all__ = [
    "BorealisError",
    "Client",
    "Diagram",
    "Result",
    "__version__",
    "connect",
    "connect_async",
    "replay",
    "rows",
    "run",
    "window",
]


def __getattr__(name: str) -> Any:
    if name in ("run", "Result"):  # Spark is imported only when something is to run
        from borealis.node import run as node_run

        return getattr(node_run, name)
    if name in ("connect", "connect_async", "Client"):  # and the wire only when there is a cluster to talk to
        from borealis.emit import client

        return getattr(client, name)
    raise AttributeError(f"module 'borealis' has no attribute '{name}'")
