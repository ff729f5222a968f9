"""The primary's machines, one event after the other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from borealis.entry.admission import Cursor
from borealis.ha.primary import (
    CLIENT_S,
    FEW_TRAINS,
    NONE,
    OPEN_ROUNDS_MOST,
    Active,
    Amnesia,
    Effects,
    Passive,
    Primary,
    Upstream,
    Want,
)
from borealis.trains.commit_point import CommitPoint

INTERVAL_S = 0.5


def step(
    train: int, *, read: int | None = None, out: int | None = None, newest: int = 0, silent: bool = False
) -> CommitPoint:
    """A train after which so much was read and written."""
    read, out = 10 * train if read is None else read, train if out is None else out
    order = (("a", read, train), ("b", read, train))
    inputs = {name: Cursor(read, newest or train, train) for name in "ab"}
    return CommitPoint(train, 0, inputs, {"o": (out, train)}, order, float(train), silent)


def passive(*, precise: bool = True) -> Passive:
    return Passive(INTERVAL_S, True, True, precise, step(0))


def upstream(**more: object) -> Upstream:
    def needed(outputs: Mapping[str, int]) -> dict[str, int | None]:
        return dict.fromkeys("ab", outputs["o"] - 3)

    return Upstream(INTERVAL_S, True, True, True, step(0), needed=needed, **more)  # type: ignore[arg-type]


def known(policy: Primary) -> Primary:
    """With a backup that has had the whole."""
    policy.join()
    assert sent(policy).kind == "whole"
    return policy


def due(policy: Primary) -> Want:
    """The message that is due."""
    want = policy.want(0.0, {})
    assert want is not None
    return want


def sent(policy: Primary) -> Want:
    """The same, and it has been answered."""
    want = due(policy)
    policy.acknowledged(want.number)
    return want


def test_without_a_backup_inputs_go_as_trains_are_committed() -> None:
    assert passive().committed(step(1)) == Effects({"a": 10, "b": 10}, open=True)
    assert passive().want(9.0, {}) is None


def test_with_a_backup_inputs_wait_for_its_answer() -> None:
    policy = known(passive())
    assert policy.committed(step(1)) == NONE
    assert policy.want(0.1, {}) is None  # not due yet
    want = policy.want(0.6, {})
    assert want is not None
    assert (want.kind, want.since, want.step.train) == ("delta", 0, 1)
    assert policy.want(9.0, {}) is None  # one at a time
    assert policy.acknowledged(want.number) == Effects({"a": 10, "b": 10}, {"o": (1, 1)})


@pytest.mark.parametrize("stale", [0, -1, 1])
def test_an_answer_to_another_message_means_nothing(stale: int) -> None:
    policy = known(passive())
    policy.committed(step(1))
    want = policy.want(0.6, {})
    assert want is not None
    policy.failed()
    again = policy.want(1.2, {})
    assert again is not None
    assert again.since == 0  # what may not have come goes again
    assert policy.acknowledged(want.number + 2 * stale) == NONE
    assert policy.acknowledged(again.number) != NONE
    assert policy.acknowledged(again.number) == NONE  # twice


def test_a_backup_that_lost_the_thread_gets_the_whole() -> None:
    policy = known(passive())
    policy.committed(step(1))
    policy.want(0.6, {})
    policy.rejected()
    want = policy.want(0.6, {})
    assert want is not None
    assert want.kind == "whole"


def test_desertion_opens_everything_and_forgets_what_was_under_way() -> None:
    policy = known(passive())
    policy.committed(step(1))
    want = policy.want(0.6, {})
    assert want is not None
    assert policy.remove_backup() == Effects({"a": 10, "b": 10}, open=True)
    assert policy.acknowledged(want.number) == NONE
    assert not policy.holding


def test_only_precise_and_arbitrary_units_hold_output() -> None:
    assert not known(passive(precise=False)).holding
    assert not known(Passive(INTERVAL_S, False, False, True, step(0))).holding
    assert known(passive()).holding
    assert not known(Amnesia(INTERVAL_S, True, True, True, step(0))).holding


@pytest.mark.parametrize("approach", [Passive, Active, Upstream])
def test_output_is_held_only_when_a_fresh_backup_has_nearly_all(approach: type[Primary]) -> None:
    """The whole may take long. Before the backup can go on where readers are, one message more says so."""
    policy = approach(INTERVAL_S, True, True, True, step(0))
    assert policy.join(fresh=True) == NONE
    messages: list[Want] = []
    for news in (FEW_TRAINS + 1, FEW_TRAINS):
        messages.append(due(policy))
        for _ in range(news):
            policy.committed(step(policy.last.train + 1))
        assert not policy.holding
        assert policy.acknowledged(messages[-1].number) == Effects(hold=news == FEW_TRAINS)
    assert policy.holding
    messages.append(due(policy))
    assert not policy.known
    last = policy.last.train
    policy.committed(step(last + 1))
    assert policy.acknowledged(messages[-1].number).release == {"o": (last, last)}
    assert policy.known
    assert [one.kind == "whole" for one in messages] == [True, False, False]
    assert [one.complete for one in messages] == [False, False, True]
    assert [(one.since, one.step.train) for one in messages] == [(0, 0), (0, 3), (3, 5)]


def test_a_backup_that_never_comes_near_is_waited_for_in_the_end() -> None:
    policy = passive()
    policy.join(fresh=True)
    for number in range(1, OPEN_ROUNDS_MOST + 1):
        assert not policy.holding
        want = due(policy)
        for _ in range(2 * FEW_TRAINS):
            policy.committed(step(policy.last.train + 1))
        policy.acknowledged(want.number)
        assert want.number == number
    assert policy.holding


def test_where_nothing_came_meanwhile_output_is_held_behind_the_whole() -> None:
    policy = passive()
    policy.join(fresh=True)
    assert not sent(policy).complete
    assert policy.holding
    assert sent(policy).complete
    assert policy.known


def test_a_backup_that_may_know_of_an_earlier_run_gets_all_before_any_reader() -> None:
    policy = passive()
    assert policy.join() == Effects(hold=True)
    assert policy.holding
    assert sent(policy).complete
    assert policy.known


def test_a_backup_that_lost_the_thread_may_still_take_over_and_output_stays_held() -> None:
    policy = known(passive())
    policy.committed(step(1))
    policy.rejected()
    assert policy.holding
    want = policy.want(0.0, {})
    assert want is not None
    assert (want.kind, want.complete) == ("whole", True)


def test_active_sends_orders_at_once_and_acknowledges_for_itself() -> None:
    policy = known(Active(INTERVAL_S, True, True, True, step(0)))
    assert policy.committed(step(1)) == Effects({"a": 10, "b": 10})  # its backup reads under a name of its own
    want = policy.want(0.01, {})
    assert want is not None  # output waits for it
    assert want.orders == ((1, step(1).order),)
    assert policy.acknowledged(want.number).release == {"o": (1, 1)}
    assert not policy._steps


def test_active_acknowledges_nothing_before_the_backup_is_known() -> None:
    policy = Active(INTERVAL_S, True, True, True, step(0))
    policy.join()
    assert policy.committed(step(1)) == NONE


def test_upstream_keeps_what_windows_need_and_what_readers_lack() -> None:
    policy = upstream()
    known(policy)
    for train in range(1, 11):
        policy.committed(step(train))
    want = policy.want(1.0, {"o": 8})
    assert want is not None
    assert want.start is not None
    assert want.done is not None
    assert (want.done.train, want.start.train) == (8, 5)  # newest 5 <= 8 - 3
    assert [train for train, _ in want.orders] == list(range(1, 11))
    assert policy.acknowledged(want.number).ack == {"a": 50, "b": 50}
    assert [s.train for s in policy._steps] == [6, 7, 8, 9, 10]


def test_amnesia_that_doubts_gives_nothing_before_its_backup_answers() -> None:
    policy = known(Amnesia(INTERVAL_S, False, False, False, step(0), doubts=False))
    assert policy.holding
    assert policy.committed(step(1)) == Effects(step(1).positions(), step(1).outputs)
    policy.doubt()
    assert policy.committed(step(2)) == Effects(step(2).positions())
    want = policy.want(1.0, {})
    assert want is not None
    policy.committed(step(3))
    assert policy.acknowledged(want.number) == Effects(step(2).positions(), step(3).outputs)
    assert policy.want(1.0, {}) is None
    policy.doubt()
    assert policy.remove_backup().open
    assert policy.committed(step(4)).open


def test_upstream_that_moved_has_delivered_no_more_than_before() -> None:
    """What readers lack is on its new node alone; what was given before a takeover is not given again."""
    old = upstream(until={"a": (15, 2)})
    for train in range(1, 11):
        old.committed(step(train, out=0 if train < 4 else train, silent=train < 4))
    policy = upstream()
    policy.adopt([CommitPoint.from_json(one.to_json()) for one in old.retained()])
    assert policy._done(1.0, {"o": 0}).train == 3
    assert policy._done(1.0, {"o": 8}).train == 8


def test_upstream_gives_clients_a_moment() -> None:
    policy = upstream(clients=True)
    for train in (1, 2):
        policy.committed(step(train))
    assert policy._done(1.0 + CLIENT_S, {}).train == 1
    assert policy._done(2.0 + CLIENT_S, {}).train == 2


def test_upstream_offers_nothing_to_go_on_from_while_it_is_rebuilt() -> None:
    policy = upstream(until={"a": (15, 2)})
    policy.join()
    policy.committed(step(1, out=0, silent=True))
    assert policy.want(1.0, {}) is None
    policy.committed(step(2, out=1))
    want = policy.want(1.0, {"o": 0})
    assert want is not None
    assert want.done is not None
    assert want.done.train == 1  # the end of the silence, never its midst


def test_who_follows_the_order_of_another_takes_no_backup_before_it_is_done() -> None:
    policy = Active(INTERVAL_S, True, True, True, step(0), until={"a": (20, 2), "b": (20, 2)})
    policy.join()
    policy.committed(step(1))
    assert policy.want(1.0, {}) is None
    policy.committed(step(2))
    assert policy.want(1.0, {}) is not None
