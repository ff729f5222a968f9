"""A primary with several backups as machines, whatever becomes of messages and nodes: readers have nothing that would
be lost, or come to otherwise, if any of those that count went on.

Trains are told apart by who ran them: after a takeover the same train is another one, as where streams are merged as
they arrive. All short stories are played, and many long ones by chance.
"""

from __future__ import annotations

from functools import partial
from itertools import islice, product
from random import Random

import pytest

from borealis.entry.admission import Cursor
from borealis.ha.backup import Backup
from borealis.ha.copies import FurtherCopies
from borealis.ha.primary import FEW_TRAINS, OPEN_ROUNDS_MOST, Effects, Passive, Primary, Want
from borealis.trains.commit_point import CommitPoint
from shares import shares

Made = tuple[tuple[int, int], ...]  # which incarnation ran each train, and the how manieth that was
Sent = tuple[int, Want, Made]  # by which incarnation
SEEN = -1  # what readers have at least, of which a primary that takes over knows


def step(train: int) -> CommitPoint:
    return CommitPoint(train, 0, {"a": Cursor(train, train, train)}, {"o": (train, train)})


class Copy:
    """One that stands by, at the end of a bad line."""

    def __init__(self, incarnation: int) -> None:
        self.backup = Backup("passive", True, True, True, incarnation)
        self.made: Made = ()
        self.sent: Sent | None = None

    def receive(self, sent: Sent) -> str:
        incarnation, want, made = sent
        before = self.backup.step
        verdict = self.backup.receive(incarnation, want)
        if verdict == "take" and before is not None and want.kind == "delta":
            assert self.made[: want.since] == made[: want.since], "a delta fits to what it has"
        if verdict == "take":
            self.made = made
        return verdict

    @property
    def ready(self) -> bool:
        return self.backup.can_take_over


