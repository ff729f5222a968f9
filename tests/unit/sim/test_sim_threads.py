"""Locks, conditions, events and mailboxes of the simulator: as Python's, in simulated time."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from borealis.sim.kernel import Kernel, Process
from borealis.threads import Lock, SystemThreads, Threads, side_by_side


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    with Kernel(1, preempt=0.0) as kernel:
        yield kernel
        assert kernel.errors == []


@pytest.fixture
def process(kernel: Kernel) -> Process:
    return kernel.process("one")


@pytest.fixture
def threads(process: Process) -> Threads:
    return process.machine.threads


def run(process: Process, *works: Callable[[], Any]) -> list[Any]:
    """What each returned, in tasks that were started in that order."""
    tasks = [process.start(str(number), work) for number, work in enumerate(works)]
    process.kernel.run()
    return [task.result() for task in tasks]


@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_a_lock_goes_from_hand_to_hand(kernel: Kernel, process: Process, threads: Threads, kind: str) -> None:
    lock: Lock = getattr(threads, kind)()
    order: list[tuple[int, float]] = []

    def work(name: int) -> None:
        for _ in range(2):
            with lock:
                order.append((name, kernel.now))
                process.machine.clock.sleep(1.0)

    run(process, *(lambda name=name: work(name) for name in range(3)))
    assert order == [(0, 0.0), (1, 1.0), (2, 2.0), (0, 3.0), (1, 4.0), (2, 5.0)]


@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_acquire_with_a_timeout_or_none(kernel: Kernel, process: Process, threads: Threads, kind: str) -> None:
    lock: Lock = getattr(threads, kind)()

    def holds() -> None:
        with lock:
            process.machine.clock.sleep(5.0)

    def tries() -> list[object]:
        tried: list[object] = [
            lock.acquire(blocking=False),
            lock.acquire(timeout=0),
            lock.acquire(timeout=2.0),
            kernel.now,
        ]
        tried += [lock.acquire(timeout=10.0), kernel.now]
        lock.release()
        return tried

    assert run(process, holds, tries)[1] == [False, False, False, 2.0, True, 5.0]
    assert lock.acquire(blocking=False)  # outside of any task
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()


def test_waiting_outside_of_any_task_is_refused(threads: Threads, process: Process) -> None:
    event = threads.event()
    assert not event.wait(0)
    for wait in (event.wait, lambda: process.machine.clock.sleep(1.0), process.start("idle", event.wait).join):
        with pytest.raises(RuntimeError, match="only a task"):
            wait()
    event.set()
    assert event.wait()


def test_an_rlock_is_its_owners(process: Process, threads: Threads) -> None:
    lock = threads.rlock()

    def owner() -> None:
        with lock, lock:
            process.machine.clock.sleep(1.0)
        process.machine.clock.sleep(1.0)

    def other() -> bool:
        with pytest.raises(RuntimeError):
            lock.release()
        process.machine.clock.sleep(1.5)
        return lock.acquire(blocking=False)

    assert run(process, owner, other)[1]


def test_a_condition_releases_an_rlock_fully(kernel: Kernel, process: Process, threads: Threads) -> None:
    changed = threads.condition()
    seen: list[str] = []

    def waits() -> None:
        with changed, changed:
            assert changed.wait(10.0)
            seen.append("woken")
            changed.release()
            changed.acquire()

    def notifies() -> None:
        with changed:
            changed.notify()
            process.machine.clock.sleep(1.0)
            seen.append("released")

    run(process, waits, notifies)
    assert (seen, kernel.now) == (["released", "woken"], 1.0)


@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_notify_wakes_in_order_and_wait_times_out(process: Process, threads: Threads, kind: str) -> None:
    changed = threads.condition(getattr(threads, kind)())
    woken: list[int] = []

    def waits(name: int, timeout: float | None) -> bool:
        with changed:
            if notified := changed.wait(timeout):
                woken.append(name)
            return notified

    def notifies() -> None:
        process.machine.clock.sleep(2.0)
        for many in (1, 2):
            with changed:
                changed.notify(many)
            process.machine.clock.sleep(1.0)
            woken.append(-1)
        with changed:
            changed.notify_all()

    timeouts = [None, 1.0, None, 9.0, 9.0, None]
    got = run(process, *(lambda n=n, t=t: waits(n, t) for n, t in enumerate(timeouts)), notifies)
    assert got[:-1] == [True, False, True, True, True, True]
    assert woken == [0, -1, 2, 3, -1, 4, 5]
    for wrong in (changed.wait, changed.notify):
        with pytest.raises(RuntimeError, match="un-acquired"):
            wrong()


def test_wait_for(kernel: Kernel, process: Process, threads: Threads) -> None:
    changed, number = threads.condition(threads.lock()), [0]

    def counts() -> None:
        for _ in range(5):
            process.machine.clock.sleep(1.0)
            with changed:
                number[0] += 1
                changed.notify_all()

    def waits(least: int, timeout: float | None) -> tuple[object, float]:
        with changed:
            return changed.wait_for(lambda: number[0] >= least and number[0], timeout), kernel.now

    got = run(process, counts, lambda: waits(3, None), lambda: waits(4, 2.5), lambda: waits(0, 0))
    assert got[1:] == [(3, 3.0), (False, 2.5), (0, 0.0)]


def test_an_event_wakes_all(kernel: Kernel, process: Process, threads: Threads) -> None:
    event = threads.event()

    def sets() -> None:
        process.machine.clock.sleep(2.0)
        event.set()
        event.clear()

    waits = [
        lambda: (event.wait(1.0), kernel.now),
        lambda: (event.wait(), kernel.now),
        lambda: (event.wait(3.0), kernel.now),
    ]
    assert run(process, *waits, sets)[:3] == [(False, 1.0), (True, 2.0), (True, 2.0)]
    assert not event.is_set()


def test_a_mailbox_is_bounded(kernel: Kernel, process: Process, threads: Threads) -> None:
    box = threads.mailbox(2)

    def puts() -> list[float]:
        at = []
        for item in range(4):
            box.put(item)
            at.append(kernel.now)
        with pytest.raises(queue.Full):
            box.put(9, block=False)
        with pytest.raises(queue.Full):
            box.put(9, timeout=0.5)
        return [*at, kernel.now]

    def gets() -> list[int]:
        got = []
        for _ in range(2):
            process.machine.clock.sleep(1.0)
            got.append(box.get_nowait())
        process.machine.clock.sleep(1.0)
        return [*got, box.get_nowait(), box.get_nowait()]

    assert run(process, puts, gets) == [[0.0, 0.0, 1.0, 2.0, 2.5], [0, 1, 2, 3]]
    assert not box.full()
    with pytest.raises(queue.Empty):
        box.get_nowait()
    endless = threads.mailbox(0)
    for item in range(100):
        endless.put(item)


def test_tasks_are_joined_and_asked(kernel: Kernel, process: Process, threads: Threads) -> None:
    def nap() -> str:
        process.machine.clock.sleep(3.0)
        return "slept"

    def asks() -> tuple[object, ...]:
        task = threads.start("nap", nap)
        task.join(1.0)
        with pytest.raises(TimeoutError):
            task.result(1.0)
        return task.is_alive(), kernel.now, task.result(), task.exception(), task.is_alive(), kernel.now

    assert run(process, asks) == [(True, 2.0, "slept", None, False, 3.0)]
    (errors,) = run(process, lambda: side_by_side(threads, [lambda: None, lambda: 1 // 0]))  # type: ignore[list-item, func-returns-value]
    assert [type(error) for error in errors] == [ZeroDivisionError]


@pytest.mark.parametrize("seed", range(20))
def test_a_ledger_adds_up_however_threads_are_preempted(seed: int) -> None:
    """Locks exclude, notifications are not lost: on the system's threads as on ours."""

    def total(threads: Threads, drawn: random.Random) -> int:
        changed, rlock, left, got = threads.condition(), threads.rlock(), [0], [0]

        def puts() -> None:
            for _ in range(30):
                with changed:
                    before = left[0]
                    with rlock, rlock:
                        pass
                    left[0] = before + 1
                    changed.notify()

        def gets() -> None:
            for _ in range(30):
                with changed:
                    changed.wait_for(lambda: left[0])
                    before = left[0]
                    with rlock:
                        pass
                    left[0] = before - 1
                    got[0] += 1

        works = [puts, puts, gets, gets]
        drawn.shuffle(works)
        assert side_by_side(threads, works) == []
        assert left == [0]
        return got[0]

    with Kernel(seed, preempt=0.4, stall_s=0.01 * (seed % 2)) as kernel:
        process = kernel.process("one")
        task = process.start("main", lambda: total(process.machine.threads, random.Random(seed)))
        assert kernel.run() == "idle"
        assert task.result() == total(SystemThreads(), random.Random(seed)) == 60
