"""The sums of the engine benchmark; what it measures is no test's business."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import engine

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def batch(start: float, took: float, rows: int, waited: float = 0.0) -> dict[str, Any]:
    return {"start_ms": start, "took_ms": took - waited, "rows": rows, "parts": {"triggerExecution": took}}


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_percentile_of_1_to_100(share: float, value: int) -> None:
    assert engine.percentile(list(range(100, 0, -1)), share) == value


def test_percentile_of_one_value_is_that_value() -> None:
    assert engine.percentile([7.0], 0.99) == 7.0


def test_a_rate_counts_the_time_between_batches() -> None:
    found = engine.measure([batch(0, 100, 500), batch(900, 100, 500)])
    assert found.rows_per_second == 1000
    assert (found.p50, found.batches) == (100, 2)


def test_an_empty_batch_takes_time_but_is_no_sample() -> None:
    found = engine.measure([batch(0, 100, 500), batch(100, 5, 0), batch(900, 100, 500)])
    assert (found.rows_per_second, found.batches, found.p50) == (1000, 2, 100)


def test_waiting_for_rows_is_in_the_rate_but_not_in_the_train() -> None:
    found = engine.measure([batch(0, 500, 500, waited=400), batch(500, 500, 500, waited=400)])
    assert (found.rows_per_second, found.p50) == (1000, 100)


def test_one_batch_is_nothing_to_measure() -> None:
    with pytest.raises(RuntimeError, match="only 1 batches"):
        engine.measure([batch(0, 100, 500)])


def test_warm_up_and_the_last_batch_are_dropped() -> None:
    batches = [batch(1000 * i, 100, 1) for i in range(9)]
    assert engine.steady(batches, 2) == batches[2:8]
    assert engine.between(batches, 1.9, 2) == batches[4:6]  # 1.9 s after the end of the third


def test_only_ways_near_the_best_go_on() -> None:
    assert engine.near_the_best({"a": 100.0, "b": 90.0, "c": 95.0}) == ["a", "c"]


def test_medians_are_taken_figure_by_figure() -> None:
    runs = [engine.Measure(1, 30, 300, 5), engine.Measure(2, 20, 100, 5), engine.Measure(9, 10, 200, 5)]
    assert engine.median_of(runs) == engine.Measure(2, 20, 200, 15)


def test_memory_is_compared_by_its_medians() -> None:
    samples = [{"minute": m, "python": 1.0, "jvm": j, "scratch": 2.0} for m, j in ((5, 10.0), (5.5, 99.0), (6, 11.0))]
    assert engine.held(engine.around(samples, 5, 7)) == 14
    with pytest.raises(RuntimeError, match="no sample of memory between stream minutes 58"):
        engine.around(samples, 58, 61)


def test_a_line_has_what_is_promised_and_is_json() -> None:
    line = engine.row("q1", "native", engine.Measure(1.6, 2.04, 3.0, 4))
    promised = {"query", "engine", "rows_per_second", "train_ms_p50", "train_ms_p99", "ratio_to_native"}
    assert promised <= set(json.loads(json.dumps(line)))
    assert (line["rows_per_second"], line["train_ms_p50"], line["ratio_to_native"]) == (2, 2.0, None)


def test_an_unknown_query_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no query 'q9' \(has: q1, q2"):
        engine.run(engine.Options(only=("q9",)), print)


def test_rows_of_the_keys_workload_touch_as_many_keys_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import workload  # type: ignore[import-not-found]

    first, second = (workload.rows_touching(at, 10_000, 100_000, 1_000) for at in (0, 10_000))
    seen = [set(b.column("k").to_pylist()) for b in (first, second)]
    assert [len(keys) for keys in seen] == [1_000, 1_000]
    assert not seen[0] & seen[1]
    assert (
        workload.rows_at(0, 200).column("ts").to_pylist()[0] != workload.rows_at(0, 200).column("ts").to_pylist()[100]
    )
