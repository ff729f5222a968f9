"""What the catalog knows of one diagram: its units, its entry points, and on which nodes they shall be.

An entry point is a unit without boxes: it reads nothing, gives an input and its late side, and never moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from borealis.diagram.protection import PARALLEL, Protection
from borealis.diagram.spec import LATE
from borealis.ha.primary import active_reader, numbered_reader
from borealis.wire.messages import ENTRY, Claim

State = Literal["deploying", "running", "undeploying"]


@dataclass(frozen=True)
class UnitAssignment:
    """A unit and the node it shall run on; `moving_to` is set while it is under way to another."""

    unit: str
    boxes: tuple[str, ...]
    reads: tuple[str, ...]
    gives: tuple[str, ...]
    node: str
    moving_to: str | None = None
    protection: Protection | None = None  # None: nothing was promised
    backup: str | None = None  # the node that takes over; None: there is none now
    was: str | None = None  # the node that was on the other side last
    incarnation: int = 1  # rises with each takeover
    standing: int = 0  # rises with each new backup
    lives: int = 1  # rises when all copies are lost and it begins from nothing
    copies: tuple[str, ...] = ()  # nodes with further copies, of a unit that has more than two
    numbers: Mapping[str, int] = field(default_factory=dict)  # of its copies, by node, if it may have more than two
    given: int = 0  # the highest of these that any copy had
    failed_on: str | None = None  # a node that lives, where it failed, and was handed to its backup
    home: str | None = None  # where its user placed it
    backup_home: str | None = None  # where its user wants the backup
    moved_at: float = 0.0  # when its user moved it last, in seconds since 1970

    @property
    def protected(self) -> bool:
        """Whether it was promised a backup."""
        return self.protection is not None

    @property
    def stored(self) -> bool:
        """Whether it is kept in storage: it needs no backup, and any node can go on with it."""
        return self.protection is not None and self.protection.ha == "storage"

    @property
    def replicated(self) -> bool:
        """Whether its backup answers as well."""
        return self.protection is not None and self.protection.ha == "replicas"

    @property
    def checkpointed(self) -> bool:
        """Whether its copies are sent checkpoints: it may have more of them than the pair."""
        return self.protection is not None and self.protection.ha == "passive"

    @property
    def further(self) -> int:
        """How many copies it was promised beside the primary and the backup."""
        return 0 if self.protection is None else self.protection.further

    @property
    def next_backup(self) -> str | None:
        """The node of a copy more than was promised: it is to be the backup as soon as it has all."""
        return self.copies[-1] if self.backup is not None and len(self.copies) > self.further else None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those with a copy of it: the primary first, then the backup."""
        return (self.node, *(() if self.backup is None else (self.backup,)), *self.copies)

    @property
    def input(self) -> str:
        """The input whose entry point it is; empty: it is none."""
        return "" if self.boxes else self.gives[0]

    def after(self, claim: Claim) -> UnitAssignment | None:
        """The same once a node's claim is granted, or None: it is refused.

        Of two nodes that claim the same incarnation one gets it: the second finds a higher one in force. A claim that
        is repeated because its answer was lost is granted again. One that was under way for so long that there is
        another backup by now is refused: its node may have given it up.
        """
        if not self.protected:
            return None
        if claim.node == self.node and claim.incarnation == self.incarnation:
            if claim.what == "alone":
                return self.alone() if claim.standing == self.standing else None
            if claim.what == "without" and claim.copy_node is not None:
                return self.without(claim.copy_node, claim.copy_number)
            return self
        is_backup = claim.node == self.backup and claim.standing == self.standing
        if is_backup and claim.incarnation == self.incarnation + 1:
            return self.taken_over(claim.node, claim.incarnation)  # one that is alone took over unseen
        return None

    def alone(self) -> UnitAssignment:
        """Without its backup."""
        return self if self.backup is None else replace(self, backup=None, was=self.backup).numbered()

    def without(self, node: str, number: int) -> UnitAssignment:
        """Without the copy of this number on a node, which may be the backup by now; as it is if there is none."""
        if self.numbers.get(node) != number or node == self.node:
            return self
        return self.alone() if node == self.backup else self.with_copies(one for one in self.copies if one != node)

    def backed_by(self, node: str, *, as_it_is: bool = False) -> UnitAssignment:
        """With another backup, which may have been a further copy; if it is not taken as it is, its number is new."""
        rest = tuple(one for one in self.copies if one != node)
        left = {one: number for one, number in self.numbers.items() if one != node or as_it_is}
        then = replace(self, backup=node, was=None, standing=self.standing + 1, copies=rest, numbers=left)
        return then.numbered()

    def with_copies(self, nodes: Iterable[str]) -> UnitAssignment:
        """With these further copies; what is on a node that has none now is another copy if it comes back."""
        return replace(self, copies=tuple(nodes)).numbered()

    def numbered(self) -> UnitAssignment:
        """With a number for each copy of a unit that may have more than two: its own, or one that no copy ever had."""
        if not (self.further or self.checkpointed):
            return self
        new = [node for node in self.nodes if node not in self.numbers]
        given = {node: self.given + n for n, node in enumerate(new, 1)}
        numbers = {node: number for node, number in (dict(self.numbers) | given).items() if node in self.nodes}
        return replace(self, numbers=numbers, given=self.given + len(new))

    def taken_over(self, node: str, incarnation: int) -> UnitAssignment:
        rest = tuple(one for one in self.copies if one != node)
        then = replace(
            self, node=node, backup=None, was=self.node, incarnation=incarnation, moving_to=None, copies=rest
        )
        return then.numbered()

    def handed_over(self) -> UnitAssignment:
        """With its backup as the primary, since it failed where it is; it is not wanted there again."""
        if self.backup is None:
            return self
        return replace(self.taken_over(self.backup, self.incarnation + 1), was=None, home=None, failed_on=self.node)

    def succeeded(self, node: str) -> UnitAssignment:
        """With a further copy as the primary: both of the pair are lost.

        The backup may have taken over before it died, unseen: its incarnation is left out.
        """
        return self.taken_over(node, self.incarnation + 2)

    def leaving(self) -> UnitAssignment:
        """About to move. What the node that has it writes to storage counts until the other has begun there."""
        return replace(self, standing=self.standing + 1) if self.stored else self.alone()

    def arrived(self, node: str) -> UnitAssignment:
        """On another node, as the copy that it was."""
        numbers = {node if one == self.node else one: number for one, number in self.numbers.items()}
        return replace(self, node=node, moving_to=None, numbers=numbers)

    def moved_by_hand(self, now: float) -> UnitAssignment:
        """Where its user wants it, as of now."""
        return replace(self, home=None if self.home is None else self.node, moved_at=now)

    def restarted(self, node: str) -> UnitAssignment:
        """From nothing, on this node: all copies are lost.

        Readers of a unit that may lose tuples go on behind the gap: ids jump, as in any of its takeovers. All others
        must not take what follows for what they wait for: it is another life of the stream. The backup may have taken
        over before it died, unseen: its incarnation is left out.
        """
        may_lose = self.boxes and self.protection is not None and self.protection.guarantee == "gap"
        lives = self.lives if may_lose else self.lives + 1
        bare = replace(self, copies=(), numbers={})
        return replace(bare.succeeded(node), was=None, lives=lives)


