"""How fast one stream goes from process to process: `borealis bench wire`.

Every end is a process of its own, bound to one core: both ends to the same core, or each to its own. Tuples are 100
bytes on the wire, and a megabyte is a million. Rates are over what the reader got after the first tenth. Ages of tuples
are taken by the machine's monotonic clock, from just before `append` (or `send`) to when the reader has the section.
Beside each rate stands what a plain socket between two such processes carries in the same minute.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .measuring import Say, part_by_part

JOBS = Path(__file__).with_name("wire_jobs.py")
JOB_S_MOST = 120.0  # no job takes longer, or something is wrong
BYTES = 100
MB = 1_000_000
ASKED_MB_PER_S = 300.0  # which is 3 million tuples per second
ASKED_P99_MS = 20.0
LIVE_PER_S = 10_000

NOT_ASKED = {"asked": None, "met": None}  # measured for information

Once = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Options:
    """What to measure. `only` names queries; `quick` shows that all of it works, and no more."""

    only: tuple[str, ...] = ()
    runs: int = 3
    quick: bool = False


@dataclass(frozen=True)
class Size:
    """How many tuples."""

    bulk: int = 20_000_000
    small: int = 3_000_000
    live_s: int = 6


QUICK = Size(bulk=4_000_000, small=500_000, live_s=2)


# -- processes


class Job:
    """A process with a job, and the lines it prints."""

    def __init__(self, do: str, core: int | None, **given: Any) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, str(JOBS), json.dumps({"do": do, "core": core, **given})]
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
        self.do = do

    def line(self) -> str:
        """The next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the job '{self.do}' failed:\n{self.process.communicate()[1][-4000:]}")
        return line.strip()

    def result(self) -> dict[str, Any]:
        """What it measured."""
        out, err = self.process.communicate(timeout=JOB_S_MOST)
        if self.process.returncode:
            raise RuntimeError(f"the job '{self.do}' failed:\n{err[-4000:]}")
        return dict(json.loads(out.splitlines()[-1]))

    def end(self) -> None:
        """Whatever happens, nothing of it is left."""
        if self.process.poll() is None:
            self.process.kill()
        with suppress(ValueError):
            self.process.communicate()


def together(server: Job, *others: Callable[[str], Job]) -> list[dict[str, Any]]:
    """Run jobs that need the address which the first of them prints; their results in order."""
    jobs = [server]
    try:
        address = server.line()
        for other in others:
            if len(jobs) > 1:
                jobs[-1].line()  # it is ready
            jobs.append(other(address))
        return [job.result() for job in jobs]
    finally:
        for job in jobs:
            job.end()


def cores(shared: bool, ends: int = 2) -> list[int | None]:
    """A core for each end, as far as there are any; or one for all."""
    if not hasattr(os, "sched_getaffinity"):
        return [None] * ends
    free = sorted(os.sched_getaffinity(0))
    return [free[0 if shared else i % len(free)] for i in range(ends)]


def used(places: Sequence[int | None]) -> int:
    """How many cores that are; all of them where processes cannot be bound."""
    return os.cpu_count() or 1 if None in places else len(set(places))


# -- sums


def line(query: str, places: Sequence[int | None], **more: Any) -> dict[str, Any]:
    """A line of the result."""
    made: dict[str, Any] = {
        "query": query,
        "mb_per_s": None,
        "tuples_per_s": None,
        "p50_ms": None,
        "p99_ms": None,
        "cores": used(places),
        "asked": None,
        "met": None,
        "ratio_to_socket": None,
        "note": "",
    }
    return made | more


