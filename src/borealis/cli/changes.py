"""Rows that were corrected, as people read them: what came and what went, and a replacement as one line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from borealis.cli.cells import GAP, PLAIN, TextRows, cells, strings, text
from borealis.tuples import KIND, KIND_NAMES, Kind

CAME, WENT, REPLACED = "+", "-", "~"
BECOMES = " → "
GREEN, RED = "\x1b[32m", "\x1b[31m"
BEFORE, AFTER = KIND_NAMES[Kind.UPDATE_BEFORE], KIND_NAMES[Kind.UPDATE_AFTER]


class ChangedRows(TextRows):
    """Rows as they are followed; those with kinds in front begin with a mark instead.

    A half of a replacement whose other half is not there has gone, or come.
    """

    def __init__(self, coloured: bool) -> None:
        super().__init__(followed=True)
        self._coloured = coloured

    def batch(self, rows: pa.RecordBatch) -> None:
        if rows.schema.names[:1] != [KIND]:
            super().batch(rows)
            return
        kinds = rows.column(0).to_pylist()
        pairs = [at for at, pair in enumerate(pairwise(kinds)) if pair == (BEFORE, AFTER)]
        first = np.delete(np.arange(len(kinds)), [at + 1 for at in pairs])  # of each line
        last = first + np.isin(first, pairs)
        columns = [cells(column) for column in rows.columns[1:]]
        went, came = ([column.take(pa.array(at)) for column in columns] for at in (first, last))
        shown = [
            pc.if_else(pc.equal(old, new), old, pc.binary_join_element_wise(old, new, text(BECOMES)))
            for old, new in zip(went, came, strict=True)
        ]
        marks = [REPLACED if a < b else WENT if kinds[a][0] == "-" else CAME for a, b in zip(first, last, strict=True)]
        padded = self._laid_out(["", *rows.schema.names[1:]], [strings(marks), *shown])
        lines = pc.utf8_rtrim(pc.binary_join_element_wise(*padded, text(GAP)), " ")
        coloured = self._coloured and not self.style
        self._print(self._painted(lines, marks, padded, went, came) if coloured else lines)

    def _painted(
        self,
        lines: pa.Array,
        marks: Sequence[str],
        padded: Sequence[pa.Array],
        went: Sequence[pa.Array],
        came: Sequence[pa.Array],
    ) -> pa.Array:
        found = lines.to_pylist()
        for at, mark in enumerate(marks):
            if mark == REPLACED:
                values = [[column[at].as_py() for column in some] for some in (padded[1:], went, came)]
                found[at] = GAP.join([mark, *map(_painted_cell, *values)])
            else:
                found[at] = f"{GREEN if mark == CAME else RED}{found[at]}{PLAIN}"
        return strings(found)


def _painted_cell(padded: str, old: str, new: str) -> str:
    if old == new:
        return padded
    return f"{RED}{old}{PLAIN}{BECOMES}{GREEN}{new}{PLAIN}{padded[len(old + BECOMES + new) :]}"
