"""The order of events within a train: which cause each row and each boundary of its pieces gets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from borealis.entry.admission import Admitted
from borealis.trains.intake import InputSlice
from borealis.trains.relay import Relayed
from borealis.tuples import CAUSE, KIND, TIME, Int64s

Determinant = tuple[str, int, int]  # an input was read up to this tuple id and boundary


def numbered(pieces: Sequence[InputSlice], order: Int64s | None, first: int) -> list[Int64s]:
    """The causes of each piece's events; `order` says which event of them all comes first, which then."""
    sizes = [len(piece) for piece in pieces]
    cause = np.arange(first, first + sum(sizes))
    if order is not None:
        cause[order] = cause.copy()
    ends = np.cumsum(sizes)
    return [cause[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def determinants(pieces: Sequence[InputSlice]) -> tuple[Determinant, ...]:
    """The places behind the pieces of streams, in their order; only where it changes the input."""
    found: list[Determinant] = []
    for piece in pieces:
        if isinstance(piece.rows, Relayed):
            boundary = piece.tail[-1] if piece.tail else piece.rows.cursor(len(piece.rows)).boundary
            place = (piece.name, piece.rows.section.stop, boundary)
            if found and found[-1][0] == piece.name:
                found.pop()
            found.append(place)
    return tuple(found)


def bounds(piece: InputSlice, cause: Int64s) -> list[tuple[int, int]]:
    """The boundaries of a piece and their causes, given those of all its events."""
    at, bound = piece.rows.bound_events
    tail = cause[len(cause) - len(piece.tail) :]
    return [*zip(cause[at].tolist(), bound.tolist(), strict=True), *zip(tail.tolist(), piece.tail, strict=True)]


def with_cause(pieces: Sequence[tuple[InputSlice, Int64s]], *, late: bool, timed: bool = False) -> pa.Table | None:
    """The rows of one input that are late, or those that are not; None if there are none. Each piece comes with the
    causes of its events.

    `timed`: their times are no column of theirs yet.
    """
    tables = []
    for piece, causes in pieces:
        count, mask = len(piece.rows), piece.rows.late
        some = bool(mask.any())
        if not count or (late and not some):
            continue
        rows, cause = piece.rows.rows, causes[piece.rows.row_events]
        if timed and isinstance(piece.rows, Admitted):
            rows = rows.append_column(TIME, pa.array(piece.rows.time))
        if some:
            wanted = mask if late else ~mask
            if not wanted.any():
                continue
            rows, cause = rows.filter(pa.array(wanted)), cause[wanted]
        if late and KIND in rows.column_names:
            rows = rows.drop_columns([KIND])
        tables.append(rows.append_column(CAUSE, pa.array(cause)))
    return None if not tables else tables[0] if len(tables) == 1 else pa.concat_tables(tables)
