"""Threads of a simulated process, and their locks: as Python's, but fair, and in simulated time.

A lock goes from hand to hand: a thread that waits for it has it from the moment of the release. Outside of any
thread all of them can be used as long as nothing has to wait.
"""

from __future__ import annotations

import queue
import traceback
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from greenlet import greenlet

from borealis.threads import Condition, Event, Lock, Mailbox, Task

if TYPE_CHECKING:
    from borealis.sim.kernel import Kernel, Process

T = TypeVar("T")


class KilledError(BaseException):
    """The process of this thread is dead: nothing of it may happen any more."""


class TaskError(NamedTuple):
    """What a thread died of, and no other thread has asked for."""

    process: str
    task: str
    error: BaseException


class SimThreads:
    """One process's."""

    __slots__ = ("_kernel", "_process")

    def __init__(self, process: Process) -> None:
        self._process, self._kernel = process, process.kernel

    def start(self, name: str, work: Callable[[], T]) -> Task[T]:
        return self._process.start(name, work)

    def lock(self) -> Lock:
        return SimLock(self._kernel)

    def rlock(self) -> Lock:
        return SimRLock(self._kernel)

    def condition(self, lock: Lock | None = None) -> Condition:
        if lock is None:
            lock = SimRLock(self._kernel)
        assert isinstance(lock, SimLock | SimRLock), "a lock of the same threads"
        return SimCondition(self._kernel, lock)

    def event(self) -> Event:
        return SimEvent(self._kernel)

    def mailbox(self, size: int) -> Mailbox:
        return SimMailbox(self._kernel, size)


class SimTask(Generic[T]):
    """A thread of a process. It waits in one queue at most, and until one time at most."""

    __slots__ = (
        "_asked",
        "_done",
        "_error",
        "_value",
        "_work",
        "alarm",
        "body",
        "name",
        "process",
        "queue",
        "switch",
        "woken",
    )

    def __init__(self, process: Process, name: str, work: Callable[[], T], hub: greenlet) -> None:
        self.process, self.name, self._work = process, name, work
        self.body = greenlet(self._run, hub)
        self.switch = self.body.switch
        self.queue: deque[SimTask[Any]] | None = None
        self.alarm = 0  # as a timer's
        self.woken = False  # by another task, and not because the time was up
        self._done: deque[SimTask[Any]] | None = deque()  # tasks that wait for the end of this one; None: it has ended
        self._value: T | None = None
        self._error: BaseException | None = None
        self._asked = False

    def _run(self) -> None:
        kernel = self.process.kernel
        try:
            self._value = self._work()
        except (Exception, SystemExit, KilledError) as error:  # Ctrl-C and the like end the run
            if self.process.dead:
                return
            self._error = error
            kernel.failed.append(self)
        del self.process.tasks[self], self._work
        waiting, self._done = self._done, None
        for task in waiting or ():
            kernel.wake(task)

    def ring(self) -> None:
        """The time is up."""
        self.woken = False
        if self.queue is not None:
            self.queue.remove(self)
            self.queue = None
        self.process.kernel.ready.append(self)

    def join(self, timeout: float | None = None) -> None:
        if self._done is not None:
            self.process.kernel.park(self._done, timeout)

    def is_alive(self) -> bool:
        return self._done is not None

    def result(self, timeout: float | None = None) -> T:
        if (error := self.exception(timeout)) is not None:
            raise error
        return self._value  # type: ignore[return-value]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.join(timeout)
        if self._done is not None:
            raise TimeoutError
        self._asked = True
        return self._error

    def unasked(self) -> TaskError | None:
        return TaskError(self.process.name, self.name, self._error) if self._error and not self._asked else None

    def stack(self) -> str:
        """Where it stands, for people."""
        frame = self.body.gr_frame
        return "".join(traceback.format_stack(frame)) if frame is not None else "  has not begun, or runs\n"

    def __str__(self) -> str:
        return f"{self.process.name}/{self.name}"


class SimLock:
    __slots__ = ("_held", "_kernel", "_waiting")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._held = kernel, False
        self._waiting: deque[SimTask[Any]] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        kernel = self._kernel
        if not self._held:
            self._held = True
            kernel.fuse -= 1
            if kernel.fuse < 0:
                if kernel.comes_late():
                    self.release()
                    kernel.preempt()
                    return self.acquire(blocking, timeout)
                kernel.preempt()
            return True
        return blocking and kernel.park(self._waiting, None if timeout == -1 else timeout)

    def __enter__(self) -> bool:
        if not self._held:
            kernel = self._kernel
            if kernel.fuse > 0:
                self._held = True
                kernel.fuse -= 1
                return True
        return self.acquire()

    def release(self) -> None:
        if self._waiting:
            self._kernel.wake(self._waiting.popleft())
        elif self._held:
            self._held = False
        else:
            self._kernel.wrong("release unlocked lock")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._held and not self._waiting:
            self._held = False
        else:
            self.release()

    def locked(self) -> bool:
        return self._held

    def is_mine(self) -> bool:
        return self._held

    def release_all(self) -> int:
        self.release()
        return 1

    def acquire_again(self, count: int) -> None:
        if self._held:
            self._kernel.park(self._waiting, None)
        else:
            self._held = True


