"""Law: whatever gets lost, comes twice or late, whoever dies or is wrongly held to be dead, and when: what a backup
would need is kept, and readers see what the guarantee says. No Spark, no threads: see `protocol`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random

import pytest
from harness import examples
from hypothesis import given
from hypothesis import strategies as st
from protocol import POLICIES, Machines, World

from borealis.ha.backup import Approach, Backup, Resume
from borealis.ha.primary import Active, Effects, Passive, Primary, Upstream
from borealis.streams.id_gaps import above
from borealis.streams.queue import OutputQueue
from borealis.trains.commit_point import CommitPoint

SEEDS = st.integers(0, 2**32)
STEPS = st.integers(1, 150)
TROUBLE = {"suspect_primary": 1, "suspect_backup": 1, "kill_primary": 1, "kill_backup": 1, "protect": 2, "miss": 2}
WORK = {"publish": 6, "run_train": 10, "converse": 8, "deliver": 8, "answer": 8, "carry_ack": 6, "read": 6, "save": 3}
RULES = {**WORK, **TROUBLE, "wait": 6, "jump": 1}
KEPT: tuple[Approach, ...] = ("passive", "active", "upstream-backup")


MUTANT_SEEDS = 400
TRAINS = 300


class LawError(AssertionError):
    """A law does not hold."""


def tell(world: World, steps: int, rules: Mapping[str, int] = RULES) -> None:
    """Do so many things by chance, then let it end; the laws are looked at after each."""
    story: list[str] = []
    try:
        for name in world.rng.choices(list(rules), list(rules.values()), k=steps):
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


@pytest.mark.parametrize("inputs", ["a", "ab"])
@pytest.mark.parametrize("approach", ["passive", "active"])
@examples(20)
@given(seed=SEEDS, steps=STEPS)
def test_readers_that_die_too_find_all_they_lack(approach: Approach, inputs: str, seed: int, steps: int) -> None:
    tell(World(approach, precise=True, inputs=inputs, rng=Random(seed)), steps, {**RULES, "fall_back": 2})


@pytest.mark.parametrize("inputs", ["a", "ab"])
@pytest.mark.parametrize("approach", KEPT)
def test_memory_stays_small_while_all_is_well(approach: Approach, inputs: str) -> None:
    world = World(approach, precise=True, inputs=inputs, rng=Random(1))
    steps, orders = 0, 0
    for _ in range(TRAINS):
        world.publish()
        world.work_well()
        world.check()
        steps, orders = max(steps, len(world.leader.policy._steps)), max(orders, _orders(world))
    assert world.leader.unit.train > TRAINS / 2
    assert steps < 40
    assert orders < 40
    assert all(queue.next_id - queue.first_id < 40 for queue in world.upstream.values())


def _orders(world: World) -> int:
    assert world.standby is not None
    return len(world.standby.backup.orders)


@pytest.mark.parametrize("inputs", ["a", "ab"])
@pytest.mark.parametrize("approach", [*KEPT, "amnesia"])
def test_alone_nothing_is_held_and_upstream_is_trimmed(approach: Approach, inputs: str) -> None:
    world = World(approach, precise=approach != "amnesia", inputs=inputs, rng=Random(2))
    for _ in range(20):
        world.publish()
        world.work_well()
    world.kill_backup()
    world.suspect_backup()
    for _ in range(50):
        world.publish()
        world.work_well()
        assert not any(queue.held for queue in world.leader.unit.queues.values())
    assert all(queue.first_id > 20 and queue.next_id - queue.first_id < 40 for queue in world.upstream.values())


# -- the laws can fail


@dataclass
class AcksAtOnce(Passive):
    """Acknowledges inputs before the backup has what came of them."""

    def _on_commit(self, step: CommitPoint) -> Effects:
        return Effects(step.positions())


@dataclass
class NeverHolds(Active):
    """Lets readers see what the backup does not know the order of."""

    holds = False


@dataclass
class ForgetsWindows(Upstream):
    """Lets a backup begin where readers have everything, as if there were no state."""

    def _beginning(self, done: CommitPoint) -> CommitPoint:
        return done


@dataclass
class Hasty(Upstream):
    """Takes a backup before it has done again what its own primary did."""

    def _is_behind(self) -> bool:
        return False


class NeverJumps(Backup):
    """Goes on under ids that readers may have seen with other tuples."""

    def take_over(self) -> Resume | None:
        resume = super().take_over()
        return None if resume is None else replace(resume, jump=False)


class TakesAnything(Backup):
    """Does not look whether something is missing before what comes."""

    def receive(self, incarnation: int, want: object) -> str:  # type: ignore[override]
        said = super().receive(incarnation, want)  # type: ignore[arg-type]
        return "take" if said == "known" else said


def _with(approach: str, policy: type[Primary]) -> Machines:
    return Machines({**POLICIES, approach: policy})


@pytest.mark.parametrize(
    ("approach", "precise", "machines"),
    [
        ("passive", True, _with("passive", AcksAtOnce)),
        ("active", True, _with("active", NeverHolds)),
        ("upstream-backup", True, _with("upstream-backup", ForgetsWindows)),
        pytest.param("upstream-backup", True, _with("upstream-backup", Hasty), marks=pytest.mark.long),  # many seeds
        ("passive", False, Machines(backup=NeverJumps)),
        ("upstream-backup", False, Machines(backup=NeverJumps)),
        ("passive", True, Machines(backup=TakesAnything)),
    ],
    ids=["acks-at-once", "never-holds", "forgets-windows", "hasty", "no-jump", "no-jump-upstream", "takes-anything"],
)
def test_the_laws_catch(approach: Approach, precise: bool, machines: Machines) -> None:
    assert any(broken(World, approach, precise, "ab", seed, machines) for seed in range(MUTANT_SEEDS))


def broken(
    kind: type[World], approach: Approach, precise: bool, inputs: str, seed: int, machines: Machines | None = None
) -> bool:
    try:
        tell(kind(approach, precise=precise, inputs=inputs, rng=Random(seed), machines=machines), 150)
    except LawError:
        return True
    return False


class KeepsItToItself(World):
    """Reads that ids jumped, and says nothing of it."""

    def pass_on(self, queues: Iterable[OutputQueue]) -> None:
        pass


class JumpsAsFar(World):
    """Passes jumps on as far as a takeover's go: the next one may then land where this one's dead primary had been."""

    def pass_on(self, queues: Iterable[OutputQueue]) -> None:
        for queue in queues:
            queue.jump_to(above(queue.next_id))


@pytest.mark.parametrize(("kind", "precise", "inputs"), [(KeepsItToItself, True, "a"), (JumpsAsFar, False, "ab")])
def test_the_laws_catch_jumps_that_are_passed_on_badly(kind: type[World], precise: bool, inputs: str) -> None:
    assert any(broken(kind, "passive", precise, inputs, seed) for seed in range(MUTANT_SEEDS))
