"""How fast the engine is on one node, beside plain Structured Streaming: `borealis bench engine`.

Every job runs in a process and a JVM of its own, native and ours by turns, over the same rows on tmpfs. Both are
measured by what Spark itself says of each micro-batch: when its trigger fired and how long it took. A rate is the rows
of the counted batches over the whole span from the start of the first to the end of the last, with all that lies
between them. The first batches and the last one are not counted, as many for native as for us.

This module starts the jobs and does the sums; `job.py` is what a job runs, and `native.py` and `ours.py` are the
queries.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .measuring import Say, end_session, part_by_part, terminable

MASTER = "local[2]"
JOB = Path(__file__).with_name("job.py")
JOB_S_MOST = 420.0  # no job takes longer, or something is wrong
ROOM_BYTES = 3 << 30  # wanted on tmpfs, for files, checkpoints and trains
FILE_ROWS = 500_000
LIVE_ROWS_PER_S = 1_000
COLD = 3  # micro-batches of a live query before its warm-up begins: the rows that came while it started go into these
DEFAULTS, FLAGS, ROCKSDB = "JVM defaults", "our JVM flags", "RocksDB"
WITHOUT_SPARK = ("make", "revised.make", "revised.one")
NEAR = 0.93  # a way to run native that comes so close to the best in one run may be the best after all
MB = 1 << 20

Batch = dict[str, Any]  # see batches.py


@dataclass(frozen=True)
class Options:
    """What to measure. `only` names queries; `quick` shows in a few minutes that all of it works, and no more."""

    only: tuple[str, ...] = ()
    runs: int = 3
    quick: bool = False


@dataclass(frozen=True)
class Size:
    """How much of everything: batches are counted per run, and the first `*_warm` of them are dropped."""

    q1_files: int = 40
    q1_warm: int = 12
    q2_files: int = 40
    q2_native_files: int = 16
    q2_warm: int = 6
    q3_files: int = 24
    q3_warm: int = 6
    q3_native: tuple[tuple[int, int], ...] = ((10_000, 20), (25_000, 14))  # rows of a file, files; of each stream
    live_warm_s: float = 15.0
    live_s: float = 20.0
    keys_trains: int = 240
    keys_warm: int = 120  # a window of 10 s is full after 100
    hour_minutes: int = 60
    hour_rows_per_ms: int = 50  # half the rate of the workload: 180 million rows


QUICK = Size(
    q1_files=12,
    q1_warm=4,
    q2_files=12,
    q2_native_files=6,
    q2_warm=2,
    q3_files=8,
    q3_warm=2,
    q3_native=((10_000, 8),),
    live_warm_s=8.0,
    live_s=12.0,
    keys_trains=160,
    keys_warm=110,
    hour_minutes=15,
    hour_rows_per_ms=25,
)


# -- sums


@dataclass(frozen=True)
class Measure:
    """One run's figures."""

    rows_per_second: float
    p50: float
    p99: float
    batches: int


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least that share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def measure(batches: Sequence[Batch]) -> Measure:
    """The figures of the batches that count; empty ones take time but are no sample of a batch's time."""
    fed = [b for b in batches if b["rows"]]
    if len(fed) < 2:
        raise RuntimeError(f"only {len(fed)} batches to measure")
    first, last = batches[0], batches[-1]
    span_s = (last["start_ms"] + last["parts"]["triggerExecution"] - first["start_ms"]) / 1000
    times = [b["took_ms"] for b in fed]
    return Measure(sum(b["rows"] for b in fed) / span_s, percentile(times, 0.5), percentile(times, 0.99), len(fed))


def steady(batches: Sequence[Batch], warm: int) -> Sequence[Batch]:
    """Without the first `warm` batches, and without the last: ours closes all windows there."""
    return batches[warm:-1]


def between(batches: Sequence[Batch], warm_s: float, for_s: float) -> Sequence[Batch]:
    """The batches that began within a span of time, counted from the end of the first few: those catch up."""
    last_cold = batches[COLD - 1]
    start = last_cold["start_ms"] + last_cold["parts"]["triggerExecution"] + warm_s * 1000
    return [b for b in batches if start <= b["start_ms"] < start + for_s * 1000]


