"""A bound on delay, whatever comes or does not: the trunk reads as if nothing was, and nothing waits too long.

Streams have rows at multiples of a few milliseconds, and come in pieces, each at a moment of its own; some come long
after their time. Time goes on in steps.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from borealis.trains.keeping import KeepLimits
from forked_input import BUCKET, PATIENCE_S, ForkedInput

STEP_S = 0.25
ROUNDS = 40
PART_BYTES = 3_000  # more than one piece that comes, or what is left of one in memory when it is on disk

Pieces = list[tuple[int, int]]  # when each comes, in steps, and how much time of the stream it has


@st.composite
def pieces(draw: st.DrawFn) -> Pieces:
    """In order; now and then nothing comes for a while, and then all at once."""
    found, at = Pieces(), 0
    while at < ROUNDS:
        at += draw(st.sampled_from((1, 1, 1, 2, 5, 16)))
        found.append((at, draw(st.integers(1, 4)) * BUCKET))
    return found


@st.composite
def policies(draw: st.DrawFn) -> dict[str, str]:
    return {
        "during_failure": draw(st.sampled_from(("process", "delay"))),
        "during_stabilization": draw(st.sampled_from(("process", "delay"))),
    }


@given(st.lists(pieces(), min_size=2, max_size=3), policies(), st.sampled_from((1, 3_000, 10_000)))
def test_nothing_waits_longer_than_the_bound_and_all_that_is_stable_is_right(
    streams: list[Pieces], policy: dict[str, str], memory_bytes: int
) -> None:
    names = "abc"[: len(streams)]
    with TemporaryDirectory() as folder:
        unit, plain = (ForkedInput(Path(folder) / one, *names, **policy) for one in ("bounded", "plain"))
        plain.forks = False
        # some bytes are in memory: one part, some, all but what is rarely pending
        spilling = ForkedInput(Path(folder) / "spilling", *names, keep=KeepLimits(1 << 30, memory_bytes), **policy)
        came: dict[int, float] = {}  # when each row did that is not too late for a fork
        reached = dict.fromkeys(names, 0)
        for step in range(ROUNDS):
            for name, some in zip(names, streams, strict=True):
                for at, span in some:
                    if at == step:
                        start = reached[name]
                        reached[name] += span
                        rows = [t + names.index(name) for t in range(start, reached[name], BUCKET // 2)]  # no two alike
                        came |= {row: unit.clock.at for row in rows if row >= unit.floor(name)}
                        for one in (unit, plain, spilling):
                            one.give(name, rows, reached[name])
            for one in (unit, plain, spilling):
                one.wait(STEP_S)
            for line in (spilling.trunk, spilling.fork):
                for intake in () if line is None else line.intakes.values():
                    assert intake.in_memory < memory_bytes + PART_BYTES
            late = set(came) - set(unit.stable) - set(unit.tentative)
            assert not [row for row in late if unit.clock.at - came[row] > PATIENCE_S + STEP_S]
        assert unit.stable == plain.stable  # forks change nothing, not even the order
        assert len(set(unit.stable)) == len(unit.stable)
        assert (spilling.causes, spilling.tentative) == (unit.causes, unit.tentative)  # nor does it where things are
