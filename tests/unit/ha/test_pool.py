"""The pool of started queries, as a pure machine: what is in it, who gets one, and when it is filled."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from borealis.ha.pool import AT_ONCE, SOON, End, Fit, Pool, PoolTimings, Start, Taken, UnitKey, in_order

T = PoolTimings()
A, B, C = ("d", "a"), ("d", "b"), ("d", "c")


def filled(size: int, *images: UnitKey, lanes: int = 1) -> tuple[Pool, list[int]]:
    """A pool that is full and has tried everything on, and its queries; it is ten seconds past zero."""
    pool, numbers = Pool(size), []
    for image in images:
        pool.add(image, lanes, 0.0)
    while (work := pool.next(10.0)) is not None:
        if isinstance(work, Start):
            numbers.append(work.number)
            assert pool.started(work.number, 10.0) == []
        elif isinstance(work, Fit):
            assert pool.fitted(work.number, work.image, 10.0) == []
    return pool, numbers


def test_a_pool_without_images_is_empty() -> None:
    pool = Pool(2)
    assert pool.next(0.0) is None
    assert pool.wait_s(0.0) is None
    assert pool.wanted() == {}


def test_it_has_as_many_as_it_shall_but_no_more_than_images() -> None:
    assert filled(3, A)[0].ready == 1
    assert filled(1, A, B, C)[0].ready == 1
    assert filled(2, A, B, C)[0].ready == 2
    pool, _ = filled(0, A, B)
    assert (pool.ready, pool.images, pool.next(99.0)) == (0, 2, None)


def test_each_image_is_tried_on_twice_at_once_and_then_now_and_then() -> None:
    pool, [one] = filled(1, A, B)
    assert [pool.fittings(image) for image in (A, B, C)] == [AT_ONCE, AT_ONCE, None]
    assert pool.wait_s(10.0) == T.fit_soon_s
    when, now = [], 10.0
    while len(when) < 4:
        now += pool.wait_s(now) or 0.0
        work = pool.next(now)
        assert work == Fit(one, work.image if isinstance(work, Fit) else A)
        pool.fitted(one, work.image, now)
        when.append(round(now - 10.0, 3))
    assert when == [T.fit_soon_s] * 2 + [2 * T.fit_soon_s] * 2
    assert pool.fittings(A) == SOON
    assert pool.wait_s(now) == T.fit_s


def test_who_asks_gets_what_is_ready_and_the_pool_is_filled_a_little_later() -> None:
    pool, [one] = filled(1, A, B)
    assert pool.ask(A, 1, 0, 10.0) == [(A, one)]
    assert (pool.ready, pool.given, pool.images) == (0, 1, 1)
    assert pool.next(10.0) is None  # who took over has the cores for itself
    assert pool.wait_s(10.0) == T.refill_s
    assert isinstance(pool.next(10.0 + T.refill_s), Start)


def test_who_waits_is_served_by_rank_and_before_the_pool() -> None:
    pool, [one] = filled(1, A, B, C)
    assert pool.ask(A, 1, 0, 10.0) == [(A, one)]
    assert pool.ask(B, 1, 2, 10.0) == []
    assert pool.ask(C, 1, 1, 10.0) == []
    for who in (C, B):
        start = pool.next(10.0)  # at once
        assert isinstance(start, Start)
        assert pool.started(start.number, 10.0) == [(who, start.number)]
    assert pool.next(99.0) is None  # no image is left
    assert (pool.given, pool.missed) == (3, 2)


def test_who_waits_no_more_gets_nothing() -> None:
    pool = Pool(1)
    assert pool.ask(A, 1, 0, 0.0) == []
    start = pool.next(0.0)
    assert isinstance(start, Start)
    pool.cancel(A)
    assert pool.started(start.number, 0.0) == []
    assert pool.ready == 1
    assert pool.next(0.0) is None
    assert pool.next(T.unwanted_s) == End(start.number)  # nobody wants it
    assert pool.ready == 0


def test_one_that_is_wanted_again_in_time_stays() -> None:
    pool, _ = filled(1, A)
    pool.drop(A)
    assert pool.next(20.0) is None
    pool.add(B, 1, 30.0)
    work = pool.next(30.0)
    assert isinstance(work, Fit)
    pool.fitted(work.number, B, 30.0)
    pool.drop(B)
    assert pool.next(20.0 + T.unwanted_s + 1.0) is None  # its time begins again
    assert pool.ready == 1


def test_a_unit_waits_for_the_query_that_tries_it_on() -> None:
    """Another would run its trains at the same time."""
    pool, _ = filled(2, A, B)
    assert pool.ready == 2
    work = pool.next(10.0 + T.fit_soon_s)
    assert isinstance(work, Fit)
    other = next(image for image in (A, B) if image != work.image)
    assert pool.ask(work.image, 1, 0, 12.0) == []
    [(who, number)] = pool.ask(other, 1, 1, 12.0)
    assert (who, number != work.number) == (other, True)
    assert pool.fitted(work.number, work.image, 12.0) == [(work.image, work.number)]


def test_others_may_have_what_is_ready_meanwhile_and_a_fitting_that_fails_hands_on() -> None:
    pool, _ = filled(1, A, B)
    work = pool.next(10.0 + T.fit_soon_s)
    assert isinstance(work, Fit)
    assert pool.ask(work.image, 1, 0, 12.0) == []
    assert pool.died(work.number, 12.0, work.image) == []
    start = pool.next(12.0)
    assert isinstance(start, Start)
    assert pool.started(start.number, 12.0) == [(work.image, start.number)]


def test_an_image_that_a_query_died_of_comes_last() -> None:
    pool, [one] = filled(1, A)
    assert pool.next(10.0 + T.fit_soon_s) == Fit(one, A)
    pool.died(one, 12.0, A)
    start = pool.next(12.0)
    assert isinstance(start, Start)
    pool.started(start.number, 12.0)
    assert pool.next(12.0) is None
    assert pool.next(12.0 + T.fit_s) == Fit(start.number, A)


def test_one_that_died_is_replaced() -> None:
    pool, [one] = filled(1, A)
    assert pool.numbers() == [one]
    assert pool.died(one, 11.0) == []
    assert (pool.ready, pool.numbers()) == (0, [])
    assert isinstance(pool.next(11.0), Start)


def test_what_cannot_be_started_is_tried_again_later_and_later() -> None:
    pool, now, pauses = Pool(1), 0.0, []
    pool.add(A, 1, now)
    for _ in range(8):
        start = pool.next(now)
        assert isinstance(start, Start)
        assert pool.not_started(start.number, now) is None
        assert pool.next(now) is None
        pause = pool.wait_s(now)
        assert pause is not None
        pauses.append(pause)
        now += pause
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_who_waits_for_what_cannot_be_started_is_told_at_once() -> None:
    pool = Pool(1)
    pool.ask(A, 1, 1, 0.0)
    pool.ask(B, 1, 0, 0.0)
    for who in (B, A):
        start = pool.next(0.0)
        assert isinstance(start, Start)
        assert pool.not_started(start.number, 0.0) == who
    assert pool.next(0.0) is None


def test_lanes_must_fit_and_are_shared_out_as_images_are() -> None:
    pool = Pool(3)
    for number in range(6):
        pool.add(("d", f"one{number}"), 1, 0.0)
    pool.add(A, 2, 0.0)
    pool.add(B, 2, 0.0)
    assert pool.wanted() == {1: 2, 2: 1}
    started = {}
    while isinstance(work := pool.next(0.0), Start):
        started[work.number] = work.lanes
        pool.started(work.number, 0.0)
    assert sorted(started.values()) == [1, 1, 2]
    assert isinstance(work, Fit)
    pool.fitted(work.number, work.image, 0.0)
    [(_, number)] = pool.ask(A, 2, 0, 0.0)
    assert started[number] == 2
    assert pool.ask(B, 2, 0, 0.0) == []
    start = pool.next(0.0)
    assert isinstance(start, Start)
    assert start.lanes == 2


def test_the_one_that_knows_an_image_is_given_to_it() -> None:
    pool, numbers = filled(2, A, B)
    found = {who: number for image in (B, A) for who, number in pool.ask(image, 1, 0, 10.0)}
    assert sorted(found.values()) == sorted(numbers)
    again, _ = filled(2, A, B)
    assert {who: n for image in (A, B) for who, n in again.ask(image, 1, 0, 10.0)} == found  # in any order


def test_one_may_be_kept_for_what_had_no_image() -> None:
    pool = Pool(1, spare=True)
    start = pool.next(0.0)
    assert isinstance(start, Start)
    pool.started(start.number, 1.0)
    assert pool.next(1.0) is None
    pool.add(A, 1, 2.0)  # it is restored, and does not wait
    assert pool.ask(A, 1, 0, 2.0) == [(A, start.number)]
    assert pool.next(2.0 + T.refill_s - 0.1) is None
    assert isinstance(pool.next(2.0 + T.refill_s), Start)
    assert Pool(0, spare=True).next(0.0) is None


def test_upstream_runs_first_and_then_the_busy_ones() -> None:
    chain = {("d", f"u{n}"): Taken([f"a{n}"], [f"a{n + 1}"], 10 * n) for n in range(4)}
    assert in_order(dict(reversed(chain.items()))) == list(chain)
    other = {("e", "u9"): Taken(["a0"], ["a1"], 5)}  # arrows of another diagram are others
    assert in_order(chain | other)[:2] == [("e", "u9"), ("d", "u0")]
    assert in_order({}) == []


@pytest.mark.parametrize("seed", range(200))
def test_laws(seed: int) -> None:
    """Any order of events: see the laws of the machine."""
    rng = random.Random(seed)
    units = [("d", f"u{n}") for n in range(rng.randint(1, 6))]
    lanes = {unit: rng.choice((1, 1, 1, 2)) for unit in units}
    pool, now = Pool(rng.randint(0, 3), spare=seed % 2 == 1), 0.0
    alive: dict[int, int] = {}  # of the pool: its lanes
    owned: dict[int, UnitKey] = {}
    waiting: dict[UnitKey, int] = {}
    images: set[UnitKey] = set()
    fitting: Fit | None = None

    def hand(given: list[tuple[UnitKey, int]]) -> None:
        for who, number in given:
            assert number not in owned
            assert alive.pop(number) == lanes[who]
            assert fitting is None or (fitting.number != number and fitting.image != who)
            worse = [w for w in waiting if lanes[w] == lanes[who] and waiting[w] < waiting[who]]
            assert not worse or fitting is not None
            del waiting[who]
            owned[number] = who

    for _ in range(rng.randint(10, 120)):
        now += rng.choice((0.0, 0.1, 1.0, 30.0))
        unit = rng.choice(units)
        match rng.randrange(5):
            case 0 if unit not in waiting and unit not in owned.values():
                pool.add(unit, lanes[unit], now)
                images.add(unit)
            case 1 if unit not in waiting and unit not in owned.values():
                images.discard(unit)
                waiting[unit] = rank = rng.randrange(3)
                hand(pool.ask(unit, lanes[unit], rank, now))
            case 2:
                pool.drop(unit)
                pool.cancel(unit)
                images.discard(unit)
                waiting.pop(unit, None)
                owned = {number: who for number, who in owned.items() if who != unit}
            case 3 if alive and (able := pool.numbers()):
                number = rng.choice(able)
                del alive[number]
                hand(pool.died(number, now))
            case _:
                match work := pool.next(now):
                    case Start():
                        wanted = sum(lanes[image] == work.lanes for image in images)
                        wanted += pool.spare and not images and work.lanes == 1
                        asked = any(w for w in waiting if lanes[w] == work.lanes)
                        assert asked or Counter(alive.values())[work.lanes] < wanted
                        if rng.random() < 0.2:
                            who = pool.not_started(work.number, now)
                            assert (who in waiting) == (who is not None)
                            waiting.pop(who, None)  # type: ignore[arg-type]
                        else:
                            alive[work.number] = work.lanes
                            hand(pool.started(work.number, now))
                    case Fit():
                        assert work.image in images
                        assert alive[work.number] == lanes[work.image]
                        fitting = work
                        for _ in range(rng.randrange(3)):  # some are found dead meanwhile
                            one = rng.choice(units)
                            if one not in waiting and one not in owned.values():
                                images.discard(one)
                                waiting[one] = 0
                                hand(pool.ask(one, lanes[one], 0, now))
                        fitting = None
                        if rng.random() < 0.2:
                            del alive[work.number]
                            hand(pool.died(work.number, now, work.image))
                        else:
                            hand(pool.fitted(work.number, work.image, now))
                    case End():
                        del alive[work.number]
    assert pool.ready == len(alive)
    for _ in range(1000):  # and at the end all who wait have been served
        work = pool.next(now)
        if isinstance(work, Start):
            alive[work.number] = work.lanes
            hand(pool.started(work.number, now))
        elif isinstance(work, Fit):
            hand(pool.fitted(work.number, work.image, now))
        elif isinstance(work, End):
            del alive[work.number]
        else:
            now += pool.wait_s(now) or 1.0
            if not waiting:
                break
    assert not waiting
