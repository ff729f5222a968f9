"""From a source to a callback, all in one process: Borealis, and plain Structured Streaming.

Borealis has a generator that gives a record batch every hundredth of a second, and a function that takes results.
Structured Streaming has `foreachBatch`, and two sources: a Python data source that makes the very same rows as they are
due, and its own `socket`, which is meant for tests: faster where batches are small, and dead of a stack overflow where
they are large. We are compared with the better of both. Spark's `rate` gives rows once a second, and its real-time mode
is measured over Kafka, the source that it is made for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .latency_feed import DRAIN_S, FIRST_S, Phase
from .latency_jobs import Job, Patience

START_S = 60.0  # for a session


def measure(home: Path, engine: str, query: str, phases: Sequence[Phase], lines: list[dict[str, Any]]) -> None:
    """An engine at one rate after the other; adds to `lines` as it goes. The first phase only warms up."""
    given = {"engine": engine, "query": query, "home": str(home), "phases": [phase.given() for phase in phases]}
    patience = Patience(START_S + FIRST_S + sum(2 * phase.whole_us / 1e6 + DRAIN_S + 2 for phase in phases))
    with Job("latency_callback_job.py", json.dumps(given)) as job:
        while (one := job.answer(patience.left())) is not None:
            lines.append(one)
