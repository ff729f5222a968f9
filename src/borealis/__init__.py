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

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from borealis.diagram import Diagram, count_window, window
    from borealis.emit.client import Client, connect, connect_async
    from borealis.emit.sinks.directory import directory
    from borealis.emit.sinks.kafka import kafka_sink
    from borealis.errors import BorealisError, BorealisWarning
    from borealis.ingest.sources import replay, rows
    from borealis.ingest.sources.kafka import kafka
    from borealis.ingest.sources.watch import watch
    from borealis.node.run import Result, run

__version__ = "0.1.0"
__all__ = [
    "BorealisError",
    "BorealisWarning",
    "Client",
    "Diagram",
    "Result",
    "__version__",
    "connect",
    "connect_async",
    "count_window",
    "directory",
    "kafka",
    "kafka_sink",
    "replay",
    "rows",
    "run",
    "watch",
    "window",
]

# Where each name is. They are imported when first used: a program that talks to a cluster needs no Spark, and a command
# that only starts processes needs none of it.
_HOMES = {
    "BorealisError": "borealis.errors",
    "BorealisWarning": "borealis.errors",
    "Client": "borealis.emit.client",
    "Diagram": "borealis.diagram",
    "Result": "borealis.node.run",
    "connect": "borealis.emit.client",
    "connect_async": "borealis.emit.client",
    "count_window": "borealis.diagram",
    "directory": "borealis.emit.sinks.directory",
    "kafka": "borealis.ingest.sources.kafka",
    "kafka_sink": "borealis.emit.sinks.kafka",
    "replay": "borealis.ingest.sources",
    "rows": "borealis.ingest.sources",
    "run": "borealis.node.run",
    "watch": "borealis.ingest.sources.watch",
    "window": "borealis.diagram",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'borealis' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
