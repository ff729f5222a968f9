"""What holds of nodes, publishers and readers, whatever a diagram computes: each a function on what a run has recorded.

Each gives what is wrong, in words, and nothing if all is right. What holds of the rows of one output: `history.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from borealis.sim.history import SHOWN, Row
from borealis.streams.section import Section
from borealis.tuples import FIRST_TIME, LAST_TIME

SAFE = ("protected", "watching")  # states of a protection that is whole


# -- acknowledged and lost


@dataclass(frozen=True)
class InputRecord:
    """What publishers of one input have receipts for, what is found of it, and what its entry point went through.

    `found` are rows that readers got from a stream that passes the input's rows on; late rows, which go another way,
    belong to them. `taken` is what the entry point says at the end. Either may be left out, not both.
    """

    name: str
    acknowledged: Mapping[str, Mapping[int, Sequence[Row]]]  # by publisher, by number: batches with a receipt
    found: Sequence[Row] | None = None
    taken: Mapping[str, int] | None = None  # by publisher: the number of the last batch that the entry point has
    approach: str = "none"  # of the entry point: amnesia only where all units of its diagram have it
    guarantee: str | None = None
    durable: bool = False
    node_died: bool = False  # that of the entry point, or of a unit that passes its rows on
    both_died: bool = False  # primary and backup at about the same time
    loss_known: bool = False  # readers heard of a gap, or the diagram was given up

    @property
    def may_lose(self) -> bool:
        """Whether what was acknowledged may be lost, since nothing better was promised for what happened."""
        if self.both_died and (self.guarantee == "gap" or self.approach == "amnesia" or self.loss_known):
            return True
        forgets = self.approach == "amnesia" or (self.approach == "none" and not self.durable)
        return forgets and self.node_died


def acked_and_lost(record: InputRecord) -> list[str]:
    """Batches that a publisher has a receipt for, and that are not in the input's stream."""
    if record.found is None and record.taken is None:
        return [f"unknown: nothing says what input {record.name} has"]
    if record.may_lose:
        return []
    lost: dict[tuple[str, int], str] = {}
    left = None if record.found is None else Counter(record.found)
    for publisher, batches in record.acknowledged.items():
        for number, rows in batches.items():
            if record.taken is not None and record.taken.get(publisher, -1) < number:
                lost[publisher, number] = "the entry point does not have it"
            if left is not None and (missing := _taken_out(left, rows)):
                lost[publisher, number] = f"{len(missing)} of {len(rows)} rows: {missing[:SHOWN]}"
    words = [f"batch {number} of {publisher} ({what})" for (publisher, number), what in list(lost.items())[:SHOWN]]
    return [f"input {record.name}: {len(lost)} batches acknowledged and lost: {', '.join(words)}"] if lost else []


def _taken_out(left: Counter[Row], rows: Sequence[Row]) -> list[Row]:
    """Take each row out once; those that were not there."""
    missing = []
    for row in rows:
        if left[row] > 0:
            left[row] -= 1
        else:
            missing.append(row)
    return missing


# -- two primaries


@dataclass(frozen=True)
class ServedSpan:
    """A node served tuples of a unit to readers from `start` to `stop`."""

    node: str
    diagram: str
    unit: str
    incarnation: int
    start: float
    stop: float
    epoch: str = ""  # of its streams: another life begins with the first incarnation again
    handed_over: bool = False  # it ended since the unit moved to another node, which keeps the incarnation


@dataclass(frozen=True)
class Fed:
    """A reader got tuples of a stream from a primary of this incarnation; in the order in which it got them."""

    reader: str
    stream: str
    epoch: str
    incarnation: int
    at: float


def two_primaries(served: Iterable[ServedSpan]) -> list[str]:
    """Incarnations that two nodes served: at one time, or one after the other without a handover."""
    each: dict[tuple[str, str, str, int], list[ServedSpan]] = {}
    for one in served:
        each.setdefault((one.diagram, one.unit, one.epoch, one.incarnation), []).append(one)
    faults = []
    for (diagram, unit, _, incarnation), some in each.items():
        for before, after in pairwise(sorted(some, key=lambda one: (one.start, one.stop))):
            if before.node == after.node or (before.handed_over and before.stop <= after.start):
                continue
            both = f"{_span(before)} and {_span(after)}"
            faults.append(f"{diagram}/{unit}: incarnation {incarnation} was served by {both}")
    return faults


def _span(one: ServedSpan) -> str:
    return f"{one.node} ({one.start:.3f} s to {one.stop:.3f} s)"


def deposed_heard(fed: Iterable[Fed]) -> list[str]:
    """Tuples that a reader got from a primary of a lower incarnation than it had tuples of, in the same epoch.

    An incarnation of 0 says nothing: the stream is not protected.
    """
    highest: dict[tuple[str, str, str], int] = {}
    faults = []
    for one in fed:
        key = one.reader, one.stream, one.epoch
        if 0 < one.incarnation < highest.get(key, 0):
            lower = f"incarnation {one.incarnation} behind {highest[key]}"
            faults.append(f"{one.reader} got tuples of {one.stream} from {lower} at {one.at:.3f} s")
        highest[key] = max(highest.get(key, 0), one.incarnation)
    return faults