def entry_point(name: str, node: str, protection: Protection | None = None) -> UnitAssignment:
    return UnitAssignment(ENTRY + name, (), (), (name, name + LATE), node, protection=protection)


@dataclass(frozen=True)
class Layout:
    """A diagram as it shall run. Arrows that no other unit and no client can read are not in here."""

    name: str
    yaml: str
    state: State
    units: tuple[UnitAssignment, ...]
    entries: tuple[UnitAssignment, ...]
    outputs: Mapping[str, str] = field(default_factory=dict)  # a client's name to the arrow it stands for
    cuts: tuple[str, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    buckets: int = 1
    columns: Mapping[str, str] = field(default_factory=dict)  # of each arrow, as DDL
    since: float = 0.0  # seconds since 1970
    epoch: str = ""  # of the streams of whatever is protected
    pinned: bool = False  # its units stay where they are, as long as they can

    def part(self, name: str) -> UnitAssignment | None:
        return next((part for part in self.parts() if part.unit == name), None)

    def with_part(self, part: UnitAssignment) -> Layout:
        """The same, with this unit or entry point in the place of the one of its name."""
        units, entries = ([part if p.unit == part.unit else p for p in parts] for parts in (self.units, self.entries))
        return replace(self, units=tuple(units), entries=tuple(entries))

    def parts(self) -> list[UnitAssignment]:
        """All that runs somewhere, entry points first."""
        return [*self.entries, *self.units]

    def servers(self) -> dict[str, UnitAssignment]:
        """Each arrow that can be subscribed to, and the unit or entry point that serves it."""
        return {arrow: part for part in self.parts() for arrow in part.gives}

    def readers(self, arrow: str) -> list[UnitAssignment]:
        """The units that read an arrow from the wire."""
        return [u for u in self.units if arrow in u.reads]

    def nodes(self) -> set[str]:
        """Every node that has a part of it, or shall get one."""
        return {node for p in self.parts() for node in (*p.nodes, p.moving_to) if node is not None}


def stream_name(diagram: str, arrow: str) -> str:
    """How a stream is called between nodes."""
    return f"{diagram}/{arrow}"


def reader_names(diagram: str, unit: UnitAssignment) -> list[str]:
    """How the queues that a unit reads call it: the primary first, then copies that read beside it."""
    name = f"{diagram}.{unit.unit}"
    if unit.protection is None or unit.protection.approach not in PARALLEL:
        return [name]
    if unit.numbers:
        return [numbered_reader(name, unit.numbers[node]) for node in unit.nodes]
    return [active_reader(name, unit.incarnation), active_reader(name, unit.incarnation + 1)]
