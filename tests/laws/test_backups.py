"""A primary and its backup as machines, whatever becomes of their messages: readers have nothing that would be lost.

All short stories are played.
"""

from __future__ import annotations

from itertools import product
from typing import Literal, get_args

import pytest

from borealis.entry.admission import Cursor
from borealis.ha.backup import Approach, Backup
from borealis.ha.primary import FEW_TRAINS, OPEN_ROUNDS_MOST, Active, Effects, Passive, Primary, Upstream, Want
from borealis.trains.commit_point import CommitPoint

Event = Literal["commit", "talk", "unanswered", "old", "give up", "overflow"]
EVENTS: tuple[Event, ...] = get_args(Event)
KINDS: dict[Approach, type[Primary]] = {"passive": Passive, "active": Active, "upstream-backup": Upstream}


def step(train: int) -> CommitPoint:
    order = (("a", train, train), ("b", train, train))
    return CommitPoint(train, 0, {name: Cursor(train, train, train) for name in "ab"}, {"o": (train, train)}, order)


class Pair:
    """A primary that holds its output, what its readers may have, and its backup at the end of a bad line."""

    def __init__(self, approach: Approach, *, fresh: bool) -> None:
        self.approach = approach
        self.policy = KINDS[approach](0.0, True, True, True, step(0))
        self.limit: int | None = None  # readers get nothing behind this train
        self.had = 0
        self.backup = Backup(approach, True, True, True, 1)
        self.sent: list[Want] = []
        self.do(self.policy.join(fresh=fresh))

    def do(self, effects: Effects) -> None:
        now = self.policy.last.train
        if effects.open:
            self.limit = None
        if effects.hold:
            self.limit = now
        if effects.release is not None and self.limit is not None:
            self.limit = max(self.limit, effects.release["o"][0])
        self.had = max(self.had, now if self.limit is None else min(now, self.limit))

    def say(self, *, answered: bool) -> None:
        """The message that is due, or the last once more."""
        if (due := self.policy.want(0.0, {})) is not None:
            self.sent.append(due)
        if self.sent:
            verdict = self.backup.receive(1, self.sent[-1])
            if answered:
                self.answered(self.sent[-1], verdict)

    def answered(self, want: Want, verdict: str) -> None:
        if self.policy._under_way is not want:
            return
        if verdict == "whole":
            self.policy.rejected()
        else:
            self.do(self.policy.acknowledged(want.number))

    def play(self, event: Event) -> None:
        policy = self.policy
        match event:
            case "commit":
                self.do(policy.committed(step(policy.last.train + 1)))
            case "talk" | "unanswered":
                self.say(answered=event == "talk")
            case "old" if self.sent:
                self.backup.receive(1, self.sent[0])
            case "give up":
                policy.failed()
            case "overflow":
                policy.rejected()

    def check(self) -> None:
        if self.backup.can_take_over:
            assert self.backup.step is not None
            assert self.had <= self.backup.step.train


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("approach", KINDS)
def test_a_backup_that_can_take_over_knows_all_that_readers_have(approach: Approach, fresh: bool) -> None:
    for story in product(EVENTS, repeat=4):
        pair = Pair(approach, fresh=fresh)
        for event in story:
            pair.play(event)
            pair.check()


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("approach", KINDS)
def test_over_a_good_line_it_soon_can_and_readers_lack_little(approach: Approach, fresh: bool) -> None:
    for story in product(EVENTS, repeat=3):
        pair = Pair(approach, fresh=fresh)
        for event in (*story, "give up"):
            pair.play(event)
        for _ in range(OPEN_ROUNDS_MOST + 3):
            for _ in range(FEW_TRAINS + 1):
                pair.play("commit")
            pair.play("talk")
            pair.check()
        assert pair.policy.known
        assert pair.backup.can_take_over
        assert pair.had == pair.policy.last.train
