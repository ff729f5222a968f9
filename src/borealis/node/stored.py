"""The log of one unit in storage, in the place of a backup: what its primary would send to one is written there.

1. A primary has a directory of its own, named after its incarnation and its move. It makes it before it reads what is
   there, and begins with where it goes on from: a whole of its own, or the train up to which another directory counts.
2. A parcel is appended and synced. Then the primary looks for a directory that comes after its own: if there is one,
   it is deposed, and what it wrote was not taken. One that begins meanwhile reads what it wrote, or is seen.
3. A base is written when the records take several times as much as the last one, and directories before its own go
   when it is whole, unless another has begun by then. So a unit is there at any moment.

To the unit it is a backup that is never away: the machines of `ha` do not know the difference.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from borealis.diagram.protection import EXTENT, Protection
from borealis.errors import ClusterError, FullError, StateError
from borealis.node.parcel import Parcel
from borealis.state.directory_lock import DirectoryKind
from borealis.state.records import Head
from borealis.state.train_log import BasePace, Found, Pieces, TrainLog, TrainRecord
from borealis.storage import Storage
from borealis.wire.messages import GuardAnswer, UnitOrder, called

UNITS = "units"  # under the root of a storage
VERSION = 1
FOLLOWS = "follows.json"  # in a directory that goes on from another: which, and up to which train
PARCEL = "parcel"  # its head, in that of a record
RECORDS_MOST = 2_000  # before a base is due: each is read at a start

log = logging.getLogger("borealis.node")
Turn = tuple[int, int]  # incarnation, and how often the unit moved or changed its backup


@dataclass(frozen=True)
class Budget:
    """How much of each period goes into a base, and what of the log a start may have to read (CEC's CI, CP and Q)."""

    pace: BasePace = field(default_factory=BasePace)
    extent: float = EXTENT  # the records may take so many times a base
    piece_bytes: int = 256 << 10

    @classmethod
    def of(cls, protection: Protection) -> Budget:
        work_us, period_us = protection.base_us
        return cls(BasePace(work_us / 1e6, period_us / 1e6), protection.extent or EXTENT)


class ParcelLog(TrainLog):
    """Parcels of one primary."""

    kind = DirectoryKind("storage", "unit.json", "node", "*-[0-9]*.bin")
    mark = b"BUL1"
    what, again = "storage", "it goes on by itself"

    @staticmethod
    def stretch(head: Head) -> tuple[int, int]:
        return int(head["since"]), int(head["train"])


class _Past(ParcelLog):
    """Another's, which may be writing still: only to be read."""

    def __init__(self, root: Path, storage: Storage) -> None:
        self.root, self.machine = root, storage.machine


@dataclass
class UnitHistory:
    """What is known of a unit: all there was as of a train, and what came behind that."""

    base: bytes
    records: list[TrainRecord] = field(default_factory=list)
    train: int = 0

    def __iter__(self) -> Iterator[Parcel]:
        yield Parcel.decode(self.base)
        yield from map(_parcel, self.records)


class Stored:
    """Takes the parcels of one primary. Thread-safe."""

    def __init__(self, storage: Storage, order: UnitOrder, budget: Budget | None = None) -> None:
        assert order.guard is not None
        self._storage, self._disk = storage, storage.machine.disk
        self._budget = budget or Budget.of(order.guard.protection)
        self.title = called(order.diagram, order.unit)
        self._unit = storage.root / UNITS / order.diagram / order.unit
        self._home = self._unit / (order.epoch or "none")
        self._turn = order.guard.incarnation, order.guard.standing
        self._belongs = {"diagram": order.diagram, "unit": order.unit, "epoch": order.epoch, "turn": list(self._turn)}
        self._log: ParcelLog | None = None
        self._written: tuple[int, object] | None = None  # the last train, and what readers had by then
        self._records = 0  # since the base
        self.follows: Turn | None = None  # the one whose directory this one goes on from, until it has a base
        self.bytes = 0  # written here
        self._lock = storage.machine.threads.lock()
        self._closed = False

    # -- start

    def open(self, *, follow: bool = True) -> UnitHistory | None:
        """Have a directory; what the primaries before this one left, or nothing if it is not to `follow` them."""
        if self._later():
            raise self._deposed()
        root = self._home / _name(self._turn)
        if self._disk.exists(root / ParcelLog.kind.file):
            raise StateError(f"{self.title} was begun in {root} before", hint="its next start has another incarnation")
        self._log = ParcelLog(root, self._belongs, self._storage.machine)
        found = self._history([turn for turn in self._turns() if turn < self._turn]) if follow else None
        if found is None:
            return None
        self.follows, history = found
        follows = {"version": VERSION, "turn": self.follows, "train": history.train}
        self._disk.write_whole(root / FOLLOWS, json.dumps(follows).encode())
        self._log.read(history.train)
        self._log.begin()
        return history

    def _history(self, turns: list[Turn], upto: int | None = None) -> tuple[Turn, UnitHistory] | None:
        """What the newest of these left that had anything."""
        for turn in sorted(turns, reverse=True):
            past, follows = _Past(self._home / _name(turn), self._storage), self._home / _name(turn) / FOLLOWS
            before = json.loads(self._disk.read(follows)) if self._disk.exists(follows) else None
            if before is not None and before["version"] != VERSION:
                other = f"{follows} is of version {before['version']}, not {VERSION}"
                raise StateError(other, hint="use the Borealis that wrote it, or deploy the diagram again")
            found = past.read(0 if before is None else before["train"], upto, mend=False)
            if found.base:
                return turn, _history(found)
            if before is None:
                continue  # it died before it had begun
            earlier = self._history([tuple(before["turn"])], before["train"])
            if earlier is None:
                raise StateError(f"{past.root} goes on from {before['turn']}, which is gone", hint=past.kind.start_over)
            earlier[1].records += found.records
            earlier[1].train = found.train
            return turn, earlier[1]
        return None

    def _turns(self) -> list[Turn]:
        return [turn for name in self._disk.names(self._home) if (turn := _turn(name)) is not None]

    def _later(self) -> bool:
        return any(turn > self._turn for turn in self._turns())

    def _deposed(self) -> ClusterError:
        return ClusterError(f"{self.title} runs elsewhere by now, as its storage says", hint="look at the status")

    # -- parcels

    def say(self, parcel: Parcel) -> GuardAnswer:
        """Keep a parcel; what a backup would answer."""
        with self._lock:
            return self._answer(parcel, "failed", "it is closed") if self._closed else self._take(parcel)

    def _take(self, parcel: Parcel) -> GuardAnswer:
        try:
            if parcel.want.kind == "whole" and self._later():  # what it would write over may be another's beginning
                return self._answer(parcel, "deposed")
            if parcel.want.kind == "whole":
                self._begin(parcel)
            elif self._log is None:
                return self._answer(parcel, "whole")
            elif self._is_news(parcel):
                self._append(self._log, parcel)
            return self._answer(parcel, "deposed" if self._later() else "take")
        except FullError as error:
            return self._answer(parcel, "full", error.message)
        except (StateError, OSError) as error:
            log.warning("%s: its storage takes nothing: %s", self.title, error)
            self._give_up()
            return self._answer(parcel, "failed", str(error))

    def _answer(self, parcel: Parcel, verdict: Any, why: str = "") -> GuardAnswer:
        return GuardAnswer(verdict=verdict, why=why, number=parcel.want.number, incarnation=parcel.incarnation)

    def _is_news(self, parcel: Parcel) -> bool:
        return self._written != (parcel.want.step.train, parcel.acks) or bool(parcel.state)

    def _begin(self, parcel: Parcel) -> None:
        if self._log is None:
            self._log = ParcelLog(self._home / _name(self._turn), self._belongs, self._storage.machine)
        self._log.begin_with(parcel.want.step.train, self._pieces(parcel), self._spare)
        self._note(parcel)

    def _append(self, log: ParcelLog, parcel: Parcel) -> None:
        head, blobs = parcel.parts
        log.append({"since": parcel.want.since, "train": parcel.want.step.train, PARCEL: head}, blobs)
        self._records += 1
        self.bytes += parcel.nbytes
        self._note(parcel)

    def _note(self, parcel: Parcel) -> None:
        self._written = parcel.want.step.train, parcel.acks

    def _pieces(self, parcel: Parcel) -> Pieces:
        """All there is, cut where the bytes are enough."""
        data, train, size = memoryview(parcel.encode()), parcel.want.step.train, self._budget.piece_bytes
        for at in range(0, len(data), size):
            self.bytes += len(data[at : at + size])
            yield {"since": 0, "train": train}, [data[at : at + size]]

    # -- bases

    def wants_base(self) -> bool:
        """Whether a start had to read too much, or from another's directory."""
        if self._log is None or self._log.writes_base:
            return False
        due = self._log.wants_base(self._budget.extent) or self._records > RECORDS_MOST
        return due or self.follows is not None

    def write_base(self, train: int, compose: Callable[[], Parcel]) -> None:
        """Write all there is as of a train, in the background; records go on meanwhile."""
        with self._lock:
            if self._log is None or self._log.writes_base or self._log.last > train:
                return  # it is closed, or at it, or has kept a later one meanwhile
            self._records = 0
            try:
                self._log.write_base(train, lambda: self._pieces(compose()), self._spare, self._budget.pace)
            except (StateError, OSError) as error:
                log.warning("%s: no base of it can be written: %s", self.title, error)
                self._give_up()

    def _spare(self) -> bool:
        """There is a base: what others left is needed no more, nor what an earlier life of the unit left.

        Not so if another has begun since: it may go on from what was there before the base.
        """
        if self._later():
            return False
        self.follows, self._records = None, 0
        for turn in self._turns():
            if turn < self._turn:
                self._disk.remove_all(self._home / _name(turn))
        for name in self._disk.names(self._unit):
            if name != self._home.name:
                self._disk.remove_all(self._unit / name)
        return True

    # -- the end

    def _give_up(self) -> None:
        """After an error the next parcel is a whole, in files of its own."""
        found, self._log = self._log, None
        if found is not None:
            found.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._give_up()

    def erase(self) -> None:
        """Its diagram is no more."""
        self.close()
        self._disk.remove_all(self._home)


def _history(found: Found) -> UnitHistory:
    base = b"".join(memoryview(piece) for one in found.base for piece in one.blobs)
    return UnitHistory(base, found.records, found.train)


def _parcel(record: TrainRecord) -> Parcel:
    """Its head lies in the record's, and its blobs are the record's; before, it was the one blob, as for a node."""
    if PARCEL in record.head:
        return Parcel.of(record.head[PARCEL], record.blobs)
    return Parcel.decode(record.blobs[0].to_pybytes())


def _name(turn: Turn) -> str:
    return f"{turn[0]:06d}.{turn[1]:06d}"


def _turn(name: str) -> Turn | None:
    first, _, second = name.partition(".")
    return (int(first), int(second)) if first.isdecimal() and second.isdecimal() else None
