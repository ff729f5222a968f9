"""Waiting for other machines, in threads."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from borealis.machine import HERE
from borealis.threads import side_by_side as _side_by_side

T = TypeVar("T")
THREADS = CapacityLimiter(math.inf)  # requests are bounded where they come in


def spawn(name: str, work: Callable[[], object]) -> None:
    """Start a thread that does not keep the process alive."""
    threading.Thread(target=work, name=f"borealis-{name}", daemon=True).start()


async def in_thread(work: Callable[[], T]) -> T:
    """What a blocking call returns or raises. If the waiter is cancelled, the call goes on alone."""
    return await to_thread.run_sync(work, abandon_on_cancel=True, limiter=THREADS)


def side_by_side(works: Sequence[Callable[[], None]]) -> list[BaseException]:
    """Do all of it at once and wait for all; what went wrong."""
    return _side_by_side(HERE.threads, works)
