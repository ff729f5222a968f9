"""Sweeping checkpoints are consistent (Gu 3.2): whichever units of a chain die at once, all comes out, once, in order.

The machines, backups and queues are real, and so is what goes into a message; trains are plain Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest
from harness import examples
from hypothesis import given
from hypothesis import strategies as st

from borealis.clock import ManualClock
from borealis.entry.admission import Cursor
from borealis.errors import StreamError
from borealis.ha.backup import Backup
from borealis.ha.checkpoints import LATEST, Sweeping
from borealis.ha.primary import Effects, Want
from borealis.machine import Machine
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.streams.readers import PASSING_S
from borealis.streams.section import NOTHING, Section, section
from borealis.streams.snapshot import QueueSnapshot
from borealis.trains.commit_point import CommitPoint
from borealis.tuples import FIRST_TIME, LAST_TIME

SCHEMA = pa.schema([("v", pa.int64())])
NAMED, LATECOMERS = QueueLimits(keep_bytes=0), QueueLimits()  # a client without a name needs what is kept for all
INTERVAL_S = 0.5
PASSING = "~client"  # a reader without a name: what it was pushed is under way for a while, and then it has it
UNITS = 3


def rows(first: int, values: list[int]) -> Section:
    at = [v % 1000 for v in values]
    return section(first, pa.record_batch([values], schema=SCHEMA), pa.array(at, pa.int64()).to_numpy(), *[NOTHING] * 2)


def made(state: int, value: int) -> tuple[int, list[int]]:
    """What a unit makes of a tuple: its next state, and none, one or two tuples."""
    state = (state * 7 + value + 1) % 1_000_003
    return state, [state + n for n in range((1, 1, 2, 0)[state % 4])]


@dataclass
class Copy:
    """What is at a backup."""

    facts: Backup
    mirror: OutputQueue
    state: int = 0


@dataclass
class Unit:
    """A primary and its backup."""

    number: int
    source: OutputQueue
    holds: bool
    epoch: str
    readers: list[str]
    machine: Machine
    incarnation: int = 1
    state: int = 0
    position: int = 0
    queue: OutputQueue = field(init=False)
    policy: Sweeping = field(init=False)
    backup: Copy = field(init=False)
    shown: dict[str, tuple[int, int]] = field(default_factory=dict)
    has_trimmed: bool = False
    sent: int = 0  # tuples that went to backups

    def __post_init__(self) -> None:
        self.begin(self.made_queue(), 0, fresh=False)

    @property
    def name(self) -> str:
        return f"u{self.number}"

    def made_queue(self) -> OutputQueue:
        known = {"readers": self.readers, "epoch": self.epoch, "incarnation": self.incarnation, "machine": self.machine}
        limits = NAMED if self.readers else LATECOMERS
        return OutputQueue(f"d/{self.name}", SCHEMA, limits, **known)  # type: ignore[arg-type]

    def begin(self, queue: OutputQueue, train: int, *, fresh: bool) -> None:
        """As a primary, with a backup that has nothing."""
        self.queue = queue
        queue.on_trim = self.note_trim
        step = self.step(train)
        self.policy = Sweeping(INTERVAL_S, self.holds, self.holds, True, step)
        self.backup = Copy(Backup("passive", self.holds, self.holds, True, self.incarnation), self.made_queue())
        self.backup.mirror.hold()
        self.do(self.policy.join(fresh=fresh))

    def note_trim(self) -> None:
        self.has_trimmed = True

    def step(self, train: int) -> CommitPoint:
        return CommitPoint(
            train, 0, {"in": Cursor(self.position, 0, FIRST_TIME)}, {"out": (self.queue.next_id, FIRST_TIME)}
        )

    def do(self, effects: Effects) -> None:
        """As a guard does."""
        for upto in effects.ack.values():
            self.source.ack(self.name, 1, upto)
        if effects.open and self.queue.held:
            self.queue.release(None)
        if effects.hold:
            self.queue.hold((self.queue.next_id, FIRST_TIME))
        if effects.release is not None:
            self.queue.release(effects.release["out"])

    def commit(self) -> None:
        """A train of what has come; nothing where upstream is behind."""
        came = self.source.read(self.position, FIRST_TIME, 0, 2000)
        if came is None or not len(came):
            return
        assert came.first == self.position, f"{self.name} lacks tuples {self.position} to {came.first}"
        out: list[int] = []
        for value in came.rows["v"].to_pylist():
            self.state, more = made(self.state, value)
            out += more
        self.position = came.stop
        if out:
            self.queue.append(rows(self.queue.next_id, out))
        self.do(self.policy.committed(self.step(self.policy.last.train + 1)))

    def talk(self, now: float, *, arrives: bool = True, answered: bool = True) -> None:
        """The message that is due, if one is."""
        if self.has_trimmed:
            self.has_trimmed = False
            self.policy.trimmed()
        if (passing := self.queue.passing()) is not None:
            self.policy.pushed(now, {"out": passing})
        want = self.policy.want(now, {"out": self.queue.acknowledged()})
        if want is None:
            return
        verdict = self.receive(want) if arrives else None
        if verdict in ("take", "known") and answered:
            self.do(self.policy.acknowledged(want.number))
            self.shown = dict(want.step.outputs)
        elif verdict == "whole" and answered:
            self.policy.rejected()
        else:
            self.policy.failed()

    def receive(self, want: Want) -> str:
        """At the backup."""
        if want.kind == "whole":
            news = self.queue.snapshot()
        elif "out" in want.starts:
            news = self.queue.needed(want.starts["out"])
        else:
            news = self.queue.since(self.shown["out"])
        self.sent += sum(len(one) for one in news.sections)
        verdict = self.backup.facts.receive(self.incarnation, want)
        if verdict == "take":
            self.backup.mirror.apply(QueueSnapshot.from_bytes(news.to_bytes()))
            self.backup.state = self.state
        return verdict

    def can_die(self) -> bool:
        return self.backup.facts.can_take_over

    def die(self) -> None:
        """The backup goes on."""
        facts, mirror = self.backup.facts, self.backup.mirror
        resume = facts.take_over()
        assert resume is not None
        assert resume.begin is not None
        self.incarnation, self.state = facts.incarnation, self.backup.state
        self.position = resume.begin.inputs["in"].position
        mirror.incarnation = self.incarnation
        mirror.release()
        self.shown = {}
        self.begin(mirror, resume.begin.train, fresh=True)


class Chain:
    """An input that does not die, units in a row, and a client of the last."""

    def __init__(self, *, holds: bool, named: bool) -> None:
        self.clock = ManualClock()
        self.input = OutputQueue("d/in", SCHEMA, NAMED, readers=["u0"])
        self.named = named
        self.units: list[Unit] = []
        for n in range(UNITS):
            last = n == UNITS - 1
            source = self.units[-1].queue if self.units else self.input
            readers = ["client"] if last and named else [] if last else [f"u{n + 1}"]
            self.units.append(Unit(n, source, holds, f"e{n}", readers, Machine(self.clock)))
        self.got: list[int] = []
        self.under_way: list[tuple[float, Section]] = []
        self.late: dict[int, tuple[int, int]] = {}  # by unit: where a reader began, and when
        self.connect()

    @property
    def last(self) -> Unit:
        return self.units[-1]

    def connect(self) -> None:
        if not self.named:
            self.last.queue.register(PASSING, len(self.got))

    def feed(self, count: int) -> None:
        first = self.input.next_id
        self.input.append(rows(first, list(range(first, first + count))))

    @property
    def now(self) -> float:
        return self.clock.now()

    def live(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.arrive()

    def arrive(self) -> None:
        """What was pushed to a client long enough ago; a named one is read in order as it comes, and acknowledges."""
        while self.under_way and (self.named or self.under_way[0][0] <= self.now - PASSING_S):
            self.got += self.under_way.pop(0)[1].rows["v"].to_pylist()

    def read(self, *, ack: bool) -> None:
        """The client is pushed something; one with a name says that it has it, or not."""
        queue = self.last.queue
        start = self.under_way[-1][1].stop if self.under_way else len(self.got)
        came = queue.read(start, FIRST_TIME, 0)
        if came is not None and len(came):
            assert came.first == start, f"the client lacks tuples {start} to {came.first}"
            self.under_way.append((self.now, came))
            if not self.named:
                queue.ack(PASSING, 1, came.stop)
        self.arrive()
        if self.named and ack:
            queue.ack("client", 1, len(self.got))

    def die(self, numbers: list[int]) -> None:
        """All at once, but for those that could not be taken over."""
        dead = [self.units[n] for n in numbers if self.units[n].can_die()]
        for unit in dead:
            self.forget_late(unit)
            unit.die()
        for upper, lower in pairwise(self.units):
            lower.source = upper.queue
        if self.last in dead:
            self.under_way.clear()  # what was under way dies with it
            self.connect()
        for unit in dead:
            unit.source.register(unit.name, unit.position)

    def join(self, number: int) -> None:
        """A reader comes late and wants all there is; its place is safe with the next message."""
        unit = self.units[number]
        start = unit.queue.register("late")
        unit.talk(self.now)
        self.late[number] = (start, unit.policy.last.train)

    def forget_late(self, unit: Unit) -> None:
        """A reader of which no message told before this unit dies has to come again."""
        _, train = self.late.get(unit.number, (0, LAST_TIME))
        if unit.backup.facts.step is not None and unit.backup.facts.step.train <= train:
            self.late.pop(unit.number, None)

    def check_late(self) -> None:
        for number, (start, train) in self.late.items():
            backup = self.units[number].backup
            if backup.facts.can_take_over and backup.facts.step is not None and backup.facts.step.train > train:
                assert backup.mirror.first_id <= start, f"u{number}: a reader wants {start}"

    def finish(self) -> None:
        """All is read, and messages go through."""
        for _ in range(400):
            for unit in self.units:
                unit.commit()
                unit.talk(self.now)
            self.read(ack=True)
            self.live(0.1)

    def truth(self) -> list[int]:
        values = list(range(self.input.next_id))
        for _ in self.units:
            state, out = 0, list[int]()
            for value in values:
                state, more = made(state, value)
                out += more
            values = out
        return values


WHICH = st.integers(0, UNITS - 1)
EVENTS = st.one_of(
    st.tuples(st.just("feed"), st.integers(1, 30)),
    st.tuples(st.just("commit"), WHICH),
    st.tuples(st.just("commit"), WHICH),
    st.tuples(st.just("talk"), WHICH, st.sampled_from([True, True, True, False]), st.booleans()),
    st.tuples(st.just("talk"), WHICH, st.just(True), st.just(True)),
    st.tuples(st.just("live"), st.sampled_from([0.05, 0.3, 0.6, 1.1])),
    st.tuples(st.just("read"), st.booleans()),
    st.tuples(st.just("flow"), st.integers(1, 4)),
    st.tuples(st.just("join"), WHICH),
    st.tuples(st.just("die"), st.lists(WHICH, min_size=1, max_size=UNITS, unique=True)),
)


def play(chain: Chain, events: list[tuple[object, ...]]) -> None:
    for event in events:
        match event:
            case ("feed", int(count)):
                chain.feed(count)
            case ("commit", int(n)):
                chain.units[n].commit()
            case ("talk", int(n), bool(arrives), bool(answered)):
                chain.units[n].talk(chain.now, arrives=arrives, answered=answered)
            case ("live", float(seconds)):
                chain.live(seconds)
            case ("read", bool(ack)):
                chain.read(ack=ack)
            case ("flow", int(rounds)):
                for _ in range(rounds):
                    chain.feed(10)
                    for unit in chain.units:
                        unit.commit()
                    chain.read(ack=True)
                    chain.live(0.2)
                    for unit in reversed(chain.units):
                        unit.talk(chain.now)
            case ("join", int(n)):
                chain.join(n)
            case ("die", list(numbers)):
                chain.die(numbers)
        chain.check_late()


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_whichever_units_die_at_once_all_comes_out_once_and_in_order(named: bool, holds: bool) -> None:
    @examples(60)
    @given(st.lists(EVENTS, max_size=50))
    def law(events: list[tuple[object, ...]]) -> None:
        chain = Chain(holds=holds, named=named)
        play(chain, events)
        chain.finish()
        assert chain.got == chain.truth()

    law()


def story(rng: Random) -> list[tuple[object, ...]]:
    """Mostly things go on; now and then some die, and messages or answers are lost."""
    found: list[tuple[object, ...]] = []
    for _ in range(rng.randint(5, 25)):
        found += [("flow", rng.randint(1, 4))] * (rng.random() < 0.7)
        found += [("commit", rng.randrange(UNITS)), ("read", True), ("live", rng.choice([0.05, 0.3]))]
        found += [("talk", rng.randrange(UNITS), rng.random() < 0.8, rng.random() < 0.8)]
        found += [("die", rng.sample(range(UNITS), rng.randint(1, UNITS)))] * (rng.random() < 0.3)
    return found


def hasty(policy: Sweeping, name: str) -> int:
    """What a passing reader lacks, as if all that it was ever given had arrived."""
    return min([policy._received[name], *(look[name] for _, look in [*policy._looks][-1:])])


DEFECTS = {
    "acknowledges what it read": ("_on_commit", lambda self, step: Effects(step.positions())),
    "leaves out what a reader lacks": ("_lacked", lambda self, name: self._received[name] + 1),
    "takes what is under way for received": ("_lacked", hasty),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_law_has_teeth(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sweeping, *DEFECTS[defect])
    for seed in range(50):
        chain = Chain(holds=False, named=False)
        try:
            play(chain, story(Random(seed)))
            chain.finish()
            if chain.got != chain.truth():
                return
        except (AssertionError, StreamError):
            return
    pytest.fail("50 stories went as if nothing was wrong")


@pytest.mark.parametrize("holds", [False, True])
def test_a_checkpoint_comes_whatever_readers_do(holds: bool) -> None:
    """At the latest after two intervals, and after one where output waits for it, or where they let go of nothing."""
    for seed in range(2):
        rng, chain = Random(seed), Chain(holds=holds, named=True)
        unit, since, quiet = chain.last, 0.0, False
        for tick in range(400):
            chain.live(INTERVAL_S / 10)
            chain.feed(rng.randint(0, 3))
            for one in chain.units:
                one.commit()
                if one is not unit:
                    one.talk(chain.now)
            quiet = tick > 200
            chain.read(ack=not quiet and rng.random() < 0.2)
            before = unit.policy._number
            unit.talk(chain.now)
            if unit.policy._number > before:
                since = chain.now
            latest = 1.0 if holds or tick > 200 + 2 * 10 * LATEST else LATEST
            assert chain.now - since <= (latest + 0.1) * INTERVAL_S


def test_checkpoints_that_readers_cause_are_no_closer_than_they_shall_be() -> None:
    chain = Chain(holds=False, named=True)
    moments: list[float] = []
    for _ in range(1000):
        chain.live(INTERVAL_S / 50)
        chain.feed(1)
        for one in chain.units:
            one.commit()
        chain.read(ack=True)
        before = chain.last.policy._number
        for one in chain.units:
            one.talk(chain.now)
        moments += [chain.now] * (chain.last.policy._number > before)
    gaps = [late - early for early, late in pairwise(moments)][4:]
    assert min(gaps) >= INTERVAL_S - 1e-9
    assert max(gaps) <= 1.2 * INTERVAL_S


def test_of_output_that_readers_have_made_durable_little_travels() -> None:
    """A chain that sweeps, beside one whose checkpoints carry all output since the last."""
    chain = Chain(holds=False, named=True)
    for _ in range(1000):
        chain.live(INTERVAL_S / 50)
        chain.feed(10)
        for one in chain.units:
            one.commit()
        chain.read(ack=True)
        for one in reversed(chain.units):
            one.talk(chain.now)
    for unit in chain.units:
        assert unit.sent < unit.queue.next_id / 10, unit.name