class Unit:
    """A primary, its readers, and all that stands by for it. The first backup is under the name of the node `a`."""

    def __init__(self, holds: bool) -> None:
        self.holds, self.incarnation = holds, 1
        self.made: Made = ()
        self.had: Made = ()  # by readers
        self.acked = 0  # of the input
        self.limit: int | None = None  # readers get nothing behind it
        self.copies: dict[str, Copy] = {}  # those that the coordinator counts on
        self.first: str | None = "a"
        self.begin({"a", "b", "c"})
        for name in "abc":
            self.copies[name] = Copy(1)
        self.do(self.machines.first(self.policy.join(), self.now))

    def begin(self, nodes: set[str]) -> None:
        """A primary begins, which others may know from one before."""
        make = partial(Passive, 0.0, True, self.holds, True)
        self.policy: Primary = make(step(len(self.made)))
        self.machines = FurtherCopies(make)
        further = nodes - {self.first}
        self.do(self.machines.are(further, step(len(self.made)), {"o": (SEEN, SEEN)}, fresh=False))

    @property
    def now(self) -> dict[str, tuple[int, int]]:
        return {"o": (len(self.made), len(self.made))}

    def do(self, effects: Effects) -> None:
        self.acked = max(self.acked, effects.ack.get("a", 0))
        if effects.open:
            self.limit = None
        if effects.release is not None:
            place = effects.release["o"][0]
            self.limit = place if effects.hold or self.limit is None else max(self.limit, place)
        self.read()

    def read(self) -> None:
        upto = len(self.made) if self.limit is None else min(self.limit, len(self.made))
        if upto > len(self.had):
            self.had = self.made[:upto]

    def machine(self, name: str) -> Primary | None:
        return self.policy if name == self.first else self.machines.machines.get(name)

    # -- what happens

    def commit(self) -> None:
        self.made += ((self.incarnation if self.holds else 0, len(self.made)),)
        now = step(len(self.made))
        self.machines.committed(now)
        self.do(self.machines.first(self.policy.committed(now), self.now))

    def talk(self, name: str, *, arrives: bool = True, answered: bool = True) -> None:
        machine, copy = self.machine(name), self.copies.get(name)
        if machine is None or copy is None:
            return
        want = machine.want(0.0, {})
        if want is not None:
            copy.sent = self.incarnation, want, self.made[: want.step.train]
        if copy.sent is None or not arrives:
            return
        verdict, sent = copy.receive(copy.sent), copy.sent[1]
        if not answered or machine._under_way is not sent:
            return
        if verdict == "whole":
            machine.rejected()
        elif name == self.first:
            self.do(self.machines.first(machine.acknowledged(sent.number), self.now))
        else:
            self.do(self.machines.acknowledged(name, sent.number))

    def late(self, name: str) -> None:
        """What was sent last comes again, also from a primary that is dead."""
        copy = self.copies.get(name)
        if copy is not None and copy.sent is not None:
            copy.receive(copy.sent)

    def unanswered(self, name: str) -> None:
        if (machine := self.machine(name)) is not None:
            machine.failed()

    def overflow(self, name: str) -> None:
        if (machine := self.machine(name)) is not None:
            machine.rejected()

    def give_up(self, name: str) -> None:
        """Its node is dead, and the coordinator says so."""
        if self.copies.pop(name, None) is None:
            return
        if name == self.first:
            self.first = None
            self.do(self.machines.first(self.policy.remove_backup(), self.now))
        else:
            self.do(self.machines.are(self.copies.keys() - {self.first}, step(len(self.made))))

    def renew(self, name: str) -> None:
        """There is an empty one where there was none: as the backup, if that is missing, or as a further copy."""
        if name in self.copies:
            return
        self.copies[name] = Copy(self.incarnation)
        if self.first is None and not self.machines.machines:
            self.first = name
            self.do(self.machines.first(self.policy.join(fresh=True), self.now))
        else:
            self.do(self.machines.are(self.copies.keys() - {self.first}, step(len(self.made))))

    def promote(self, name: str) -> None:
        if self.first is None and name in self.machines.machines:
            self.first = name
            self.copies[name].backup.follow_on(self.incarnation)
            self.policy, effects = self.machines.promote(name)
            self.do(effects)

    def die(self, name: str) -> None:
        """The primary does, and this copy goes on, if it can; of its trains those are lost that it does not have."""
        copy = self.copies.get(name)
        if copy is None or not copy.ready:
            return
        del self.copies[name]
        if name != self.first:  # the coordinator says so: the backup may have done it unseen
            copy.backup.follow_on(self.incarnation + 1)
        assert copy.backup.take_over() is not None
        self.made, self.incarnation = copy.made, copy.backup.incarnation
        self.first, self.limit = None, None
        self.begin(set(self.copies))

    def check(self) -> None:
        assert self.had[: len(self.made)] == self.made[: len(self.had)], "what readers have is what was made"
        for name, copy in self.copies.items():
            if copy.ready:
                assert not self.holds or self.had == copy.made[: len(self.had)], f"{name} has what readers have"
                assert self.acked <= len(copy.made), f"{name} could read again what it lacks"


def events(names: str) -> list[tuple[str, str]]:
    acts = ("talk", "lose", "unheard", "late", "give up", "renew", "promote", "die", "overflow", "unanswered")
    return [("commit", ""), *product(acts, names)]


def play(unit: Unit, event: tuple[str, str]) -> None:
    what, name = event
    match what:
        case "commit":
            unit.commit()
        case "talk":
            unit.talk(name)
        case "lose":
            unit.talk(name, arrives=False)
        case "unheard":
            unit.talk(name, answered=False)
        case "late":
            unit.late(name)
        case "give up":
            unit.give_up(name)
        case "renew":
            unit.renew(name)
        case "promote":
            unit.promote(name)
        case "die":
            unit.die(name)
        case "overflow":
            unit.overflow(name)
        case "unanswered":
            unit.unanswered(name)
    unit.check()


