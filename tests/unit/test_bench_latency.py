"""The sums of the latency benchmark; what it measures is no test's business."""

from typing import Any

import numpy as np
import pytest
from benchmarks import engine, latency, latency_feed
from benchmarks.latency import MICRO, OURS, REAL, SOCKET, UPDATES, Case, Ledger
from benchmarks.latency_feed import SECOND_US, WINDOW_US, Ages, Phase, batch, found, records, take_batch
from benchmarks.latency_jobs import NotPossibleError

PHASE = Phase(1_000, 1, 2)
START_US = 100 * SECOND_US


def figure(rate: int, p50: float, kept_up: bool = True) -> dict[str, Any]:
    ages = {f"{name}_ms": p50 for name in ("p50", "p90", "p99", "max")}
    more = {"results": 10, "cpu_s_per_s": 0.5, "offered_per_s": rate, "received_per_s": rate}
    return {"rows_per_s": rate, **ages, **more, "kept_up": kept_up}


@pytest.mark.parametrize("count", [1, 2, 10, 99, 1000])
def test_percentiles_are_those_of_the_engine_benchmark(count: int) -> None:
    values, shares = np.random.default_rng(count).random(count), (0.0, 0.5, 0.9, 0.99, 1.0)
    assert latency_feed.percentiles(values, shares) == [engine.percentile(values.tolist(), share) for share in shares]


def test_ages_are_counted_from_births_and_only_of_the_counted_rows() -> None:
    ages = Ages()
    for tick in range(PHASE.whole_us // latency_feed.TICK_US):
        born = START_US + tick * latency_feed.TICK_US
        late_us = 500_000 if born < START_US + SECOND_US else 7_000  # those of the warm-up do not count
        rows = batch(born, tick * 10, 10)
        take_batch(ages, born + late_us, rows.filter(rows.column("v").to_numpy() > 0))
    one = found(PHASE, START_US, ages, 2_000, 1.5, drained=True)
    assert (one["p50_ms"], one["max_ms"], one["results"]) == (7.0, 7.0, 1_800)
    assert (one["offered_per_s"], one["received_per_s"], one["cpu_s_per_s"]) == (1_000, 1_000, 0.5)
    assert one["kept_up"]


@pytest.mark.parametrize(("offered", "drained"), [(1_900, True), (2_000, False)])
def test_who_offers_or_receives_too_little_does_not_keep_up(offered: int, drained: bool) -> None:
    one = found(PHASE, START_US, Ages(), offered, 0.0, drained)
    assert (one["kept_up"], one["p50_ms"]) == (False, None)


def test_the_last_window_of_a_phase_is_closed_by_a_row_of_it() -> None:
    last_row = PHASE.whole_us - latency_feed.TICK_US
    assert PHASE.last_us(windowed=True) % WINDOW_US == 0
    assert PHASE.last_us(windowed=True) <= last_row < PHASE.last_us(windowed=True) + WINDOW_US
    assert batch(0, 0, PHASE.rows_per_s).column("v")[-1].as_py() > 0, "the filter leaves the last row"


def test_records_and_batches_have_the_same_rows() -> None:
    import json

    rows = batch(START_US, 95, 10).to_pylist()
    assert [json.loads(one) | {"ts": None} for one in records(START_US, 95, 10)] == [row | {"ts": None} for row in rows]
    assert json.loads(records(START_US, 0, 1)[0])["ts"] == "1970-01-01T00:01:40.000000Z"


def test_what_fails_or_is_refused_is_marked_and_costs_no_figures() -> None:
    said: list[str] = []
    ledger, ours, real = Ledger(said.append), Case("windowed", "kafka", OURS), Case("windowed", "kafka", REAL)
    tries = iter(range(3))

    def go(case: Case, lines: list[dict[str, Any]]) -> None:
        if case == real:
            raise NotPossibleError("no append mode")
        lines.append(figure(100, 10.0))
        if next(tries) == 1:
            raise RuntimeError("the broker is gone")
        lines.append(figure(1_000, 20.0))

    for _ in range(3):
        for case in (ours, real):
            ledger.enter(case, go)
    ledger.interrupt([ours, Case("windowed", "nodes", OURS, 3)])
    slow, fast, refused, failed, left = ledger.lines()
    assert [(one["rows_per_s"], one["p50_ms"], one["runs"]) for one in (slow, fast)] == [
        (100, 10.0, 3),
        (1_000, 20.0, 2),
    ]
    assert (refused["engine"], refused["not_possible"]) == (REAL, "no append mode")
    assert failed["error"] == "RuntimeError: the broker is gone"
    assert (left["path"], left["nodes"], left["error"]) == ("nodes", 3, "interrupted before it was measured")


def test_ratios_are_ours_to_theirs_at_the_same_rate() -> None:
    def line(engine_: str, rate: int, p50: float, path: str = "kafka") -> dict[str, Any]:
        return Case("windowed", path, engine_).names() | figure(rate, p50)

    lines = [
        line(OURS, 100, 20.0),
        line(MICRO, 100, 500.0),
        line(SOCKET, 100, 400.0),
        line(UPDATES, 100, 10.0),
        line(MICRO, 1_000, 9.0),
    ]
    first, *others, far = latency.with_ratios([*lines, line(OURS, 100, 5.0, "callback")])
    assert (first["ratio_to_micro_batch"], first["ratio_to_real_time"]) == (0.05, 2.0)
    assert {one["ratio_to_micro_batch"] for one in (*others, far)} == {None}


def test_a_median_that_fell_behind_once_says_so() -> None:
    one = latency.summary([figure(100, 1.0), figure(100, 3.0, kept_up=False), figure(100, 2.0)])
    assert (one["p50_ms"], one["kept_up"], one["p50_ms_runs"]) == (2.0, False, [1.0, 3.0, 2.0])


def test_only_names_paths_and_queries() -> None:
    assert len(latency.cases(latency.Options())) == 6 + 10 + 6
    assert latency.cases(latency.Options(only=("callback", "stateless"))) == [
        Case("stateless", "callback", OURS),
        Case("stateless", "callback", MICRO),
        Case("stateless", "callback", SOCKET),
    ]
