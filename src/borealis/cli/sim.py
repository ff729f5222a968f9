"""`borealis sim`: clusters in simulated time, one for each seed, and what it takes to repeat one that failed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from borealis.cli.options import Json
from borealis.cli.screen import Screen, plural
from borealis.clock import WALL
from borealis.diagram.durations import parse
from borealis.diagram.protection import APPROACHES, BACKUPS_MOST, CHECKPOINTS, GUARANTEES, MERGES
from borealis.errors import BorealisError, did_you_mean

if TYPE_CHECKING:
    from borealis.sim.plan import Options, Plan
    from borealis.sim.seeds import Verdict

SEEDS = 20  # if nothing is said
SEED_MAX = 1_000_000  # of those that are drawn
SECONDS, NODES = 15.0, 3
KINDS = ("kill", "cut", "pause", "disk", "move")
NONE = "none"  # of the faults


@dataclass(frozen=True)
class SeedOptions:
    """Which seeds."""

    seed: Annotated[int | None, Option(min=0, help="This one.")] = None
    seeds: Annotated[int | None, Option(min=1, help=f"So many; {SEEDS} random ones if left out.")] = None
    since: Annotated[int, Option("--from", min=0, help="With --seeds: the first of them.")] = 0
    only: Annotated[
        str | None,
        Option(metavar="0,2", help="With --seed: only these of its faults, by their numbers; none for none of them."),
    ] = None


@dataclass(frozen=True)
class PlanOptions:
    """What a seed may draw."""

    diagram: Annotated[
        str | None, Option(metavar="FILE|NAME", help="This diagram, a YAML file or one that is built in.")
    ] = None
    ha: Annotated[
        str | None,
        Option(metavar="APPROACH", help=f"{', '.join(APPROACHES[1:])}; any if left out."),
    ] = None
    guarantee: Annotated[str | None, Option(metavar="WHAT", help="gap, no-loss or precise; any if left out.")] = None
    merge: Annotated[
        str | None, Option(metavar="arrival|time", help="How several streams are read; either if left out.")
    ] = None
    delay: Annotated[
        str | None, Option(metavar="TIME|none", help="Within which answers come, tentatively; any if left out.")
    ] = None
    replicas: Annotated[
        int | None, Option(min=2, metavar="N", help="With replicas: so many copies; two or three if left out.")
    ] = None
    backups: Annotated[
        int | None, Option(min=1, max=BACKUPS_MOST, metavar="N", help="Of passive standbys; any if left out.")
    ] = None
    checkpoint: Annotated[
        str | None,
        Option(metavar="interval|sweeping|min-max", help="When passive standbys do so; any if left out."),
    ] = None
    spread: Annotated[
        bool | None, Option("--spread/--no-spread", help="Units move by themselves soon; in some runs if left out.")
    ] = None
    faults: Annotated[
        str | None, Option(metavar="KINDS", help="Of kill, cut, pause, disk, move: these, or none; all if left out.")
    ] = None
    minutes: Annotated[float | None, Option(min=0.05, help="How long a run lasts, in simulated minutes.")] = None
    seconds: Annotated[float | None, Option(min=3, help=f"The same in seconds; {SECONDS:.0f} if left out.")] = None
    nodes: Annotated[int, Option(min=2, max=20, help="So many nodes.")] = NODES

    def drawn_from(self) -> Options:
        """As the simulator takes them; a BorealisError says what is wrong with one."""
        from borealis.sim.plan import Options

        if self.minutes is not None and self.seconds is not None:
            raise BorealisError("--minutes and --seconds say the same", hint="give one of them")
        seconds = self.seconds or (60 * self.minutes if self.minutes is not None else SECONDS)
        _one_of("--ha", self.ha, [one for one in APPROACHES if one != NONE])
        _one_of("--guarantee", self.guarantee, list(GUARANTEES))
        _one_of("--merge", self.merge, list(MERGES))
        if self.delay not in (None, NONE):
            parse(self.delay)
        _one_of("--checkpoint", self.checkpoint, list(CHECKPOINTS))
        how = (self.ha, self.guarantee, self.kinds(), seconds, self.nodes, self.merge, self.delay, self.replicas)
        return Options(self._diagram(), *how, self.checkpoint, self.backups, self.spread)

    def kinds(self) -> tuple[str, ...]:
        if self.faults is None:
            return KINDS
        given = [one.strip() for one in self.faults.split(",")]
        if given == [NONE]:
            return ()
        for one in given:
            _one_of("--faults", one, [*KINDS, NONE])
        return tuple(kind for kind in KINDS if kind in given)

    def _diagram(self) -> str | None:
        from borealis.sim.diagrams import DIAGRAMS

        if self.diagram is None or self.diagram in DIAGRAMS:
            return self.diagram
        path = Path(self.diagram)
        if not path.exists() and path.suffix not in (".yaml", ".yml"):
            near = did_you_mean(self.diagram, DIAGRAMS) or f"give a file, or one of {', '.join(DIAGRAMS)}"
            raise BorealisError(f"no file and no diagram '{self.diagram}'", hint=near)
        from borealis.cli.opening import load

        return load(path).spec.to_yaml()

    def words(self) -> list[str]:
        """What must be typed again to draw the same."""
        given: dict[str, Any] = {
            "--diagram": self.diagram,
            "--ha": self.ha,
            "--guarantee": self.guarantee,
            "--merge": self.merge,
            "--delay": self.delay,
            "--replicas": self.replicas,
            "--backups": self.backups,
            "--checkpoint": self.checkpoint,
            "--faults": self.faults,
            "--minutes": self.minutes,
            "--seconds": self.seconds,
            "--nodes": None if self.nodes == NODES else self.nodes,
        }
        spread = [] if self.spread is None else ["--spread" if self.spread else "--no-spread"]
        return spread + [word for name, value in given.items() if value is not None for word in (name, _number(value))]


def sim(
    seeds: SeedOptions,
    drawn: PlanOptions,
    jobs: Annotated[int | None, Option(min=1, help="Processes; one for each core if left out.")] = None,
    trace: Annotated[Path | None, Option(metavar="FILE", help="Write the whole histories here.")] = None,
    json: Json = False,
) -> None:
    """A seed draws a diagram, how it is cut and protected, and a schedule of faults; the same seed is the same run, on
    any machine. What readers and publishers saw is judged. The exit code is 1 if a run failed.
    """
    from borealis.cli.opening import start_spark
    from borealis.sim.plan import drawn_plan
    from borealis.sim.programs import Programs
    from borealis.sim.seeds import Stage, judged

    options = drawn.drawn_from()
    plans = [drawn_plan(seed, options) for seed in _seeds(seeds)]
    only = _numbers(seeds.only, plans[0])
    report, many = Report(drawn.words(), 0, len(plans)), min(jobs or _cores(), len(plans))
    with Screen(quiet=json) as screen:
        spark = start_spark("local[1]")
        stage = Stage(Programs(spark))
        stage.prepare(plans, lambda done, of: _doing(screen, f"Spark compiles: {done} of {plural(of, 'way')} to cut"))
        if many > 1:
            spark.stop()  # processes that are forked need what it has said, and nothing else
        report.begun = WALL.now()
        for verdict in judged(stage, plans, many, only):
            report.add(verdict, trace)
            if verdict.faults and not json:
                screen.say("\n".join(report.failure(verdict)))
            if screen.due():
                screen.show(report.line(), [report.line()])
    if json:
        print(dumps(report.facts(), ensure_ascii=False))
    else:
        print(report.line())
    if report.failed:
        raise Exit(1)


@dataclass
class Report:
    """What has come of the seeds so far."""

    words: list[str]  # options that matter
    done: int
    of: int
    failed: list[Verdict] = field(default_factory=list)
    simulated_s: float = 0.0
    begun: float = 0.0

    def add(self, verdict: Verdict, trace: Path | None) -> None:
        if trace is not None:
            with trace.open("a" if self.done else "w", encoding="utf-8") as file:
                file.write("\n".join([*schedule(verdict.plan), *verdict.lines, *verdict.faults, ""]))
        self.done += 1
        self.simulated_s += verdict.simulated_s
        if verdict.faults:
            self.failed.append(verdict)

    @property
    def speed(self) -> float:
        return self.simulated_s / max(WALL.now() - self.begun, 1e-3)

    def line(self) -> str:
        failed = f"{len(self.failed)} failed" if self.failed else "none failed"
        whole = f"{self.done} of {plural(self.of, 'seed')}" if self.done < self.of else plural(self.of, "seed")
        return f"{whole}, {failed}; {self.simulated_s:,.0f} s simulated, {self.speed:.0f} times real time"

    def command(self, verdict: Verdict) -> str:
        """What repeats a failure, with as few faults as it takes."""
        words = ["borealis", "sim", "--seed", str(verdict.plan.seed), *self.words]
        if verdict.kept is not None and len(verdict.kept) < len(verdict.plan.faults):
            words += ["--only", ",".join(map(str, verdict.kept)) or NONE]
        return shlex.join(words)

    def failure(self, verdict: Verdict) -> list[str]:
        found = ["", *schedule(verdict.plan), "  found:", *(f"    {fault}" for fault in verdict.faults)]
        if verdict.kept is not None:
            kept = ", ".join(map(str, verdict.kept)) or "no fault at all"
            found.append(f"  shortened in {plural(verdict.runs, 'run')} to {kept}, which finds:")
            found += [f"    {fault}" for fault in verdict.kept_faults]
        found += ["  history:", *(f"    {line}" for line in verdict.excerpt())]
        return [*found, f"  again: {self.command(verdict)}"]

    def facts(self) -> dict[str, Any]:
        return {
            "seeds": self.done,
            "failed": [self._facts(verdict) for verdict in self.failed],
            "simulated_s": round(self.simulated_s, 3),
            "real_s": round(WALL.now() - self.begun, 3),
            "speed": round(self.speed, 1),
        }

    def _facts(self, verdict: Verdict) -> dict[str, Any]:
        plan = verdict.plan
        return {
            "seed": plan.seed,
            "diagram": plan.name,
            "cut": list(plan.cuts),
            "ha": plan.approach,
            "guarantee": plan.guarantee,
            "durable": plan.durable,
            "nodes": list(plan.nodes),
            "schedule": [str(fault) for fault in plan.faults],
            "faults": verdict.faults,
            "kept": None if verdict.kept is None else list(verdict.kept),
            "kept_faults": list(verdict.kept_faults),
            "runs": verdict.runs,
            "command": self.command(verdict),
            "history": verdict.excerpt(),
        }


def schedule(plan: Plan) -> list[str]:
    """A plan, and its faults with their numbers."""
    return [str(plan), *(f"  {number:2}: {fault}" for number, fault in enumerate(plan.faults))]


def _doing(screen: Screen, text: str) -> None:
    if screen.due():
        screen.show(text, [text])


def _seeds(given: SeedOptions) -> Sequence[int]:
    if given.seed is not None:
        if given.seeds is not None:
            raise BorealisError("--seed is one, and --seeds are many", hint="give one of them")
        return [given.seed]
    if given.only is not None:
        raise BorealisError("--only says which faults of one run", hint="add --seed")
    first = given.since if given.seeds is not None or given.since else SystemRandom().randrange(SEED_MAX)
    return range(first, first + (given.seeds or SEEDS))


def _numbers(text: str | None, plan: Plan) -> list[int] | None:
    if text is None:
        return None
    words = [] if text.strip() == NONE else [word.strip() for word in text.split(",")]
    for word in words:
        if not word.isdecimal() or int(word) >= len(plan.faults):
            hint = f"it has the faults 0 to {len(plan.faults) - 1}" if plan.faults else "it has no faults"
            raise BorealisError(f"seed {plan.seed} has no fault '{word}'", hint=hint)
    return sorted({int(word) for word in words})


def _one_of(option: str, given: str | None, known: Sequence[str]) -> None:
    if given is not None and given not in known:
        hint = did_you_mean(given, known) or f"one of {', '.join(known)}"
        raise BorealisError(f"{option} '{given}' is unknown", hint=hint)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
