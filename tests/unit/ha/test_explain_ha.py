"""`borealis explain --ha`: which recovery each unit gets, and why; without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from borealis.cli.ending import run_app
from borealis.diagram import Diagram, window

YAML = Path(__file__).parents[3] / "examples" / "traffic.yaml"

GOLDEN = """\
protection of unit u1: reads packets; gives filter_1, u1.errors; repeatable
├── filter_1: filter where bytes > 100
│   └── repeatable: each tuple is looked at alone
├── no state
└── upstream-backup, no-loss
    ├── recovery type (Hwang, table 3.2): repeating
    └── given: repeating: that is promised, but readers see precise recovery: the backup comes to the same tuples under
        the same ids, and a reader asks for the id it wants next
protection of unit u2: reads filter_1; gives aggregate_1, u2.errors; convergent-capable
├── map_1: map src = src, kb = bytes / 1024.0
│   └── repeatable: each tuple is computed alone
├── aggregate_1: aggregate by src over 10 seconds every 1 second: n = count(*), kb = sum(kb)
│   └── convergent-capable: several tuples make one result, in windows aligned to the clock
├── state reaches back: filter_1 10 seconds
└── upstream-backup, no-loss
    ├── recovery type (Hwang, table 3.2): convergent
    └── given: convergent: that is promised, but readers see precise recovery: the backup comes to the same tuples under
        the same ids, and a reader asks for the id it wants next
"""


def said(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    code = run_app(["explain", *(str(a) for a in arguments)])
    out, err = capfd.readouterr()
    assert code == 0, err
    return out


def facts(capfd: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(said(capfd, *arguments, "--json"))["protection"]
    return found


def refused(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run_app(["explain", *(str(a) for a in arguments)]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def test_golden(capfd: pytest.CaptureFixture[str]) -> None:
    text = said(capfd, YAML, "--ha", "upstream-backup", "--guarantee", "no-loss", "--cut", "map_1")
    assert [line.rstrip() for line in text.splitlines()] == GOLDEN.splitlines()


def test_the_whole_table(capfd: pytest.CaptureFixture[str]) -> None:
    [unit] = facts(capfd, YAML, "--ha", "amnesia", "--guarantee", "precise")
    assert unit["asked"]["recovery"] is None
    assert "amnesia cannot give 'precise'" in unit["asked"]["refused"]
    assert unit["reach_back"] == {"packets": "10 seconds"}
    table = {
        a: (row["recovery_type"], [g["recovery"] for g in row["guarantees"].values()])
        for a, row in unit["table"].items()
    }
    assert table == {
        "amnesia": ("gap", ["gap", None, None]),
        "passive": ("repeating", ["gap", "repeating", "precise"]),
        "active": ("repeating", ["gap", "repeating", "precise"]),
        "upstream-backup": ("convergent", ["gap", "convergent", "precise"]),
        "storage": ("repeating", ["gap", "repeating", "precise"]),
        "replicas": ("repeating", [None, None, "precise"]),
    }


def test_state_behind_a_unit_that_repeats_is_warned_of(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    d = Diagram("met")
    a, b = (d.input(name, "ts TIMESTAMP, n INT") for name in "ab")
    slim = a.union(b, name="both").map(n="n", name="slim")
    slim.output("plain")
    slim.aggregate(by=[], over=window("1 second"), m="count(*)", name="sums").output("sums")
    d.save(tmp_path / "met.yaml")
    one = (tmp_path / "met.yaml", "--ha", "passive", "--guarantee", "no-loss")
    text = " ".join(said(capfd, *one, "--cut", "slim", "--cut", "sums").split())
    assert "warning: under 'no-loss' unit 'u1' may give tuples again after a takeover, and 'sums' behind it" in text
    assert "'precise'" in text
    for safe in (
        one,
        (*one, "--cut", "slim", "--guarantee", "precise"),
        (*one, "--ha", "amnesia", "--guarantee", "gap"),
    ):
        assert json.loads(said(capfd, *safe, "--json"))["warnings"] == []


def test_what_is_refused_is_told_with_its_reason(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    d = Diagram("late")
    late = d.input("a", "ts TIMESTAMP, k INT").late
    late.aggregate(by="k", over=window("2 seconds"), n="count(*)").output("out")
    d.save(tmp_path / "late.yaml")
    text = said(capfd, tmp_path / "late.yaml", "--ha", "upstream-backup")
    assert "state reaches back: a.late without bound" in text
    assert "refused: protection 'all': upstream-backup cannot give 'precise'" in text
    assert "hint: choose passive or active" in text


def test_what_the_file_says_counts_unless_the_command_says_more(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    d = Diagram("fork")
    a = d.input("a", "ts TIMESTAMP, k INT")
    a.filter("k > 0", name="some").protect(ha="active", guarantee="no-loss").output("one")
    a.filter("k > 1", name="more").output("two")
    path = tmp_path / "fork.yaml"
    d.save(path)

    def asked(*arguments: object) -> list[tuple[str, str | None]]:
        return [(u["asked"]["approach"], u["asked"]["guarantee"]) for u in facts(capfd, path, *arguments)]

    assert asked("--cut", "more") == [("active", "no-loss"), ("none", None)]
    assert asked("--cut", "more", "--guarantee", "precise") == [("active", "precise"), ("none", None)]
    assert asked("--place", "more=node2", "--place", "some=node1", "--ha", "passive") == [("passive", "precise")] * 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--guarantee", "precise"], "says nothing of protection"),
        (["--cut", "map_1"], "add --ha passive"),
        (["--ha", "pasive"], "did you mean 'passive'?"),
        (["--ha", "active", "--guarantee", "exact"], "no guarantee 'exact'"),
        (["--ha", "active", "--cut", "mop_1"], "did you mean 'map_1'?"),
        (["--ha", "active", "--place", "map_1"], "is not NAME=VALUE"),
    ],
)
def test_a_slip_gets_one_line(capfd: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert says in refused(capfd, YAML, *arguments)


def test_several_backups_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    out = said(capfd, YAML, "--ha", "passive", "--backups", 2)
    assert "passive, precise, 2 backups" in out
    facts = json.loads(said(capfd, YAML, "--ha", "passive", "--backups", 2, "--json"))
    assert facts["protection"][0]["asked"]["backups"] == 2
