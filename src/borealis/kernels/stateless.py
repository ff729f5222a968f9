"""Filter, Map and Union over a train, where their expressions have an exact Arrow twin."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from borealis.kernels.expr import Expr, column, mask
from borealis.kernels.flow import Flow, empty_flow, merge_bounds, rank_within


def run_filter(flow: Flow, predicate: Expr) -> Flow:
    """The rows for which the predicate is true; null is not true."""
    if not len(flow):
        return flow
    keep = mask(predicate, flow.rows)
    index = np.flatnonzero(keep.to_numpy(zero_copy_only=False) if isinstance(keep, pa.Array) else keep.to_numpy())
    if len(index) == len(flow):
        return flow
    return flow.at(index, flow.rows.filter(keep))


def run_map(flow: Flow, exprs: list[tuple[str, Expr]], schema: pa.Schema) -> Flow:
    """Each output column from its expression."""
    if not len(flow):
        return empty_flow(schema, flow.bounds)
    columns = [column(expr, flow.rows, schema.field(name).type) for name, expr in exprs]
    return flow.with_rows(pa.table(columns, schema=schema) if columns else flow.rows.select([]))


def run_union(flows: list[Flow]) -> Flow:
    """All rows, by cause; of one cause, the first input's before the second's."""
    bounds = merge_bounds([f.bounds for f in flows])
    schema = flows[0].rows.schema
    cause = np.concatenate([f.cause for f in flows])
    which = np.repeat(np.arange(len(flows)), [len(f) for f in flows])
    sub = np.concatenate([f.sub for f in flows])
    order = np.lexsort((sub, which, cause))
    rows = pa.concat_tables([f.rows.cast(schema) for f in flows])
    time = np.concatenate([f.time for f in flows])
    cause = cause[order]
    return Flow(rows.take(pa.array(order)), time[order], cause, rank_within(cause), bounds)
