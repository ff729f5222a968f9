"""`borealis sim`: options that are wrong get one line, and a failing seed what it takes to repeat it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from borealis.cli.ending import run_app
from borealis.sim.plan import FAULTS, Options, Plan, drawn_plan
from borealis.sim.run import Outcome
from borealis.sim.seeds import Stage


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Plans that were played, without Spark; what has a kill in it fails."""
    found: list[Plan] = []

    def play(_: Stage, plan: Plan) -> tuple[Outcome, int]:
        found.append(plan)
        wrong = [f"out: 1 wrong: {len(plan.faults)}"] if any(f.what == "kill" for f in plan.faults) else []
        lines = [f"{n:10.6f} node1#1        line {n}" for n in range(100)]
        return Outcome(plan, wrong, lines, simulated_s=15.0), 60

    monkeypatch.setattr("borealis.cli.opening.start_spark", lambda _: None)
    monkeypatch.setattr(Stage, "prepare", lambda *_: None)
    monkeypatch.setattr(Stage, "play", play)
    return found


def seed_with(kill: bool, faults: int, **options: Any) -> int:
    """The first seed of so many faults, one of them a kill or none."""
    for seed in range(10_000):
        found = [fault.what for fault in drawn_plan(seed, Options(**options)).faults]
        if len(found) == faults and found.count("kill") == kill:
            return seed
    raise AssertionError


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seed", "1", "--seeds", "2"], "--seed is one"),
        (["--only", "1"], "add --seed"),
        (["--seed", "1", "--only", "99"], "seed 1 has no fault '99'"),
        (["--seed", "1", "--only", "x"], "has no fault 'x'"),
        (["--seed", "1", "--only", "0", "--faults", "none"], "it has no faults"),
        (["--ha", "pasive"], "did you mean 'passive'?"),
        (["--ha", "none"], "--ha 'none' is unknown"),
        (["--guarantee", "exact"], "one of gap, no-loss, precise"),
        (["--faults", "kill,cuts"], "did you mean 'cut'?"),
        (["--minutes", "1", "--seconds", "60"], "give one of them"),
        (["--diagram", "singel"], "did you mean 'single'?"),
        (["--diagram", "nowhere.yaml"], "cannot read 'nowhere.yaml'"),
        (["--nodes", "1"], "--nodes"),
        (["--diagram", "tens", "--ha", "upstream-backup", "--guarantee", "precise"], "diagram 'tens' cannot be"),
    ],
)
def test_a_wrong_option_gets_one_line(
    arguments: list[str], says: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("borealis.cli.opening.start_spark", lambda *_: pytest.fail("Spark was started"))
    monkeypatch.chdir(tmp_path)
    assert run_app(["sim", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1


def test_seeds_that_hold_say_so(played: list[Plan], capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--from", "5", "--ha", "active", "--faults", "cut", "--seconds", "30", "--nodes", "4"]
    assert run_app(["sim", "--seeds", "3", "--jobs", "1", *options]) == 0
    assert [plan.seed for plan in played] == [5, 6, 7]
    for plan in played:
        assert (plan.approach, plan.seconds, len(plan.nodes)) == ("active", 30.0, 4)
        assert {fault.what for fault in plan.faults} <= FAULTS["cut"].keys()
    assert capfd.readouterr().out.startswith("3 seeds, none failed; 45 s simulated")


def test_without_seeds_some_are_drawn(played: list[Plan], capfd: pytest.CaptureFixture[str]) -> None:
    assert run_app(["sim", "--faults", "cut", "--jobs", "1", "--minutes", "0.5"]) == 0
    first = [plan.seed for plan in played]
    assert first == [*range(first[0], first[0] + 20)]
    assert {plan.seconds for plan in played} == {30.0}
    assert "20 seeds, none failed" in capfd.readouterr().out


def test_a_failing_seed_says_how_to_repeat_it(
    played: list[Plan], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    seed = seed_with(kill=True, faults=3, guarantee="precise")
    options = ["--seed", str(seed), "--guarantee", "precise"]
    assert run_app(["sim", *options, "--trace", str(tmp_path / "t")]) == 1
    out, err = capfd.readouterr()
    assert "1 seed, 1 failed" in out
    kept = [f.what for f in drawn_plan(seed, Options(guarantee="precise")).faults].index("kill")
    assert f"shortened in {len(played)} runs to {kept}, which finds:\n    out: 1 wrong: 1\n" in err
    assert "out: 1 wrong: 3" in err
    again = f"borealis sim --seed {seed} --guarantee precise --only {kept}"
    assert err.rstrip().splitlines()[-1] == f"  again: {again}"
    assert "line 21\n" in err
    assert "line 20\n" not in err
    assert "line 99" in (tmp_path / "t").read_text()
    played.clear()
    assert run_app(again.split()[1:]) == 1
    assert [f.what for f in played[0].faults] == ["kill"]
    assert capfd.readouterr().err.rstrip().splitlines()[-1] == f"  again: {again}"


def test_json_has_all_of_it(played: list[Plan], capfd: pytest.CaptureFixture[str]) -> None:
    bad, good = seed_with(kill=True, faults=2), seed_with(kill=False, faults=2)
    assert run_app(["sim", "--seed", str(bad), "--json"]) == 1
    out, err = capfd.readouterr()
    assert err == ""
    facts = json.loads(out)
    [failed] = facts["failed"]
    assert (facts["seeds"], failed["seed"], len(failed["schedule"]), failed["runs"]) == (1, bad, 2, len(played))
    assert failed["command"].startswith(f"borealis sim --seed {bad} --only ")
    assert len(failed["kept"]) == 1
    assert len(failed["history"]) > 40
    assert run_app(["sim", "--seed", str(good), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["failed"] == []


@pytest.mark.spark
def test_a_seed_runs(spark: Any, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "history"
    command = ["sim", "--seed", "3", "--seconds", "4", "--only", "none", "--trace", str(file)]
    assert run_app(command) == 0, capfd.readouterr().err
    assert "is acknowledged" in file.read_text()
