"""Nodes, entry points and coordinators killed with `kill -9`, or paused, under load: does each guarantee hold?

Every pair of approach, guarantee, diagram and victim once; with `BOREALIS_CHAOS=full` all of them. Deployments live
through several failures, one after another. A failing one names its history, a file of JSON lines, with logs beside it;
`BOREALIS_CHAOS_SEED=n` makes the same choices again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.recovery_cluster import Cluster, cluster
from history import check
from matrix import Strike, cover, rounds, straight, whole
from strikes import Round

FULL = os.environ.get("BOREALIS_CHAOS") == "full"
SEED = int(os.environ.get("BOREALIS_CHAOS_SEED", "20240501"))
ROUNDS = rounds(straight(whole()) if FULL else cover(whole()))

pytestmark = pytest.mark.timeout(1200)


def told(one: tuple[Strike, ...]) -> str:
    """What a round is called."""
    return "-".join([*(deployed.name for deployed in one[0].diagrams), *(strike.blow for strike in one)])


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    """Four nodes for all of them."""
    with cluster(print, nodes=4) as one:
        one.wait_warm()  # all at once on two cores, with units on them, is too much
        yield one


@pytest.mark.parametrize("strikes", ROUNDS, ids=told)
def test_guarantees_hold(running: Cluster, tmp_path: Path, strikes: tuple[Strike, ...]) -> None:
    histories = Round(running, strikes, tmp_path, SEED).run()
    faults = {history.case: found for history in histories if (found := check(history))}
    words = [f"{case}.jsonl: {fault}" for case, found in faults.items() for fault in found]
    assert not faults, f"seed {SEED}, {tmp_path}\n" + "\n".join(words)