class SimRLock:
    __slots__ = ("_count", "_kernel", "_owner", "_waiting")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._count = kernel, 0
        self._owner: SimTask[Any] | None = None  # with a count of 1 or more, None is who is no task
        self._waiting: deque[SimTask[Any]] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        kernel = self._kernel
        if not self._count:
            self._owner, self._count = kernel.current, 1
            kernel.fuse -= 1
            if kernel.fuse < 0:
                if kernel.comes_late():
                    self.release()
                    kernel.preempt()
                    return self.acquire(blocking, timeout)
                kernel.preempt()
            return True
        if self._owner is kernel.current:
            self._count += 1
            return True
        return blocking and kernel.park(self._waiting, None if timeout == -1 else timeout)

    def __enter__(self) -> bool:
        if not self._count:
            kernel = self._kernel
            if kernel.fuse > 0:
                self._owner, self._count = kernel.current, 1
                kernel.fuse -= 1
                return True
        return self.acquire()

    def release(self) -> None:
        if not self._count or self._owner is not self._kernel.current:
            self._kernel.wrong("cannot release un-acquired lock")
        if self._count > 1:
            self._count -= 1
        else:
            self._hand_over()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def _hand_over(self) -> None:
        if self._waiting:
            self._owner, self._count = self._waiting.popleft(), 1
            self._kernel.wake(self._owner)
        else:
            self._owner, self._count = None, 0

    def is_mine(self) -> bool:
        return self._count > 0 and self._owner is self._kernel.current

    def release_all(self) -> int:
        """Says how often it was acquired, for `acquire_again`."""
        count = self._count
        self._hand_over()
        return count

    def acquire_again(self, count: int) -> None:
        if self._count:
            self._kernel.park(self._waiting, None)
        else:
            self._owner = self._kernel.current
        self._count = count


class SimCondition:
    __slots__ = ("_kernel", "_lock", "_waiting", "acquire", "release")

    def __init__(self, kernel: Kernel, lock: SimLock | SimRLock) -> None:
        self._kernel, self._lock = kernel, lock
        self.acquire, self.release = lock.acquire, lock.release
        self._waiting: deque[SimTask[Any]] = deque()

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lock.__exit__(kind, error, at)

    def wait(self, timeout: float | None = None) -> bool:
        lock = self._lock
        if not lock.is_mine():
            self._kernel.wrong("cannot wait on un-acquired lock")
        count = lock.release_all()
        woken = self._kernel.park(self._waiting, timeout)
        lock.acquire_again(count)
        return woken

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        kernel = self._kernel
        end = None if timeout is None else kernel.now + timeout
        while not (result := predicate()):
            left = None if end is None else end - kernel.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        if not self._lock.is_mine():
            self._kernel.wrong("cannot notify on un-acquired lock")
        waiting = self._waiting
        while waiting and n > 0:
            self._kernel.wake(waiting.popleft())
            n -= 1
        self._kernel.maybe_yield()

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class SimEvent:
    __slots__ = ("_kernel", "_set", "_waiting")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._set = kernel, False
        self._waiting: deque[SimTask[Any]] = deque()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        while self._waiting:
            self._kernel.wake(self._waiting.popleft())
        self._kernel.maybe_yield()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            self._kernel.maybe_yield()
            return True
        return self._kernel.park(self._waiting, timeout)


class SimMailbox:
    __slots__ = ("_items", "_kernel", "_size", "_waiting")

    def __init__(self, kernel: Kernel, size: int) -> None:
        self._kernel, self._size = kernel, size
        self._items: deque[Any] = deque()
        self._waiting: deque[SimTask[Any]] = deque()  # to put

    def empty(self) -> bool:
        return not self._items

    def full(self) -> bool:
        return 0 < self._size <= len(self._items)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        kernel = self._kernel
        end = None if timeout is None else kernel.now + timeout
        while self.full():
            left = None if end is None else end - kernel.now
            if not block or (left is not None and left <= 0):
                raise queue.Full
            kernel.park(self._waiting, left)
        self._items.append(item)
        kernel.maybe_yield()

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        item = self._items.popleft()
        if self._waiting:
            self._kernel.wake(self._waiting.popleft())
        return item
