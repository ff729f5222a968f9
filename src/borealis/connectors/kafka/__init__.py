"""Topics of Kafka, exactly once in both directions: `kafka.source(...)` is an input, `kafka.sink(...)` an output."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from borealis.connectors.kafka.from_topic import source
    from borealis.connectors.kafka.to_topic import sink

__all__ = ["sink", "source"]
HOMES = {"source": "from_topic", "sink": "to_topic"}  # imported when asked for: a reader needs nothing that writes


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'borealis.connectors.kafka' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
