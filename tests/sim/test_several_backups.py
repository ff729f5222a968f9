"""Passive standbys with more than one backup: of three nodes any two may die, at once or one behind the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from borealis.sim.plan import Fault, Options, Plan, drawn_plan
from borealis.sim.programs import Programs
from borealis.sim.seeds import Stage

pytestmark = pytest.mark.spark
OPTIONS = Options(approach="passive", backups=2, kinds=("kill",), seconds=8.0)
NODES = ("node1", "node2", "node3")


def played(plan: Plan, programs: Programs) -> list[str]:
    return Stage(programs).play(plan)[0].faults


@pytest.mark.parametrize("seed", range(6))
def test_drawn_kills(seed: int, programs: Programs) -> None:
    assert played(drawn_plan(seed, OPTIONS), programs) == []


@pytest.mark.parametrize("guarantee", ["precise", "no-loss"])
@pytest.mark.parametrize("merge", ["arrival", "time"])
@pytest.mark.parametrize("between", [0.0, 0.2, 0.6, 1.5])
def test_two_of_three_die(guarantee: str, merge: str, between: float, programs: Programs) -> None:
    """Of a unit that merges streams: at once, while the one takes over, or while its copies catch up."""
    bucket = "100 ms" if merge == "time" else None
    base = Plan(7, "merging", (), "passive", guarantee, False, NODES, 10.0, (), bucket=bucket, backups=2)
    for pair in (("node1", "node2"), ("node2", "node3"), ("node3", "node1")):
        first, second = pair
        then = 3.0 + between
        faults = Fault(3.0, 3.2, "kill", (first,)), Fault(then, then + 0.3, "kill", (second,))
        stage = Stage(programs)
        outcome, _ = stage.play(replace(base, faults=faults))
        assert outcome.faults == [], f"{pair}"
        assert not outcome.both_died, f"{pair}: a copy was left"
