"""Many seeds: the same history wherever and however often, schedules as short as can be, and diagrams of users."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from borealis.diagram.spec import Spec
from borealis.errors import DiagramError, InputError
from borealis.sim.diagrams import cuts_of, spec_of
from borealis.sim.history import History, Received, Shape
from borealis.sim.plan import Fault, Options, Plan, drawn_plan
from borealis.sim.programs import Programs
from borealis.sim.rows import CHUNK_ROWS
from borealis.sim.run import Outcome
from borealis.sim.seeds import Stage, Verdict, _first_wrong, _Workers, judged, pace_of, shortest

SHORT = Options(seconds=4.0)
FILE = """borealis: 1
name: town
inputs:
  cars: {columns: 'ts TIMESTAMP, street STRING, speed DOUBLE', time: ts, slack: 2 seconds}
boxes:
  fast: {filter: {from: cars, predicate: speed > 0.25}}
  busy: {aggregate: {from: fast, by: [street], size: 1 minute, exprs: {cars: count(*)}}}
  never: {filter: {from: cars, predicate: speed > 100}}
outputs:
  busy: busy
  never: never
protection: {all: {ha: passive}}
"""
PLAYED = """
import pickle, sys
from pathlib import Path
from borealis.sim.plan import Options, drawn_plan
from borealis.sim.seeds import Stage
stage = Stage(pickle.loads(Path(sys.argv[1]).read_bytes()))
for seed in map(int, sys.argv[2:]):
    print(seed, *stage.play(drawn_plan(seed, Options(seconds=4.0)))[0].lines, sep="\\n")
