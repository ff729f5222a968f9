"""Borealis: continuous queries on Apache Spark that stay fast and correct.

A diagram says what to compute; `run` computes it:

    from borealis import Diagram, replay, run, window

    d = Diagram("traffic")
    packets = d.input("packets", "ts TIMESTAMP, src STRING, bytes INT", time="ts", slack="2 seconds")
    packets.aggregate(by="src", over=window("10 seconds", "1 second"), n="count(*)").output("per_source")
    run(d, inputs={"packets": replay("packets.parquet")}, outputs={"per_source": "out.parquet"})

A cluster (`borealis up --nodes 3`) runs it until it is undeployed:

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
_MODULES = {
    "borealis.client.client": ("Client", "connect", "connect_async"),
    "borealis.compile.batch": ("batch",),
    "borealis.connectors": ("kafka",),
    "borealis.connectors.files.directory": ("directory",),
    "borealis.connectors.files.watch": ("watch",),
    "borealis.connectors.sources": ("replay", "rows"),
    "borealis.diagram": ("Diagram", "count_window", "window"),
    "borealis.errors": ("BorealisError", "BorealisWarning"),
    "borealis.local.run": ("Result", "run"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'borealis' has no attribute '{name}'")
    home = import_module(_HOMES[name])
    found = globals()[name] = getattr(home, name) if hasattr(home, name) else import_module(f"{_HOMES[name]}.{name}")
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
