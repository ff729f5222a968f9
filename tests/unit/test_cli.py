"""The command line without Spark: what it refuses, what it prints, how it ends."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from borealis.cli import bench, demo, sample, watching
from borealis.cli.ending import Stop, Stopped, code_and_line, run_app
from borealis.cli.run_outputs import FirstRows, given_outputs
from borealis.clock import ManualClock
from borealis.diagram import Diagram
from borealis.entry.admission import Cursor
from borealis.errors import BorealisError
from borealis.trains.progress import Progress

ROOT = Path(__file__).parents[2]
YAML = ROOT / "examples" / "traffic.yaml"
BROKEN = """
borealis: 1
name: traffic
inputs:
  packets: {columns: 'ts TIMESTAMP, n INT', time: ts}
boxes:
  f:
    filter: {from: paket, predicate: n > 1}
outputs:
  out: f
"""


def refused(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a wrong command gets."""
    assert run_app([str(a) for a in arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    return err


def test_a_command_leaves_with_its_code_whatever_threads_still_do() -> None:
    code = (
        "import atexit, threading; from borealis.cli.ending import leave\n"
        "atexit.register(print, 'tidied', end='')\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "print('said', end=' ')\n"
        "leave(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (3, "said tidied", "")


def test_no_type_stands_behind_a_flag(capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["run"], ["deploy"]):
        assert run_app([*arguments, "--help"]) == 0
        out = capfd.readouterr().out
        assert "--help" in out
        assert "bool" not in out.lower()


def test_no_arguments_show_the_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_app([]) == 2
    out, err = capfd.readouterr()
    assert "explain" in out + err
    assert "error:" not in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rnu"], "No such command"),
        (["run"], "Missing argument"),
        (["run", YAML, "--bogus"], "No such option"),
        (["run", YAML, "--buckets", "0"], "--buckets"),
        (["run", "nowhere.yaml"], "cannot read 'nowhere.yaml'"),
        (["check", "nowhere.yaml"], "cannot read 'nowhere.yaml'"),
        (["explain", "nowhere.yaml"], "cannot read 'nowhere.yaml'"),
        (["run", YAML], "add --input packets=FILE"),
        (["run", YAML, "--input", "packets.parquet"], "is not NAME=PATH"),
        (["run", YAML, "--input", "packets="], "is not NAME=PATH"),
        (["run", YAML, "--input", "packets=a.csv", "--input", "packets=b.csv"], "given twice"),
        (["run", YAML, "--input", "packet=a.csv"], "did you mean 'packets'?"),
        (["run", YAML, "--input", "packets=nowhere.parquet"], "no file 'nowhere.parquet'"),
        (["bench", "engin"], "no benchmark 'engin'"),
    ],
)
def test_a_wrong_command_gets_one_line(
    arguments: list[object],
    says: str,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refused(capfd, *arguments)


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        (["per_sauce=a.csv"], "did you mean 'per_source'?"),
        (["per_source=a.xlsx"], "by its suffix"),
        (["per_source=nowhere/a.csv"], "mkdir -p"),
        (["per_source=-", "--json"], "exclude each other"),
        (["per_source=a.csv", "-o", "packets.late=a.csv"], "go to one file"),
    ],
)
def test_a_wrong_output_gets_one_line(
    outputs: list[str], says: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("packets.csv").write_text("ts,src,dst,bytes\n")
    assert says in refused(capfd, "run", YAML, "-i", "packets=packets.csv", "-o", *outputs)


def test_a_broken_diagram_is_refused_before_spark_is_touched(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("borealis.cli.opening.start_spark", lambda *_: pytest.fail("Spark was started"))
    (tmp_path / "broken.yaml").write_text(BROKEN)
    line = refused(capfd, "check", tmp_path / "broken.yaml")
    assert "box 'f'" in line
    assert "paket" in line


def test_without_java_the_line_says_what_to_install(tmp_path: Path) -> None:
    environment = os.environ | {"JAVA_HOME": "/nowhere", "PATH": str(tmp_path)}
    command = [sys.executable, "-m", "borealis.cli", "check", str(YAML)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith("error: Spark needs Java: JAVA_HOME is /nowhere")
    assert "install Java 17" in done.stderr
    assert done.stderr.count("\n") == 1


def test_debug_adds_the_trace_wherever_it_is_written(capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--debug", "check", "nowhere.yaml"], ["check", "nowhere.yaml", "--debug"]):
        assert run_app(arguments) == 2
        err = capfd.readouterr().err
        assert "Traceback" in err
        assert err.splitlines()[-1].startswith("error: cannot read")


def test_an_error_is_one_line_whatever_its_message() -> None:
    assert code_and_line(BorealisError("two\nlines.", hint="mend\nit")) == (2, "error: two lines. Hint: mend it")
    assert code_and_line(BorealisError("alone")) == (2, "error: alone")
    assert code_and_line(FileExistsError(17, "File exists", "state"))[0] == 2
    code, line = code_and_line(ZeroDivisionError("division by zero"))
    assert code == 1
    assert line.startswith("error: unexpected ZeroDivisionError: division by zero. Hint: ")
    assert "--debug" in line


def test_a_signal_waits_for_a_safe_point_and_a_second_one_does_not() -> None:
    stop = Stop()
    with pytest.raises(Stopped) as at_once:
        stop(signal.SIGINT, None)
    assert at_once.value.exit_code == 130
    with stop.deferred():
        stop.point()
        stop(signal.SIGTERM, None)
        with pytest.raises(Stopped) as later:
            stop.point()
        assert later.value.exit_code == 143
        with pytest.raises(Stopped):
            stop(signal.SIGINT, None)


def test_outputs_that_are_not_named_go_nowhere() -> None:
    spec = Diagram.load(YAML).spec
    assert given_outputs(spec, [], False) == {"per_source": None}
    assert given_outputs(spec, ["packets.late=l.csv"], False) == {"per_source": None, "packets.late": "l.csv"}


# -- what is shown


def some_progress() -> Progress:
    unit = Progress("u1", resumed_after=7)
    unit.rows_out = {"per_source": 1_234}
    second = 1_000_000
    cursors = {
        "north": Cursor(100, newest=20 * second, boundary=18 * second, late=3, lateness=2 * second),
        "south": Cursor(50, newest=9 * second, boundary=5 * second),
    }
    unit.note(150_000, 85.0, cursors, 2_500_000)
    return unit


def printed(thing: object) -> str:
    out = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    out.print(thing)
    return out.export_text()


def test_the_progress_line_says_all() -> None:
    line = watching.progress_line(some_progress())
    for part in ("150,000 in", "1,234 to per_source", "lag 15.0 s", "train 85 ms", "held by south", "3 late", "2.5 MB"):
        assert part in line


def test_before_the_first_train_rows_are_counted_as_they_are_read() -> None:
    for count, part in ((0, "0 rows read, none committed yet (waiting for rows"), (65_536, "65,536 rows read")):
        unit = Progress("u1", rows_read=lambda count=count: count)  # type: ignore[misc]
        assert part in watching.progress_line(unit)
        assert part in printed(watching.progress_table([unit]))


def test_of_an_output_that_goes_nowhere_the_first_rows_are_shown() -> None:
    first = FirstRows()
    rows = pa.table({"src": [f"s{i} [b]" for i in range(7)], "n": [i * 1.5 for i in range(7)]})
    first.open(rows.schema, None)
    assert "o: no rows" in printed(first.shown("o"))
    for _ in range(3):
        first.write(rows)
    text = printed(first.shown("per_source"))
    assert "per_source: the first 10 of 21 rows" in text
    assert text.count("[b]") == 10
    assert " 7.5 \n" in text
    assert first.flush(False) == 21


def test_the_progress_table_says_all() -> None:
    text = printed(watching.progress_table([some_progress()]))
    for part in ("150,000", "1,234", "15.0 s", "85 ms", "south", "2.5 MB"):
        assert part in text


def test_the_summary_says_what_became_of_everything() -> None:
    places = {"per_source": "out.parquet", "other": None}
    text = printed(watching.summary("traffic", [some_progress()], places, "done"))
    for part in (
        "resumed after train 7",
        "out.parquet",
        "nowhere: add --output other=FILE",
        "3 late tuples on 'north'",
    ):
        assert part in text


def test_plain_lines_come_every_five_seconds() -> None:
    clock = ManualClock()
    out = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    lines = watching.Watcher(out=out, clock=clock)
    for at in (1.0, 4.9, 5.0, 6.0, 9.9, 10.0):
        clock.advance(at - clock.now())
        lines.see([some_progress()])
    assert out.export_text().count("u1:") == 2


# -- the demo's data


def test_the_demos_packets_are_the_same_every_time_and_never_late() -> None:
    table = sample.packets(20)
    assert table.equals(sample.packets(20))
    assert table.num_rows == 20 * sample.PACKETS_PER_SECOND
    time = table["ts"].combine_chunks().view(pa.int64()).to_numpy()
    behind = np.maximum.accumulate(time) - time
    assert 0 < behind.max() < 2_000_000
    assert sum(b.num_rows for b in demo.paced(table, 0, threading.Event())) == table.num_rows


def test_a_sample_is_what_the_demo_computes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_app(["sample", "p.parquet", "p.csv", "t.yaml", "--seconds", "2"]) == 0
    assert "p.parquet: 1,000 packets" in capfd.readouterr().out
    assert pq.read_table("p.parquet").equals(sample.packets(2))
    assert Path("t.yaml").read_text() == sample.traffic().to_yaml()
    assert len(Path("p.csv").read_text().splitlines()) == 1_001
    for wrong in ("p.parquet", "x/p.parquet", "p.txt"):
        assert run_app(["sample", "q.csv", wrong]) == 2
        assert capfd.readouterr().err.count("\n") == 1
    assert not Path("q.csv").exists()


def test_a_shell_can_complete_commands() -> None:
    asked = {"_BOREALIS_COMPLETE": "complete_bash", "COMP_WORDS": "borealis dep", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", "from borealis.cli import main; main()"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["deploy"]


def test_same_rows_sees_a_difference() -> None:
    one = pa.table({"a": [1, 2], "b": ["x", None]})
    assert demo.same_rows(one, one.take([1, 0]))
    assert not demo.same_rows(one, pa.table({"a": [1, 2], "b": ["x", "y"]}))
    assert not demo.same_rows(one, one.slice(1))


# -- benchmarks


def test_long_texts_leave_room_for_the_figures(capfd: pytest.CaptureFixture[str]) -> None:
    text = "queue to subscriber, 10 tuples every millisecond, age from append to receipt"
    figures = [{"query": f"latency{i}", "p50_ms": 0.54, "note": text, "asked": "at least 300 MB/s"} for i in range(2)]
    out = printed(bench.table(figures))
    assert [line.split() for line in out.splitlines() if "latency1" in line] == [
        ["latency1", "0.54", "at", "least", "300", "MB/s"]
    ]
    assert bench.notes(figures) == [f"latency0: {text}", f"latency1: {text}"]


def test_figures_that_are_too_many_for_one_table_get_one_for_each_query() -> None:
    few = [{"query": "a", "x": 1}, {"query": "b", "y": 2}]
    assert len(bench.tables(few)) == 1
    many = [{"query": name, "runs": 3} | {f"{name}{i}": i for i in range(8)} for name in ("a", "b", "a")]
    first, second = (printed(one) for one in bench.tables([one | {"empty": None} for one in many]))
    assert first.split("\n")[1].split() == ["query", "runs", *(f"a{i}" for i in range(8))]
    assert [line.split()[0] for line in first.splitlines()[3:5]] == ["a", "a"]
    wide = {"query": "throughput"} | {f"rows_per_second_{i}": 1_234_567 for i in range(8)}
    assert printed(bench.tables([wide])[0]).count("1,234,567") == 8, "numbers are never cut"
    assert "b7" in second
    assert "a7" not in second


def test_benchmarks_find_one_another_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wheel they are part of this package, and `benchmarks` is not to be found."""
    names = list(bench.known_experiments())
    assert len(names) > 5
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("benchmarks", "installed"):  # the first is not found, and both are as they were in the end
        monkeypatch.setitem(sys.modules, name, None)
    package = sys.modules["installed"] = ModuleType("installed")
    package.__path__ = [str(ROOT / "benchmarks")]
    try:
        for name in names:
            importlib.import_module(f"installed.{name}")
    finally:
        for name in [name for name in sys.modules if name.startswith("installed.")]:
            del sys.modules[name]


def test_the_help_names_every_benchmark(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_app(["bench", "--help"]) == 0
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    told = {words[0] for words in lines if len(words) > 2}
    assert bench.known_experiments().keys() <= told


def test_figures_become_a_table_and_json(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        QUERIES = ("q1",)

        class Options:
            def __init__(self, only: tuple[str, ...], runs: int, quick: bool) -> None:
                self.told = f"{only} {runs} {quick}"

        @staticmethod
        def run(options: Options, say: object) -> list[dict[str, object]]:
            say(options.told)  # type: ignore[operator]
            return [{"query": "q1", "rows_per_second": 1_234_567, "ratio_to_native": None}]

    monkeypatch.setattr(bench, "find", lambda _: Fake)
    assert run_app(["bench", "--only", "q1", "--runs", "5", "--quick"]) == 0
    out, err = capfd.readouterr()
    assert "1,234,567" in out
    assert "('q1',) 5 True" in err
    assert run_app(["bench", "engine", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)[0]["query"] == "q1"
    assert "no query 'q9'" in refused(capfd, "bench", "--only", "q9")


def test_a_part_that_fails_costs_no_figures_of_the_others(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = bench.find("engine")

    def dies(_: object) -> list[dict[str, object]]:
        raise RuntimeError("the job failed:\na trace\nno room on the disk")

    def lives(_: object) -> list[dict[str, object]]:
        return [{"query": "q3", "rows_per_second": 1_234_567}]

    monkeypatch.setattr(engine, "QUERIES", {"q2": dies, "q3": lives})
    assert run_app(["bench", "engine", "--json"]) == 2
    out, err = capfd.readouterr()
    first, second = json.loads(out)
    assert (first["query"], second["rows_per_second"]) == ("q2", 1_234_567)
    assert first["error"].endswith("no room on the disk")
    assert "error: 1 of the parts failed: q2: no room on the disk" in err
    assert run_app(["bench", "engine"]) == 2
    assert "1,234,567" in capfd.readouterr().out
