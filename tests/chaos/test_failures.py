"""Nodes, entry points and coordinators killed with `kill -9`, or paused, under load: does each guarantee hold?

Every pair of approach, guarantee, diagram and victim once; with `BOREALIS_CHAOS=full` all of them. Cases with the same
victim share a failure. A failing case names its history, a file of JSON lines; `BOREALIS_CHAOS_SEED=n` makes the same
choices again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.recovery_cluster import Cluster, cluster
from history import History, check
from matrix import Case, cover, rounds, whole
from strikes import Round

FULL = os.environ.get("BOREALIS_CHAOS") == "full"
SEED = int(os.environ.get("BOREALIS_CHAOS_SEED", "20240501"))
AT_ONCE = 5
ROUNDS = rounds(whole() if FULL else cover(whole()), AT_ONCE)

pytestmark = pytest.mark.timeout(600)


class Story:
    """Rounds that were played."""

    def __init__(self, running: Cluster, home: Path) -> None:
        self._running, self.home = running, home
        self._found: dict[str, History] = {}

    def of(self, case: Case) -> History:
        """The history of a case; its round is played when it is first asked for."""
        if case.name not in self._found:
            mine = next(one for one in ROUNDS if case in one)
            self._found |= {h.case: h for h in Round(self._running, mine, self.home, SEED).run()}
        return self._found[case.name]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Four nodes for all of them."""
    with cluster(lambda text: print(text), nodes=4) as running:
        yield Story(running, tmp_path_factory.mktemp("failures"))


@pytest.mark.parametrize("case", [case for one in ROUNDS for case in one], ids=lambda case: case.name)
def test_a_guarantee_holds(story: Story, case: Case) -> None:
    faults = check(story.of(case))
    assert not faults, f"seed {SEED}, {story.home / case.name}.jsonl\n" + "\n".join(faults)
