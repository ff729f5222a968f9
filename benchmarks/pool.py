"""What started queries cost that wait for a unit, and how fast a takeover with them is: `borealis bench pool`.

`cost`: one query after the other is started in one Spark session until there are eight, each with its lane, and each
rehearses a unit. After each, the processes of the session are weighed while nothing happens: memory, threads, and cores
over ten seconds. Memory is proportional (PSS): what processes share counts once.

`takeover`: a backup has all of a unit's state, and rows wait. How long from there until the first train is committed,
by turns, where the unit has a started query *of its own* that has rehearsed it; where one *of the pool* is dressed in
it, which has tried on eight images; and where one has to be *started*, in a warm session.
"""

from __future__ import annotations

import datetime as dt
import statistics
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from borealis import Diagram, window
from borealis.compile.unit import Compiled, compile_unit
from borealis.connectors.python.sink import TableSink
from borealis.connectors.sources import as_source
from borealis.diagram import passes
from borealis.diagram.cut import cut, part_of
from borealis.diagram.spec import Spec
from borealis.local.warm import warm_up
from borealis.spark.lane_query import LaneQuery, start_one
from borealis.spark.query import Query
from borealis.spark.session import session
from borealis.state.log import Key
from borealis.trains.commit_point import CommitPoint
from borealis.trains.intake import Admission
from borealis.trains.unit import UnitOptions, UnitRun

from .measuring import Lines, Say, meter, part_by_part, terminable

QUERIES = ("cost", "takeover")
MOST = 8  # queries, and images
STATES = (100, 100_000)  # groups
TRAIN_ROWS = 100
SETTLE_S = 3.0
IDLE_S = 10.0
FIT_S = 120.0
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
WAYS = ("its own", "of the pool", "started")
SHOWN = ("query", "queries", "kind", "processes", "mb", "threads", "cores", "groups", "way", "first_train_ms", "ratio")


@dataclass(frozen=True)
class Options:
    """What to measure. `only` names parts."""

    only: tuple[str, ...] = ()
    runs: int = 5  # takeovers of each kind
    quick: bool = False


@dataclass(frozen=True)
class Unit:
    """What all of the units are."""

    spec: Spec
    compiled: Compiled
    rows: pa.Table

    def run(self, name: str) -> UnitRun:
        """One that does not run yet."""
        options = UnitOptions(Admission(rows_most=max(TRAIN_ROWS, len(self.rows) - TRAIN_ROWS)))
        sources = {"rows": as_source(self.rows)}
        return UnitRun(name, self.spec, self.compiled, sources, {"counts": TableSink(), "even": TableSink()}, options)


Backup = tuple[CommitPoint, Mapping[Key, bytes]]


def run(options: Options, say: Say) -> Lines:
    """The figures of each part, all of one session."""
    spark = session("local[1, 3]")
    try:
        warm_up(spark)
        parts = {
            "cost": partial(_cost, spark, options.quick, say),
            "takeover": partial(_takeovers, spark, 2 if options.quick else options.runs, say),
        }
        with terminable():
            return part_by_part({n: p for n, p in parts.items() if not options.only or n in options.only}, say)
    finally:
        spark.stop()


def unit(spark: SparkSession, groups: int) -> Unit:
    """Rows counted by key over an hour: so many keys, and then a train of a hundred rows.

    They are given as they come, too, so that no train waits for company.
    """
    d = Diagram("counting")
    rows = d.input("rows", "ts TIMESTAMP, k INT", time="ts")
    rows.filter("k % 2 = 0", name="even").output("even")
    rows.aggregate(by="k", over=window("1 hour"), n="count(*)", s="sum(k)", name="counts").output("counts")
    spec = passes.checked(d.spec)
    [piece] = cut(spec, local=True)
    part = part_of(spec, piece)
    keys = np.arange(groups + TRAIN_ROWS, dtype=np.int32)
    times = pa.array([START], pa.timestamp("us", "UTC")).take(pa.array([0] * len(keys)))
    table = pa.table({"ts": times, "k": keys})
    return Unit(part, compile_unit(part, spark, 1, errors=piece.errors), table)


# -- what they cost


def _cost(spark: SparkSession, quick: bool, say: Say) -> Lines:
    found, made = _weighed(0), unit(spark, 0)
    with ExitStack() as ending:
        for number in range(1, MOST + 1):
            lanes = start_one(spark, 1)
            ending.callback(lanes.stop)
            image = made.run(f"u{number}")
            ending.callback(image.close, complete=False)
            _rehearse(made, image, lanes)
            if not quick or number in (1, MOST):
                found += _weighed(number)
                say(f"{number} queries: {found[-1]['mb']:,.0f} MB, {found[-1]['cores']:.3f} cores")
    return found


