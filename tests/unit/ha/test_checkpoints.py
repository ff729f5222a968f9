"""The machine of checkpoints that sweep, one event after the other."""

from __future__ import annotations

from borealis.entry.admission import Cursor
from borealis.ha.checkpoints import LATEST, SOONEST, Sweeping
from borealis.ha.primary import Want
from borealis.streams.readers import PASSING_S
from borealis.trains.commit_point import CommitPoint

INTERVAL_S = 0.5


def step(train: int, out: int) -> CommitPoint:
    return CommitPoint(train, 0, {"a": Cursor(train)}, {"o": (out, train)})


def known(*, holds: bool = False) -> Sweeping:
    """With a backup that has had the whole, at 0 s."""
    policy = Sweeping(INTERVAL_S, holds, holds, True, step(0, 0))
    policy.join()
    assert sent(policy, 0.0, 0).kind == "whole"
    return policy


def sent(policy: Sweeping, now: float, needed: int) -> Want:
    """What is due is answered."""
    want = policy.want(now, {"o": needed})
    assert want is not None
    policy.acknowledged(want.number)
    return want


def test_by_the_clock_where_readers_let_go_of_nothing_all_output_travels() -> None:
    policy = known()
    policy.committed(step(1, 10))
    assert policy.want(0.9 * INTERVAL_S, {"o": 0}) is None
    assert sent(policy, INTERVAL_S, 0).starts == {}


def test_when_readers_have_let_go_only_the_rest_travels() -> None:
    policy = known()
    policy.committed(step(1, 10))
    policy.trimmed()
    want = sent(policy, SOONEST * INTERVAL_S, 8)
    assert (want.kind, dict(want.starts)) == ("delta", {"o": 8})
    assert policy.want(1.4 * INTERVAL_S, {"o": 8}) is None
    assert policy.want((SOONEST + LATEST) * INTERVAL_S, {"o": 8}) is not None


def test_what_is_let_go_of_too_soon_causes_nothing() -> None:
    policy = known()
    policy.committed(step(1, 10))
    policy.trimmed()
    assert policy.want(0.4 * INTERVAL_S, {"o": 8}) is None
    assert policy.want(0.6 * INTERVAL_S, {"o": 8}) is None
    policy.trimmed()
    assert policy.want(1.0 * INTERVAL_S, {"o": 9}) is not None


def test_readers_that_let_go_all_the_time_cause_one_an_interval() -> None:
    policy = known()
    moments = []
    for tick in range(1, 100):
        policy.committed(step(tick, tick))
        policy.trimmed()
        now = tick * INTERVAL_S / 10
        if (want := policy.want(now, {"o": tick})) is not None:
            policy.acknowledged(want.number)
            moments.append(tick)
    assert moments == list(range(10, 100, 10))


def test_output_that_waits_for_a_checkpoint_does_not_wait_for_readers() -> None:
    policy = known(holds=True)
    policy.committed(step(1, 10))
    policy.trimmed()
    assert policy.want(0.1 * INTERVAL_S, {"o": 0}) is None
    assert policy.want(INTERVAL_S, {"o": 0}) is not None


def test_one_that_did_not_arrive_is_made_up_for_after_an_interval_with_what_it_had() -> None:
    policy = known()
    policy.committed(step(1, 10))
    policy.trimmed()
    assert policy.want(INTERVAL_S, {"o": 4}) is not None
    policy.failed()
    want = policy.want(2 * INTERVAL_S, {"o": 4})
    assert want is not None
    assert (want.since, dict(want.starts)) == (0, {"o": 4})


def test_a_reader_that_goes_back_is_seen_to_at_once() -> None:
    policy = known()
    policy.committed(step(1, 10))
    policy.trimmed()
    assert sent(policy, INTERVAL_S, 8).starts == {"o": 8}
    assert sent(policy, 1.01 * INTERVAL_S, 3).starts == {"o": 3}
    assert policy.want(1.02 * INTERVAL_S, {"o": 3}) is None


def test_what_a_passing_reader_was_given_travels_for_a_moment_yet() -> None:
    policy = known()
    policy.committed(step(1, 10))
    policy.pushed(0.1, {"o": 2})
    policy.pushed(0.4, {"o": 9})
    assert sent(policy, INTERVAL_S, 10).starts == {"o": 2}
    policy.committed(step(2, 20))
    policy.pushed(0.4 + PASSING_S, {"o": 19})
    assert sent(policy, 0.4 + PASSING_S, 20).starts == {}  # the backup has what is before 10, and gets the rest
