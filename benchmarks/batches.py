"""Batches as both engines tell of them: Spark's micro-batches, and our trains."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypedDict

KEPT = {"spark.sql.streaming.numRecentProgressUpdates": "20000"}  # all of a measured run; a user's run keeps a few


class Batch(TypedDict):
    """When its trigger fired (a train: was handed out), how long all of it took, and how many rows it was fed."""

    number: int
    start_ms: float
    took_ms: float
    rows: int
    parts: dict[str, float]


def batches_of(query: Any) -> list[Batch]:
    """The micro-batches that a query ran, oldest first; triggers that found nothing to do are not among them."""
    return [
        Batch(
            number=p.batchId,
            start_ms=datetime.fromisoformat(p.timestamp).timestamp() * 1000,
            took_ms=p.durationMs["triggerExecution"],
            rows=p.numInputRows,
            parts=dict(p.durationMs),
        )
        for p in query.recentProgress
        if "addBatch" in p.durationMs
    ]
