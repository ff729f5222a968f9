"""Laws of a unit's log in storage: whoever writes, dies, comes back late or writes bases meanwhile, the next primary
finds all that was ever answered for, in order, and nothing that a deposed one wrote after it was deposed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from borealis.diagram.protection import Protection
from borealis.ha.primary import Want
from borealis.node.parcel import Parcel
from borealis.node.stored import Budget, Stored, UnitHistory
from borealis.storage import storage_at
from borealis.trains.commit_point import CommitPoint
from borealis.wire.messages import Guard, UnitOrder

ACTIONS = ("commit", "commit", "commit", "base", "die", "zombie", "zombie base", "torn", "whole")
BOX = ("box", 0)


def order(incarnation: int, standing: int = 0) -> UnitOrder:
    guard = Guard(protection=Protection(ha="storage"), incarnation=incarnation, standing=standing)
    return UnitOrder(diagram="d", unit="u1", yaml="", boxes=["b"], guard=guard, epoch="e-1")


def tokens(data: bytes) -> list[str]:
    return data.decode().split()


@dataclass
class Unit:
    """A primary, whose state is the list of all that it ever did."""

    incarnation: int
    log: Stored
    done: list[str]
    kept: int  # of that, as it knows
    number: int = 0

    def parcel(self, kind: str) -> Parcel:
        train, since = len(self.done), self.kept
        some = self.done if kind == "whole" else self.done[since:]
        self.number += 1
        want = Want(kind, self.number, 0 if kind == "whole" else since, CommitPoint(train, 0, {}, {}))  # type: ignore[arg-type]
        return Parcel("d", "u1", self.incarnation, want, state={BOX: " ".join(some).encode()})

    def commit(self) -> bool:
        """Do something, and keep it; says whether that was answered for."""
        self.done.append(f"{self.incarnation}.{len(self.done)}")
        answer = self.log.say(self.parcel("delta"))
        if answer.verdict == "take":
            self.kept = len(self.done)
        return answer.verdict == "take"

    def whole(self) -> bool:
        taken = self.log.say(self.parcel("whole")).verdict == "take"
        self.kept = len(self.done) if taken else self.kept
        return taken

    def base(self) -> None:
        parcel = replace(self.parcel("whole"))
        self.log.write_base(len(self.done), lambda: parcel)


def replayed(history: UnitHistory) -> list[str]:
    found: list[str] = []
    for parcel in history:
        assert parcel.want.since <= len(found)
        found = found[: parcel.want.since] + tokens(parcel.state[BOX])
        assert len(found) == parcel.want.step.train
    return found


@dataclass
class Story:
    """What happens to one unit, from its first primary on."""

    root: Path
    taken: list[str] = field(default_factory=list)
    zombies: list[Unit] = field(default_factory=list)

    def begin(self) -> None:
        self.now = self.opened(1)
        assert self.now.whole()

    def opened(self, incarnation: int) -> Unit:
        log = Stored(storage_at(str(self.root)), order(incarnation), Budget(extent=0.5, piece_bytes=40))
        history = log.open()
        done = [] if history is None else replayed(history)
        assert done[: len(self.taken)] == self.taken
        if incarnation > 1:
            assert history is not None
            assert history.train == len(done)
        return Unit(incarnation, log, done, len(done))

    def act(self, action: str) -> None:
        match action:
            case "commit":
                if self.now.commit():
                    self.taken = list(self.now.done)
            case "whole":
                assert self.now.whole()
            case "base":
                self.now.base()
            case "die" | "torn":
                self.zombies.append(self.now)
                if action == "torn":
                    self.now.log.close()
                    self.tear()
                    self.zombies.pop()
                self.now = self.opened(self.now.incarnation + 2)
            case "zombie" if self.zombies:
                assert not self.zombies[-1].commit(), "one that is deposed was answered"
            case "zombie base" if self.zombies:
                self.zombies[0].base()

    def tear(self) -> None:
        """A write that did not end, behind the last record of the newest segment."""
        home = self.root / "units" / "d" / "u1" / "e-1" / f"{self.now.incarnation:06d}.000000"
        segments = sorted(home.glob("log-*.bin"), key=lambda path: int(path.stem.partition("-")[2]))
        if segments:
            with segments[-1].open("ab") as file:
                file.write(b"BUL1 and then the power went")

    def end(self) -> None:
        for unit in (self.now, *self.zombies):
            unit.log.close()
        last = self.opened(self.now.incarnation + 2)
        last.log.close()
        assert last.done[: len(self.taken)] == self.taken


@given(st.lists(st.sampled_from(ACTIONS), max_size=25))
@settings(max_examples=8 * settings.default.max_examples)
def test_the_next_primary_finds_all_that_was_answered_for(actions: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        story = Story(Path(root))
        story.begin()
        for action in actions:
            story.act(action)
        story.end()
