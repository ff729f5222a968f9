"""The shell of a node's pool: who gets which query, and what becomes of those that die. No Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from borealis.errors import BorealisError, ClusterError, TrainError
from borealis.node.pool import QueryPool
from borealis.node.session import Session
from borealis.spark.lane_query import LaneQuery, TooFewCoresError

pytestmark = pytest.mark.timeout(30)
A, B = ("d", "a"), ("d", "b")


class Made(LaneQuery):
    """A query that starts when it may, and dies when it shall."""

    may_start: threading.Event
    error: BorealisError | None = None

    def start(self) -> None:
        self.stopped, self.died = threading.Event(), None
        assert self.may_start.wait(20)
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self.stopped.set()

    def failure(self) -> BorealisError | None:
        return self.died


class Spark:
    """Makes queries, and remembers them."""

    def __init__(self) -> None:
        self.made: list[Made] = []
        self.may_start = threading.Event()
        self.may_start.set()
        self.error: BorealisError | None = None

    def __call__(self, _: Any, lanes: int) -> Made:
        query = Made(None, lanes)  # type: ignore[arg-type]
        query.may_start, query.error, query.died = self.may_start, self.error, None
        self.made.append(query)
        return query


class Image:
    """A unit that stands by; it takes note of what tried it on."""

    image, title = True, "unit d.a"

    def __init__(self, key: tuple[str, str], reads: tuple[str, ...] = (), gives: tuple[str, ...] = ()) -> None:
        self.key, self.piece = key, SimpleNamespace(reads=reads, gives=gives)
        compiled = SimpleNamespace(program=SimpleNamespace(buckets=1))
        self.run = SimpleNamespace(compiled=compiled, progress=SimpleNamespace(rows_in=0))
        self.query = self
        self.tried: list[object] = []
        self.fits = True
        self.error: BorealisError | None = None

    def fit(self, query: object, _: float) -> bool:
        self.tried.append(query)
        if self.error is not None:
            raise self.error
        return self.fits


@pytest.fixture
def spark() -> Spark:
    return Spark()


@pytest.fixture
def pool(spark: Spark) -> Iterator[QueryPool]:
    session = Session("n")
    session.started(object())
    one = QueryPool(session, spark, 1)
    yield one
    spark.may_start.set()
    one.close()


def eventually(holds: Callable[[], object]) -> None:
    tick = threading.Event()
    for _ in range(1000):
        if holds():
            return
        tick.wait(0.01)
    raise AssertionError("in vain")


def test_an_image_is_tried_on_and_its_unit_gets_that_very_query(pool: QueryPool, spark: Spark) -> None:
    image: Any = Image(A)
    pool.add(image)
    pool.warm(image, 20.0)
    assert image.tried == spark.made * 2
    assert (pool.status().ready, pool.status().images) == (1, 1)
    assert pool.take(A, 1) is spark.made[0]
    assert (pool.status().ready, pool.status().images, pool.status().given) == (0, 0, 1)


def test_any_unit_may_take_one_and_where_there_is_none_it_is_started(pool: QueryPool, spark: Spark) -> None:
    assert pool.take(("x", "fresh"), 3) is spark.made[0]
    assert spark.made[0].buckets == 3
    image: Any = Image(A)
    pool.add(image)
    pool.warm(image, 20.0)
    assert pool.take(B, 1) is spark.made[1]
    eventually(lambda: pool.status().ready == 1)  # filled again
    assert pool.take(A, 1) is spark.made[2]


def test_who_cannot_have_one_is_told_why(pool: QueryPool, spark: Spark) -> None:
    spark.error = TooFewCoresError("there are 2")
    with pytest.raises(TooFewCoresError, match="there are 2"):
        pool.take(A, 1)
    assert pool.status().trouble == "there are 2"
    spark.error = None
    assert pool.take(A, 1) is spark.made[1]
    assert pool.status().trouble == ""


def test_who_is_dropped_while_it_waits_gets_none_and_none_is_lost(pool: QueryPool, spark: Spark) -> None:
    spark.may_start.clear()
    errors: list[BaseException] = []

    def take() -> None:
        try:
            pool.take(A, 1)
        except ClusterError as error:
            errors.append(error)

    waiting = threading.Thread(target=take)
    waiting.start()
    eventually(lambda: spark.made)
    pool.drop(A)
    waiting.join(10)
    assert "was stopped before its query was there" in str(errors[0])
    spark.may_start.set()
    assert pool.take(B, 1) is spark.made[0]


def test_what_was_reserved_for_a_unit_that_is_dropped_is_stopped(pool: QueryPool, spark: Spark) -> None:
    image: Any = Image(A)
    pool.add(image)
    pool.warm(image, 20.0)
    pool.reserve([image])
    assert pool.status().given == 1
    pool.drop(A)
    assert spark.made[0].stopped.wait(10)


def test_units_that_are_taken_over_at_once_are_served_in_their_order(pool: QueryPool, spark: Spark) -> None:
    last: Any = Image(A, reads=("mid",))
    first: Any = Image(B, reads=("in",), gives=("mid",))
    for image in (last, first):
        pool.add(image)
    for image in (last, first):
        pool.warm(image, 20.0)
    pool.reserve([last, first])
    assert pool.take(B, 1) is spark.made[0]  # upstream of the other
    assert pool.take(A, 1) is spark.made[1]


def test_a_query_that_dies_in_the_pool_is_replaced(pool: QueryPool, spark: Spark) -> None:
    image: Any = Image(A)
    pool.add(image)
    pool.warm(image, 20.0)
    spark.made[0].died = TrainError("its workers are gone")
    assert spark.made[0].stopped.wait(10)
    eventually(lambda: pool.status().ready == 1)
    assert pool.take(A, 1) is spark.made[1]


@pytest.mark.parametrize("error", [None, TrainError("its files are gone")])
def test_a_query_that_cannot_rehearse_is_replaced(pool: QueryPool, spark: Spark, error: BorealisError | None) -> None:
    image: Any = Image(A)
    image.fits, image.error = False, error
    pool.add(image)
    eventually(lambda: spark.made and hasattr(spark.made[0], "stopped"))
    assert spark.made[0].stopped.wait(10)
    eventually(lambda: pool.status().ready == 1)  # which tries it on later
    assert image.tried == [spark.made[0]]
    assert pool.take(A, 1) is spark.made[1]


def test_the_end_of_a_pool_stops_what_is_in_it(pool: QueryPool, spark: Spark) -> None:
    image: Any = Image(A)
    pool.add(image)
    pool.warm(image, 20.0)
    pool.close()
    assert spark.made[0].stopped.is_set()
    with pytest.raises(ClusterError):
        pool.take(A, 1)
