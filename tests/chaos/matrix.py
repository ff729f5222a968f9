"""The matrix of failures: approach, guarantee, diagram, when to checkpoint, and victim; all of it, or each victim with
each other level. The few strikes of the brief form sweep, or checkpoint in turns, where the cover goes by the clock.

A round deploys both diagrams, each under a protection of its own, and strikes several times, one victim after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from itertools import product

from databases import database_of

from borealis.diagram.cut import cut
from borealis.diagram.model import Diagram
from borealis.diagram.protection import APPROACHES, CHECKPOINTS, GUARANTEES, TIMED, protection_of
from borealis.errors import DiagramError
from borealis.ha.classes import classify
from borealis.ha.guarantees import check_guarantee
from borealis.sim.shapes import ALL_GROUPS, BOXES, GROUPS, text

# One blow may hit several: the backup of the second unit is on the node of the first, and whoever comes back must have
# died before. In the order of a round: what leaves least behind comes last.
BLOWS = {
    "upstream": ("upstream", "backup"),
    "entry": ("entry",),
    "coordinator": ("coordinator",),
    "pause": ("pause",),
    "last": ("last",),
    "rejoin": ("middle", "rejoin"),
}
VICTIMS = [victim for hit in BLOWS.values() for victim in hit]
ROLES = {"entry": "node4", "u1": "node1", "u2": "node2", "u3": "node3"}
BACKUPS = {"u1": "node3", "u2": "node1", "u3": "node4"}
AT_FIRST = ("upstream", "entry", "coordinator", "pause")  # blows of the brief form at the first deployments
ANOTHER_DEPLOYMENT = 2  # pairs that must be new to be worth it

NEVER = -1000  # what nothing is worth

Pair = tuple[str, str]


# replicas are an active standby that is open: tests/cluster/test_chains.py kills them; test_storage.py the others
KILLED = [approach for approach in APPROACHES if approach not in ("none", "replicas", "storage")]


@dataclass(frozen=True)
class Case:
    """One cell."""

    approach: str
    guarantee: str
    group: str
    checkpoint: str
    victim: str

    @property
    def deployed(self) -> Deployed:
        """What is deployed for it."""
        return Deployed(self.approach, self.guarantee, self.group, self.checkpoint)


@dataclass(frozen=True)
class Deployed:
    """A diagram under a protection."""

    approach: str
    guarantee: str
    group: str
    checkpoint: str = "interval"

    @property
    def name(self) -> str:
        """As a diagram may be called."""
        parts = [part for part in astuple(self) if part != "interval"]
        return "_".join(parts).replace("-", "")

    @property
    def yaml(self) -> str:
        """The diagram's file."""
        more = ", merge: time" if self == BY_TIME else ""
        more += f", checkpoint: {self.checkpoint}" if self.approach in TIMED else ""
        protection = f"{{ha: {self.approach}, guarantee: {self.guarantee}, patience: 3 seconds{more}}}"
        return text(ALL_GROUPS[self.group], self.name, protection, database_of(self.name))

    @property
    def places(self) -> dict[str, str]:
        """Inputs and boxes to nodes."""
        found = dict.fromkeys(ALL_GROUPS[self.group].inputs, ROLES["entry"])
        return found | {box: ROLES[unit] for unit, boxes in self.units.items() for box in boxes}

    @property
    def backups(self) -> dict[str, str]:
        """Units to the nodes of their backups."""
        return {unit: BACKUPS[unit] for unit in self.units}

    @property
    def units(self) -> dict[str, tuple[str, ...]]:
        """Units and their boxes."""
        return dict(zip(("u1", "u2", "u3"), ALL_GROUPS[self.group].units, strict=False))


CORRECTED = Deployed("passive", "precise", "corrected")
IN_TURNS = Deployed("passive", "precise", "all", "min-max")
BY_TIME = Deployed("active", "precise", "merging")  # the order of its streams need not be told


@dataclass(frozen=True)
class Strike:
    """One blow at several diagrams at once."""

    blow: str
    diagrams: tuple[Deployed, ...]

    @property
    def cases(self) -> list[Case]:
        """The cells it is."""
        return [Case(*astuple(one), victim) for one in self.diagrams for victim in BLOWS[self.blow]]


@cache
def possible(deployed: Deployed) -> bool:
    """Whether it is not refused."""
    if deployed.checkpoint != "interval" and deployed.approach not in TIMED:
        return False
    spec = Diagram.from_yaml(deployed.yaml).spec
    try:
        for piece in cut(spec, (), deployed.places):
            protection = protection_of(spec, piece.boxes)
            check_guarantee(protection, classify(spec, piece, protection))
    except DiagramError:
        return False
    return True


