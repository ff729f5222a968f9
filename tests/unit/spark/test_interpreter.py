"""The script that starts Spark's workers: the same Python, without Spark's zip files on its path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from borealis.spark.interpreter import names_another, worker_python

TELL = "import json, os, pyspark, sys; print(json.dumps([sys.executable, os.environ['PYTHONPATH'], pyspark.__file__]))"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    return Path(worker_python())


def test_zip_files_are_left_out_and_all_else_stays(script: Path) -> None:
    zips = Path(pyspark.__file__).parent / "python" / "lib"
    path = ["/some/where", *map(str, zips.glob("*.zip")), "/with space/too"]
    assert len(path) == 4, "PySpark comes with two"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    told = subprocess.run([script, "-c", TELL], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(told.stdout) == [sys.executable, "/some/where:/with space/too", pyspark.__file__]


def test_it_is_made_again_where_it_is_missing_or_spoilt(script: Path) -> None:
    whole = script.read_text()
    script.write_text("rm -rf nothing")
    assert worker_python() == str(script)
    assert script.read_text() == whole
    script.unlink()
    assert worker_python() == str(script)
    assert script.exists()


def test_without_a_place_for_it_python_itself_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert worker_python() == sys.executable


@pytest.mark.parametrize(
    ("named", "another"), [(None, False), ("", False), (sys.executable, False), ("/opt/environment/bin/python", True)]
)
def test_who_names_this_python_names_no_other(
    named: str | None, another: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if named is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", named)
    assert names_another() is another
