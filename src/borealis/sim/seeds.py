"""Many seeds: their plans are drawn, Spark compiles what these need, and processes take one seed after the other.

A seed that fails is run again with fewer faults, to say which of them it takes.
"""

from __future__ import annotations

import gc
import os
import signal
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from borealis.clock import WALL
from borealis.diagram.cut import cut
from borealis.diagram.spec import Spec
from borealis.errors import DiagramError, plural
from borealis.sim import shapes
from borealis.sim.diagrams import is_named
from borealis.sim.history import History, check
from borealis.sim.oracle import Oracle, Rows, refuse_unknowable
from borealis.sim.plan import Plan
from borealis.sim.programs import Programs
from borealis.sim.rows import Drawn
from borealis.sim.run import Outcome, Run, Subject

WINDOW_US = 400_000  # what the largest window of a diagram comes to, at the pace of its rows
LOOKED_AT = 1_000  # rows of each input, to see whether an output gives something again and again
SHORTENED_MAX = 10  # failing seeds whose faults are tried one by one; the others take longer than they tell
BEFORE, AFTER = 40, 5  # lines of a history that are shown around the first sign


@dataclass(frozen=True)
class Verdict:
    """What came of a seed. `kept`: the faults that a failure takes, by their number, if it was shortened."""

    plan: Plan
    faults: list[str]
    lines: list[str]  # of the history with the faults that were kept
    sign: int = 0  # where in it the first sign of the failure is
    simulated_s: float = 0.0
    real_s: float = 0.0
    kept: tuple[int, ...] | None = None
    kept_faults: tuple[str, ...] = ()  # what was found with those
    runs: int = 1

    def excerpt(self) -> list[str]:
        """The history around the first sign, and before that what went wrong by plan.

        Where the sign is that nothing comes any more, what came before tells nothing, and is left out.
        """
        stop = min(len(self.lines), self.sign + 1 + AFTER)
        silent = stop == len(self.lines)
        near = [
            number
            for number in range(min(self.sign + 1, stop))
            if not (silent and _where(self.lines[number]) == "client")
        ]
        near = [*near[-BEFORE:], *range(self.sign + 1, stop)]
        struck = [number for number in range(min(near, default=0)) if _where(self.lines[number]) in ("fault", "run")]
        found, last = [], -1
        for number in (*struck, *near):
            if number != last + 1:
                found.append(f"... {plural(number - last - 1, 'line')}")
            found.append(self.lines[number])
            last = number
        return found + ([f"... {plural(len(self.lines) - last - 1, 'line')}"] if last < len(self.lines) - 1 else [])


def _where(line: str) -> str:
    """The process that a line of a history is about."""
    return line.split(maxsplit=2)[1]


