"""The sums of the recovery and overhead benchmarks; what they measure is no test's business."""

from __future__ import annotations

import importlib
import json
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from borealis.cli.bench import find
from borealis.errors import BorealisError

PROMISED = {"approach", "guarantee", "diagram", "silence_ms", "silence_ms_p50", "detection_ms", "takeover_ms"}
PROMISED |= {"reprocess_ms", "duplicates", "lost", "ratio_to_native"}


@pytest.fixture(scope="module")
def recovery() -> ModuleType:
    return find("recovery")


@pytest.fixture(scope="module")
def overhead() -> ModuleType:
    return find("overhead")


def part(of: ModuleType, name: str) -> ModuleType:
    return importlib.import_module(f"{of.__package__}.{name}")


# -- silence


@pytest.mark.parametrize(
    ("when", "killed", "silence"),
    [
        ([0.0, 1.0, 3.5], 1.2, 2500.0),
        ([0.0, 1.0, 1.25, 3.25], 1.2, 2000.0),  # one was on its way
        ([0.0, 1.0, 1.5, 9.0], 1.2, 500.0),  # what happens later is another matter
        ([1.0, 1.25, 1.3, 1.34, 4.34], 1.2, 3000.0),
    ],
)
def test_silence_lies_behind_the_last_result_of_the_dead(
    recovery: ModuleType, when: list[float], killed: float, silence: float
) -> None:
    assert part(recovery, "recovery_sums").silence_ms(when, killed) == pytest.approx(silence)


@pytest.mark.parametrize(("when", "words"), [([2.0], "before"), ([1.0], "after")])
def test_silence_has_two_ends(recovery: ModuleType, when: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=f"{words} the kill"):
        part(recovery, "recovery_sums").silence_ms(when, 1.5)


def test_a_result_that_comes_again_is_not_new(recovery: ModuleType) -> None:
    arrivals = part(recovery, "recovery_sums").Arrivals()
    arrivals.add(1.0, [((7, 50), 3)])
    arrivals.add(2.0, [((7, 50), 3)])
    arrivals.add(3.0, [((7, 50), 3), ((7, 100), 1)])
    assert (arrivals.when, arrivals.repeated) == ([1.0, 3.0], 2)


def test_the_check_is_exact(recovery: ModuleType) -> None:
    sums = part(recovery, "recovery_sums")
    arrivals = sums.Arrivals()
    arrivals.add(1.0, [((1, 50), 1), ((1, 50), 1), ((2, 50), 9), ((3, 50), 1)])
    found = sums.check(arrivals, {(1, 50): 1, (2, 50): 2, (1, 100): 4})
    assert found == sums.Checked(duplicates=1, lost=1, wrong=2)


def test_a_line_has_what_was_promised_and_ratios_are_of_medians(recovery: ModuleType) -> None:
    sums = part(recovery, "recovery_sums")
    facts = {"gaps": [50.0, 60.0], "duplicates": 0, "lost": 0, "wrong": 0, "results": 9, "data": "made"}
    ours = sums.line("active", "precise", "union", facts | {"silences": [400, 500, 900], "detection_ms": [300]})
    native = sums.line(sums.TOLD_NATIVE, "no-loss", "aggregate", facts | {"silences": [20_000.0]})
    lines = sums.with_ratios([ours, native])
    assert set(json.loads(json.dumps(lines[0]))) >= PROMISED
    assert [one["ratio_to_native"] for one in lines] == [40.0, 1.0]
    assert (lines[0]["detection_ms"], lines[0]["reprocess_ms"]) == (300, None)
    assert sums.with_ratios([ours])[0]["ratio_to_native"] is None


# -- packets


def test_packets_go_round_without_a_hole(recovery: ModuleType) -> None:
    some = part(recovery, "recovery_packets").made(2.0)
    whole = some.between(0, 5_000_000)
    cut = [some.between(i * 250_000, (i + 1) * 250_000) for i in range(20)]
    for column, pieces in zip(whole, zip(*cut, strict=True), strict=True):
        assert np.array_equal(column, np.concatenate(pieces))
    assert np.all(np.diff(whole[0]) >= 0)
    assert len(whole[0]) == pytest.approx(2.5 * len(some.at_us), rel=0.05)


def test_packets_at_another_rate_are_the_same_packets(recovery: ModuleType) -> None:
    some = part(recovery, "recovery_packets").made(4.0)
    fast = some.faster(1_000)
    assert len(fast.at_us) / (fast.span_us / 1e6) == pytest.approx(1_000, rel=0.01)
    assert np.array_equal(fast.src, some.src)


