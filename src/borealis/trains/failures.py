"""Tuples of a train that failed in a box: counted, and told why."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from borealis.kernels import aside
from borealis.kernels.aside import BOX, EXPRESSION, REASON, TUPLE
from borealis.kernels.aside import SCHEMA as ERRORS_SCHEMA
from borealis.kernels.flow import Bounds
from borealis.kernels.program import ERRORS_TAG, flow_from_packets
from borealis.trains.progress import Progress
from borealis.trains.results import Arrived

REASONS_ALL, REASONS_EVERY = 1_000, 100  # tuples that fail in Spark of which the reason is asked: the first, then some
UNASKED = "it fails in Spark, as others before it"

Reason = Callable[[str, str, str], str]  # why a tuple fails in a box's expression


def explain(arrived: Arrived, progress: Progress, reason: Reason | None) -> None:
    """Count tuples that failed, and say why those failed that did so in Spark: many are not asked one by one."""
    payloads = [p.payload for p in arrived.packets if p.tag == ERRORS_TAG]
    if not payloads:
        return
    failed = flow_from_packets(payloads, ERRORS_SCHEMA, Bounds())
    failed = failed.take(aside.once(failed))  # Spark runs a box again for each of those that read it
    told = failed.rows.to_pylist()
    for number, one in enumerate(told, progress.errors):
        asked = number < REASONS_ALL or number % REASONS_EVERY == 0
        if not one[REASON]:
            one[REASON] = reason(one[BOX], one[EXPRESSION], one[TUPLE]) if reason and asked else UNASKED
    arrived.put_errors(failed.with_rows(pa.Table.from_pylist(told, ERRORS_SCHEMA)))
    progress.errors += len(failed)
    last = told[-1]
    progress.last_error = f"box '{last[BOX]}', `{last[EXPRESSION]}`: {last[REASON]}"
