"""Who is dead, who is only slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis.ha.detector import Detector, Pace

PACE = Pace(every_s=0.1, misses=3, patience_s=2.0)


def test_three_refusals_in_a_row_are_a_death() -> None:
    detector = Detector(PACE, 10.0)
    assert detector.health() == "alive"
    assert [detector.refused(10.0 + n / 10) for n in (1, 2, 3)] == ["suspect", "suspect", "dead"]
    assert detector.detection_s() == pytest.approx(0.3)


def test_an_answer_between_refusals_begins_the_count_anew() -> None:
    detector = Detector(PACE, 0.0)
    assert [detector.refused(0.1), detector.refused(0.2), detector.answered(0.3)] == ["suspect", "suspect", "alive"]
    assert [detector.refused(0.4), detector.refused(0.5)] == ["suspect", "suspect"]
    assert detector.detection_s() == 0.0


def test_silence_is_slowness_until_patience_ends() -> None:
    detector = Detector(PACE, 0.0)
    assert {detector.silent(n / 10, 0.1) for n in range(1, 20)} == {"suspect"}
    assert detector.silent(2.0, 0.1001) == "dead"
    assert detector.detection_s() == 2.0


def test_silences_do_not_add_up_to_refusals() -> None:
    detector = Detector(PACE, 0.0)
    for n in range(10):
        detector.silent(n / 100, 0.01)
    assert detector.refused(0.2) == "suspect"  # the second miss, however often it was silent
    assert detector.refused(0.3) == "dead"


def test_patience_counts_from_the_last_answer() -> None:
    detector = Detector(PACE, 0.0)
    detector.silent(1.9, 1.9)
    assert detector.answered(1.95) == "alive"
    assert detector.silent(3.9, 1.9) == "suspect"
    assert detector.silent(3.96, 0.2) == "dead"


def test_only_waiting_counts_as_silence() -> None:
    detector = Detector(PACE, 0.0)
    assert detector.silent(60.0, 0.3) == "suspect"  # it was we who slept


def test_patience_is_never_shorter_than_the_misses_of_a_dead_node() -> None:
    detector = Detector(Pace(every_s=1.0, misses=3, patience_s=0.5), 0.0)
    assert detector.silent(2.9, 2.9) == "suspect"
    assert detector.silent(3.0, 0.2) == "dead"


@given(st.lists(st.sampled_from(["answered", "refused", "silent"])))
def test_death_is_the_last_word(events: list[str]) -> None:
    detector = Detector(PACE, 0.0)
    for n in (1, 2, 3):
        detector.refused(n / 10)
    died, took = detector.died, detector.detection_s()
    for n, event in enumerate(events):
        more = (1.0,) if event == "silent" else ()
        assert getattr(detector, event)(1.0 + n, *more) == "dead"
    assert (detector.died, detector.detection_s()) == (died, took)
