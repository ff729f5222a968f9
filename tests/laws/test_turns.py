"""Laws of the turns in which a node checkpoints its units (Hwang, algorithm 1), against the definition, spelt out."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from harness import examples
from hypothesis import given
from hypothesis import strategies as st

from borealis.ha.min_max import Costs, Turns

BACKUPS = ("node2", "node3", "node4")
SOONEST_S = 0.1
FIXED_S, BYTE_S = 0.002, 1e-6  # of a capture; a paste takes twice as long


@dataclass
class Town:
    """A node, and all that ever happened to its units."""

    rng: Random
    turns: Turns = field(default_factory=Turns)
    now: float = 0.0
    done: dict[str, list[tuple[float, int]]] = field(default_factory=dict)  # trains since the last checkpoint began
    away: dict[str, list[tuple[float, int]]] = field(default_factory=dict)  # those in one that is under way
    last: dict[str, float] = field(default_factory=dict)
    backup: dict[str, str] = field(default_factory=dict)

    def join(self, name: str) -> None:
        self.backup[name] = self.rng.choice(BACKUPS)
        self.done[name], self.last[name] = [], self.now
        self.turns.join(name, self.backup[name], SOONEST_S, self.now)

    def work(self, name: str) -> None:
        train = (self.rng.random() / 50, self.rng.randint(1, 20_000))
        self.done[name].append(train)
        self.turns.worked(name, *train)

    def capture(self, name: str) -> None:
        size = sum(size for _, size in self.done[name])
        self.turns.captured(name, self.now, FIXED_S + BYTE_S * size)
        self.away[name], self.done[name], self.last[name] = self.done[name], [], self.now

    def end(self, name: str, *, arrived: bool) -> None:
        trains = self.away.pop(name)
        if arrived:
            self.turns.answered(name, 2 * (FIXED_S + BYTE_S * sum(size for _, size in trains)))
        else:
            self.turns.failed(name)
            self.done[name] = trains + self.done[name]

    def step(self) -> None:
        self.now += self.rng.random() / 20
        names = list(self.done)
        name = self.rng.choice(names)
        match self.rng.randrange(5):
            case 0 | 1:
                self.work(name)
            case 2 if self.away:
                self.end(self.rng.choice(list(self.away)), arrived=self.rng.random() < 0.8)
            case 3 if (chosen := self.turns.next(self.now)) is not None:
                self.capture(str(chosen))
            case 4 if name not in self.away:
                self.capture(name)  # by the clock

    def recovery_s(self, backup: str) -> float:
        mine = [name for name in self.done if self.backup[name] == backup]
        return sum(s for name in mine for s, _ in [*self.done[name], *self.away.get(name, [])])

    def check(self) -> None:
        """Who is named may be, and is of the segment that takes longest, as far as none has one to name."""
        chosen = self.turns.next(self.now)
        may = [n for n in self.done if self.done[n] and n not in self.away and self.now - self.last[n] >= SOONEST_S]
        if chosen is None:
            assert all(self.turns.units[n].gain_s <= 0 for n in may)
            return
        assert chosen in may
        mine = str(chosen)
        gains = {n: self.turns.units[n] for n in may if self.turns.units[n].gain_s > 0}
        segments = {self.backup[n] for n in gains}
        # a capture takes milliseconds, in which no segment grows by more than this
        assert self.recovery_s(self.backup[mine]) >= max(map(self.recovery_s, segments)) - 0.5
        worst = max(segments, key=lambda backup: self.turns.recovery_s(backup, self.now))
        assert self.backup[mine] == worst
        rate = {n: one.gain_s / one.capture_s for n, one in gains.items() if self.backup[n] == worst}
        assert rate[mine] == max(rate.values())


@examples(100)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_who_is_named_shortens_the_worst_recovery_most(seed: int, units: int) -> None:
    town = Town(Random(seed))
    for n in range(units):
        town.join(f"u{n}")
    for _ in range(60):
        town.step()
        town.check()
    for backup in BACKUPS:
        held = sum(one.work_s + one.away_s for one in town.turns.units.values() if one.backup == backup)
        assert abs(held - town.recovery_s(backup)) < 1e-9


@examples(100)
@given(
    st.floats(0, 1), st.floats(0, 1e-3), st.lists(st.integers(0, 10**6), min_size=2, max_size=30), st.integers(0, 10**7)
)
def test_costs_that_are_a_line_are_found(fixed: float, each: float, sizes: list[int], asked: int) -> None:
    costs = Costs()
    for size in sizes:
        costs.learn(size, fixed + each * size)
    truth = fixed + each * asked
    if max(sizes) - min(sizes) > 1000:
        assert abs(costs.seconds(asked) - truth) <= 1e-3 * truth + 1e-3
    assert costs.seconds(asked) >= 0


def test_the_paper_s_example() -> None:
    """Hwang, figure 4.3: the unit whose backup has most to do again comes first, though another is cheaper to take."""
    turns = Turns()
    for name, backup in (("u1", "node2"), ("u2", "node2"), ("u3", "node3")):
        turns.join(name, backup, 0.0, 0.0)
    for name, work_s in (("u1", 0.11), ("u2", 0.10), ("u3", 0.665)):
        turns.worked(name, work_s, 1000)
    assert turns.next(1.0) == "u3"
    turns.captured("u3", 1.0, 0.125)
    assert turns.next(1.0) == "u1"  # what is under way cannot be named, and counts until it has arrived
    turns.answered("u3", 0.125)
    turns.worked("u3", 0.05, 1000)
    assert turns.next(2.0) == "u1"