def begun(holds: bool) -> Unit:
    """One whose copies all have something, and not the same."""
    unit = Unit(holds)
    for event in [("talk", name) for name in "abc"] + [("commit", ""), ("talk", "a"), ("commit", ""), ("talk", "b")]:
        play(unit, event)
    return unit


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("share", shares(5))
def test_whoever_goes_on_has_all_that_readers_have(holds: bool, share: int) -> None:
    for story in islice(product(events("ab"), repeat=3), share, None, 5):  # 21 events: each comes in each share
        unit = begun(holds)
        for event in story:
            play(unit, event)


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("share", shares(4))
def test_so_it_is_in_long_stories(holds: bool, share: int) -> None:
    known = events("abc") + [("commit", ""), ("talk", "a"), ("talk", "b"), ("talk", "c")] * 5
    for seed in range(400):
        rng, unit = Random(f"{share} {seed}"), Unit(holds)
        for event in rng.choices(known, k=60):
            play(unit, event)


@pytest.mark.parametrize("holds", [True, False])
def test_nothing_waits_for_ever(holds: bool) -> None:
    """Over good lines all is released and acknowledged soon, whatever came before: also what a lost copy held up."""
    for seed in range(300):
        rng, unit = Random(f"good {seed}"), Unit(holds)
        for event in rng.choices(events("abc"), k=25):
            play(unit, event)
        for name in rng.sample("abc", rng.randint(0, 3)):
            play(unit, ("give up", name))
        for name in unit.copies:
            play(unit, ("unanswered", name))
        for _ in range(OPEN_ROUNDS_MOST + 3):
            for _ in range(FEW_TRAINS + 1):
                play(unit, ("commit", ""))
            for name in unit.copies:
                play(unit, ("talk", name))
        for name in unit.copies:
            play(unit, ("talk", name))
        assert len(unit.had) == len(unit.made)
        assert unit.acked == len(unit.made)
        assert all(copy.ready for copy in unit.copies.values())


def test_what_is_held_for_one_is_not_released_because_another_begins_to_hold() -> None:
    unit = Unit(holds=True)
    for name in "abc":
        play(unit, ("talk", name))
    play(unit, ("give up", "c"))
    play(unit, ("commit", ""))
    play(unit, ("renew", "c"))
    assert len(unit.had) == 0
    play(unit, ("talk", "c"))
    play(unit, ("talk", "c"))
    assert unit.copies["c"].ready
    assert len(unit.had) == 0
    play(unit, ("talk", "a"))
    assert len(unit.had) == 0
    play(unit, ("talk", "b"))
    assert len(unit.had) == 1


def test_a_new_one_holds_up_no_output_before_it_has_nearly_all() -> None:
    unit = Unit(holds=True)
    for name in "ab":
        play(unit, ("talk", name))
    play(unit, ("give up", "c"))
    play(unit, ("renew", "c"))
    play(unit, ("lose", "c"))
    for _ in range(5):
        play(unit, ("commit", ""))
    for name in "ab":
        play(unit, ("talk", name))
    assert len(unit.had) == 5
    assert unit.acked == 0, "where it could begin is not known yet"


@pytest.mark.parametrize("defect", ["forgets who met it", "opens for the first", "raises the limit"])
def test_the_law_has_teeth(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    are, note, all_of = FurtherCopies.are, FurtherCopies._note, FurtherCopies._least_places

    def fresh(self: FurtherCopies, *args: object, **how: object) -> Effects:
        return are(self, *args, **how | {"fresh": True})  # type: ignore[arg-type]

    match defect:
        case "forgets who met it":
            monkeypatch.setattr(FurtherCopies, "are", fresh)
        case "opens for the first":
            monkeypatch.setattr(
                FurtherCopies,
                "_least_places",
                lambda self: dict(self._limits.get("", all_of(self))),
            )
        case "raises the limit":

            def raised(self: FurtherCopies, node: str, effects: Effects, now: object) -> None:
                note(self, node, effects, now)  # type: ignore[arg-type]
                if effects.hold:
                    self._limits = dict.fromkeys(self._limits, now)  # type: ignore[arg-type]

            monkeypatch.setattr(FurtherCopies, "_note", raised)
    with pytest.raises(AssertionError):
        test_so_it_is_in_long_stories(True, 0)
