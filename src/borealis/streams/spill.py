"""Sections on the disk: what must be kept, and is not read for a while.

They are a process's own. Nothing is made durable by it, and the room on the disk is free with the last reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from borealis.disk import Disk
from borealis.state.delta import from_stream, to_stream
from borealis.streams.section import Section, from_batch, joined

PIECE_BYTES = 4 << 20  # of small sections that become one


def spilled(parts: Sequence[Section], disk: Disk) -> Section:
    """Sections that follow one another, as one whose rows and times are on the disk; an OSError leaves all as it is."""
    one = joined(list(parts))
    if not len(one):
        return replace(one, on_disk=True)
    data = disk.spill(to_stream(pa.Table.from_batches([one.batch()])))
    batch = from_stream(data).to_batches()[0]
    placed = from_batch(batch, one.rows.schema, one.first, (one.at, one.bound, one.standing))
    return replace(placed, fork=one.fork, on_disk=True)
