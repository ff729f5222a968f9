"""Waiting for other machines, in threads that nobody has to wait for when the process ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def spawn(name: str, work: Callable[[], object]) -> threading.Thread:
    """Start a thread that does not keep the process alive."""
    thread = threading.Thread(target=work, name=f"borealis-{name}", daemon=True)
    thread.start()
    return thread


async def in_thread(work: Callable[[], T]) -> T:
    """What a blocking call returns or raises. If the waiter is cancelled, the call goes on alone."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as e:
            error = e
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    spawn("call", run)
    return await done


def side_by_side(works: Sequence[Callable[[], None]]) -> list[Exception]:
    """Do all of it at once and wait for all; what went wrong."""
    errors: list[Exception] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    threads = [spawn("order", lambda work=work: run(work)) for work in works[1:]]  # type: ignore[misc]
    for work in works[:1]:
        run(work)
    for thread in threads:
        thread.join()
    return errors
