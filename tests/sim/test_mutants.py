"""Simulated runs find defects: each of those in `mutants` within 200 seeds, and nothing under the same seed without it.

The usual tests play a seed that is known to show a defect. `MUTANT_SEEDS=200 pytest tests/sim/test_mutants.py` looks
for it from 0 on, and says which it is.
"""

from __future__ import annotations

import os
from functools import cache

import pytest
from mutants import MUTANTS, SEEDS, Mutant

from borealis.sim.plan import Plan, drawn_plan
from borealis.sim.programs import Programs
from borealis.sim.seeds import Stage

AROUND = 3  # seeds from the one that is known on, for a defect that no longer shows there
LONG = int(os.environ.get("MUTANT_SEEDS", "0"))


def faults_of(plan: Plan, programs: Programs) -> list[str]:
    return Stage(programs).play(plan)[0].faults


right = cache(lambda plan, programs: not faults_of(plan, programs))  # several defects show under one plan


def finds(seed: int, mutant: Mutant, programs: Programs) -> bool:
    """Whether a run is right without the defect, and not with it."""
    plan = drawn_plan(seed, mutant.options)
    with mutant.installed():
        wrong = faults_of(plan, programs)
    return bool(wrong) and right(plan, programs)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=list(MUTANTS))
def test_a_known_seed_finds_it(mutant: Mutant, programs: Programs) -> None:
    assert mutant.seed < SEEDS
    seeds = range(mutant.seed, mutant.seed + AROUND)
    assert any(finds(seed, mutant, programs) for seed in seeds), mutant.breaks


def test_enough_are_found() -> None:
    assert len(MUTANTS) >= 10


@pytest.mark.long
@pytest.mark.skipif(not LONG, reason="MUTANT_SEEDS says how many seeds")
@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=list(MUTANTS))
def test_some_seed_finds_it(mutant: Mutant, programs: Programs) -> None:
    first = next((seed for seed in range(LONG) if finds(seed, mutant, programs)), None)
    assert first is not None, mutant.breaks
    print(f"{mutant.name}: {first}")
