"""What a run says when a tuple, a box or Spark itself fails: one line that names the place and the reason."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from borealis import BorealisWarning, Diagram, run, window
from borealis.cli.explain import explained
from borealis.compile.kept import Load
from borealis.diagram import passes
from borealis.diagram.boxes.filter import Filter
from borealis.diagram.spec import Spec
from borealis.errors import TrainError

pytestmark = pytest.mark.spark
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
ROWS = [
    {"ts": START + dt.timedelta(seconds=i), "src": "ab"[i % 2], "n": i % 5, "t": str(i) if i % 7 else "bad"}
    for i in range(40)
]
JVM_DIES = """
import os, signal, sys, threading
import psutil
from borealis import Diagram, run
from borealis.errors import MachineError
def endless():
    i = 0
    while True:
        i += 1
        yield {"ts": i * 1000, "n": i}
        if i == 50:
            [jvm] = [p for p in psutil.Process().children() if p.name() == "java"]
            jvm.send_signal(signal.SIGKILL)
d = Diagram("dies")
d.input("a", "ts BIGINT, n INT", time="timestamp_millis(ts)").filter("n > 0").output("out")
try:
    run(d, {"a": endless()})
except MachineError as error:
    print(error.message)
    sys.stdout.flush()
    os._exit(3)
"""


def poisoned(errors: Any) -> Diagram:
    d = Diagram("poisoned", errors=errors)
    first = d.input("a", "ts TIMESTAMP, src STRING, n INT, t STRING").map(src="src", x="100 div n", t="t")
    first.map(y="CAST(t AS INT) + x", src="initcap(src)").output("out")
    sums = first.aggregate(by="src", over=window("10 seconds"), s="sum(x)", n="count(*)")
    sums.map(src="src", z="s / (n - 4)").output("windows")
    return d


def test_tuples_that_fail_go_aside_with_the_reason_and_the_rest_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    with pytest.warns(BorealisWarning, match=r"tuples that a box cannot take are aside.*'u1\.errors'"):
        result = run(poisoned("aside"), {"a": ROWS}, {"u1.errors": seen}, spark=spark)
    assert result["out"].num_rows == sum(1 for r in ROWS if r["n"] and r["t"] != "bad")
    assert {(one["box"], one["expression"], one["reason"]) for one in seen} == {
        ("map_1", "100 div n", "division by zero in `100 DIV n`"),
        (
            "map_2",
            "CAST(t AS INT) + x",
            'The value \'bad\' of the type "STRING" cannot be cast to "INT" because it is malformed',
        ),
        ("map_3", "s / (n - 4)", "division by zero in `s / (n - 4)`"),
    }
    assert result.to_json()["errors"] == {"u1": len(seen)}


def test_what_passes_make_of_a_diagram_runs_and_errors_name_the_boxes_of_the_user(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn_thin(spec: Spec) -> Spec:
        if any(box.name == "map_1_half" for box in spec.boxes):
            return spec
        half = Filter(name="map_1_half", sources=("a",), predicate="src = 'a'")
        boxes = (half, spec.boxes[0].model_copy(update={"sources": ("map_1_half",)}), *spec.boxes[1:])
        return spec.model_copy(update={"boxes": boxes})

    diagram, seen = poisoned("aside"), list[dict[str, Any]]()
    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES, drawn_thin))
    with pytest.warns(BorealisWarning, match=r"'u1\.errors'"):
        result = run(diagram, {"a": ROWS}, {"u1.errors": seen}, spark=spark)
    assert result["out"].num_rows == sum(1 for r in ROWS if r["n"] and r["t"] != "bad" and r["src"] == "a")
    assert {one["box"] for one in seen} <= {"map_1", "map_2", "map_3"}
    told = explained(diagram.validate(), spark, Load())
    assert [box["name"] for box in told["units"][0]["boxes"]][:2] == ["map_1_half", "map_1"]
    assert diagram.spec.boxes[0].name == "map_1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("100 div n", "box 'map_1': division by zero in `100 DIV n`"),
        (
            "CAST(t AS FLOAT)",
            "box 'map_1': The value 'bad' of the type \"STRING\" cannot be cast to \"FLOAT\"",
        ),  # left to Spark
    ],
)
def test_a_failed_train_names_box_and_reason_on_one_line(spark: SparkSession, text: str, said: str) -> None:
    d = Diagram("fails")
    d.input("a", "ts TIMESTAMP, src STRING, n INT, t STRING").map(x=text).output("out")
    with pytest.raises(TrainError) as caught:
        run(d, {"a": ROWS}, spark=spark)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert caught.value.__cause__ is not None
    assert len(traceback.format_exception(caught.value)) < 60


def test_a_jvm_that_dies_is_told_with_its_log() -> None:
    done = subprocess.run([sys.executable, "-c", JVM_DIES], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr
    assert "Spark died: its JVM does not answer any more; Spark's log is " in done.stdout
    assert "Exception occurred during processing of request" not in done.stderr