class Stage:
    """Plays plans; what Spark says of their diagrams is asked for once."""

    def __init__(self, programs: Programs | None = None) -> None:
        self.programs = programs or Programs()

    def prepare(self, plans: Sequence[Plan], said: Callable[[int, int], object] = lambda *_: None) -> None:
        """Have Spark compile all that these plans need; a DiagramError for what cannot be simulated."""
        pairs = list(dict.fromkeys((plan.diagram, plan.cuts) for plan in plans))
        some = {(plan.diagram, plan.cuts): plan for plan in plans}
        for number, pair in enumerate(pairs):
            said(number, len(pairs))
            spec, programs = some[pair].spec, self.programs
            refuse_unknowable(spec, programs.compiled(spec, 1, None))
            for one in spec.inputs:
                programs.input_schema(one)
                programs.time_of(one)
                programs.time_of(one.model_copy(update={"durable": not one.durable}))
            for piece in cut(spec, pair[1]):
                if not programs.compiled(spec, 1, piece).one_level:
                    raise DiagramError(
                        f"unit '{piece.name}' has several levels, which are no part of a simulation",
                        hint="cut the diagram so that each runs in a lane: `borealis explain` says what hinders",
                    )
            self.subject(some[pair])

    def subject(self, plan: Plan) -> Subject:
        spec = plan.spec
        whole = self.programs.compiled(spec, 1, None)
        rows: Rows = shapes.rows
        silent: frozenset[str] = frozenset()
        if not is_named(plan.diagram):
            rows = _drawn_rows(spec, whole.inputs, plan.seed)
            silent = _silent(Oracle(spec, whole, rows))
        subject = Subject.of(spec.to_yaml(), spec, plan.cuts, self.programs, rows)
        return replace(subject, silent=silent)

    def play(self, plan: Plan) -> tuple[Outcome, int]:
        """A run, and the line of its history where the first sign of a failure is."""
        run = Run(plan, self.subject(plan), self.programs)
        try:
            outcome = run.play()
        except Exception as error:
            outcome, at = run.outcome, traceback.extract_tb(error.__traceback__)[-1]
            outcome.faults.append(f"the run broke: {error!r} ({os.path.basename(at.filename)}, line {at.lineno})")
        return outcome, first_sign(run) if outcome.faults else 0

    def judge(self, plan: Plan, shorten: bool, numbers: Sequence[int] | None = None) -> Verdict:
        """Run a plan, or only the faults with these numbers; where it fails, and if so wished, with fewer and fewer."""
        numbers = range(len(plan.faults)) if numbers is None else numbers
        outcome, sign = self.play(plan.only(numbers))
        verdict = Verdict(plan, outcome.faults, outcome.lines, sign, outcome.simulated_s, outcome.real_s)
        if not outcome.faults or not shorten:
            return verdict
        last = [(outcome, sign)]

        def fails(some: tuple[int, ...]) -> bool:
            outcome, sign = self.play(plan.only(some))
            if outcome.faults:
                last[0] = outcome, sign
            return bool(outcome.faults)

        kept, runs = shortest(tuple(numbers), fails)
        outcome, sign = last[0]
        found = tuple(outcome.faults)
        return replace(verdict, lines=outcome.lines, sign=sign, kept=kept, kept_faults=found, runs=1 + runs)


def shortest(numbers: tuple[int, ...], fails: Callable[[tuple[int, ...]], bool]) -> tuple[tuple[int, ...], int]:
    """Of what fails, as little as fails still: none of it can be left out. And how many runs that took.

    >>> shortest((0, 1, 2, 3), lambda some: {1, 3} <= set(some))
    ((1, 3), 6)
    """
    runs = 1
    if not numbers or fails(()):
        return (), runs
    kept, tried = numbers, set[tuple[int, ...]]()
    while True:
        for number in kept:
            fewer = tuple(one for one in kept if one != number)
            if not fewer or fewer in tried:
                continue
            runs += 1
            tried.add(fewer)
            if fails(fewer):
                kept = fewer
                break
        else:
            return kept, runs


# -- rows of any diagram


def _drawn_rows(spec: Spec, schemas: Any, seed: int) -> Rows:
    pace = pace_of(spec)
    streams = {
        one.name: Drawn(schemas[one.name], one.time, f"{seed}/rows/{one.name}", one.slack_us, pace)
        for one in spec.inputs
    }
    return lambda name, first, stop: streams[name].rows(first, stop)