def near_the_best(worth: dict[str, float]) -> list[str]:
    """The ways that one run more could still show to be the best."""
    most = max(worth.values())
    return [way for way, found in worth.items() if found >= NEAR * most]


def median_of(runs: Sequence[Measure]) -> Measure:
    """Each figure's median over the runs."""
    return Measure(
        statistics.median(r.rows_per_second for r in runs),
        statistics.median(r.p50 for r in runs),
        statistics.median(r.p99 for r in runs),
        sum(r.batches for r in runs),
    )


def around(samples: Sequence[dict[str, float]], start: float, stop: float) -> dict[str, float]:
    """The median of each part of the driver's memory while stream time was within these minutes."""
    inside = [s for s in samples if start <= s["minute"] < stop]
    if not inside:
        raise RuntimeError(f"no sample of memory between stream minutes {start:g} and {stop:g}")
    return {part: statistics.median(s[part] for s in inside) for part in inside[0]}


def held(memory: dict[str, float]) -> float:
    """What the driver holds: its Python process, its JVM, and its files in memory."""
    return memory["python"] + memory["jvm"] + memory["scratch"]


def row(query: str, engine: str, found: Measure | None, **more: Any) -> dict[str, Any]:
    """A line of the result."""
    line: dict[str, Any] = {
        "query": query,
        "engine": engine,
        "rows_per_second": None if found is None else round(found.rows_per_second),
        "train_ms_p50": None if found is None else round(found.p50, 1),
        "train_ms_p99": None if found is None else round(found.p99, 1),
        "ratio_to_native": None,
        "target": None,
        "met": None,
        "batches": None if found is None else found.batches,
        "cores": cores(),
        "note": "",
    }
    return line | more


def cores() -> int:
    """How many cores Spark is given; fewer if the machine has fewer."""
    return min(2, os.cpu_count() or 1)


# -- jobs


