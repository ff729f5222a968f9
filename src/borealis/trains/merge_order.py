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


def numbered(pieces: Sequence[InputSlice], order: Int64s | None, first: int) -> tuple[int, list[Int64s]]:
    """How many events there are, and per piece the causes of its rows followed by those of its tail."""
    weights = [np.concatenate([p.rows.weights(), np.ones(len(p.tail), np.int64)]).astype(np.int64) for p in pieces]
    flat = np.concatenate(weights)
    if order is None:
        cause = first + np.cumsum(flat) - 1
    else:
        places = _event_order(pieces, order)
        cause = np.empty(len(flat), np.int64)
        cause[places] = first + np.cumsum(flat[places]) - 1
    ends = np.cumsum([len(w) for w in weights])
    return int(flat.sum()), [cause[end - len(w) : end] for end, w in zip(ends, weights, strict=True)]


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


def _event_order(pieces: Sequence[InputSlice], order: Int64s) -> Int64s:
    """The order of rows widened to rows and tails: a piece's tail stands right behind its last row."""
    shift = np.cumsum([0] + [len(p.tail) for p in pieces])
    ends = np.cumsum([len(p.rows) for p in pieces])
    piece_of = np.searchsorted(ends, order, "right")
    rows: Int64s = order + shift[piece_of]
    if not shift[-1]:
        return rows
    behind: list[int] = []  # for each event of a tail: the place in the order after which it stands
    tails: list[int] = []
    for i, piece in enumerate(pieces):
        if piece.tail:
            mine = np.flatnonzero(piece_of == i)
            behind += [int(mine[-1]) + 1 if len(mine) else 0] * len(piece.tail)
            tails += range(first := int(ends[i] + shift[i]), first + len(piece.tail))
    return np.insert(rows, behind, tails)


def bounds(piece: InputSlice, cause: Int64s) -> list[tuple[int, int]]:
    n = len(piece.rows)
    return [*piece.rows.bounds(cause[:n]), *zip(cause[n:].tolist(), piece.tail, strict=True)]


def with_cause(pieces: Sequence[tuple[InputSlice, Int64s]], *, late: bool, timed: bool = False) -> pa.Table | None:
    """The rows of one input that are late, or those that are not; None if there are none.

    `timed`: their times are no column of theirs yet.
    """
    tables = []
    for piece, causes in pieces:
        count, mask = len(piece.rows), piece.rows.late
        some = bool(mask.any())
        if not count or (late and not some):
            continue
        rows, cause = piece.rows.rows, causes[:count]
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
