"""Work beside the caller's, in threads that do not keep the process alive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(name: str, work: Callable[[], T]) -> Future[T]:
    """Start the work in a thread of that name; the future gets what it returns or raises.

    >>> in_background("sum", lambda: 1 + 2).result()
    3
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
