"""What a train adds to an output queue."""

from __future__ import annotations

import numpy as np

from borealis.kernels.flow import Flow
from borealis.streams.id_gaps import JUMP, above
from borealis.streams.queue import OutputQueue
from borealis.streams.section import Place, Section, section


def beyond(queue: OutputQueue, last: int) -> int:
    """Where ids go on that cannot go on: above all that this incarnation and those before it may have given."""
    return above(max(last, (queue.incarnation - 1) * JUMP - 1))


def queue_section(place: Place, flow: Flow) -> Section:
    """A train's share of a stream: the flow's rows with its boundaries among them, as the next tuples at a place."""
    first, known = place
    at, bound, standing = first + np.searchsorted(flow.cause, flow.bounds.cause, "right"), flow.bounds.time, known
    if flow.bounds.standing > known:  # the unit began again at the present: what stood there stands here, too
        at, bound = np.append(first, at), np.append(flow.bounds.standing, bound)
    else:
        standing = flow.bounds.standing
    return section(first, flow.rows, flow.time, at, bound, standing).above(known)