def pace_of(spec: Spec) -> int:
    """How many times faster than usual the times of rows must go on for windows to close again and again."""
    sizes = [one.slack_us for one in spec.inputs]
    for box in spec.boxes:
        sizes += [box.grid_us, box.reach_us, getattr(box, "size_us", None) or 0]
    return max(1, -(-max(sizes) // WINDOW_US))


def _silent(oracle: Oracle) -> frozenset[str]:
    """Outputs that may give nothing for long, since that is how the diagram is."""
    one, two = (oracle.truth({i.name: n for i in oracle.spec.inputs}) for n in (LOOKED_AT, 2 * LOOKED_AT))
    return frozenset(name for name in two if len(two[name]) < len(one[name]) + 2)


# -- the first sign of a failure


def first_sign(run: Run) -> int:
    """The line of the history at which a client could have known; its last one, where no tuple is wrong."""
    lines = [len(run.outcome.lines) - 1]
    for history in run.histories.values():
        count = _first_wrong(history)
        lines += [line for output, stop, line in run.came if output == history.output and stop >= count > 0][:1]
    return max(0, min(lines))


def _first_wrong(history: History) -> int:
    """So many tuples until one is wrong, or comes behind one that is missing; 0: none is."""
    got = history.received
    if not _wrong(history, len(got)):
        return _first_behind_missing(history)
    return bisect_left(range(1, len(got) + 1), True, key=lambda count: _wrong(history, count)) + 1


def _wrong(history: History, count: int) -> bool:
    """Whether something is wrong with the first tuples that is more than that some do not come."""
    begun = replace(history, received=history.received[:count], ended=True, trouble=[], gaps=0, moment=None)
    return any(" missing: " not in fault for fault in check(begun))


def _first_behind_missing(history: History) -> int:
    if not any(" missing: " in fault for fault in check(history)):
        return 0
    truth, left = history.shape.truth(history.published), Counter(one.row for one in history.received)
    for number, row in enumerate(truth):
        left[row] -= 1
        if left[row] < 0:
            later = set(truth[number + 1 :]) - set(truth[: number + 1])
            return next((count for count, one in enumerate(history.received, 1) if one.row in later), 0)
    return 0


# -- processes


def judged(stage: Stage, plans: Sequence[Plan], jobs: int = 1, only: Sequence[int] | None = None) -> Iterator[Verdict]:
    """The verdicts of plans that are prepared, as they come. With several jobs, Spark is let go of."""
    if jobs == 1:
        failed = 0
        for plan in plans:
            verdict = stage.judge(plan, failed < SHORTENED_MAX, only)
            failed += bool(verdict.faults)
            yield verdict
        return
    stage.programs.close()
    yield from _Workers(stage, plans).verdicts(min(jobs, len(plans)))


class _Workers:
    """Processes that are forks of this one, so that they know all that Spark has said, and need no Spark."""

    def __init__(self, stage: Stage, plans: Sequence[Plan]) -> None:
        self._stage, self._plans = stage, plans
        self._next = self._failed = 0
        self._processes: dict[Connection, Any] = {}
        self._at: dict[Connection, int] = {}  # which plan a worker has, and since when
        self._since: dict[Connection, float] = {}

    def verdicts(self, jobs: int) -> Iterator[Verdict]:
        gc.freeze()
        try:
            for _ in range(jobs):
                self._start()
            while self._at:
                for line in wait(list(self._at)):
                    assert isinstance(line, Connection)
                    yield self._heard(line)
        finally:
            for process in self._processes.values():
                process.terminate()
            for process in self._processes.values():
                process.join()
            gc.unfreeze()

    def _start(self) -> None:
        if self._next >= len(self._plans):
            return
        context = get_context("fork")
        mine, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self._stage, self._plans), daemon=True)
        process.start()
        theirs.close()
        self._processes[mine] = process
        self._give(mine)

    def _give(self, line: Connection) -> None:
        """The next plan, or the word that there is none."""
        self._at.pop(line, None)
        if self._next >= len(self._plans):
            line.send(None)
            return
        self._at[line], self._since[line] = self._next, WALL.now()
        self._next += 1
        line.send((self._at[line], self._failed < SHORTENED_MAX))

    def _heard(self, line: Connection) -> Verdict:
        plan = self._plans[self._at[line]]
        try:
            verdict: Verdict = line.recv()
            self._failed += bool(verdict.faults)
            self._give(line)
        except (EOFError, OSError):
            process = self._processes.pop(line)
            process.join()
            code = process.exitcode
            how = f"of {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            verdict = Verdict(plan, [f"the process that ran it died {how}"], [], real_s=WALL.now() - self._since[line])
            self._failed += 1
            del self._at[line]
            self._start()
        return verdict


def _work(line: Connection, stage: Stage, plans: Sequence[Plan]) -> None:
    """In a worker: one plan after the other, until none is left or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it as well, and ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        while (given := line.recv()) is not None:
            number, shorten = given
            line.send(stage.judge(plans[number], shorten))
    except (EOFError, BrokenPipeError):
        pass