def rate_line(query: str, places: Sequence[int | None], runs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Rates, each the median of the runs."""
    per_s = statistics.median(r["rows"] / r["seconds"] for r in runs)
    mb_per_s = per_s * BYTES / MB
    plain = statistics.median(r["socket_mb_per_s"] for r in runs)
    return (
        line(
            query,
            places,
            mb_per_s=round(mb_per_s, 1),
            tuples_per_s=round(per_s),
            asked=f"at least {ASKED_MB_PER_S:.0f} MB/s (3 million tuples/s)",
            met=mb_per_s >= ASKED_MB_PER_S,
            ratio_to_socket=round(mb_per_s / plain, 3),
            socket_mb_per_s=round(plain),
            mb_per_cpu_s=round(1000 / statistics.median(r["cpu_s_per_gb"] for r in runs), 1),
            rows_per_section=round(statistics.median(r["rows_per_section"] for r in runs)),
            runs=len(runs),
        )
        | more
    )


def age_line(query: str, places: Sequence[int | None], runs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Ages, each percentile the median of the runs; the worst of all."""
    p99 = statistics.median(r["p99_ms"] for r in runs)
    return (
        line(
            query,
            places,
            tuples_per_s=LIVE_PER_S,
            mb_per_s=LIVE_PER_S * BYTES / MB,
            p50_ms=round(statistics.median(r["p50_ms"] for r in runs), 3),
            p99_ms=round(p99, 3),
            max_ms=round(max(r["max_ms"] for r in runs), 3),
            asked=f"p99 under {ASKED_P99_MS:.0f} ms",
            met=p99 < ASKED_P99_MS,
            runs=len(runs),
        )
        | more
    )


# -- queries


@dataclass(frozen=True)
class Bench:
    """What all queries share."""

    options: Options
    size: Size
    say: Say

    def socket(self, places: Sequence[int | None], total: int) -> float:
        """Megabytes per second through a plain socket."""
        pour = Job("pour", places[0], total=total)
        _, got = together(pour, lambda port: Job("drink", places[1], address=port))
        return float(got["bytes"] / got["seconds"] / MB)

    def stream(self, places: Sequence[int | None], total: int, count: int, per_s: int = 0) -> dict[str, Any]:
        """Queue to subscriber, once."""
        timed = per_s > 0
        write = Job("write", places[0], total=total, count=count, per_s=per_s)
        wrote, got = together(write, lambda a: Job("read", places[1], address=a, total=total, timed=timed))
        return got | {"cpu_s_per_gb": (wrote["cpu_s"] * 0.9 + got["cpu_s"]) / (got["rows"] * BYTES / 1e9)}

    def publication(self, places: Sequence[int | None], total: int, count: int, per_s: int = 0) -> dict[str, Any]:
        """Publisher to entry point to queue to subscriber, once."""
        timed = per_s > 0
        node, got, sent = together(
            Job("node", places[0], total=total),
            lambda a: Job("read", places[1], address=a, total=total, timed=timed),
            lambda a: Job("publish", places[2], address=a, total=total, count=count, per_s=per_s),
        )
        spent = (node["cpu_s"] + sent["cpu_s"]) * 0.9 + got["cpu_s"]
        return got | {"cpu_s_per_gb": spent / (got["rows"] * BYTES / 1e9)}

    def rates(
        self, query: str, once: Once, ends: int, total: int, count: int, what: str, *, asked: bool = False
    ) -> list[dict[str, Any]]:
        """Both ends on one core, and each on its own; a plain socket before each run."""
        made = []
        for shared in (True, False):
            places = cores(shared, ends)
            if not shared and used(places) == 1:
                continue
            runs = []
            for _ in range(self.options.runs):
                plain = self.socket(places, self.size.bulk)
                found = once(places, total, count) | {"socket_mb_per_s": plain}
                runs.append(found)
                rate = found["rows"] / found["seconds"] * BYTES / MB
                per_cpu_s = 1000 / found["cpu_s_per_gb"]
                self.say(
                    f"{query:16} {used(places)} core(s): {rate:6,.0f} MB/s, {per_cpu_s:6,.0f} MB per second of "
                    f"processor time, plain socket {plain:8,.0f} MB/s"
                )
            where = "all processes on one core" if shared else f"{ends} processes on {used(places)} cores"
            note = f"{what}; {where}; mb_per_cpu_s counts the processor time of all of them"
            made.append(rate_line(query, places, runs, note=note) | ({} if asked else NOT_ASKED))
        return made

    def ages(
        self, query: str, once: Once, ends: int, count: int, what: str, *, asked: bool = False
    ) -> list[dict[str, Any]]:
        """At a steady rate."""
        made = []
        for shared in (True, False):
            places = cores(shared, ends)
            if not shared and used(places) == 1:
                continue
            runs = []
            for _ in range(self.options.runs):
                found = once(places, LIVE_PER_S * self.size.live_s, count, LIVE_PER_S)
                runs.append(found)
                self.say(
                    f"{query:16} {used(places)} core(s): p50 {found['p50_ms']:.2f} ms, p99 {found['p99_ms']:.2f} ms, "
                    f"worst {found['max_ms']:.2f} ms"
                )
            where = "all processes on one core" if shared else f"{ends} processes on {used(places)} cores"
            made.append(age_line(query, places, runs, note=f"{what}; {where}") | ({} if asked else NOT_ASKED))
        return made


def yardstick(bench: Bench) -> list[dict[str, Any]]:
    """What the machine can do at all."""
    place = cores(True, 1)
    copied = [_one(Job("copy", place[0], total=bench.size.bulk)) for _ in range(bench.options.runs)]
    memory = statistics.median(c["bytes"] / c["seconds"] / MB for c in copied)
    bench.say(f"{'memcpy':16} 1 core(s): {memory:8,.0f} MB/s")
    made = [line("memcpy", place, mb_per_s=round(memory), note="64 MB at a time, inside one process")]
    for shared in (True, False):
        places = cores(shared)
        if shared or used(places) > 1:
            plain = statistics.median(bench.socket(places, bench.size.bulk) for _ in range(bench.options.runs))
            bench.say(f"{'socket':16} {used(places)} core(s): {plain:8,.0f} MB/s")
            made.append(line("socket", places, mb_per_s=round(plain), ratio_to_socket=1.0, note="TCP over loopback"))
    return made


def _one(job: Job) -> dict[str, Any]:
    try:
        return job.result()
    finally:
        job.end()


def bulk(bench: Bench) -> list[dict[str, Any]]:
    """One stream, large sections."""
    what = "queue to subscriber, appended 10,000 tuples at a time"
    return bench.rates("bulk", bench.stream, 2, bench.size.bulk, 10_000, what, asked=True)


def small(bench: Bench) -> list[dict[str, Any]]:
    """One stream, small sections."""
    what = "queue to subscriber, appended 100 tuples at a time"
    return bench.rates("small", bench.stream, 2, bench.size.small, 100, what)


def latency(bench: Bench) -> list[dict[str, Any]]:
    """One stream at 10,000 tuples per second."""
    what = "queue to subscriber, 10 tuples every millisecond, age from append to receipt"
    return bench.ages("latency", bench.stream, 2, 10, what, asked=True)


def publish(bench: Bench) -> list[dict[str, Any]]:
    """The whole way in."""
    what = "publisher to entry point to queue to subscriber, batches of 10,000 tuples, 8 under way"
    return bench.rates("publish", bench.publication, 3, bench.size.bulk, 10_000, what)


def publish_latency(bench: Bench) -> list[dict[str, Any]]:
    """The whole way in at 10,000 tuples per second."""
    what = "publisher to entry point to queue to subscriber, 50 tuples every 5 ms, age from send to receipt"
    return bench.ages("publish-latency", bench.publication, 3, 50, what)


SHOWN: tuple[str, ...] = (
    "query",
    "cores",
    "mb_per_s",
    "tuples_per_s",
    "p50_ms",
    "p99_ms",
    "ratio_to_socket",
    "mb_per_cpu_s",
)
SHOWN += ("asked", "met", "runs")  # in the table; JSON has all
QUERIES: dict[str, Callable[[Bench], list[dict[str, Any]]]] = {
    "yardstick": yardstick,
    "bulk": bulk,
    "small": small,
    "latency": latency,
    "publish": publish,
    "publish-latency": publish_latency,
}


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Measure, telling `say` how it goes. Takes a minute or two; leaves nothing behind."""
    unknown = [name for name in options.only if name not in QUERIES]
    if unknown:
        raise ValueError(f"no query '{unknown[0]}' (has: {', '.join(QUERIES)})")
    if options.runs < 1:
        raise ValueError(f"cannot run {options.runs} times")
    bench = Bench(options, QUICK if options.quick else Size(), say)
    wanted = {name: query for name, query in QUERIES.items() if not options.only or name in options.only}
    return part_by_part({name: partial(query, bench) for name, query in wanted.items()}, say)
