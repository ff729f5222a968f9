"""Nodes, entry points and coordinators killed with `kill -9`, or paused, under load: does each guarantee hold?

Every victim once, every approach at least once, and every box where what is checkpointed or replayed is its own.
`BOREALIS_CHAOS=full` takes every victim and every box with every approach, guarantee, diagram and time to checkpoint,
and publishes all the time. Deployments live through several failures, one after another. A failing one names its
history, a file of JSON lines, with logs beside it; `BOREALIS_CHAOS_SEED=n` makes the same choices again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from benchmarks.recovery_cluster import Cluster, cluster
from databases import DATABASES, make_database
from matrix import (
    Strike,
    box_strike,
    brief,
    brief_boxes,
    by_the_clock,
    cover,
    other_checkpoints,
    rounds,
    straight,
    whole,
)
from strikes import Round

from borealis.sim.history import History, check
from borealis.sim.shapes import SHAPES

FULL = os.environ.get("BOREALIS_CHAOS") == "full"
SEED = int(os.environ.get("BOREALIS_CHAOS_SEED", "20240501"))
ROUNDS = (
    [*rounds(straight(whole())), (box_strike(),), (other_checkpoints(),)]
    if FULL
    else [*brief(rounds(cover(by_the_clock(whole())))), (brief_boxes(box_strike()),)]
)

pytestmark = pytest.mark.timeout(1200)


def told(one: tuple[Strike, ...]) -> str:
    """What a round is called."""
    return "-".join([*(deployed.name for deployed in one[0].diagrams), *(strike.blow for strike in one)])


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that all nodes know of."""
    folder = tmp_path_factory.mktemp("databases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATABASES, str(folder))
        yield folder


@pytest.fixture(scope="module")
def running(databases: Path) -> Iterator[Cluster]:
    """Four nodes for all of them."""
    with cluster(print, nodes=4) as one:
        one.wait_warm()  # all at once on two cores, with units on them, is too much
        yield one


def written(history: History, databases: Path) -> list[str]:
    """What is wrong with what the diagram wrote to its database."""
    with closing(sqlite3.connect(databases / f"{history.case.removesuffix('_written')}.db")) as database:
        rows = [n for (n,) in database.execute("SELECT n FROM seen ORDER BY n")]
    truth = [n for n, _ in SHAPES["written"].truth(history.published)]
    if history.guarantee == "gap":  # some are missing; none may be twice
        return [] if len(rows) == len(set(rows)) and set(rows) <= set(truth) else ["the database has other rows"]
    return [] if rows == truth else [f"the database has {len(rows)} rows, {len(set(rows))} of them different"]


@pytest.mark.parametrize("strikes", ROUNDS, ids=told)
def test_guarantees_hold(running: Cluster, databases: Path, tmp_path: Path, strikes: tuple[Strike, ...]) -> None:
    for one in strikes[0].diagrams:
        make_database(databases, one.name)
    histories = Round(running, strikes, tmp_path, SEED, rests=not FULL).run()
    faults = {history.case: found for history in histories if (found := check(history))}
    for history in histories:
        if history.output == "written" and (found := written(history, databases)):
            faults[history.case] = [*faults.get(history.case, []), *found]
    words = [f"{case}.jsonl: {fault}" for case, found in faults.items() for fault in found]
    assert not faults, f"seed {SEED}, {tmp_path}\n" + "\n".join(words)