def test_without_the_trace_packets_are_made(recovery: ModuleType, tmp_path: Path) -> None:
    assert part(recovery, "recovery_packets").packets(tmp_path / "none.gz").where_from == "synthetic"


def test_counts_are_those_of_an_obvious_twin(recovery: ModuleType) -> None:
    packets = part(recovery, "recovery_packets")
    at, src, size = packets.made(0.5).between(0, 500_000)
    twin = {}
    for end in range(0, 800_000, 50_000):
        for source in set(src.tolist()):
            inside = (at >= end - 200_000) & (at < end) & (src == source) & (size > 0)
            if inside.any():
                twin[source, end] = int(inside.sum())
    assert packets.counted(at, src, size, 200_000, 50_000) == twin


def test_a_feed_gives_each_packet_to_one_taker_and_knows_what_it_gave(recovery: ModuleType) -> None:
    packets = part(recovery, "recovery_packets")
    got: list[list[int]] = [[], []]
    enough = threading.Event()

    def taker(mine: list[int]) -> object:
        def take(rows: object, until_us: int) -> None:
            mine.extend([] if rows is None else rows.column("src").to_pylist())  # type: ignore[attr-defined]
            if len(got[0]) + len(got[1]) > 100:
                enough.set()

        return take

    feed = packets.Feed(packets.made(5.0), [taker(mine) for mine in got], tick_s=0.005)
    feed.start()
    assert enough.wait(30)
    feed.stop()
    assert sorted(got[0] + got[1]) == sorted(feed.given()[1].tolist())
    assert feed.rows == len(got[0]) + len(got[1])


# -- options


def test_names_that_are_not_there_are_refused(recovery: ModuleType, overhead: ModuleType) -> None:
    with pytest.raises(BorealisError, match="no approach 'pasive'"):
        recovery.run(recovery.Options(approach=("pasive",)), print)
    with pytest.raises(BorealisError, match="no diagram 'onion'"):
        overhead.run(overhead.Options(diagram=("onion",)), print)


def test_more_kills_take_longer(recovery: ModuleType) -> None:
    few, many = (recovery.about_minutes(recovery.Options(kills=n)) for n in (2, 20))
    assert 1 <= few < many


# -- overhead


def test_every_diagram_meets_every_approach_and_interval(overhead: ModuleType) -> None:
    cases = part(overhead, "overhead_cases")
    all_of_them = {(c.diagram, c.approach, c.interval_ms) for g in overhead.groups(overhead.Options()) for c in g}
    for diagram in cases.CLASSES:
        assert (diagram, "amnesia", None) in all_of_them
        for approach in ("passive", "active", "upstream-backup"):
            assert all((diagram, approach, interval) in all_of_them for interval in cases.INTERVALS_MS)
    for group in overhead.groups(overhead.Options()):
        assert len({case.bare() for case in group}) == 1, "a group has one run without protection to stand beside"
        group[0].draw().validate()


def measured(overhead: ModuleType, **given: float) -> object:
    module = part(overhead, "overhead_measure")
    zero = dict.fromkeys(module.Measured.__dataclass_fields__, 0.0)
    return module.Measured(**(zero | {"in_bytes": 80.0, "out_bytes": 300.0} | given))


def test_overhead_is_a_share_of_what_there_is_without_protection(overhead: ModuleType) -> None:
    case = part(overhead, "overhead_cases").Case("approaches", "filter", "active", 100)
    bare = overhead.between(measured(overhead, cpu=0.4), measured(overhead, cpu=0.6))
    found = measured(overhead, cpu=1.0, guard_bytes=10.0, twin_bytes=80.0, entry_bytes=40.0)
    line = overhead.line(case, found, bare, "made")
    assert (line["cpu_overhead_pct"], line["network_overhead_pct"], line["entry_overhead_pct"]) == (100.0, 112.5, 50.0)
    assert (line["approach"], line["interval_ms"], line["class"]) == ("active", 100, "repeatable")


@pytest.mark.parametrize(("costs", "met"), [((9.0, 15.0, 40.0), True), ((9.0, 15.5, 16.0), False)])
def test_the_verdict_on_q2_is_that_of_the_median(overhead: ModuleType, costs: tuple[float, ...], met: bool) -> None:
    lines = [{"experiment": "q2", "approach": "passive", "cpu_overhead_pct": cost} for cost in costs]
    (verdict,) = overhead.q2_lines([*lines, {"experiment": "q2", "approach": "none", "cpu_overhead_pct": 0.0}])
    assert verdict["met"] is met
    assert overhead.q2_lines(lines[:0]) == []
