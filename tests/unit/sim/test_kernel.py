"""The simulator's kernel: one seed, one run; processes that are killed, paused and slow; what cannot go on is said."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from borealis.machine import Machine
from borealis.sim.kernel import Kernel, LivelockError, Process
from borealis.sim.threads import KilledError


def trace(seed: int, preempt: float = 0.2, stall_s: float = 0.001) -> str:
    """Everything that happened among twelve threads that contend, as a digest."""
    seen: list[object] = []
    with Kernel(seed, preempt=preempt, stall_s=stall_s) as kernel:
        kernel.on_step = lambda task: seen.append((kernel.now, str(task)))
        for name in "abc":
            stirred(kernel.process(name))
        kernel.at(0.5, lambda: kernel.processes[0].pause())
        kernel.at(0.7, lambda: kernel.processes[0].resume())
        kernel.at(0.9, lambda: kernel.processes[1].kill())
        kernel.run(until=2.0)
        seen += [process.machine.chance.token() for process in kernel.processes]
        assert kernel.errors == []
    return hashlib.sha256(repr(seen).encode()).hexdigest()


def stirred(process: Process) -> None:
    machine, drawn = process.machine, process.kernel.chance(process.name)
    changed, box, left = machine.threads.condition(), machine.threads.mailbox(2), [0]

    def giver() -> None:
        while True:
            machine.clock.sleep(drawn.random() / 50)
            with changed:
                left[0] += 1
                changed.notify()
            if box.full():
                box.get_nowait()

    def taker() -> None:
        while True:
            with changed:
                changed.wait_for(lambda: left[0], timeout=0.02)
                left[0] = 0
            box.put(machine.clock.now())

    for work in (giver, giver, taker, taker):
        process.start(work.__name__, work)


def test_a_seed_decides_everything() -> None:
    assert trace(1) == trace(1) != trace(2)
    assert trace(1, preempt=0.0) != trace(1)


def test_hashes_of_strings_decide_nothing() -> None:
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import test_kernel; print(test_kernel.trace(7))"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True
        )
        for seed in ("1", "2")
    ]
    printed = [process.communicate(timeout=60)[0].strip() for process in running]
    assert printed == [trace(7), trace(7)]


def test_every_machine_has_a_clock_of_its_own() -> None:
    with Kernel(1) as kernel:
        one, two = (kernel.process(name).machine for name in ("one", "two"))
        assert isinstance(one, Machine)
        assert one.clock.now() != two.clock.now()
        assert 0 < abs(one.clock.time() - two.clock.time()) <= 0.01
        begun = one.clock.now(), two.clock.time()
        kernel.run(until=10.0)
        assert (one.clock.now() - begun[0], two.clock.time() - begun[1]) == pytest.approx((10.0, 10.0))
        kernel.processes[0].kill()
        assert kernel.process("one").machine.clock.now() == one.clock.now()
        with pytest.raises(ValueError, match="alive"):
            kernel.process("two")


def test_tokens_differ_also_after_a_restart() -> None:
    with Kernel(1) as kernel:
        tokens = [kernel.process("one").machine.chance.token()]
        kernel.processes[0].kill()
        tokens += [kernel.process(name).machine.chance.token() for name in ("one", "two")]
        assert len(set(tokens)) == 3
        assert {len(token) for token in tokens} == {16}


def test_streams_of_chance_do_not_disturb_each_other() -> None:
    drawn = []
    for others in (0, 5):
        kernel = Kernel(3)
        for _ in range(others):
            kernel.chance("other").random()
            kernel.rng.random()
        drawn.append(kernel.chance("mine").random())
    assert drawn[0] == drawn[1]


def test_timers_ring_in_order_and_can_be_cancelled() -> None:
    rung: list[str] = []
    with Kernel(1) as kernel:
        for delay, name in [(2.0, "late"), (1.0, "first"), (1.0, "second")]:
            kernel.at(delay, lambda name=name: rung.append(name))
        kernel.at(1.5, lambda: rung.append("never")).cancel()
        assert kernel.run(until=1.0) == "time is up"
        assert rung == ["first", "second"]
        assert kernel.run() == "idle"
        assert (rung, kernel.now) == (["first", "second", "late"], 2.0)


def test_cancelled_timers_are_swept() -> None:
    with Kernel(1) as kernel:
        process, event = kernel.process("one"), kernel.process("two").machine.threads.event()

        def waits() -> None:
            for _ in range(10_000):
                event.clear()
                event.wait(1e6)

        def sets() -> None:
            while waiter.is_alive():
                event.set()
                process.machine.clock.sleep(0.001)

        waiter = process.start("waits", waits)
        process.start("sets", sets)
        most = [0]
        kernel.on_step = lambda task: most.append(len(kernel._timers))
        kernel.run()
        assert kernel.errors == []
        assert max(most) < 3_000
        assert kernel.now < 1e3


def test_stop_is_asked_before_every_step() -> None:
    with Kernel(1) as kernel:
        clock = kernel.process("one").machine.clock
        kernel.processes[0].start("naps", lambda: [clock.sleep(1.0) for _ in range(9)])
        assert kernel.run(stop=lambda: kernel.now >= 3.0) == "stopped"
        assert kernel.now == 3.0


def test_a_kill_runs_no_finally_before_the_end() -> None:
    ran: list[str] = []
    with Kernel(1) as kernel:
        process = kernel.process("one")
        threads, clock = process.machine.threads, process.machine.clock
        lock, free, event = threads.lock(), threads.rlock(), threads.event()

        def work() -> None:
            try:
                with lock:
                    clock.sleep(5.0)
            finally:
                ran.append("finally")
                for effect in (clock.sleep, event.wait, process.work):
                    with pytest.raises(KilledError):
                        effect(0.1)
                for effect in (free.acquire, event.set, process.check, lambda: threads.start("more", work)):
                    with pytest.raises(KilledError):
                        effect()
                ran.append("no effects")

        task = process.start("work", work)
        process.start("not begun", lambda: ran.append("begun"))
        process.start("waits", lambda: lock.acquire() and ran.append("has it"))
        process.at(2.0, lambda: ran.append("timer"))
        kernel.run(stop=lambda: lock.locked())  # type: ignore[attr-defined]
        process.kill()
        kernel.run(until=100.0)
        assert ran == []
        assert process.state == "dead"
        assert task.is_alive()
        with pytest.raises(KilledError):
            process.start("more", work)
    assert ran == ["finally", "no effects"]
    assert kernel.errors == []


def test_unwinding_through_a_condition_and_errors_of_the_dead_are_not_kept() -> None:
    with Kernel(1) as kernel:
        process = kernel.process("one")
        changed = process.machine.threads.condition()

        def work() -> None:
            try:
                with changed:
                    changed.wait()
            finally:
                raise ValueError("not worth a word")

        process.start("work", work)
        kernel.run()
    assert kernel.errors == []


def test_a_task_that_kills_its_own_process_does_not_return() -> None:
    ran: list[str] = []
    with Kernel(1) as kernel:
        process = kernel.process("one")
        process.start("self", lambda: (process.kill(), ran.append("after")))
        process.start("other", lambda: ran.append("other"))
        kernel.run()
        assert ran == []


def test_paused_tasks_stand_still_and_timers_ring_at_the_end() -> None:
    seen: list[tuple[str, float]] = []
    with Kernel(1) as kernel:
        process = kernel.process("one")
        clock, event = process.machine.clock, process.machine.threads.event()
        begun = clock.now()

        def work() -> None:
            while True:
                clock.sleep(1.0)
                seen.append(("nap", round(clock.now() - begun, 6)))

        process.start("work", work)
        process.start("waits", lambda: seen.append((f"set {event.wait(4.0)}", kernel.now)))
        process.start("late", lambda: seen.append((f"set {event.wait(100.0)}", kernel.now)))
        process.at(3.0, lambda: seen.append(("timer", kernel.now)))
        kernel.at(2.5, process.pause)
        kernel.at(5.0, event.set)  # as data that the system has for a process that is stopped
        kernel.at(9.5, process.resume)
        kernel.run(until=9.0)
        assert seen == [("nap", 1.0), ("nap", 2.0)]
        assert process.state == "paused"
        kernel.run(until=11.0)
        assert sorted(seen[2:6]) == [("nap", 9.5), ("set True", 9.5), ("set True", 9.5), ("timer", 9.5)]
        assert seen[6:] == [("nap", 10.5)]


def test_a_wait_that_times_out_during_a_pause_has_done_so_at_its_end() -> None:
    with Kernel(1) as kernel:
        process = kernel.process("one")
        task = process.start("waits", lambda: (process.machine.threads.event().wait(4.0), kernel.now))
        kernel.at(1.0, process.pause)
        kernel.at(8.0, process.resume)
        kernel.run()
        assert task.result() == (False, 8.0)


def test_a_task_can_pause_its_own_process() -> None:
    with Kernel(1) as kernel:
        process = kernel.process("one")
        task = process.start("self", lambda: (process.pause(), kernel.now)[1])
        kernel.at(3.0, process.resume)
        kernel.run()
        assert task.result() == 3.0


def test_a_slow_process_computes_for_longer() -> None:
    with Kernel(1) as kernel:
        process = kernel.process("one")
        process.slow = 3.0
        process.start("work", lambda: process.work(2.0))
        kernel.run()
        assert kernel.now == pytest.approx(6.0)


def test_a_process_that_was_slow_is_quick_again_in_the_midst_of_its_work() -> None:
    with Kernel(1) as kernel:
        process = kernel.process("one")
        process.slow = 10.0
        process.start("work", lambda: process.work(2.0))
        kernel.at(5.0, lambda: setattr(process, "slow", 1.0))
        kernel.run()
        assert 6.0 < kernel.now < 7.0


def test_errors_that_no_thread_asks_for_are_kept() -> None:
    with Kernel(1) as kernel:
        process = kernel.process("one")
        asked, joined = (process.start(name, lambda: 1 // 0) for name in ("asked", "joined"))
        kernel.run()
        joined.join()
        assert isinstance(asked.exception(), ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            asked.result()
        (error,) = kernel.errors
        assert (error.process, error.task, type(error.error)) == ("one", "joined", ZeroDivisionError)


def test_what_is_no_error_of_a_task_ends_the_run() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with Kernel(1) as kernel:
        kernel.process("one").start("work", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kernel.run()
        kernel.at(0.0, lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            kernel.run()


def test_a_livelock_names_the_tasks() -> None:
    with Kernel(1, steps_max=2_000) as kernel:
        process = kernel.process("one")

        def spin() -> None:
            while True:
                process.machine.clock.sleep(0.0)

        process.start("spin", spin)
        process.start("calm", lambda: process.machine.clock.sleep(1.0))
        with pytest.raises(LivelockError, match="one/spin") as raised:
            kernel.run()
        assert "calm" not in str(raised.value)


def test_a_livelock_of_timers() -> None:
    with Kernel(1, steps_max=2_000) as kernel:

        def again() -> None:
            kernel.at(0.0, again)

        again()
        with pytest.raises(LivelockError, match=r"timer .*again 100%"):
            kernel.run()


def test_garbage_is_collected_at_the_same_steps_in_every_run() -> None:
    assert gc.isenabled()
    with Kernel(1) as kernel:
        task = kernel.process("one").start("looks", gc.isenabled)
        kernel.run()
        assert not task.result()
        assert not gc.isenabled()  # between two runs, too
    assert gc.isenabled()


def test_a_deadlock_is_idle_and_says_where_all_stand() -> None:
    with Kernel(1) as kernel:
        process = kernel.process("one")
        event = process.machine.threads.event()
        process.start("forever", lambda: event.wait())
        assert kernel.run() == "idle"
        assert "one/forever" in kernel.stacks()
        assert "event.wait()" in kernel.stacks()


def test_a_task_that_does_not_give_way_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    with Kernel(1, silence_s=0.05) as kernel:
        kernel.process("one").start("hogs", lambda: time.sleep(0.2))
        kernel.run()
    assert "one/hogs has run for 0.05 s" in (said := capfd.readouterr().err)
    assert "time.sleep(0.2)" in said


def test_preemption_lets_others_in() -> None:
    def last(preempt: float) -> list[str]:
        order: list[str] = []
        with Kernel(5, preempt=preempt) as kernel:
            process = kernel.process("one")
            lock = process.machine.threads.lock()

            def work(name: str) -> None:
                for _ in range(20):
                    with lock:
                        order.append(name)

            for name in "ab":
                process.start(name, lambda name=name: work(name))
            kernel.run()
        return order

    assert last(0.0) == ["a"] * 20 + ["b"] * 20
    assert last(0.3) not in (last(0.0), ["a", "b"] * 20)
    assert sorted(last(1.0)) == last(0.0)