@dataclass
class Bench:
    """A place in memory for the data, and the jobs that use it."""

    home: Path
    options: Any  # of the experiment, as is the size
    size: Any
    say: Say
    failed: list[dict[str, Any]] = field(default_factory=list)  # a line for each job of the part that did
    interrupted: bool = False  # from then on nothing more is measured
    _jobs: int = 0
    _made: set[str] = field(default_factory=set)

    def part(self, query: Callable[[Bench], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """What a query's jobs measured, and behind it a line for each that failed."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.failed = []
        return [*query(self), *self.failed]

    def job(self, what: str, **given: Any) -> Any:
        """Run a job in a fresh process and wait for what it prints."""
        self._jobs += 1
        mine = self.home / f"job-{self._jobs}"
        given = {"do": what, **given}
        if what not in WITHOUT_SPARK:
            given |= {"home": str(mine), "master": MASTER}
        try:
            return _ask(given)
        finally:
            shutil.rmtree(mine, ignore_errors=True)

    def files(self, name: str, files: int, rows: int, rows_per_ms: int, **more: int) -> str:
        """A directory of input files; made once."""
        path = str(self.home / name)
        if name not in self._made:
            self.say(f"making {files} files of {rows:,} rows")
            self.job("make", to=path, files=files, rows=rows, rows_per_ms=rows_per_ms, **more)
            self._made.add(name)
        return path

    def first(self, of: str, files: int) -> str:
        """A directory with only the first files of another; nothing is copied."""
        to = Path(f"{of}-first-{files}")
        if not to.exists():
            to.mkdir()
            for path in sorted(Path(of).iterdir())[:files]:
                os.link(path, to / path.name)
        return str(to)

    def side_by_side(
        self,
        query: str,
        natives: Mapping[str, Callable[[], Measure]],
        ours: Callable[[], Measure],
        worth: Callable[[Measure], float],
    ) -> tuple[dict[str, list[Measure]], list[Measure]]:
        """Native and ours by turns; native's best way comes first, each way with the runs that did not fail.

        Every way to run native is tried once, and those near the best go on.
        """
        tried: dict[str, list[Measure]] = {way: [] for way in natives}
        mine: list[Measure] = []
        ways = list(natives)
        for number in range(self.options.runs):
            for way in ways:
                tried[way] += self.told(query, f"native, {way}", natives[way])
            if number == 0 and any(tried.values()):
                ways = near_the_best({way: worth(found[0]) for way, found in tried.items() if found})
            mine += self.told(query, "borealis", ours)
        there = {way: found for way, found in tried.items() if found}
        best = sorted(there, key=lambda way: (way in ways, worth(median_of(there[way]))), reverse=True)
        return {way: there[way] for way in best}, mine

    def told(self, query: str, engine: str, job: Callable[[], Measure]) -> list[Measure]:
        """Run a job and say what it showed; nothing if it failed, or if the benchmark was interrupted."""
        if self.interrupted:
            return []
        started = time.monotonic()
        try:
            found = job()
        except (KeyboardInterrupt, SystemExit):
            self.interrupted = True
            self.failed.append({"query": query, "engine": engine, "error": "interrupted"})
            return []
        except Exception as error:
            self.failed.append({"query": query, "engine": engine, "error": f"{type(error).__name__}: {error}"})
            self.say(f"{query:8} {engine:32} failed: {error}")
            return []
        self.say(
            f"{query:8} {engine:32} {found.rows_per_second / 1e6:7.3f} M rows/s, p50 {found.p50:7.0f} ms, "
            f"p99 {found.p99:7.0f} ms, {found.batches} batches, job {time.monotonic() - started:.0f} s"
        )
        return [found]


def _ask(given: dict[str, Any]) -> Any:
    """One job process from start to end; nothing of it is left behind, however this ends."""
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    process = subprocess.Popen(
        [sys.executable, str(JOB), json.dumps(given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=JOB_S_MOST)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the job {given} took more than {JOB_S_MOST:.0f} s") from None
    finally:
        end_session(process)
    if process.returncode:
        raise RuntimeError(f"the job {given} failed:\n{err[-4000:]}")
    return json.loads(out)


# -- queries


def q1(bench: Bench) -> list[dict[str, Any]]:
    """Filter and map."""
    size = bench.size
    whole = bench.files("in", max(size.q1_files, size.q2_files), FILE_ROWS, 100)
    source = bench.first(whole, size.q1_files)
    note = f"first {size.q1_warm} of {size.q1_files} batches not counted"
    return _throughput(bench, "q1", [source], {"": [source]}, size.q1_warm, 0.8, (DEFAULTS, FLAGS), note)


def q2(bench: Bench) -> list[dict[str, Any]]:
    """Count and sum per key over sliding windows; RocksDB for information."""
    size = bench.size
    whole = bench.files("in", max(size.q1_files, size.q2_files), FILE_ROWS, 100)
    ours, native = bench.first(whole, size.q2_files), bench.first(whole, size.q2_native_files)
    note = f"first {size.q2_warm} batches not counted; native {size.q2_native_files} files, ours {size.q2_files}"
    ways = (DEFAULTS, FLAGS, ROCKSDB)
    return _throughput(bench, "q2", [ours], {"": [native]}, size.q2_warm, 5.0, ways, note)


def q3(bench: Bench) -> list[dict[str, Any]]:
    """Join. Native is slower the larger its batches are, so it gets the size that suits it best."""
    size = bench.size

    def pair(name: str, files: int, rows: int) -> list[str]:
        return [bench.files(f"{name}-{side}", files, rows, 50, stream=side) for side in (1, 2)]

    ours = pair("join", size.q3_files, FILE_ROWS // 2)
    native = {f"batches of {2 * rows:,} rows": pair(f"join-{rows}", files, rows) for rows, files in size.q3_native}
    note = f"first {size.q3_warm} batches not counted; ours in trains of {FILE_ROWS:,} rows"
    return _throughput(bench, "q3", ours, native, size.q3_warm, 12.0, (DEFAULTS, FLAGS), note)


def _throughput(
    bench: Bench,
    query: str,
    ours: list[str],
    native: dict[str, list[str]],
    warm: int,
    least: float,
    flavours: tuple[str, ...],
    note: str,
) -> list[dict[str, Any]]:
    def run_native(inputs: list[str], flavour: str) -> Measure:
        return measure(steady(bench.job("native.throughput", query=query, inputs=inputs, flavour=flavour), warm))

    def run_ours() -> Measure:
        return measure(steady(bench.job("ours.throughput", query=query, inputs=ours, rows_most=FILE_ROWS), warm))

    ways = {
        ", ".join(filter(None, (flavour, how))): partial(run_native, inputs, flavour)
        for flavour in flavours
        for how, inputs in native.items()
    }
    tried, mine = bench.side_by_side(query, ways, run_ours, lambda m: m.rows_per_second)
    target = f"at least {least:g} x native rows/s"
    return [
        *_native_rows(query, tried),
        *_our_row(query, tried, mine, lambda m: m.rows_per_second, lambda r: r >= least, target=target, note=note),
    ]


def _native_rows(query: str, tried: dict[str, list[Measure]]) -> list[dict[str, Any]]:
    """The best way, which is the first, and the others."""
    lines: list[dict[str, Any]] = []
    for way, found in tried.items():
        note = "for information" if lines else f"{way}: the best of {len(tried)}"
        engine = f"native ({way})" if lines else "native"
        lines.append(row(query, engine, median_of(found), runs=len(found), note=note))
    return lines


def _our_row(
    query: str,
    tried: dict[str, list[Measure]],
    mine: list[Measure],
    worth: Callable[[Measure], float],
    met: Callable[[float], bool],
    **more: Any,
) -> list[dict[str, Any]]:
    """Ours beside native's best; without a ratio where either is missing."""
    if not mine:
        return []
    ratio = worth(median_of(mine)) / worth(median_of(next(iter(tried.values())))) if tried else None
    verdict = {
        "ratio_to_native": None if ratio is None else round(ratio, 3),
        "met": None if ratio is None else met(ratio),
    }
    return [row(query, "borealis", median_of(mine), runs=len(mine)) | verdict | more]


def q2_live(bench: Bench) -> list[dict[str, Any]]:
    """Q2 at a thousand rows a second: how long a train takes, from its trigger to its commit."""
    size = bench.size
    seconds = size.live_warm_s + size.live_s + 1

    def one(what: str, **given: Any) -> Measure:
        batches = bench.job(what, rows_per_s=LIVE_ROWS_PER_S, seconds=seconds, cold=COLD, **given)
        return measure(between(batches, size.live_warm_s, size.live_s))

    ways = {flavour: partial(one, "native.live", flavour=flavour) for flavour in (DEFAULTS, FLAGS)}
    tried, mine = bench.side_by_side("q2-live", ways, partial(one, "ours.live"), lambda m: 1 / m.p50)
    note = (
        f"100 rows every 100 ms, {size.live_s:g} s after {size.live_warm_s:g} s of warm-up; native: as files renamed "
        "into a watched directory, ours: from a generator; waiting for rows is not counted; the ratio is that of p50"
    )
    return [
        *_native_rows("q2-live", tried),
        *_our_row(
            "q2-live",
            tried,
            mine,
            lambda m: m.p50,
            lambda ratio: ratio <= 0.3,
            target="p50 at most 0.3 x native's",
            note=note,
        ),
    ]


def q2_keys(bench: Bench) -> list[dict[str, Any]]:
    """Q2 with many keys against few. Every train touches a thousand keys, either all of them or the next of many."""
    size, rows, touched = bench.size, 10_000, 1_000

    def one(keys: int) -> Measure:
        source = bench.files(f"keys-{keys}", size.keys_trains, rows, 100, keys=keys, touched=touched)
        return measure(
            steady(bench.job("ours.throughput", query="q2", inputs=[source], rows_most=rows), size.keys_warm)
        )

    found: dict[int, list[Measure]] = {touched: [], 100_000: []}
    for _ in range(bench.options.runs):
        for keys, runs in found.items():
            runs += bench.told("q2-keys", f"borealis, {keys:,} keys", partial(one, keys))
    note = (
        f"trains of {rows:,} rows (100 ms of stream time) that each change {touched:,} (pane, key) entries; "
        f"first {size.keys_warm} trains not counted"
    )
    lines = [
        row("q2-keys", f"borealis, {keys:,} keys", median_of(runs), runs=len(runs), note=note)
        for keys, runs in found.items()
        if runs
    ]
    if all(found.values()):
        few, many = (median_of(runs) for runs in found.values())
        ratio = many.p50 / few.p50
        lines[-1] |= {
            "ratio_to_1000_keys": round(ratio, 3),
            "ratio_to_1000_keys_p99": round(many.p99 / few.p99, 3),
            "target": "p50 at most 2 x that of 1,000 keys",
            "met": ratio <= 2.0,
            "note": "one train in ten closes a window and gives a row for every key in it: 100 times as many here",
        }
    return lines


def hour(bench: Bench) -> list[dict[str, Any]]:
    """An hour of stream time: what the driver holds after minute 5 and at the end."""
    size = bench.size
    end = size.hour_minutes
    found = bench.job("ours.hour", minutes=end, rows_per_ms=size.hour_rows_per_ms)
    early, late = around(found["samples"], 5, 7), around(found["samples"], end - 2, end + 1)
    ratio = held(late) / held(early)
    times = found["train_ms"]
    rate = found["rows"] / found["seconds"]
    bench.say(
        f"hour     borealis {rate / 1e6:.3f} M rows/s, {found['seconds']:.0f} s, {held(late) / MB:.0f} MB at the end"
    )
    parts = ("python", "jvm", "scratch", "workers")
    return [
        row("hour", "borealis", Measure(rate, percentile(times, 0.5), percentile(times, 0.99), len(times)))
        | {
            "memory_mb_minute_5": round(held(early) / MB, 1),
            "memory_mb_end": round(held(late) / MB, 1),
            "memory_parts_mb_minute_5": {part: round(early[part] / MB, 1) for part in parts},
            "memory_parts_mb_end": {part: round(late[part] / MB, 1) for part in parts},
            "ratio_to_minute_5": round(ratio, 3),
            "target": "memory at the end within 10 % of that after minute 5",
            "met": abs(ratio - 1) <= 0.1,
            "runs": 1,
            "note": f"{end} min of stream time at {size.hour_rows_per_ms} rows/ms, made on the fly; Python process, "
            "JVM and tmpfs of the driver, medians over two minutes; workers not in the sum; rows/s includes start-up",
        }
    ]


QUERIES: dict[str, Callable[[Bench], list[dict[str, Any]]]] = {
    "q1": q1,
    "q2": q2,
    "q2-live": q2_live,
    "q3": q3,
    "q2-keys": q2_keys,
    "hour": hour,
}


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Measure, telling `say` how it goes. Takes minutes; leaves nothing behind, also when interrupted."""
    unknown = [name for name in options.only if name not in QUERIES]
    if unknown:
        raise ValueError(f"no query '{unknown[0]}' (has: {', '.join(QUERIES)})")
    if options.runs < 1:
        raise ValueError(f"cannot run {options.runs} times")
    with terminable(), home_in_memory() as home:
        bench = Bench(home, options, QUICK if options.quick else Size(), say)
        wanted = {name: query for name, query in QUERIES.items() if not options.only or name in options.only}
        return part_by_part({name: partial(bench.part, query) for name, query in wanted.items()}, say)


@contextmanager
def home_in_memory() -> Iterator[Path]:
    """A directory in memory where there is room, and no directory afterwards."""
    shm = Path("/dev/shm")
    roomy = shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > ROOM_BYTES
    home = Path(tempfile.mkdtemp(prefix="borealis-bench-", dir=shm if roomy else None))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)
