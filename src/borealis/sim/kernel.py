"""Many processes, each with many threads, in one thread and in simulated time. A seed decides what happens.

A thread of a process is a task: a greenlet. One runs at a time, until it waits for something; computing takes no time.
While none can run, the time jumps to the next timer. Those that can run take turns in the order in which they became
able to, but for preemptions, which are drawn.

>>> with Kernel(seed=1) as kernel:
...     clock = kernel.process("one").machine.clock
...     nap = kernel.process("two").start("nap", lambda: clock.sleep(5.0))
...     kernel.run(until=60.0)
...     kernel.now, nap.is_alive()
'idle'
(60.0, False)
"""

from __future__ import annotations

import gc
import math
import random
import shutil
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, TypeVar

from greenlet import getcurrent

from borealis.clock import EPOCH_S
from borealis.disk import scratch
from borealis.machine import Machine
from borealis.sim.disk import SimDisk
from borealis.sim.threads import KilledError, SimTask, SimThreads, TaskError

T = TypeVar("T")

UPTIME_S_MAX = 100_000.0  # monotonic clocks of machines differ by up to that
STALLS = 0.25  # of the preemptions take time, where they may
SKEW_S_MAX = 0.005  # clocks on the wall are off by up to that
SLOW_WORK_S = 0.5  # of work on a slow machine, before it looks whether it is still one
COLLECT_STEPS = 200_000  # garbage is looked for at the same steps in every run of a seed
SAMPLE_STEPS = 1_000  # of a livelock, to say which tasks are in it
STALE_LEAST = 1_000  # timers that no task waits for any more, before they are swept


class LivelockError(Exception):
    """Threads go on and on, and no time passes."""


class Timer:
    """A call at a time to come."""

    __slots__ = ("_kernel", "alarm", "process", "ring")

    def __init__(self, kernel: Kernel, process: Process | None, ring: Callable[[], object]) -> None:
        self._kernel, self.process, self.ring = kernel, process, ring
        self.alarm = 0  # the number of its entry among the kernel's timers; 0: none

    def cancel(self) -> None:
        if self.alarm:
            self.alarm = 0
            self._kernel.stale += 1

    def __str__(self) -> str:
        return f"timer {getattr(self.ring, '__qualname__', 'of the kernel')}"


class SimClock:
    """One machine's: its zero is its own, and its clock on the wall is a little off."""

    __slots__ = ("_kernel", "_offset", "_process", "_wall")

    def __init__(self, process: Process) -> None:
        self._process, self._kernel = process, process.kernel
        drawn = random.Random(f"{self._kernel.seed}/clock/{process.name}")  # a restart does not change it
        self._offset = drawn.uniform(0, UPTIME_S_MAX)
        self._wall = EPOCH_S + drawn.uniform(-SKEW_S_MAX, SKEW_S_MAX)

    def now(self) -> float:
        return self._kernel.now + self._offset

    def time(self) -> float:
        return self._kernel.now + self._wall

    def sleep(self, seconds: float) -> None:
        self._kernel.sleep(seconds)


class SimChance:
    __slots__ = ("_drawn",)

    def __init__(self, drawn: random.Random) -> None:
        self._drawn = drawn

    def token(self, length: int = 16) -> str:
        return f"{self._drawn.getrandbits(4 * length):0{length}x}"


