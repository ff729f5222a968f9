"""The sums of the wire benchmark, and that its processes work together; what it measures is no test's business."""

from __future__ import annotations

import json
from typing import Any

import pytest
from benchmarks import wire

PROMISED = {"query", "mb_per_s", "tuples_per_s", "p50_ms", "p99_ms", "cores", "asked", "met"}


def moved(rows: int, seconds: float) -> dict[str, Any]:
    return {"rows": rows, "seconds": seconds, "socket_mb_per_s": 1000, "cpu_s_per_gb": 2.0, "rows_per_section": 10}


@pytest.mark.parametrize(("rows", "met"), [(3_000_000, True), (2_999_999, False)])
def test_a_rate_is_of_tuples_of_a_hundred_bytes(rows: int, met: bool) -> None:
    found = wire.rate_line("bulk", [0, 1], [moved(rows, 1.0), moved(2 * rows, 2.0), moved(rows, 9.0)])
    assert (found["tuples_per_s"], found["met"], found["cores"]) == (rows, met, 2)
    assert found["mb_per_s"] == pytest.approx(300, abs=0.1)
    assert (found["ratio_to_socket"], found["mb_per_cpu_s"]) == (0.3, 500)
    assert set(json.loads(json.dumps(found))) >= PROMISED


@pytest.mark.parametrize(("p99", "met"), [(19.9, True), (20.0, False)])
def test_ages_are_judged_by_their_p99(p99: float, met: bool) -> None:
    runs = [{"p50_ms": 1.0, "p99_ms": p, "max_ms": 3 * p} for p in (0.0, p99, 99.0)]
    found = wire.age_line("latency", [0, 0], runs)
    assert (found["p50_ms"], found["p99_ms"], found["met"], found["max_ms"]) == (1.0, p99, met, 297.0)
    assert found["cores"] == 1


def test_an_unknown_query_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no query 'q9' \(has: yardstick, bulk"):
        wire.run(wire.Options(only=("q9",)), print)


@pytest.mark.long
def test_the_processes_work_together() -> None:
    bench = wire.Bench(wire.Options(runs=1), wire.Size(bulk=20_000, small=2_000, live_s=1), print)
    places = wire.cores(False, 3)
    assert bench.socket(places, 20_000) > 0
    assert bench.stream(places, 20_000, 1_000)["rows"] <= 20_000
    found = bench.publication(places, 1_000, 10, per_s=10_000)
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]


def test_a_job_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="the job 'drink' failed"):
        wire.together(wire.Job("drink", None, address="nowhere"))
