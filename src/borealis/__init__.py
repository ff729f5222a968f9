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

from borealis.version import __version__

if TYPE_CHECKING:
    from borealis.client.client import Client, connect, connect_async
    from borealis.compile.batch import batch
    from borealis.connectors import kafka
    from borealis.connectors.files.directory import directory
    from borealis.connectors.files.watch import watch
    from borealis.connectors.sources import replay, rows
    from borealis.diagram import Diagram, count_window, window
    from borealis.errors import BorealisError, BorealisWarning
    from borealis.local.run import Result, run

__all__ = [
    "BorealisError",
    "BorealisWarning",
    "Client",
    "Diagram",
    "Result",
    "__version__",
    "batch",
    "connect",
    "connect_async",
    "count_window",
    "directory",
    "kafka",
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
    "Client": "borealis.client.client",
    "Diagram": "borealis.diagram",
    "Result": "borealis.local.run",
    "batch": "borealis.compile.batch",
    "connect": "borealis.client.client",
    "connect_async": "borealis.client.client",
    "count_window": "borealis.diagram",
    "directory": "borealis.connectors.files.directory",
    "kafka": "borealis.connectors",
    "replay": "borealis.connectors.sources",
    "rows": "borealis.connectors.sources",
    "run": "borealis.local.run",
    "watch": "borealis.connectors.files.watch",
    "window": "borealis.diagram",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'borealis' has no attribute '{name}'")
    home = import_module(_HOMES[name])
    found = globals()[name] = getattr(home, name) if hasattr(home, name) else import_module(f"{_HOMES[name]}.{name}")
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
