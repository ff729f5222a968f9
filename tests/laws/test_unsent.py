"""What a backup is sent leaves out what came and went meanwhile, and is right wherever it stands: a message may have
arrived though no answer came, or come late, and a base in storage may be as of any train.

The machines, what is unsent and the boxes are real; the network is a list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from harness import examples
from hypothesis import given
from hypothesis import strategies as st
from test_state_log import SEEDS, Kernel, bsort_kernel, cut_up, history, random_flow, sorted_state

from borealis.ha.backup import Backup
from borealis.ha.primary import Passive, Want
from borealis.kernels.flow import Flow
from borealis.node.unsent import Unsent, merged
from borealis.state.delta import Change, merge_deltas, pack, unpack
from borealis.state.log import Key
from borealis.trains.commit_point import CommitPoint

KEY: Key = ("box", 0)
State = dict[str, list[str]]
Make = Callable[[], Kernel]
Trains = list[tuple[Flow, ...]]


@dataclass
class Copy:
    """A state elsewhere, and the train it is of."""

    kernel: Kernel
    train: int = 0

    def take_in(self, train: int, data: dict[Key, bytes]) -> None:
        for one in data.values():
            self.kernel.apply(unpack(one))
        self.train = train


@dataclass
class Pair:
    """A primary and its backup, and bases in storage that began between messages."""

    make: Make
    trains: Trains
    live: Kernel = field(init=False)
    train: int = 0
    incarnation: int = 1
    states: list[State] = field(default_factory=list)  # after each train
    bases: list[Copy] = field(default_factory=list)
    late: list[tuple[Want, dict[Key, bytes]]] = field(default_factory=list)  # messages that were given up, and may come
    sizes: int = 0

    def __post_init__(self) -> None:
        self.live = self.make()
        self.states.append(sorted_state(self.live))
        self.begin()

    def begin(self) -> None:
        """As a primary, with a backup that has nothing."""
        self.unsent, self.now = Unsent(), 0.0
        self.policy = Passive(0.1, False, False, True, self.step())
        self.policy.join()
        self.facts = Backup("passive", False, False, True, self.incarnation)
        self.copy = Copy(self.make())
        self.bases.clear()
        self.late.clear()

    def step(self) -> CommitPoint:
        return CommitPoint(self.train, 0, {}, {})

    def commit(self) -> None:
        if self.train == len(self.trains):
            return
        _, delta = self.live.step(*self.trains[self.train])
        self.train += 1
        self.states[self.train :] = [sorted_state(self.live)]
        self.unsent.add(self.train, {KEY: pack(delta)} if delta else {})
        self.policy.committed(self.step())

    def whole(self) -> dict[Key, bytes]:
        return {KEY: pack({name: Change(table) for name, table in self.live.tables_now().items()})}

    def talk(self, *, arrives: bool, answered: bool) -> None:
        """The message that is due, if one is."""
        self.now += 1.0
        want = self.policy.want(self.now, {})
        if want is None:
            return
        found = self.whole()
        if want.kind == "delta":
            found = merged({KEY[0]: self.live.tables}, self.unsent.since(want.since))
            self.sizes += sum(map(len, found.values()))
        self.unsent.tell(want.step.train)
        if not arrives:
            self.late.append((want, found))
        verdict = self.receive(want, found) if arrives else None
        if answered and verdict in ("take", "known"):
            self.policy.acknowledged(want.number)
            self.unsent.answered(want.step.train)
        elif answered and verdict == "whole":
            self.policy.rejected()
        else:
            self.policy.failed()

    def receive(self, want: Want, data: dict[Key, bytes]) -> str:
        """At the backup, and in storage."""
        verdict = self.facts.receive(self.incarnation, want)
        if verdict == "take":
            if want.kind == "whole":
                self.copy = Copy(self.make())
                self.bases.clear()
            for copy in (self.copy, *self.bases):
                if copy.train < want.step.train or want.kind == "whole":
                    copy.take_in(want.step.train, data)
            self.check()
        return verdict

    def check(self) -> None:
        for copy in (self.copy, *self.bases):
            assert sorted_state(copy.kernel) == self.states[copy.train], f"as of train {copy.train}"

    def arrive(self) -> None:
        """What was given up comes after all."""
        if self.late:
            self.receive(*self.late.pop(0))

    def begin_base(self) -> None:
        if self.policy.known:
            base = Copy(self.make())
            base.take_in(self.train, self.whole())
            self.bases.append(base)
            self.unsent.tell(self.train)

    def die(self) -> None:
        """The backup goes on."""
        if self.facts.can_take_over:
            self.live, self.train = self.copy.kernel, self.copy.train
            self.incarnation += 1
            self.begin()


EVENTS = st.one_of(
    st.tuples(st.just("commit"), st.integers(1, 3)),
    st.tuples(st.just("talk"), st.booleans(), st.booleans()),
    st.tuples(st.just("talk"), st.just(True), st.just(True)),
    st.sampled_from([("arrive",), ("base",), ("die",)]),
)


def play(pair: Pair, events: list[tuple[Any, ...]]) -> None:
    for event in events:
        match event:
            case ("commit", int(count)):
                for _ in range(count):
                    pair.commit()
            case ("talk", bool(arrives), bool(answered)):
                pair.talk(arrives=arrives, answered=answered)
            case ("arrive",):
                pair.arrive()
            case ("base",):
                pair.begin_base()
            case ("die",):
                pair.die()
    pair.talk(arrives=True, answered=True)


def buffered(rng: Random, rows: int) -> tuple[Make, Trains]:
    """A sorting buffer, whose rows come and go."""
    seed = rng.randrange(2**32)
    return lambda: bsort_kernel(Random(seed)), [(flow,) for flow in cut_up(rng, random_flow(rng, rows, 0))]


@pytest.mark.parametrize("kernels", [history, buffered], ids=["any box", "a sorting buffer"])
def test_whatever_was_lost_a_copy_has_the_state_of_its_train(kernels: Callable[[Random, int], Any]) -> None:
    @examples(100)
    @given(SEEDS, st.integers(5, 40), st.lists(EVENTS, max_size=40))
    def law(seed: int, rows: int, events: list[tuple[Any, ...]]) -> None:
        play(Pair(*kernels(Random(seed), rows)), events)

    law()


# the first message arrives, and its answer is lost; what it put leaves before the second
LOST_ANSWER = [("talk", True, True), ("commit", 1), ("talk", True, False), *[("commit", 3)] * 5, ("talk", True, True)]
LOST_BASE = [("talk", True, True), ("commit", 1), ("base",), *[("commit", 3)] * 5]


@pytest.mark.parametrize("events", [LOST_ANSWER, LOST_BASE, [*LOST_ANSWER, ("die",)]])
def test_the_law_has_teeth(events: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    def stories() -> None:
        for seed in range(5):
            play(Pair(*buffered(Random(seed), 40)), events)

    stories()
    monkeypatch.setattr(Unsent, "tell", lambda *_: None)
    with pytest.raises(AssertionError, match="as of train"):
        stories()


def test_what_came_and_went_leaves_no_trace() -> None:
    """A buffer of at most nine rows: what is sent does not grow with the trains in between."""
    few, many = Pair(*buffered(Random(5), 400)), Pair(*buffered(Random(5), 400))
    many.trains = few.trains = [(flow,) for flow in random_flow(Random(5), 400, 0)]
    for pair, count in ((few, 20), (many, 380)):
        play(pair, [("commit", 20), ("talk", True, True), *[("commit", 1)] * count, ("talk", True, True)])
    assert many.sizes < 1.5 * few.sizes


@examples(60)
@given(SEEDS, st.integers(1, 30))
def test_a_key_that_comes_once_does_so(seed: int, rows: int) -> None:
    make, trains = history(Random(seed), rows)
    kernel, seen = make(), dict[str, set[Any]]()
    for flows in trains:
        _, delta = kernel.step(*flows)
        for spec in kernel.tables:
            if spec.once and spec.name in delta:
                put = [tuple(row.values()) for row in delta[spec.name].put.select(spec.key).to_pylist()]
                known = seen.setdefault(spec.name, set())
                assert len(set(put)) == len(put)
                assert not known & set(put)
                cut = delta[spec.name].cut
                assert cut is None or {tuple(row.values()) for row in cut.to_pylist()} <= known
                known |= set(put)
                assert spec.floor is None
    assert merge_deltas(kernel.tables, [], closed=True) == {}