class Process:
    """Threads that live and die together, and the machine that they stand on."""

    def __init__(self, kernel: Kernel, name: str, disk: SimDisk | None) -> None:
        self.kernel, self.name = kernel, name
        self.dead = self.paused = False
        self.runs = True  # neither dead nor paused
        self.slow = 1.0  # how many times longer computing takes
        self.tasks: dict[SimTask[Any], None] = {}  # those that have not ended; they stay when the process dies
        self._held: list[SimTask[Any]] = []  # could run, but for the pause
        self._due: list[Timer | SimTask[Any]] = []  # should have rung during the pause
        chance = SimChance(kernel.chance(f"tokens/{name}"))
        view = (disk or SimDisk()).for_process(self)
        self.machine = Machine(SimClock(self), SimThreads(self), view, chance)

    @property
    def state(self) -> Literal["running", "paused", "dead"]:
        return "dead" if self.dead else "paused" if self.paused else "running"

    def check(self) -> None:
        """Raises KilledError if it is dead: to be called before anything that other processes could see."""
        if self.dead:
            raise KilledError(self.name)

    def start(self, name: str, work: Callable[[], T]) -> SimTask[T]:
        self.check()
        task: SimTask[T] = SimTask(self, name, work, self.kernel.hub)
        self.tasks[task] = None
        self.kernel.ready.append(task)
        self.kernel.maybe_yield()
        return task

    def at(self, delay: float, callback: Callable[[], object]) -> Timer:
        """A call in the kernel's loop: not if the process is dead by then, and not before the end of a pause."""
        timer = Timer(self.kernel, self, callback)
        self.kernel.after(delay, timer)
        return timer

    def work(self, seconds: float) -> None:
        """Compute for so long, or longer on a slow machine, as long as it is one."""
        while self.slow > 1.0 and seconds > SLOW_WORK_S / self.slow:
            seconds -= SLOW_WORK_S / self.slow
            self.kernel.sleep(SLOW_WORK_S)
        self.kernel.sleep(seconds * self.slow)

    def kill(self) -> None:
        """As kill -9: not one more line of it runs. A task of its own that calls this does not return."""
        self.dead, self.paused, self.runs = True, False, False
        self._held.clear()
        self._due.clear()
        if (task := self.kernel.current) is not None and task.process is self:
            self.kernel.leave()

    def pause(self) -> None:
        """As SIGSTOP: its threads stand still, its timers ring at the end, and its clocks go on."""
        if not self.runs:
            return
        self.paused, self.runs = True, False
        if (task := self.kernel.current) is not None and task.process is self:
            self.kernel.give_way()

    def resume(self) -> None:
        if not self.paused:
            return
        self.paused, self.runs = False, True
        self.kernel.ready.extend(self._held)
        for timer in self._due:
            if timer.alarm:
                self.kernel.after(0.0, timer)
        self._held.clear()
        self._due.clear()

    def hold(self, task: SimTask[Any]) -> None:
        if self.paused:
            self._held.append(task)

    def put_off(self, timer: Timer | SimTask[Any]) -> None:
        if self.paused:
            timer.alarm = -1  # in no list of the kernel's, and can be cancelled still
            self._due.append(timer)


