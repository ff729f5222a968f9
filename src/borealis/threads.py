"""Threads, and what they wait for each other with: the system's, or a simulation's."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R", covariant=True)

log = logging.getLogger("borealis")


class Lock(Protocol):
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


class Condition(Lock, Protocol):
    def wait(self, timeout: float | None = None) -> bool: ...

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T: ...

    def notify(self, n: int = 1) -> None: ...

    def notify_all(self) -> None: ...


class Event(Protocol):
    def set(self) -> None: ...

    def clear(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Mailbox(Protocol):
    """A queue between threads; raises `queue.Full` and `queue.Empty`."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None: ...

    def get_nowait(self) -> Any: ...

    def empty(self) -> bool: ...

    def full(self) -> bool: ...


class Task(Protocol[R]):
    """Work in a thread of its own, which does not keep the process alive."""

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...

    def result(self, timeout: float | None = None) -> R:
        """What the work returned, or raises what it raised; TimeoutError if it goes on for longer."""

    def exception(self, timeout: float | None = None) -> BaseException | None: ...


class Threads(Protocol):
    """Where threads and locks come from."""

    def start(self, name: str, work: Callable[[], T]) -> Task[T]: ...

    def lock(self) -> Lock: ...

    def rlock(self) -> Lock: ...

    def condition(self, lock: Lock | None = None) -> Condition: ...

    def event(self) -> Event: ...

    def mailbox(self, size: int) -> Mailbox: ...


class _Running(Generic[T]):
    def __init__(self, name: str, work: Callable[[], T]) -> None:
        self._value: T | None = None
        self._error: BaseException | None = None
        self._asked = False
        self._thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._value = work()
        except BaseException as error:
            self._error = error

    def __del__(self) -> None:
        if self._error is not None and not self._asked:
            log.error("thread %s died", self._thread.name, exc_info=self._error)

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def result(self, timeout: float | None = None) -> T:
        if (error := self.exception(timeout)) is not None:
            raise error
        return self._value  # type: ignore[return-value]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError
        self._asked = True
        return self._error


class SystemThreads:
    """Python's own.

    >>> SystemThreads().start("sum", lambda: 1 + 2).result()
    3
    """

    def start(self, name: str, work: Callable[[], T]) -> Task[T]:
        return _Running(name, work)

    def lock(self) -> Lock:
        return threading.Lock()

    def rlock(self) -> Lock:
        return threading.RLock()

    def condition(self, lock: Lock | None = None) -> Condition:
        return threading.Condition(lock)  # type: ignore[arg-type]

    def event(self) -> Event:
        return threading.Event()

    def mailbox(self, size: int) -> Mailbox:
        box: queue.Queue[Any] = queue.Queue(size)
        return box


def side_by_side(threads: Threads, works: Sequence[Callable[[], None]]) -> list[BaseException]:
    """Do all of it at once and wait for all; what went wrong."""
    under_way = [threads.start("side-by-side", work) for work in works]
    return [error for one in under_way if (error := one.exception()) is not None]