def whole() -> list[Case]:
    """All cells that are possible."""
    cells = (Case(*levels) for levels in product(KILLED, GUARANTEES, GROUPS, CHECKPOINTS, VICTIMS))
    return [case for case in cells if possible(case.deployed)]


def by_the_clock(cases: Iterable[Case]) -> list[Case]:
    """Those that do not say when to checkpoint."""
    return [case for case in cases if case.checkpoint == "interval"]


def box_strike() -> Strike:
    """Boxes that the matrix does not have: the node of their only unit dies, under each approach at its best.

    All boxes share a unit; those that an approach can recover better have one of their own under it; so do corrections.
    """
    found: dict[tuple[str, str], Deployed] = {}
    for approach, group in product(KILLED, BOXES):
        best = next(one for g in reversed(GUARANTEES) if possible(one := Deployed(approach, g, group)))
        found.setdefault((approach, best.guarantee), best)
    return Strike("upstream", (*found.values(), CORRECTED))


def other_checkpoints() -> Strike:
    """All boxes again, in units that do not checkpoint by the clock."""
    return Strike("upstream", tuple(replace(IN_TURNS, checkpoint=when) for when in CHECKPOINTS if when != "interval"))


def brief_boxes(strike: Strike) -> Strike:
    """Each approach at its best, but for active: a standby that computes all the time does whatever boxes do.

    The passive one checkpoints in turns.
    """
    others = [one for one in strike.diagrams if one is not CORRECTED]
    best = {one.approach: one for one in sorted(others, key=lambda d: GUARANTEES.index(d.guarantee))}
    few = [one for one in strike.diagrams if one is CORRECTED or (one in best.values() and one.approach != "active")]
    usual = replace(IN_TURNS, checkpoint="interval")
    return Strike(strike.blow, tuple(IN_TURNS if one == usual else one for one in few))


def pairs(case: Case) -> set[Pair]:
    """The victim with each of the other levels in a case."""
    return {(level, case.victim) for level in astuple(case.deployed)}


def strikes(cases: Iterable[Case]) -> list[Strike]:
    """All blows at all combinations of diagrams, one of each group."""
    deployed = list(dict.fromkeys(case.deployed for case in cases))
    each = [[one for one in deployed if one.group == group] for group in GROUPS]
    return [Strike(blow, found) for found in product(*each) for blow in BLOWS]


def straight(cases: Iterable[Case]) -> list[Strike]:
    """Every case once: both diagrams under the same protection."""
    return [s for s in strikes(cases) if len({replace(one, group="") for one in s.diagrams}) == 1]


def cover(cases: Sequence[Case]) -> list[Strike]:
    """Few strikes that have every pair with a victim: each time the one that is worth most."""
    missing = {pair for case in cases for pair in pairs(case)}
    candidates, used = strikes(cases), set[tuple[Deployed, ...]]()
    found = []
    while missing:
        best = max(candidates, key=partial(_worth, missing=frozenset(missing), used=frozenset(used)))
        found.append(best)
        used.add(best.diagrams)
        missing -= {pair for case in best.cases for pair in pairs(case)}
    return found


def _worth(strike: Strike, missing: frozenset[Pair], used: frozenset[tuple[Deployed, ...]]) -> tuple[int, int]:
    """New pairs count, less so where something else must be deployed for them; then what is promised."""
    new = len({pair for case in strike.cases for pair in pairs(case)} & missing)
    cost = 0 if strike.diagrams in used else ANOTHER_DEPLOYMENT
    return (new - cost if new else NEVER), sum(GUARANTEES.index(one.guarantee) for one in strike.diagrams)


def brief(found: Sequence[tuple[Strike, ...]]) -> list[tuple[Strike, ...]]:
    """Every blow once, at first where passive standbys sweep.

    Behind `rejoin` loss may be excused: it is for the others, without any that may lose anyway.
    """
    first, *others = found
    usual = first[0].diagrams
    swept = tuple(replace(one, checkpoint="sweeping") if one.approach == "passive" else one for one in usual)
    few = [tuple(Strike(strike.blow, swept) for strike in first if strike.blow in AT_FIRST)]
    for one in others:
        diagrams = tuple(deployed for deployed in one[0].diagrams if deployed.guarantee != "gap")
        few.append(tuple(Strike(strike.blow, diagrams) for strike in one if strike.blow not in AT_FIRST))
    return few


def rounds(found: Iterable[Strike]) -> list[tuple[Strike, ...]]:
    """Strikes at the same deployments, in the order of BLOWS."""
    same: dict[tuple[Deployed, ...], list[Strike]] = {}
    for strike in found:
        same.setdefault(strike.diagrams, []).append(strike)
    return [tuple(sorted(one, key=lambda s: list(BLOWS).index(s.blow))) for one in same.values()]
