"""What each approach gives, and which combinations are refused."""

from __future__ import annotations

import pytest

from borealis.diagram.boxes.base import CLASSES
from borealis.diagram.protection import Protection
from borealis.errors import DiagramError
from borealis.ha.classes import Classified
from borealis.ha.guarantees import check_guarantee, recovery_of, recovery_type


def asked(approach: str, guarantee: str | None = None) -> Protection:
    return Protection(ha=approach, guarantee=guarantee)


def unit(kind: str, **more: object) -> Classified:
    return Classified(kind, {"box": (kind, "because")}, **({"retention": {"a": 5}} | more))  # type: ignore[arg-type]


def test_hwangs_table() -> None:
    rows = {a: [recovery_type(a, kind) for kind in CLASSES] for a in ("passive", "upstream-backup", "active")}
    assert rows == {
        "passive": ["repeating", "repeating", "repeating", "divergent"],
        "upstream-backup": ["repeating", "convergent", "divergent", "divergent"],
        "active": ["repeating", "repeating", "repeating", "divergent"],
    }
    assert {recovery_type("amnesia", kind) for kind in CLASSES} == {"gap"}


@pytest.mark.parametrize(
    ("approach", "guarantee", "kind", "recovery", "how"),
    [
        ("amnesia", "gap", "repeatable", "gap", "ids jump"),
        ("passive", "precise", "deterministic", "precise", "the id it wants next"),
        ("active", "precise", "repeatable", "precise", "the id it wants next"),
        ("upstream-backup", "precise", "convergent-capable", "precise", "from what upstream kept"),
        ("passive", "precise", "arbitrary", "precise", "held until the backup has the checkpoint"),
        ("active", "precise", "arbitrary", "precise", "merge order"),
        ("upstream-backup", "precise", "arbitrary", "precise", "merge order"),
        ("passive", "no-loss", "repeatable", "repeating", "readers see precise"),
        ("upstream-backup", "no-loss", "convergent-capable", "convergent", "readers see precise"),
        ("upstream-backup", "no-loss", "deterministic", "divergent", "ids jump"),
        ("active", "no-loss", "arbitrary", "divergent", "ids jump"),
        ("passive", "gap", "arbitrary", "gap", "as a rule it is divergent"),
    ],
)
def test_what_is_given(approach: str, guarantee: str, kind: str, recovery: str, how: str) -> None:
    check_guarantee(asked(approach, guarantee), unit(kind))
    offer = recovery_of(asked(approach, guarantee), unit(kind))
    assert offer.kind == recovery
    assert how in offer.how


def test_without_protection_nothing_is_given() -> None:
    for nothing in (None, asked("none")):
        check_guarantee(nothing, unit("arbitrary"))
        assert recovery_of(nothing, unit("arbitrary")).kind == "none"


def test_a_unit_without_state_is_not_built_again() -> None:
    offer = recovery_of(asked("upstream-backup"), unit("repeatable", retention={"a": 0}))
    assert "built again" not in offer.how


@pytest.mark.parametrize(
    ("protection", "classified", "says"),
    [
        (asked("amnesia", "no-loss"), unit("repeatable"), "amnesia cannot give 'no-loss': it forgets all state"),
        (asked("amnesia", "precise"), unit("repeatable"), "amnesia cannot give 'precise'"),
        (asked("none", "gap"), unit("repeatable"), "'gap' without an approach"),
        (asked("upstream-backup", "precise"), unit("deterministic"), "'box' cannot be built again exactly"),
        (
            asked("upstream-backup", "no-loss"),
            unit("convergent-capable", retention={"a": 5, "a.late": None}),
            "all that ever came from a.late",
        ),
        (asked("upstream-backup", "precise"), unit("arbitrary", retention={"a": None}), "all that ever came from a,"),
        (
            asked("passive", "precise"),
            unit("arbitrary", unsafe_effects=("box",)),
            "'box' may have written what its backup",
        ),
        (
            asked("active", "precise"),
            unit("arbitrary", random_boxes=("box",)),
            "compute the same again: 'box' (because)",
        ),
        (asked("upstream-backup", "precise"), unit("arbitrary", random_boxes=("box",)), "compute the same again"),
    ],
)
def test_what_cannot_be_given_is_refused(protection: Protection, classified: Classified, says: str) -> None:
    with pytest.raises(DiagramError) as e:
        check_guarantee(protection, classified)
    assert says in e.value.message
    assert e.value.hint
    assert "\n" not in str(e.value)


def test_what_can_be_given_after_all() -> None:
    check_guarantee(asked("upstream-backup", "gap"), unit("convergent-capable", retention={"a": None}))
    check_guarantee(asked("upstream-backup", "no-loss"), unit("deterministic"))
    check_guarantee(asked("passive", "precise"), unit("arbitrary", random_boxes=("box",), retention={"a": None}))
    check_guarantee(asked("active", "no-loss"), unit("arbitrary", random_boxes=("box",)))
