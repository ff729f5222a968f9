"""The primary's side of each approach, as a state machine: trains are committed, messages go to the backup and are
acknowledged or not, backups come and go; what follows for inputs and outputs are `Effects`. Pure.

Laws, for every order of events:
1. An input is acknowledged only up to where the backup could go on if the primary died now.
2. Where output is held, no tuple is released that the backup would not produce again under the same id.
3. Without a backup nothing is held, and inputs are acknowledged as trains are committed.
4. Nothing waits for all that a fresh backup has to be sent: output is held from when it has the whole, and nearly all
   that came while that was under way. Until it has the rest, with the next message, it cannot take over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from borealis.streams.section import Place
from borealis.trains.commit_point import CommitPoint
from borealis.trains.merge_order import Determinant

CLIENT_S = 1.0  # what a client was pushed may be under way for so long; it acknowledges nothing
FEW_TRAINS = 2  # that a fresh backup may lack when output begins to be held
OPEN_ROUNDS_MOST = 8  # messages to one that never comes so near
MessageKind = Literal["whole", "delta", "facts"]
# for the boundaries of the outputs: up to which time tuples of each input are never needed again; None: never so
Needed = Callable[[Mapping[str, int]], Mapping[str, int | None]]
Orders = tuple[tuple[int, tuple[Determinant, ...]], ...]  # by train


@dataclass(frozen=True)
class Effects:
    """What is to be done now: acknowledge inputs (level 1) up to a tuple, let readers see outputs up to a place."""

    ack: Mapping[str, int] = field(default_factory=dict)
    release: Mapping[str, Place] | None = None
    open: bool = False  # outputs are not held back any more
    hold: bool = False  # they are from now on, behind `release`, or what readers may have


NONE = Effects()


def active_reader(name: str, incarnation: int) -> str:
    """Under which name a unit with an active standby reads; the standby reads under that of the next incarnation."""
    return f"{name}.{incarnation}"


def numbered_reader(name: str, number: int) -> str:
    """Under which name a copy of a unit reads that has a number of its own."""
    return f"{name}.c{number}"


def number_of_reader(reader: str, name: str) -> int | None:
    """The number of the copy of a unit that reads under a name; None if it is none of its copies.

    >>> [number_of_reader(reader, "d.u1") for reader in ("d.u1.c12", "d.u1.2", "d.u2.c1", "client")]
    [12, None, None, None]
    """
    number = reader.removeprefix(f"{name}.c")
    return int(number) if number != reader and number.isdecimal() else None


@dataclass(frozen=True)
class Want:
    """A message that is due: all there is, what changed since train `since`, or only facts."""

    kind: MessageKind
    number: int  # of the message; the answer carries it
    since: int  # the last train the backup has
    step: CommitPoint  # up to here
    start: CommitPoint | None = None  # where an empty backup begins to read (upstream backup)
    done: CommitPoint | None = None  # up to where readers have everything (upstream backup)
    orders: Orders = ()  # how the trains were merged that the backup does not know yet
    complete: bool = True  # no reader has what is neither in this message nor in those before it
    starts: Mapping[str, int] = field(default_factory=dict)  # outputs of which other tuples go than those since then


@dataclass
class Primary:
    """What all approaches have in common. One message is under way at a time."""

    interval_s: float
    merges_freely: bool  # it reads more than one stream, merged as they arrive
    nondeterministic: bool  # so that it, or chance, matters for what comes out
    precise: bool
    first: CommitPoint  # where the unit stood when this began
    until: Mapping[str, Place] = field(default_factory=dict, kw_only=True)  # it does again what another did, up to here
    joined: bool = False  # there is a backup
    known: bool = False  # it has had the whole, and what readers had by then: it can take over
    last: CommitPoint = field(init=False)
    _acked: int = field(init=False)  # the last train the backup has
    _number: int = 0
    _has_whole: bool = False  # it has had that, and lacks at most what came since
    _is_held: bool = False  # no reader gets what the backup has not
    _open_rounds: int = 0  # messages that it has had while that was not so
    _under_way: Want | None = None
    _sent_at: float = float("-inf")
    _steps: deque[CommitPoint] = field(default_factory=deque)  # behind `_acked`, or as far back as may be needed

    holds: ClassVar[bool] = False  # whether some output may have to wait
    needs_state: ClassVar[bool] = False
    sweeps: ClassVar[bool] = False  # whether it matters when readers let go of output
    in_turns: ClassVar[bool] = False  # whether its node says when

    def __post_init__(self) -> None:
        self.last = self.first
        self._acked = self.first.train

    @property
    def holding(self) -> bool:
        """Whether output waits for the backup."""
        return self.joined and self._is_held and self._has_to_hold

    @property
    def _has_to_hold(self) -> bool:
        return self.precise and self.nondeterministic and self.holds

    @property
    def urgent(self) -> bool:
        """Whether output waits that came since."""
        return self.holding and self.last.train > self._acked

    def waits_behind(self, want: Want) -> bool:
        """Whether something waits for what was not in this yet."""
        return not want.complete or (self.holding and self.last.train > want.step.train)

    @property
    def told(self) -> int:
        """The last train that no delta to come tells the backup of."""
        if self._has_whole:
            return self._acked
        return self.last.train if self._under_way is None else self._under_way.step.train

    # -- what happens

    def join(self, *, fresh: bool = False) -> Effects:
        """A backup is there; it knows nothing of this run. A `fresh` one cannot take over what another gave, either."""
        self.joined, self._under_way, self._sent_at = True, None, float("-inf")
        self.known, self._has_whole, self._is_held, self._open_rounds = False, False, not fresh, 0
        return Effects(hold=self.holding)

    def go_on(self) -> Effects:
        """The backup has all that this begins with: it goes on from there."""
        self.joined = self.known = self._has_whole = self._is_held = True
        return Effects(hold=self.holding)

    def remove_backup(self) -> Effects:
        self.joined = self.known = self._has_whole = self._is_held = False
        self._under_way = None
        self._steps.clear()
        self._acked = self.last.train
        return Effects(self.last.positions(), open=True)

    def committed(self, step: CommitPoint) -> Effects:
        self.last = step
        if not self.joined:
            self._acked = step.train
            return Effects(step.positions(), open=True)
        self._steps.append(step)
        return self._on_commit(step)

    def tick(self, now: float, received: Mapping[str, int]) -> Effects:
        """To be called now and then while there is no backup."""
        return NONE

    def want(self, now: float, received: Mapping[str, int]) -> Want | None:
        """What to send now, if anything. `received` is the first tuple of each output that some reader lacks."""
        if not self.joined or self._under_way is not None or self._is_behind():
            return None
        if self.known and not self._is_due(now, received):
            return None
        self._number += 1
        self._sent_at = now
        self._under_way = replace(self._compose(now, received), complete=self._is_held or not self._has_to_hold)
        return self._under_way

    def _is_behind(self) -> bool:
        """Whether readers may have what only this node knows how to come to, from its own primary."""
        at = {name: (cursor.position, cursor.boundary) for name, cursor in self.last.inputs.items()}
        return any(at[name] < place for name, place in self.until.items())

    def acknowledged(self, number: int) -> Effects:
        """The backup has a message. To be called between trains."""
        sent = self._under_way
        if sent is None or sent.number != number or not self.joined:
            return NONE
        self._under_way = None
        self._acked, self._has_whole = sent.step.train, True
        if not sent.complete:
            self._open_rounds += 1
            self._is_held = self.last.train - sent.step.train <= FEW_TRAINS or self._open_rounds >= OPEN_ROUNDS_MOST
            return Effects(hold=self._is_held)
        self.known = True
        return self._on_ack(sent)

    def hasten(self) -> None:
        """Another copy is sent something now: this one as well, so that all have it at about the same time."""
        if self._under_way is None:
            self._sent_at = float("-inf")

    def failed(self) -> None:
        """No answer came, or a bad one: what it was about is sent again with the next."""
        self._under_way = None

    def rejected(self) -> None:
        """The backup has lost the thread: it needs the whole."""
        self._under_way, self.known, self._has_whole = None, False, False

    def doubt(self) -> None:
        """The backup may have held this node for dead, and taken over: nothing more is given before it answers."""

    def trimmed(self) -> None:
        """Readers have let go of output."""

    def pushed(self, now: float, passing: Mapping[str, int]) -> None:
        """So far tuples of each output went to readers that acknowledge nothing."""

    # -- what differs

    def _on_commit(self, step: CommitPoint) -> Effects:
        return NONE

    def _on_ack(self, sent: Want) -> Effects:
        self._forget(sent.step)
        return Effects(sent.step.positions(), self._released(sent.step))

    def _is_due(self, now: float, received: Mapping[str, int]) -> bool:
        return self.urgent or now - self._sent_at >= self.interval_s

    def _compose(self, now: float, received: Mapping[str, int]) -> Want:
        if not self._has_whole:
            return Want("whole", self._number, self._acked, self.last)
        return Want("facts", self._number, self._acked, self.last, orders=self._orders(self._acked))

    def _forget(self, upto: CommitPoint) -> None:
        while self._steps and self._steps[0].train <= upto.train:
            self._steps.popleft()

    def _orders(self, since: int) -> Orders:
        return tuple((s.train, s.order) for s in self._steps if s.train > since) if self.merges_freely else ()

    def _released(self, step: CommitPoint) -> Mapping[str, Place] | None:
        return step.outputs if self.holding else None


@dataclass
class Amnesia(Primary):
    """Nothing is kept: the backup learns only how far ids have come, so that its own go on behind a hole.

    A unit's output is not given while it doubts: under the ids of its backup readers would get the same once more.
    """

    doubts: bool | None = field(default=None, kw_only=True)  # None: it gives whatever comes

    @property
    def holding(self) -> bool:
        return self.joined and self.doubts is not None

    @property
    def urgent(self) -> bool:
        return bool(self.doubts)

    def doubt(self) -> None:
        self.doubts = None if self.doubts is None else self.joined

    def remove_backup(self) -> Effects:
        effects = super().remove_backup()
        self.doubt()
        return effects

    def _on_commit(self, step: CommitPoint) -> Effects:
        return Effects(step.positions(), step.outputs if self.holding and not self.doubts else None)

    def _on_ack(self, sent: Want) -> Effects:
        self._forget(sent.step)
        if not self.holding:
            return Effects(sent.step.positions())
        self.doubts = False
        return Effects(sent.step.positions(), self.last.outputs)


@dataclass
class Passive(Primary):
    """Merged deltas and new outputs, every interval; inputs are acknowledged after that."""

    rows_most: int | None = field(default=None, kw_only=True)  # that its backup has to read again
    _rows: int = 0  # that it has not
    holds: ClassVar[bool] = True
    needs_state: ClassVar[bool] = True

    @property
    def urgent(self) -> bool:
        return super().urgent or self._is_far()

    def _is_far(self) -> bool:
        """Whether the backup would have to read more again than it is to."""
        return self.joined and self.rows_most is not None and self.last.rows - self._rows >= self.rows_most

    def _on_ack(self, sent: Want) -> Effects:
        self._rows = sent.step.rows
        return super()._on_ack(sent)

    def _is_due(self, now: float, received: Mapping[str, int]) -> bool:
        return self._is_far() or now - self._sent_at >= self.interval_s

    def _compose(self, now: float, received: Mapping[str, int]) -> Want:
        return Want("delta" if self._has_whole else "whole", self._number, self._acked, self.last)


@dataclass
class Synchronous(Passive):
    """Of an entry point: each step goes to the backup at once, and is shown and acknowledged behind that."""

    def _is_due(self, now: float, received: Mapping[str, int]) -> bool:
        return self.last.train > self._acked or super()._is_due(now, received)


@dataclass
class Active(Primary):
    """The backup runs in parallel and reads for itself; it gets what readers have, and the order of merging."""

    asks: bool = field(default=False, kw_only=True)  # first, whether the other runs already: it needs no whole then
    _asking: bool = False
    holds: ClassVar[bool] = True
    needs_state: ClassVar[bool] = True

    def join(self, *, fresh: bool = False) -> Effects:
        self._asking = self.asks
        return super().join(fresh=fresh)

    def rejected(self) -> None:
        super().rejected()
        self._asking = False

    def _compose(self, now: float, received: Mapping[str, int]) -> Want:
        """A whole that comes again, since no answer to the first came, finds a backup that runs: orders go along."""
        kind: MessageKind = "facts" if self._has_whole or self._asking else "whole"
        since = self._acked if self._has_whole or not self._steps else self._steps[0].train - 1
        return Want(kind, self._number, since, self.last, orders=self._orders(since))

    def _on_commit(self, step: CommitPoint) -> Effects:
        return Effects(step.positions()) if self.known else NONE


@dataclass
class Upstream(Primary):
    """The backup is idle and empty; it knows where to begin to read, so that inputs before that can go.

    Inputs are kept that far whether there is a backup or not: one that joins later can begin there at once.
    """

    needed: Needed = lambda outputs: {}
    clients: bool = False  # a client, which acknowledges nothing, may read an output
    holds: ClassVar[bool] = True
    _start: CommitPoint = field(init=False)  # inputs are acknowledged up to here
    _floor: CommitPoint = field(init=False)  # all output up to here was delivered, by this node or one before it

    def __post_init__(self) -> None:
        super().__post_init__()
        self._start = self._floor = self.first

    def committed(self, step: CommitPoint) -> Effects:
        self.last = step
        self._steps.append(step)
        if step.silent:
            self._floor = step
        return NONE if self.joined else Effects(open=True)

    def remove_backup(self) -> Effects:
        self.joined = self.known = self._has_whole = self._is_held = False
        self._under_way = None
        return Effects(open=True)

    def retained(self) -> list[CommitPoint]:
        """Where an empty unit would begin, and every train since: all of it goes along when the unit moves."""
        return [self._start, *self._steps]

    def adopt(self, retained: Sequence[CommitPoint]) -> None:
        """Go on with what another node's policy retained; the last of it is where the unit stands now.

        Its output is here, and here alone: what readers lack is no more delivered than it was.
        """
        self._start = retained[0]
        self._floor = next((step for step in reversed(retained) if step.silent), retained[0])
        self._steps = deque(retained[1:])

    def tick(self, now: float, received: Mapping[str, int]) -> Effects:
        """Let go of what is not needed."""
        if self.joined or self._is_behind():
            return NONE
        start = self._beginning(self._done(now, received))
        self._begin_at(start)
        return Effects(start.positions())

    def _compose(self, now: float, received: Mapping[str, int]) -> Want:
        done = self._done(now, received)
        start = self._beginning(done)
        if not self._has_whole:
            return Want("whole", self._number, start.train, self.last, start, done, self._orders(start.train))
        return Want("facts", self._number, self._acked, self.last, start, done, self._orders(self._acked))

    def _on_ack(self, sent: Want) -> Effects:
        assert sent.start is not None
        self._begin_at(sent.start)
        return Effects(sent.start.positions(), self._released(sent.step))

    def _begin_at(self, start: CommitPoint) -> None:
        self._start = start
        self._forget(start)

    def _done(self, now: float, received: Mapping[str, int]) -> CommitPoint:
        """The last train all of whose output has arrived."""
        found = self._floor if self._floor.train > self._start.train else self._start
        for step in self._steps:
            if step.train <= found.train:
                continue
            if self.clients and step.at > now - CLIENT_S:
                break
            if any(place[0] > received.get(name, place[0]) for name, place in step.outputs.items()):
                break
            found = step
        return found

    def _beginning(self, done: CommitPoint) -> CommitPoint:
        """The last train before everything that state after `done` can hold."""
        needed = self.needed({name: place[1] for name, place in done.outputs.items()})
        found = self._start
        for step in self._steps:
            if step.train > done.train or any(old is None or step.inputs[n].newest > old for n, old in needed.items()):
                break
            found = step
        return found
