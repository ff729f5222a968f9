"""The matrix of failures: which approach, guarantee, diagram and victim; all of it, or a part that has every pair.

A round deploys both diagrams, each under a protection of its own, and strikes several times, one victim after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import cache, partial
from itertools import combinations, product

from shapes import GROUPS, text

from borealis.diagram.cut import cut
from borealis.diagram.model import Diagram
from borealis.diagram.protection import APPROACHES, GUARANTEES, protection_of
from borealis.errors import DiagramError
from borealis.ha.classes import classify
from borealis.ha.offers import refuse

# The last ones first: a node that was killed is ready again some seconds later, meanwhile others can strike.
VICTIMS = ("middle", "coordinator", "upstream", "pause", "last", "entry", "backup", "rejoin")
ROLES = {"entry": "node4", "u1": "node1", "u2": "node2", "u3": "node3"}
BACKUPS = {"u1": "node3", "u2": "node4", "u3": "node1"}
ANOTHER_DEPLOYMENT = 6  # pairs that must be new to be worth it

NEVER = -1000  # what nothing is worth

Pair = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Case:
    """One cell."""

    approach: str
    guarantee: str
    group: str
    victim: str

    @property
    def deployed(self) -> Deployed:
        """What is deployed for it."""
        return Deployed(self.approach, self.guarantee, self.group)


@dataclass(frozen=True)
class Deployed:
    """A diagram under a protection."""

    approach: str
    guarantee: str
    group: str

    @property
    def name(self) -> str:
        """As a diagram may be called."""
        return "_".join(astuple(self)).replace("-", "")

    @property
    def yaml(self) -> str:
        """The diagram's file."""
        return text(self.group, self.name, self.approach, self.guarantee)

    @property
    def places(self) -> dict[str, str]:
        """Inputs and boxes to nodes."""
        found = dict.fromkeys(GROUPS[self.group].inputs, ROLES["entry"])
        units = zip(("u1", "u2", "u3"), GROUPS[self.group].units, strict=True)
        return found | {box: ROLES[unit] for unit, boxes in units for box in boxes}


Strike = tuple[Case, ...]  # one failure that hits a case of each diagram


@cache
def possible(deployed: Deployed) -> bool:
    """Whether it is not refused."""
    spec = Diagram.from_yaml(deployed.yaml).spec
    try:
        for piece in cut(spec, (), deployed.places):
            refuse(protection_of(spec, piece.boxes), classify(spec, piece))
    except DiagramError:
        return False
    return True


def whole() -> list[Case]:
    """All cells that are possible."""
    approaches = [a for a in APPROACHES if a != "none"]
    cells = (Case(*levels) for levels in product(approaches, GUARANTEES, GROUPS, VICTIMS))
    return [case for case in cells if possible(case.deployed)]


def pairs(case: Case) -> set[Pair]:
    """The pairs of levels of two factors in a case."""
    return set(combinations(enumerate(astuple(case)), 2))


def strikes(cases: Sequence[Case]) -> list[Strike]:
    """All ways to hit a case of each diagram at once."""
    each = [[case for case in cases if case.group == group] for group in GROUPS]
    return [found for found in product(*each) if len({case.victim for case in found}) == 1]


def straight(cases: Sequence[Case]) -> list[Strike]:
    """Every case once: both diagrams under the same protection."""
    return [s for s in strikes(cases) if len({(case.approach, case.guarantee) for case in s}) == 1]


def cover(cases: Sequence[Case]) -> list[Strike]:
    """Few strikes that have every pair: each time the one that is worth most."""
    missing = {pair for case in cases for pair in pairs(case)}
    candidates, used = strikes(cases), set[tuple[Deployed, ...]]()
    found = []
    while missing:
        best = max(candidates, key=partial(_worth, missing=frozenset(missing), used=frozenset(used)))
        found.append(best)
        used.add(tuple(case.deployed for case in best))
        missing -= {pair for case in best for pair in pairs(case)}
    return found


def _worth(strike: Strike, missing: frozenset[Pair], used: frozenset[tuple[Deployed, ...]]) -> tuple[int, int]:
    """New pairs count, less so where something else must be deployed for them; then what is promised."""
    new = len({pair for case in strike for pair in pairs(case)} & missing)
    cost = 0 if tuple(case.deployed for case in strike) in used else ANOTHER_DEPLOYMENT
    return (new - cost if new else NEVER), sum(GUARANTEES.index(case.guarantee) for case in strike)


def rounds(found: Iterable[Strike]) -> list[tuple[Strike, ...]]:
    """Strikes at the same deployments, in the order of VICTIMS."""
    same: dict[tuple[Deployed, ...], list[Strike]] = {}
    for strike in found:
        same.setdefault(tuple(case.deployed for case in strike), []).append(strike)
    return [tuple(sorted(one, key=lambda s: VICTIMS.index(s[0].victim))) for one in same.values()]
