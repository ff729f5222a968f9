"""The matrix of failures: which approach, guarantee, diagram and victim; all of it, or a part that has every pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from itertools import combinations, product

from shapes import CUTS, SHAPES, text

from borealis.diagram.cut import cut
from borealis.diagram.model import Diagram
from borealis.diagram.protection import APPROACHES, GUARANTEES, protection_of
from borealis.errors import DiagramError
from borealis.ha.classes import classify
from borealis.ha.offers import refuse

VICTIMS = ("upstream", "middle", "last", "entry", "coordinator", "backup", "rejoin", "pause")
FACTORS = (tuple(a for a in APPROACHES if a != "none"), GUARANTEES, tuple(SHAPES), VICTIMS)

# Whatever is to die is on node4, and nothing else is.
VICTIM = "node4"
PLACES = {"entry": "node1", "upstream": "node2", "middle": "node3", "last": "node1"}
BACKUPS = {"upstream": "node3", "middle": "node1", "last": "node2"}
BOXES = {"upstream": "first", "middle": "second", "last": "third"}
HITS = {"rejoin": "middle", "pause": "middle"}  # where they strike


@dataclass(frozen=True)
class Case:
    """One cell."""

    approach: str
    guarantee: str
    shape: str
    victim: str

    @property
    def name(self) -> str:
        """As a diagram may be called."""
        return "_".join(astuple(self)).replace("-", "")

    @property
    def yaml(self) -> str:
        """The diagram's file."""
        return text(self.shape, self.name, self.approach, self.guarantee)

    @property
    def places(self) -> dict[str, str]:
        """Inputs and boxes to nodes."""
        roles = PLACES | ({self._hit: VICTIM} if self._hit in PLACES else {})
        found = dict.fromkeys(SHAPES[self.shape].inputs, roles["entry"])
        return found | {box: roles[role] for role, box in BOXES.items()}

    @property
    def backups(self) -> dict[str, str]:
        """Units to nodes."""
        nodes = [VICTIM if self.victim == "backup" else node for node in BACKUPS.values()]
        return {f"u{number}": node for number, node in enumerate(nodes, 1)}

    @property
    def struck(self) -> str | None:
        """The unit whose primary dies or pauses."""
        return f"u{list(BOXES).index(self._hit) + 1}" if self._hit in BOXES else None

    @property
    def _hit(self) -> str:
        return HITS.get(self.victim, self.victim)


@cache
def possible(case: Case) -> bool:
    """Whether a deployment of it is not refused."""
    spec = Diagram.from_yaml(case.yaml).spec
    try:
        for piece in cut(spec, CUTS):
            refuse(protection_of(spec, piece.boxes), classify(spec, piece))
    except DiagramError:
        return False
    return True


def whole() -> list[Case]:
    """All cells that are possible."""
    return [case for case in (Case(*levels) for levels in product(*FACTORS)) if possible(case)]


def pairs(case: Case) -> set[tuple[tuple[int, str], ...]]:
    """The pairs of levels of two factors in a case."""
    return set(combinations(enumerate(astuple(case)), 2))


def cover(cases: Sequence[Case]) -> list[Case]:
    """Few cases that have every pair that all have: each time one with most new ones, of those that promise most."""
    missing = {pair for case in cases for pair in pairs(case)}
    used: Counter[str] = Counter()
    found = []
    while missing:
        best = max(cases, key=lambda c: (len(pairs(c) & missing), GUARANTEES.index(c.guarantee), -used[c.approach]))
        found.append(best)
        used[best.approach] += 1
        missing -= pairs(best)
    return found


def rounds(cases: Iterable[Case], most: int) -> list[tuple[Case, ...]]:
    """Cases that can share one failure: the same victim, each cell once, at most so many at a time."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.victim, []).append(case)
    return [tuple(same[i : i + most]) for same in found.values() for i in range(0, len(same), most)]
