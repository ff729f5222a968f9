"""Topics of Kafka, exactly once in both directions: `kafka.source(...)` is an input, `kafka.sink(...)` an output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from borealis.connectors.kafka.from_topic import source
    from borealis.connectors.kafka.to_topic import sink

__all__ = ["sink", "source"]


def __getattr__(name: str) -> Any:
    if name == "source":  # each when it is asked for: who reads a topic needs nothing that writes one
        from borealis.connectors.kafka.from_topic import source

        return source
    if name == "sink":
        from borealis.connectors.kafka.to_topic import sink

        return sink
    raise AttributeError(f"module 'borealis.connectors.kafka' has no attribute '{name}'")
