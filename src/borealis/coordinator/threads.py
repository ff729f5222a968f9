"""Waiting for other machines, in threads beside the loop that answers HTTP."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")
THREADS = CapacityLimiter(math.inf)  # requests are bounded where they come in


async def in_thread(work: Callable[[], T]) -> T:
    """What a blocking call returns or raises. If the waiter is cancelled, the call goes on alone."""
    return await to_thread.run_sync(work, abandon_on_cancel=True, limiter=THREADS)
