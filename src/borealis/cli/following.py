"""Rows of a stream as they are followed: tentative ones dimmed, and struck when they are void."""

from __future__ import annotations

import pyarrow as pa

from borealis.cli.cells import print_json, to_stdout
from borealis.cli.changes import ChangedRows
from borealis.wire.view import tentative_rows

DIM, STRUCK = "\x1b[2m", "\x1b[2;9m"
TENTATIVE = "(tentative)"  # for those who see no colours
SHOWN_AGAIN = 10  # of the rows that are void, struck


class FollowedRows:
    """Shows rows as they come. As JSON, those that are tentative say `"_stable": false`; when they are void, a line
    `{"_undo": n}` says how many are, and `{"_done": true}` follows the right ones."""

    def __init__(self, coloured: bool, json: bool) -> None:
        self._json, self._coloured = json, coloured
        self._text = ChangedRows(coloured)
        self._void: list[pa.RecordBatch] = []  # the last tentative ones
        self._count = 0  # of all of them
        self._undone = False  # some were void, and that all of them are corrected was not shown

    def show(self, rows: pa.RecordBatch, stable: bool) -> None:
        if not stable:
            self._count += len(rows)
            self._void = [*self._void, rows][-SHOWN_AGAIN:]
        if self._json:
            print_json(rows if stable else tentative_rows(rows))
            return
        self._text.style = DIM if self._coloured and not stable else ""
        self._text.note = "" if self._coloured or stable else TENTATIVE
        self._text.batch(rows)

    def undo(self) -> int:
        """All tentative rows are void; says how many those are."""
        count, self._count = self._count, 0
        self._undone = self._undone or count > 0
        void, self._void = self._void, []
        if self._json and count:
            to_stdout(b'{"_undo": %d}\n' % count)
        elif self._coloured and void:
            last = pa.Table.from_batches(void).combine_chunks()
            self._text.style = STRUCK
            for batch in last.slice(max(0, len(last) - SHOWN_AGAIN)).to_batches():
                self._text.batch(batch)
        return count

    def done(self) -> bool:
        """All that were void are corrected; says whether there were any."""
        undone, self._undone = self._undone, False
        if self._json and undone:
            to_stdout(b'{"_done": true}\n')
        return undone
