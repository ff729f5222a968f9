"""A stream's tuples as a reader wants to see them: kinds as words, in front, where the stream carries revisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from borealis.streams.section import NOTHING, Section, empty_rows
from borealis.tuples import KIND, STABLE, Kind, kinds_apart, with_kinds


@dataclass(frozen=True)
class View:
    headers: bool = False  # with _id, _time, _kind and _stable
    insertions_only: bool = False  # as if nothing was ever corrected: plain rows, of which some are wrong by now

    def rows(self, some: Section) -> pa.RecordBatch:
        """What a reader sees of a section."""
        if not self.headers and KIND not in some.rows.schema.names:
            return some.rows
        rows, kind = kinds_apart(pa.table(some.rows))
        if self.headers:
            rows = some.with_header()
        elif kind is not None and not self.insertions_only:
            rows = with_kinds(rows, kind)
        if kind is not None and self.insertions_only:
            rows = rows.filter(pa.array(kind == Kind.INSERTION))
        batches = rows.combine_chunks().to_batches()
        return batches[0] if batches else empty_rows(rows.schema)

    def ids(self, some: Section) -> Sequence[int]:
        """Of the tuples that a reader sees of a section."""
        if not self.insertions_only or KIND not in some.rows.schema.names:
            return range(some.first, some.stop)
        kind = kinds_apart(pa.table(some.rows))[1]
        found: list[int] = (some.first + np.flatnonzero(kind == Kind.INSERTION)).tolist()
        return found

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns that a reader sees of a stream that has these."""
        return self.rows(Section(0, empty_rows(schema), NOTHING, NOTHING, NOTHING)).schema


def tentative_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that say of themselves that they are tentative, with header or without."""
    if STABLE in rows.schema.names:
        return rows
    return rows.append_column(STABLE, pa.array([False] * len(rows)))
