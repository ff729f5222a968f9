"""The command line with Spark: most in this process with the session that all tests share, a few as real processes."""

from __future__ import annotations

import json
import runpy
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from borealis.cli.ending import run_app
from borealis.cli.sample import packets
from borealis.diagram import Diagram

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
YAML = ROOT / "examples" / "traffic.yaml"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECONDS = 20
ROWS = packets(SECONDS).num_rows
LONG_S = 840  # on a machine that gives us a third of a core; alone it is a tenth of that
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user sits, with packets beside them."""
    pq.write_table(packets(SECONDS), tmp_path / "packets.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def starts_processes(script: Path) -> bool:
    return "import subprocess" in script.read_text()


def borealis(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A real process."""
    command = [sys.executable, "-m", "borealis.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG_S)


# -- real processes


def test_an_interrupted_run_closes_its_outputs_and_goes_on_later(folder: Path) -> None:
    arguments = ["run", YAML, "-i", "packets=packets.parquet", "-o", "per_source=out.csv", "--state", "state"]
    command = [sys.executable, "-m", "borealis.cli", *map(str, arguments), "--rows-per-train", "100"]
    one = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out = folder / "out.csv"
    until = time.monotonic() + 200
    while one.poll() is None and time.monotonic() < until and (not out.exists() or out.stat().st_size < 1_000):
        time.sleep(0.05)
    one.send_signal(signal.SIGINT)
    _, err = one.communicate(timeout=60)
    assert one.returncode == 130, err
    assert "traffic: stopped" in err
    assert "Traceback" not in err
    some = pa_csv.read_csv(out).num_rows

    done = borealis(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("u1: ") for line in done.stderr.splitlines()), done.stderr  # and not a word of Spark's
    said = json.loads(done.stdout)
    assert said["units"][0]["resumed_after_train"] > 0
    assert 0 < some < pa_csv.read_csv(out).num_rows == said["rows_out"]["per_source"]


def test_the_demo_agrees_with_plain_spark() -> None:
    done = borealis("demo", "--fast", "--seconds", "2")
    assert done.returncode == 0, done.stderr
    assert "top talkers" in done.stdout
    assert "identical" in done.stdout


@pytest.mark.parametrize("script", [s for s in EXAMPLES if starts_processes(s)], ids=lambda p: p.stem)
def test_each_example_with_processes_runs(script: Path) -> None:
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=LONG_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    if '"up"' in script.read_text():  # it starts a cluster, which says what it does
        assert "Traceback" not in done.stderr
    else:
        assert done.stderr == ""


# -- in this process


@pytest.mark.parametrize("script", [s for s in EXAMPLES if not starts_processes(s)], ids=lambda p: p.stem)
def test_each_example_runs(spark: Any, script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    runpy.run_path(str(script), run_name="__main__")
    out, err = capfd.readouterr()
    assert out
    assert err == ""


def said(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command that goes well prints."""
    capfd.readouterr()
    code = run_app([str(a) for a in arguments])
    out, err = capfd.readouterr()
    assert code == 0, err
    return out


def refused(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a command that cannot be obeyed gets."""
    capfd.readouterr()
    code = run_app([str(a) for a in arguments])
    out, err = capfd.readouterr()
    assert code == 2, err
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("u1: ")]
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    return lines[0]


def test_run_writes_the_output_and_ends_with_a_summary(
    spark: Any, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = said(capfd, "run", YAML, "--input", "packets=packets.parquet", "--output", "per_source=out.parquet")
    for part in ("traffic: done", f"{ROWS:,}", "out.parquet", "per_source"):
        assert part in out
    assert pq.read_table("out.parquet").column_names == ["src", "window_start", "window_end", "n", "kb"]
    assert sorted(p.name for p in folder.iterdir()) == ["out.parquet", "packets.parquet"]


def test_json_is_one_object(spark: Any, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = said(capfd, "run", YAML, "-i", "packets=packets.parquet", "-o", "packets.late=late.jsonl", "--json")
    assert out.count("\n") == 1
    one = json.loads(out)
    assert one["diagram"] == "traffic"
    assert one["outputs"] == {"per_source": None, "packets.late": "late.jsonl"}
    assert one["rows_in"] == ROWS
    assert one["rows_out"]["per_source"] > 0


def test_an_output_that_goes_nowhere_shows_its_first_rows(
    spark: Any, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = said(capfd, "run", YAML, "-i", "packets=packets.parquet", "--state", "state")
    for part in ("below; all of them with --output per_source=FILE", "per_source: the first 10 of ", "window_start"):
        assert part in out
    line = refused(capfd, "run", YAML, "-i", "packets=packets.parquet", "-o", "per_source=o.csv", "--state", "state")
    assert "output 'per_source' went to no file up to train" in line
    changed = folder / "changed.yaml"
    changed.write_text(YAML.read_text().replace("bytes > 100", "bytes > 200"))
    line = refused(capfd, "run", changed, "-i", "packets=packets.parquet", "--state", "state")
    assert "box 'filter_1': predicate 'bytes > 100' there, 'bytes > 200' here" in line


def test_an_output_on_stdout_is_json_lines_and_nothing_else(
    spark: Any, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = said(capfd, "run", YAML, "-i", "packets=packets.parquet", "-o", "per_source=-", "--headers")
    rows = [json.loads(line) for line in out.splitlines()]
    assert rows[0].keys() > {"src", "window_start", "window_end", "n", "kb"}


def test_check_and_explain(spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert said(capfd, "check", YAML) == "ok: traffic (3 boxes, 1 unit)\n"
    assert json.loads(said(capfd, "check", YAML, "--json"))["ok"] is True
    text = said(capfd, "explain", YAML)
    for part in ("slack 2 seconds", "a boundary every 1 second", "kb DECIMAL(27,6)", "convergent-capable", "kernel in"):
        assert part in text
    facts = json.loads(said(capfd, "explain", YAML, "--json"))
    [unit] = facts["units"]
    assert [box["kind"] for box in unit["boxes"]] == ["filter", "map", "aggregate"]
    assert "borealis_train" in unit["plan"]


def diagram(folder: Path, predicate: str = "bytes > 100", columns: str = "ts TIMESTAMP, src STRING, bytes INT") -> Path:
    d = Diagram("small")
    d.input("packets", columns, time="ts").filter(predicate).output("big")
    d.save(folder / "small.yaml")
    return folder / "small.yaml"


@pytest.mark.parametrize(
    ("predicate", "says"),
    [
        ("bytes >", "bytes >"),
        ("byte > 100", "did you mean 'bytes'?"),
        ("bytes + 1", "not BOOLEAN"),
        ("no_such(bytes) > 1", "no_such"),
        ("src + 1 > ts", "box 'filter_1'"),
    ],
)
@pytest.mark.parametrize("command", ["check", "explain"])
def test_an_expression_that_makes_no_sense(
    spark: Any, folder: Path, capfd: pytest.CaptureFixture[str], predicate: str, says: str, command: str
) -> None:
    line = refused(capfd, command, _written(folder, predicate))
    assert "filter_1" in line
    assert says in line


def _written(folder: Path, predicate: str) -> Path:
    """Past the checks of the builder, as a user may write it."""
    path = diagram(folder, "bytes > 12345")
    path.write_text(path.read_text().replace("bytes > 12345", json.dumps(predicate)))
    return path


def test_a_column_that_the_file_does_not_have(spark: Any, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = diagram(folder, columns="ts TIMESTAMP, source STRING, bytes INT")
    line = refused(capfd, "run", path, "-i", "packets=packets.parquet", "-o", "big=big.csv")
    assert "source" in line
    assert "src" in line


def test_a_time_that_is_null(spark: Any, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    times = [NOON, NOON + timedelta(seconds=1), None]
    table = pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC")), "src": ["a", "b", "c"], "bytes": [200] * 3})
    pq.write_table(table, folder / "nulls.parquet")
    line = refused(capfd, "run", diagram(folder), "-i", "packets=nulls.parquet", "-o", "big=big.csv")
    assert "row 3" in line
    assert "'ts' is null" in line


def test_a_value_that_does_not_fit_leaves_what_was_before_it(
    spark: Any, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [
        "ts,src,bytes",
        *(f"2026-01-01T12:00:{i:02}Z,a,{200 + i}" for i in range(20)),
        "2026-01-01T12:00:30Z,a,many",
    ]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    line = refused(
        capfd, "run", diagram(folder), "-i", "packets=rows.csv", "-o", "big=big.csv", "--rows-per-train", "5"
    )
    assert "many" in line
    assert "rows.csv" in line
    assert pa_csv.read_csv(folder / "big.csv").num_rows == 20  # all trains before the bad row's are there


def test_an_output_that_may_not_be_written(spark: Any, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = refused(capfd, "run", YAML, "-i", "packets=packets.parquet", "-o", "per_source=/proc/out.parquet")
    assert "/proc/out.parquet" in line


def test_a_state_directory_of_another_diagram(spark: Any, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said(capfd, "run", diagram(folder), "-i", "packets=packets.parquet", "--state", "state", "--json")
    line = refused(capfd, "run", YAML, "-i", "packets=packets.parquet", "--state", "state")
    assert "state" in line
    (folder / "file").write_text("")
    assert "file" in refused(capfd, "run", YAML, "-i", "packets=packets.parquet", "--state", "file")
