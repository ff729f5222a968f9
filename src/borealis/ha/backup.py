"""The backup's side, as a state machine: messages come in, possibly again, late, or not at all; one day it takes over.

Pure: it keeps facts, not data. What it says to a message tells the node whether to take the data that came with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from borealis.diagram.protection import CHECKPOINTED, PARALLEL, Approach
from borealis.ha.primary import Want
from borealis.streams.section import Place
from borealis.trains.commit_point import CommitPoint
from borealis.trains.merge_order import Determinant
from borealis.trains.merging import Replay

Answer = Literal["take", "known", "whole", "deposed"]


@dataclass(frozen=True)
class Resume:
    """How to go on after the primary."""

    begin: CommitPoint | None  # inputs are read from here; None: from the present
    outputs: Mapping[str, Place]  # outputs stand here then
    replays: tuple[Replay, ...] = ()  # what to read first, in this order
    jump: bool = False  # what is merged freely gets ids behind a hole
    until: Mapping[str, Place] = field(default_factory=dict)  # the order of inputs is known up to here


@dataclass
class Backup:
    """What the backup of a unit knows of its primary."""

    approach: Approach
    merges_freely: bool  # the unit reads more than one stream, as they arrive
    nondeterministic: bool  # so that their order, or chance, matters for what comes out
    precise: bool
    incarnation: int  # of the primary it stands by
    step: CommitPoint | None = None  # the last train it knows of
    complete: bool = False  # readers have had nothing that is not known here
    start: CommitPoint | None = None
    done: CommitPoint | None = None
    orders: dict[int, tuple[Determinant, ...]] = field(default_factory=dict)
    taken_over: bool = False
    fresh: bool = False  # it has a new primary, and has heard nothing of that
    left_out: bool = False  # it was not given output that no reader needed then

    @property
    def self_reliant(self) -> bool:
        """Whether it comes to the same as any other copy from its streams alone, once it runs."""
        return self.approach in PARALLEL and not self.merges_freely

    def follow_on(self, incarnation: int) -> None:
        """Its primary is another from now on."""
        self.fresh = self.fresh or incarnation > self.incarnation
        self.incarnation = max(incarnation, self.incarnation)

    def receive(self, incarnation: int, want: Want) -> Answer:
        """A message: take what is in it, or it is known already, or only the whole helps, or its sender is deposed."""
        if self.taken_over or incarnation < self.incarnation:
            return "deposed"
        if want.kind == "whole":
            if incarnation == self.incarnation and not self.fresh and (self._is_old(want) or self._has(want)):
                return "known"  # it was under way for long, or its answer was
            self.orders.clear()
        elif self.step is None or (incarnation > self.incarnation and not self.self_reliant):
            return "whole"
        elif incarnation == self.incarnation and not self.fresh and self._is_old(want):
            return "known"
        elif want.since > self.step.train and not self.self_reliant:
            return "whole"  # what lies between never came; what overlaps does no harm
        again = self.step is not None and (incarnation, want.step.train) == (self.incarnation, self.step.train)
        self.complete = want.complete or (again and self.complete)
        self.incarnation, self.fresh = incarnation, False
        self._remember(want)
        return "take"

    def _is_old(self, want: Want) -> bool:
        """Whether a later message has come already; what lies before its `start` may be gone."""
        if self.step is None or want.step.train != self.step.train:
            return self.step is not None and want.step.train < self.step.train
        return self.start is not None and want.start is not None and want.start.train < self.start.train

    def _has(self, want: Want) -> bool:
        """Whether it came already, and says nothing new."""
        complete = (self.complete or not want.complete) and not self.left_out
        return self.step is not None and want.start is None and want.step.train == self.step.train and complete

    @property
    def can_take_over(self) -> bool:
        """Whether it could go on where readers are."""
        return self.step is not None and self.complete

    def _remember(self, want: Want) -> None:
        self.step, self.start, self.done = want.step, want.start or self.start, want.done or self.done
        self.left_out = want.kind != "whole" and (self.left_out or bool(want.starts))
        if self.start is not None:  # otherwise they are followed at once, and needed no more
            self.orders.update(want.orders)
            self.orders = {train: order for train, order in self.orders.items() if train > self.start.train}

    def follow(self, want: Want, followed: int) -> list[Replay]:
        """For a backup that runs in parallel: what to read next, after the trains it follows already."""
        return [Replay(order) for train, order in want.orders if train > followed]

    def take_over(self) -> Resume | None:
        """The primary is dead; None if the backup does not know enough of it to go on for it."""
        self.taken_over = True
        self.incarnation += 1
        if self.step is None or not self.complete:
            return None
        jump = self.nondeterministic and not self.precise
        if self.approach == "amnesia":
            return Resume(None, self.step.outputs, jump=True)
        if self.approach in CHECKPOINTED:
            return Resume(self.step, self.step.outputs, jump=jump)
        if self.approach in PARALLEL:
            return Resume(
                self.step, self.step.outputs, jump=jump, until=_places(self.step) if self.merges_freely else {}
            )
        assert self.start is not None
        assert self.done is not None
        until = self.step if self.merges_freely and self.precise else self.done
        return Resume(self.start, self.done.outputs, self._scripts(self.start, self.done), jump, _places(until))

    def _scripts(self, start: CommitPoint, done: CommitPoint) -> tuple[Replay, ...]:
        """Read again in silence what made the state, then what readers may lack."""
        known = sorted(self.orders.items())
        if self.merges_freely and self.precise:
            silent = [Replay(order, silent=True) for train, order in known if start.train < train <= done.train]
            return (*silent, *(Replay(order) for train, order in known if train > done.train))
        to = tuple((name, c.position, c.boundary) for name, c in done.inputs.items())
        return (Replay(to, silent=True),) if done.train > start.train else ()


def _places(step: CommitPoint) -> dict[str, Place]:
    return {name: (cursor.position, cursor.boundary) for name, cursor in step.inputs.items()}
