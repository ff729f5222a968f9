"""The sums of the engine benchmark; what it measures is no test's business."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import engine, measuring

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


class Jobs(engine.Bench):
    """Jobs that need no process: what each kind answers, run by run."""

    def __init__(self, answers: dict[str, list[Any]]) -> None:
        super().__init__(Path(), engine.Options(runs=2), engine.Size(q2_warm=0, keys_warm=0), lambda text: None)
        self.answers = answers

    def files(self, name: str, files: int, rows: int, rows_per_ms: int, **more: int) -> str:
        return name

    def first(self, of: str, files: int) -> str:
        return of

    def job(self, what: str, **given: Any) -> Any:
        name = next(name for name in (given.get("flavour"), *given.get("inputs", ()), what) if name in self.answers)
        answer = self.answers[name].pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return [batch(1000 * i, 1000, answer) for i in range(4)]


def test_a_job_that_fails_costs_only_its_own_run() -> None:
    dead = RuntimeError("no room")
    jobs = Jobs({"JVM defaults": [100, 100], "our JVM flags": [dead], "RocksDB": [50], "ours.throughput": [dead, 600]})
    native, rocks, ours, *failed = jobs.part(engine.q2)
    assert (native["engine"], native["rows_per_second"], native["runs"]) == ("native", 100, 2)
    assert (rocks["engine"], rocks["rows_per_second"]) == ("native (RocksDB)", 50)
    assert (ours["rows_per_second"], ours["runs"], ours["ratio_to_native"], ours["met"]) == (600, 1, 6.0, True)
    assert [(one["engine"], one["error"]) for one in failed] == [
        ("native, our JVM flags", "RuntimeError: no room"),
        ("borealis", "RuntimeError: no room"),
    ]


def test_without_native_ours_has_figures_and_no_ratio_and_the_other_way_round() -> None:
    dead = RuntimeError("no room")
    ways = {"JVM defaults": [dead] * 2, "our JVM flags": [dead] * 2, "RocksDB": [dead] * 2}
    ours, *failed = Jobs(ways | {"ours.throughput": [600, 600]}).part(engine.q2)
    assert (ours["engine"], ours["rows_per_second"], ours["ratio_to_native"], ours["met"]) == (
        "borealis",
        600,
        None,
        None,
    )
    assert len(failed) == 6
    few, error, again = Jobs({"keys-1000": [600, 600], "keys-100000": [dead] * 2}).part(engine.q2_keys)
    assert (few["engine"], few["rows_per_second"], few["runs"]) == ("borealis, 1,000 keys", 600, 2)
    assert (error["engine"], again["error"]) == ("borealis, 100,000 keys", "RuntimeError: no room")


def test_an_interrupt_keeps_what_was_measured_and_marks_the_rest() -> None:
    ways = {"JVM defaults": [100, 100], "our JVM flags": [100, 100], "RocksDB": [50]}
    jobs = Jobs(ways | {"ours.throughput": [600, KeyboardInterrupt()]})
    parts = {"q2": lambda: jobs.part(engine.q2), "q3": lambda: jobs.part(engine.q3)}
    *lines, stopped, left = measuring.part_by_part(parts, lambda text: None)
    assert [one["rows_per_second"] for one in lines] == [100, 100, 50, 600]
    assert (stopped["engine"], stopped["error"]) == ("borealis", "interrupted")
    assert left == {"query": "q3", "error": "interrupted before it was measured"}


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
