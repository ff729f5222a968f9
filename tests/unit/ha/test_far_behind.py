"""A checkpoint that is due since its backup would have to read too much again."""

from __future__ import annotations

import pytest

from borealis.diagram.protection import Protection
from borealis.errors import DiagramError
from borealis.ha.primary import Passive
from borealis.trains.commit_point import CommitPoint


def step(train: int, rows: int) -> CommitPoint:
    return CommitPoint(train, 0, {}, {}, rows=rows)


def test_it_comes_before_its_time() -> None:
    policy = Passive(10.0, False, False, True, step(0, 0), rows_most=100)
    policy.join()
    whole = policy.want(0.0, {})
    assert whole is not None
    policy.acknowledged(whole.number)
    policy.committed(step(1, 99))
    assert policy.want(1.0, {}) is None
    assert not policy.urgent
    policy.committed(step(2, 100))
    assert policy.urgent
    early = policy.want(1.0, {})
    assert early is not None
    assert (early.kind, early.since, early.step.train) == ("delta", 0, 2)
    policy.acknowledged(early.number)
    policy.committed(step(3, 199))
    assert policy.want(1.1, {}) is None, "rows count from the last checkpoint"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"ha": "passive", "extent": 2}, "'extent' makes no sense with 'passive'"),
        ({"ha": "storage", "extent": 0.1}, "an extent of 0.1 bases"),
        ({"ha": "active", "replay": 10}, "'replay' makes no sense with 'active'"),
        ({"ha": "storage", "replay": 0}, "'replay' of 0 rows"),
        ({"ha": "storage", "base_period": "0 ms"}, "'base_period' must be more than zero"),
        ({"ha": "storage", "checkpoint": "sweeping"}, "makes no sense with 'storage'"),
    ],
)
def test_what_makes_no_sense_is_refused(how: dict[str, object], words: str) -> None:
    with pytest.raises(DiagramError, match=words):
        Protection(**how)
