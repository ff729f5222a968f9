"""Law: whatever gets lost, comes twice or late, whoever dies or is wrongly held to be dead, and when: what a backup
would need is kept, and readers see what the guarantee says. No Spark, no threads: see `protocol`."""

from __future__ import annotations

from random import Random

import pytest
from harness import examples
from hypothesis import given
from hypothesis import strategies as st
from protocol import Machines, World

from borealis.ha.backup import Approach

SEEDS = st.integers(0, 2**32)
STEPS = st.integers(1, 150)
TROUBLE = {"suspect_primary": 1, "suspect_backup": 1, "kill_primary": 1, "kill_backup": 1, "protect": 2, "miss": 2}
WORK = {"publish": 6, "run_train": 10, "converse": 8, "deliver": 8, "answer": 8, "carry_ack": 6, "read": 6, "save": 3}
RULES = {**WORK, **TROUBLE, "wait": 6}
KEPT: tuple[Approach, ...] = ("passive", "active", "upstream-backup")


class LawError(AssertionError):
    """A law does not hold."""


def tell(world: World, steps: int) -> None:
    """Do so many things by chance, then let it end; the laws are looked at after each."""
    story: list[str] = []
    try:
        for name in world.rng.choices(list(RULES), list(RULES.values()), k=steps):
            story.append(name)
            getattr(world, name)()
            world.check()
        story.append("finish")
        world.finish()
        world.check_end()
    except Exception as error:
        raise LawError(f"{type(error).__name__}: {error}\nafter: {' '.join(story[:-1])}\n -> {story[-1]}") from error


@pytest.mark.parametrize("inputs", ["a", "ab"])
@pytest.mark.parametrize("precise", [True, False])
@pytest.mark.parametrize("approach", [*KEPT, "amnesia"])
@examples(40)
@given(seed=SEEDS, steps=STEPS)
def test_the_guarantee_holds(approach: Approach, precise: bool, inputs: str, seed: int, steps: int) -> None:
    tell(World(approach, precise=precise, inputs=inputs, rng=Random(seed)), steps)