"""


@pytest.fixture(scope="module")
def stage(spark: SparkSession) -> Stage:
    return Stage(Programs(spark))


def plan(*faults: str) -> Plan:
    found = tuple(Fault(1.0 + n, 2.0 + n, what, ("node1",)) for n, what in enumerate(faults))
    return Plan(7, "single", (), "passive", "precise", False, ("node1", "node2", "node3"), 4.0, found)


# -- one seed, one run


@pytest.mark.long
@pytest.mark.spark
def test_a_seed_is_the_same_run_in_every_process_and_every_time(stage: Stage, tmp_path: Path) -> None:
    seeds = [3, 5]
    plans = [drawn_plan(seed, SHORT) for seed in seeds]
    assert len({plan.approach for plan in plans}) > 1
    apart = Stage(Programs(stage.programs.spark()))
    apart.prepare(plans)
    apart.programs.close()
    kept = tmp_path / "programs"
    kept.write_bytes(pickle.dumps(apart.programs))
    command = [sys.executable, "-c", PLAYED, str(kept), *map(str, seeds)]
    environment = os.environ | {"PYTHONHASHSEED": "1"}  # that of this process is drawn
    other = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    first, second, again = (apart.play(one)[0].text for one in (*plans, plans[0]))
    assert first == again
    here = f"{seeds[0]}\n{first}{seeds[1]}\n{second}"
    assert len(here.splitlines()) > 100
    assert other.communicate(timeout=300)[0].splitlines() == here.splitlines()
    assert "/dev/shm" not in here
    assert " at 0x" not in here


@pytest.mark.long
@pytest.mark.spark
def test_processes_say_what_one_says_and_one_that_dies_is_reported(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [drawn_plan(seed, SHORT) for seed in (3, 5)]
    apart = Stage(Programs(stage.programs.spark()))
    apart.prepare(plans)
    alone = {verdict.plan.seed: verdict.lines for verdict in judged(apart, plans[1:])}
    play, parent = Stage.play, os.getpid()

    def dies(self: Stage, plan: Plan) -> tuple[Outcome, int]:
        if plan.seed == 3 and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return play(self, plan)

    monkeypatch.setattr(Stage, "play", dies)
    found = {verdict.plan.seed: verdict for verdict in judged(apart, plans, 2)}
    assert found[3].faults == ["the process that ran it died of SIGKILL"]
    assert {5: found[5].lines} == alone
    with pytest.raises(RuntimeError, match="has not compiled"):
        apart.programs.spark()


# -- shortening


def test_what_is_kept_cannot_be_left_out() -> None:
    runs: list[tuple[int, ...]] = []

    def fails(some: tuple[int, ...]) -> bool:
        runs.append(some)
        return len(set(some) & {0, 3, 4}) >= 2

    kept, count = shortest((0, 1, 2, 3, 4), fails)
    assert len(kept) == 2
    assert fails(kept)
    assert count == len(runs) - 1 <= 10
    assert shortest((0, 1), lambda _: True) == ((), 1)


def test_a_failure_is_shortened_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(_: Stage, plan: Plan) -> tuple[Outcome, int]:
        lines = [f"{n:10.6f} node1#1 something {n}" for n in range(200)]
        lines[10] = "  1.500000 fault          kill node1"
        wrong = any(fault.what == "crash" for fault in plan.faults)
        return Outcome(plan, [f"wrong with {len(plan.faults)}"] if wrong else [], lines), 150

    monkeypatch.setattr(Stage, "play", play)
    verdict = Stage(Programs(None)).judge(plan("kill", "crash", "pause"), shorten=True)
    assert (verdict.kept, verdict.kept_faults, verdict.faults) == ((1,), ("wrong with 1",), ["wrong with 3"])
    assert verdict.runs == 5
    shown = verdict.excerpt()
    assert shown[0] == "... 10 lines"
    assert "kill node1" in shown[1]
    assert "something 150" in shown[-7]
    assert len(shown) == 1 + 1 + 1 + 40 + 5 + 1
    whole = Stage(Programs(None)).judge(plan("kill", "crash"), shorten=False)
    assert (whole.kept, whole.runs) == (None, 1)
    assert Verdict(plan(), ["died"], []).excerpt() == []


def history(ids: list[int]) -> History:
    shape = Shape(lambda counts: [(n,) for n in range(counts["a"])], ("n",), order=0, stateless=True)
    found = History("test", "out", shape, "passive", "precise", published={"a": 10}, ended=True)
    found.received = [Received(n, n, (row,)) for n, row in enumerate(ids)]
    return found


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ([*range(10)], 0),
        ([0, 1, 2, 77, 3, 4, 5, 6, 7, 8, 9], 4),
        ([0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9], 4),
        ([0, 1, 2, 4, 5, 6, 7, 8, 9], 4),
        ([0, 1, 2], 0),
    ],
)
def test_the_first_sign_is_the_first_tuple_that_is_wrong_or_comes_behind_one_that_is_missing(
    rows: list[int], count: int
) -> None:
    assert _first_wrong(history(rows)) == count


# -- diagrams of users


@pytest.mark.spark
@pytest.mark.long
def test_a_diagram_of_a_user_runs_with_drawn_rows(stage: Stage) -> None:
    drawn = [drawn_plan(seed, Options(diagram=FILE, seconds=6.0)) for seed in range(10)]
    plans = list({plan.cuts: plan for plan in drawn}.values())[:2]
    assert len(plans) == 2
    assert {plan.name for plan in plans} == {"town"}
    stage.prepare(plans)
    for one in plans:
        verdict = stage.judge(one, shorten=False)
        assert verdict.faults == []
        assert any("busy: tuples" in line for line in verdict.lines)


@pytest.mark.spark
def test_rows_of_a_seed_are_one_stream(stage: Stage) -> None:
    first, again, other = (stage.subject(drawn_plan(seed, Options(diagram=FILE))) for seed in (1, 1, 2))
    end = 2 * CHUNK_ROWS + 10
    whole = first.rows("cars", 0, end)
    assert whole.num_rows == end
    for start, stop in ((0, 0), (5, 6), (CHUNK_ROWS - 3, CHUNK_ROWS + 3), (CHUNK_ROWS, 2 * CHUNK_ROWS), (17, end)):
        assert again.rows("cars", start, stop).equals(whole.slice(start, stop - start))
    assert not other.rows("cars", 0, 100).equals(whole.slice(0, 100))
    assert first.silent == {"never", "cars.late"}
    assert pace_of(first.spec) == 150


def test_inputs_are_durable_where_the_plan_says_so() -> None:
    drawn = [drawn_plan(seed, Options()) for seed in range(20)]
    assert {plan.durable for plan in drawn} == {False, True}
    for one in drawn:
        assert all(i.durable == one.durable for i in one.spec.inputs)
        assert Spec.from_yaml(one.spec.to_yaml()) == one.spec
    assert not spec_of(FILE).protection


@pytest.mark.spark
@pytest.mark.parametrize(
    ("boxes", "says"),
    [
        ("x: {map: {from: cars, exprs: {street: 'regexp_replace(street, ''(a)(?=b)'', ''c'')'}}}", "Catalyst"),
        ("x: {sql_write: {from: cars, statement: 'INSERT INTO t VALUES (:speed)', database: 'sqlite:///x'}}", "databa"),
    ],
)
def test_what_cannot_be_simulated_is_refused(stage: Stage, boxes: str, says: str) -> None:
    text = FILE.partition("boxes:")[0] + f"boxes:\n  {boxes}\noutputs:\n  x: x\n"
    with pytest.raises(DiagramError, match=says):
        stage.prepare([drawn_plan(1, Options(diagram=text))])


@pytest.mark.spark
def test_times_that_are_made_cannot_be_drawn(stage: Stage) -> None:
    text = FILE.replace("time: ts", "time: 'timestamp_millis(bigint(speed))'")
    with pytest.raises(InputError, match="cannot be drawn"):
        stage.prepare([drawn_plan(1, Options(diagram=text))])


def test_a_protection_that_cannot_be_is_refused_with_the_diagrams_name() -> None:
    with pytest.raises(DiagramError, match="diagram 'town' cannot be protected with amnesia, precise"):
        drawn_plan(1, Options(diagram=FILE, approach="amnesia", guarantee="precise"))
    assert len(cuts_of(FILE)) > 2


def test_no_worker_is_left_when_the_reader_of_verdicts_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stage, "judge", lambda _, plan, shorten: Verdict(plan, [], []))
    workers = _Workers(Stage(Programs(None)), [plan()] * 4)
    verdicts = workers.verdicts(2)
    next(verdicts)
    verdicts.close()
    assert not any(process.is_alive() for process in workers._processes.values())