class Kernel:
    """Time, and which task runs. To be run from the greenlet that made it, and to be disposed of in the end.

    `preempt` is the chance that a task gives way where it takes a free lock, sets, notifies or starts; in one of four
    such cases it does for up to `stall_s` of simulated time.
    """

    def __init__(
        self,
        seed: int | str,
        preempt: float = 0.02,
        stall_s: float = 0.0,
        steps_max: int = 200_000,
        silence_s: float = 30.0,
    ) -> None:
        self.seed, self.now = seed, 0.0
        self.rng = random.Random(f"{seed}/scheduling")
        self.hub = getcurrent()
        self.current: SimTask[Any] | None = None  # None: the loop's own callbacks, or outside of a run
        self.ready: deque[SimTask[Any]] = deque()
        self.processes: list[
            Process
        ] = []  # the dead ones, too: their greenlets must not be collected, as that ends them
        self.failed: list[SimTask[Any]] = []
        self.on_step: Callable[[SimTask[Any]], object] | None = None  # sees every task that is about to run
        self.steps = 0
        self.stale = 0  # entries among the timers that count no more
        self._timers: list[tuple[float, int, Timer | SimTask[Any]]] = []
        self._entries = 0
        self._living: dict[str, Process] = {}
        self._chances: dict[str, random.Random] = {}
        self._preempt, self._stall_s, self._steps_max, self._silence_s = preempt, stall_s, steps_max, silence_s
        self._ran: Counter[str] = Counter()
        self._scratch: Path | None = None
        self._scratches = 0
        self._over = self._gc_paused = False
        self._collect_at = COLLECT_STEPS
        self.leave: Callable[[], object] = self.hub.switch  # back to the loop, for good unless the task waits in a list
        self.fuse = self._draw_fuse()  # so many more locks and notifications until a preemption; below 0, it is now

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.dispose()

    def chance(self, name: str) -> random.Random:
        """Random numbers of one purpose; how many are drawn for another does not change them."""
        if name not in self._chances:
            self._chances[name] = random.Random(f"{self.seed}/chance/{name}")
        return self._chances[name]

    def process(self, name: str, disk: SimDisk | None = None) -> Process:
        """A new one, on a disk that outlives it, else on an empty one. The last of that name must be dead."""
        if name in self._living and not self._living[name].dead:
            raise ValueError(f"process {name!r} is alive")
        process = self._living[name] = Process(self, name, disk)
        self.processes.append(process)
        return process

    def at(self, delay: float, callback: Callable[[], object]) -> Timer:
        """A call in the loop, which must not wait; what it raises ends the run."""
        timer = Timer(self, None, callback)
        self.after(delay, timer)
        return timer

    @property
    def errors(self) -> list[TaskError]:
        """What threads died of and no other thread has asked for: to be looked at when the run is over."""
        return [error for task in self.failed if (error := task.unasked()) is not None]

    def stacks(self) -> str:
        """Where every living task stands, for people: who waits for whom in a deadlock."""
        living = [task for process in self.processes if not process.dead for task in process.tasks]
        return "\n".join(f"{task}:\n{task.stack()}" for task in living)

    def scratch(self, name: str) -> Path:
        """A new directory of the system, in memory, until this is disposed of."""
        if self._scratch is None:
            self._scratch = scratch("sim")
        self._scratches += 1
        made = self._scratch / f"{self._scratches}-{name}"
        made.mkdir()
        return made

    # -- the loop

    def run(
        self, until: float = math.inf, stop: Callable[[], bool] | None = None
    ) -> Literal["stopped", "time is up", "idle"]:
        """Until `stop` says so, which is asked before every step; or that time; or nothing can happen any more."""
        if getcurrent() is not self.hub:
            raise RuntimeError("only the greenlet that made the kernel can run it")
        if gc.isenabled():
            gc.disable()  # else it depends on what else is in memory when __del__ is called
            self._gc_paused = True
        silence = _Silence(self, self._silence_s)
        try:
            return self._run(until, stop)
        finally:
            self.current = None
            silence.over()

    def _run(self, until: float, stop: Callable[[], bool] | None) -> Literal["stopped", "time is up", "idle"]:
        ready, timers = self.ready, self._timers
        calm = self.steps + self._steps_max
        while True:
            if stop is not None and stop():
                return "stopped"
            if ready:
                task = ready.popleft()
                if not task.process.runs:
                    task.process.hold(task)
                    continue
                self.steps += 1
                if self.steps > calm:
                    self._restless(str(task))
                if self.on_step is not None:
                    self.on_step(task)
                self.current = task
                task.switch()
                self.current = None
                continue
            while timers and timers[0][2].alarm != timers[0][1]:
                heappop(timers)
                self.stale -= 1
            if not timers:
                self.now = max(self.now, until) if until < math.inf else self.now
                return "idle"
            if timers[0][0] > until:
                self.now = max(self.now, until)
                return "time is up"
            when, _, timer = heappop(timers)
            if when > self.now:
                self.now, calm = when, self.steps + self._steps_max
                self._ran.clear()
                if self.steps >= self._collect_at:
                    self._collect_at = self.steps + COLLECT_STEPS
                    gc.collect()
            timer.alarm = 0
            self.steps += 1
            if timer.process is None or timer.process.runs:
                timer.ring()
                if self.steps > calm:
                    self._restless(str(timer))
            else:
                timer.process.put_off(timer)

    def _restless(self, name: str) -> None:
        """Too many steps without time; the next ones are counted to say whose they are."""
        self._ran[name] += 1
        if (total := self._ran.total()) >= SAMPLE_STEPS:
            busiest = ", ".join(f"{name} {100 * count // total}%" for name, count in self._ran.most_common(5))
            raise LivelockError(f"{self._steps_max:,} steps and no time has passed; the last {total:,} were: {busiest}")

    def dispose(self) -> None:
        """End all tasks when the run is over: each is unwound by a KilledError, and by one more wherever it waits."""
        if getcurrent() is not self.hub:
            raise RuntimeError("only the greenlet that made the kernel can dispose of it")
        self._over, self.fuse = True, -1
        for process in self.processes:
            process.kill()
        for process in self.processes:
            for task in [*process.tasks]:
                if task.body:  # has begun, and not ended
                    self.current = task
                    task.body.throw(KilledError(process.name))
            process.tasks.clear()
        self.current = None
        self.ready.clear()
        self._timers.clear()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None
        if self._gc_paused:
            gc.enable()
            self._gc_paused = False

    # -- what threads call

    def park(self, queue: deque[SimTask[Any]], timeout: float | None) -> bool:
        """Wait in a queue until a task takes this one from it and wakes it; False if the time is up before."""
        task = self.current
        if task is None:
            if timeout is not None and timeout <= 0:
                return False
            raise RuntimeError("this has to wait, which only a task of a process can: see Process.start")
        if task.process.dead:
            raise KilledError(task.process.name)
        queue.append(task)
        task.queue = queue
        if timeout is not None:
            self.after(timeout, task)
        self.leave()
        return task.woken

    def wake(self, task: SimTask[Any]) -> None:
        """Let one run that was taken from the queue it waited in."""
        task.queue, task.woken = None, True
        if task.alarm:
            task.alarm = 0
            self.stale += 1
        self.ready.append(task)

    def sleep(self, seconds: float) -> None:
        task = self.current
        if task is None:
            raise RuntimeError("this has to wait, which only a task of a process can: see Process.start")
        if task.process.dead:
            raise KilledError(task.process.name)
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        self.after(seconds, task)
        self.leave()

    def give_way(self) -> None:
        """To all other tasks that can run now."""
        if self.current is not None:
            self.ready.append(self.current)
            self.leave()

    def maybe_yield(self) -> None:
        """Here a task may be preempted. Locks have the first two lines in them."""
        self.fuse -= 1
        if self.fuse < 0:
            self.preempt()

    def preempt(self) -> None:
        """The fuse has burnt down. In the end it stays so: threads that are unwound get no further than here."""
        if self._over:
            raise KilledError
        self.fuse = self._draw_fuse()
        if self.current is None:
            return
        if self._stall_s and self.rng.random() < STALLS:
            self.sleep(self.rng.uniform(0, self._stall_s))
        elif self.ready:
            self.give_way()

    def comes_late(self) -> bool:
        """Whether a task that is preempted at a free lock has it only afterwards."""
        return self.current is not None and not self._over and self.rng.random() < 0.5

    def wrong(self, what: str) -> NoReturn:
        """Raises, as Python does; threads that are unwound hold other locks than they think."""
        raise KilledError if self._over else RuntimeError(what)

    def after(self, delay: float, timer: Timer | SimTask[Any]) -> None:
        if self.stale > STALE_LEAST and 2 * self.stale > len(self._timers):
            self._timers[:] = [entry for entry in self._timers if entry[2].alarm == entry[1]]
            heapify(self._timers)
            self.stale = 0
        self._entries += 1
        timer.alarm = self._entries
        heappush(self._timers, (self.now + delay if delay > 0 else self.now, self._entries, timer))

    def _draw_fuse(self) -> int:
        """As if each time were drawn on its own."""
        if not 0 < self._preempt < 1:
            return 0 if self._preempt else sys.maxsize
        return int(math.log(1 - self.rng.random()) / math.log(1 - self._preempt))


class _Silence:
    """Says where a task stands that has not given way for long. It looks on from a thread of the system."""

    def __init__(self, kernel: Kernel, seconds: float) -> None:
        self._kernel, self._seconds, self._watched = kernel, seconds, threading.get_ident()
        self._over = threading.Event()
        if seconds > 0:
            threading.Thread(target=self._watch, name="silence", daemon=True).start()

    def over(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        seen = -1
        while not self._over.wait(self._seconds):
            frame = sys._current_frames().get(self._watched)
            if seen == self._kernel.steps and frame is not None:
                where = "".join(traceback.format_stack(frame))
                print(f"{self._kernel.current} has run for {self._seconds} s and more:\n{where}", file=sys.stderr)
            seen = self._kernel.steps