def _rehearse(made: Unit, image: UnitRun, lanes: LaneQuery) -> Query:
    query = Query(None, made.compiled, image, image.commit, image.scratch, lambda _: lanes)  # type: ignore[arg-type]
    for _ in range(2):
        if not query.fit(lanes, FIT_S):
            raise RuntimeError(f"a rehearsal failed: {lanes.failure()}")
    return query


def _weighed(queries: int) -> Lines:
    """The processes of this session, by kind."""
    time.sleep(SETTLE_S)
    here = psutil.Process()
    kinds: dict[str, list[psutil.Process]] = {"driver": [here], "jvm": [], "workers": []}
    for child in here.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            kinds["jvm" if child.name() == "java" else "workers"].append(child)
    pids = {kind: [one.pid for one in those] for kind, those in kinds.items()}
    meters = {kind: meter(pids[kind]) for kind in kinds}  # each with its descendants
    time.sleep(IDLE_S)
    used = {kind: read() for kind, read in meters.items()}
    used["driver"], used["jvm"] = used["driver"] - used["jvm"], used["jvm"] - used["workers"]
    found: Lines = []
    for kind, those in kinds.items():
        weights = [_weight(one) for one in those]
        line: dict[str, Any] = {"query": "cost", "queries": queries, "kind": kind, "processes": len(those)}
        line |= {"mb": round(sum(w[0] for w in weights), 1), "threads": sum(w[1] for w in weights)}
        found.append(line | {"cores": round(used[kind] / IDLE_S, 4)})
    sums = {name: round(sum(line[name] for line in found), 4) for name in ("processes", "mb", "threads", "cores")}
    return [*found, found[0] | {"kind": "all"} | sums]


def _weight(process: psutil.Process) -> tuple[float, int]:
    """Proportional memory in megabytes, and threads."""
    try:
        return process.memory_full_info().pss / 1e6, process.num_threads()
    except psutil.NoSuchProcess:
        return 0.0, 0


# -- takeovers


def _takeovers(spark: SparkSession, runs: int, say: Say) -> Lines:
    found: Lines = []
    for groups in STATES:
        made = unit(spark, groups)
        backup = _image(spark, made)
        took: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in range(runs):
            for way in WAYS:
                took[way].append(_takeover(spark, made, backup, way))
            say(f"{groups:,} groups, run {number + 1}: {', '.join(f'{w} {t[-1]:.0f} ms' for w, t in took.items())}")
        base = statistics.median(took[WAYS[0]])
        for way, times in took.items():
            middle = statistics.median(times)
            line = {"query": "takeover", "groups": groups, "way": way, "runs": runs}
            line |= {"first_train_ms": round(middle, 1), "ratio": round(middle / base, 2)}
            found.append(line | {"all_ms": [round(one, 1) for one in times]})
    return found


def _image(spark: SparkSession, made: Unit) -> Backup:
    """What a backup has when all rows but the last train's are committed."""
    primary, found, there = made.run("primary"), list[Backup](), threading.Event()

    def watch(step: CommitPoint, _: Mapping[Key, bytes]) -> None:
        if step.rows >= len(made.rows) - TRAIN_ROWS and not found:
            found.append((step, primary.whole_state()()))
            there.set()

    primary.watch = watch
    query = Query(spark, made.compiled, primary, primary.commit, primary.scratch)
    try:
        query.start()
        primary.start()
        if not there.wait(FIT_S):
            raise RuntimeError(f"the primary does not run: {query.failure()}")
    finally:
        query.stop()
        primary.close(complete=False)
    return found[0]


def _takeover(spark: SparkSession, made: Unit, backup: Backup, way: str) -> float:
    """The milliseconds until the first train of a unit that is taken over."""
    with ExitStack() as ending:
        images = [made.run(f"image{number}") for number in range(MOST if way == "of the pool" else 1)]
        for image in images:
            ending.callback(image.close, complete=False)
            image.load(*backup)
        image, over = images[0], threading.Event()
        query = Query(spark, made.compiled, image, image.commit, image.scratch)
        if way != "started":
            lanes = start_one(spark, 1)
            ending.callback(lanes.stop)
            for one in reversed(images):
                query = _rehearse(made, one, lanes)
        ending.callback(query.stop)
        if way == "its own":
            query.start()
            before = image.rehearsals.count
            image.rehearse()
            image.rehearsals.wait(before, FIT_S)
        image.watch = lambda *_: over.set()
        time.sleep(0.1)  # a takeover begins between fittings
        began = time.perf_counter()
        image.resume(backup[0])
        image.start()
        if way != "its own":
            query.start()
        if not over.wait(FIT_S):
            raise RuntimeError(f"no train came: {query.failure() or image.manager.failure}")
        return (time.perf_counter() - began) * 1000