# -- stable and tentative


@dataclass(frozen=True)
class Given:
    """A section, as a reader got it."""

    first: int
    stop: int
    fork: str = ""
    undo: bool = False
    done: bool = False
    bound: int = FIRST_TIME  # the boundary in force behind it
    life: int = 0  # ids of another mean nothing here
    connection: int = 0  # by which it came: by another, a fork may come again that was void for this reader alone

    @classmethod
    def of(cls, section: Section, life: int, connection: int) -> Given:
        told = section.undo, section.done, section.final
        return cls(section.first, section.stop, section.fork, *told, life, connection)


def inconsistent(sections: Iterable[Given], *, ended: bool) -> list[str]:
    """What a reader of tentative tuples should not have got: stable ones that are taken back or come again, tentative
    ones that are void, or ones that nobody corrects (DPC, properties 3 and 4); and that recovery was done, where it was
    not, or never, where it was."""
    stable, life, connection, fork, void = 0, 0, 0, "", set[str]()
    reached, owed = FIRST_TIME, None  # how far tentative tuples have come, and had when they were void
    early = ""  # what is wrong with a recovery that is done, unless the stream ends there
    faults = []
    for one in sections:
        if one.life != life:
            stable, life = one.first, one.life
        if one.connection != connection:
            connection, void = one.connection, set()
        if early and (one.bound, one.stop) != (LAST_TIME, one.first):
            faults.append(early)
        early = ""
        if one.undo:
            if one.first < stable:
                faults.append(f"tuples from {one.first} on were taken back, and stable up to {stable}")
            void, fork, owed = void | {fork}, "", reached
        elif one.done:
            if owed is None or fork:
                faults.append(f"recovery is done at {one.first}, and {f'fork {fork} stands' if fork else 'of nothing'}")
            elif one.bound < owed:
                early = f"recovery is done at {one.first}, {one.bound}: what was void had come to {owed}"
            owed = None
        elif one.fork:
            reached = one.bound
            if one.fork in void:
                faults.append(f"tentative tuples {one.first} to {one.stop} came of a fork that is void")
            if fork not in ("", one.fork):
                faults.append(f"tuples of fork {one.fork} came, and nobody said that those of {fork} are void")
            fork = one.fork
        else:
            if fork and one.stop > one.first:
                faults.append(f"stable tuples {one.first} to {one.stop} came, and nobody said that fork {fork} is void")
            if one.first < stable:
                faults.append(f"stable tuples {one.first} to {one.stop} came again")
            stable = max(stable, one.stop)
    if fork and ended:
        faults.append(f"it has ended, and nobody said that fork {fork} is void")
    if owed is not None and ended:
        faults.append("it has ended, and nobody said that recovery is done")
    return faults[:SHOWN]


# -- stuck


@dataclass(frozen=True)
class Guarded:
    """A unit or entry point that is promised protection, as a look at it shows it: its state, and why it is that."""

    name: str
    state: str
    why: str = ""
    since: float | None = None  # when it was protected again for good; None: it is not


@dataclass(frozen=True)
class AfterFaults:
    """What came behind the last fault of a run; moments are seconds of its clock."""

    healed: float  # the last fault was
    looked: float  # all below is as of then
    guarded: Sequence[Guarded] = ()
    flowing: Mapping[str, float | None] = field(default_factory=dict)  # by output: its first row published after that


def stuck(recovery: AfterFaults, protected_s: float, rows_s: float) -> list[str]:
    """What was not protected again, or gave nothing, within these seconds after the last fault healed.

    A look that came before the time was up does not know.
    """
    waited, faults = recovery.looked - recovery.healed, []
    for one in recovery.guarded:
        if one.state not in SAFE or one.since is None:
            state = f"{one.state} ({one.why})" if one.why else one.state
            faults.append(_never(f"{one.name} is not protected: it is {state}", waited, protected_s))
        elif one.since - recovery.healed > protected_s:
            faults.append(_late(f"{one.name} was protected again", one.since - recovery.healed, protected_s))
    for stream, at in recovery.flowing.items():
        if at is None:
            faults.append(_never(f"{stream} gave no row that was published since", waited, rows_s))
        elif at - recovery.healed > rows_s:
            faults.append(_late(f"{stream} gave a row again", at - recovery.healed, rows_s))
    return faults


def _never(what: str, waited_s: float, most_s: float) -> str:
    return f"{'unknown: ' if waited_s < most_s else ''}{waited_s:.1f} s after the last fault healed {what}"


def _late(what: str, took_s: float, most_s: float) -> str:
    return f"{what} only {took_s:.1f} s after the last fault healed; {most_s:.1f} s are allowed"
