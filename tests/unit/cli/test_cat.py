"""`borealis cat` as a user types it: every format, folders, the last rows, and files that are damaged."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis import directory
from borealis.cli import cat
from borealis.cli.cells import cell, cells
from borealis.cli.ending import run_app
from borealis.connectors.sinks import as_sink

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string()), ("at", pa.timestamp("us", "UTC"))])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(first: int, stop: int) -> pa.Table:
    return pa.table([range(first, stop), [f"w{n}" for n in range(first, stop)], [NOON] * (stop - first)], schema=SCHEMA)


def written(name: str, table: pa.Table) -> str:
    sink = as_sink(name)
    sink.open(table.schema, None)
    sink.write(table)
    sink.close(complete=True)
    return name


def said(capfd: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    capfd.readouterr()
    got = run_app(["cat", *map(str, arguments)])
    out, err = capfd.readouterr()
    assert got == code, err
    if code == 0:
        assert err == ""
    else:
        assert err.startswith("error: ")
        assert "Traceback" not in err
    return out


def numbers(text: str) -> list[int]:
    return [int(json.loads(line)["n"]) for line in text.splitlines()]


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.csv.gz", "a.jsonl", "a.jsonl.gz", "a.arrow", "a.arrows"])
def test_every_format(capfd: pytest.CaptureFixture[str], name: str) -> None:
    written(name, rows(0, 2_500))
    assert numbers(said(capfd, name, "--json")) == list(range(2_500))
    assert numbers(said(capfd, name, "--json", "--limit", 3)) == [0, 1, 2]
    assert numbers(said(capfd, name, "--json", "--tail")) == list(range(2_490, 2_500))
    assert numbers(said(capfd, name, "--json", "--tail", "--limit", 1_200)) == list(range(1_300, 2_500))
    text = said(capfd, name, "--limit", 2).splitlines()
    assert text[0].split() == ["n", "word", "at"]
    assert text[1].split()[:3] == ["0", "w0", "2026-01-01"] or text[1].split()[2].startswith("2026-01-01T12")
    assert len(text) == 3
    fact = json.loads(said(capfd, name, "--schema", "--json"))
    assert (fact["rows"], list(fact["columns"])) == (2_500, ["n", "word", "at"])
    if name.startswith("a.parquet") or ".arrow" in name:
        assert fact["columns"] == {"n": "BIGINT", "word": "STRING", "at": "TIMESTAMP"}


def test_a_folder_in_order_and_several_paths(capfd: pytest.CaptureFixture[str]) -> None:
    sink = directory("out/", rows=10)
    sink.open(SCHEMA, None)
    for first in range(0, 40, 5):
        sink.write(rows(first, first + 5))
        sink.committed(sink.flush(False))
    sink.close(complete=True)
    Path("out/_SUCCESS").touch()
    Path("out/.hidden.parquet").write_bytes(b"half")
    written("more.csv", rows(40, 42))
    assert numbers(said(capfd, "out", "more.csv", "--json")) == list(range(42))
    assert numbers(said(capfd, "out/", "more.csv", "--json", "--tail", "--limit", 15)) == list(range(27, 42))
    text = said(capfd, "out", "more.csv")
    assert text.count("word") == 1  # the same columns: named once
    assert said(capfd, "out", "--schema").count("10 rows") == 4


def test_a_journal_and_dead_letters_of_a_run(capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    sink = as_sink("out.parquet", folder / "sums.journal")
    sink.open(SCHEMA, None)
    sink.write(rows(0, 3))
    sink.flush(True)
    assert numbers(said(capfd, "sums.journal", "--json")) == [0, 1, 2]
    Path("dead").write_text('{"place": "a.csv, record 2", "n": 7}\n')
    assert numbers(said(capfd, "dead", "--json")) == [7]


def test_nothing_in_a_file(capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("a.parquet", "a.csv", "a.arrow", "a.arrows"):
        assert said(capfd, written(name, rows(0, 0))).split() == ["n", "word", "at"]
        assert said(capfd, name, "--json") == ""
    assert said(capfd, written("a.jsonl", rows(0, 0))) == ""


def test_what_is_readable_of_a_damaged_file_is_shown_first(capfd: pytest.CaptureFixture[str]) -> None:
    Path("a.jsonl").write_text('{"n": 1}\n{"n": 2}\n{half\n{"n": 3}\n')
    Path("b.csv").write_text("n,word\n1,a\n2,b\n3\n4,d\n")
    lines = "".join(f'{{"n": {n}}}\n' for n in range(5_000)).encode()
    Path("c.jsonl.gz").write_bytes(gzip.compress(lines)[:-20])
    whole = Path(written("d.arrows", rows(0, 5))).read_bytes()
    with open("d.arrows", "wb") as file:
        file.write(whole[:-16] + whole[8:200])
    for name, want in (("a.jsonl", [1, 2]), ("b.csv", [1, 2])):
        assert numbers(said(capfd, name, "--json", code=1)) == want
    some = numbers(said(capfd, "c.jsonl.gz", "--json", code=1)[: -len('{"n": 1')].rpartition("\n")[0])
    assert some == list(range(len(some)))
    assert len(some) > 1_000
    assert numbers(said(capfd, "d.arrows", "--json", code=1)) == list(range(5))
    capfd.readouterr()
    assert run_app(["cat", "a.jsonl", "b.csv", "--json"]) == 1  # one damaged file does not hide the next
    out, err = capfd.readouterr()
    assert numbers(out) == [1, 2, 1, 2]
    assert "a.jsonl, row 3 is not JSON" in err
    assert "b.csv, row 3 has 1 fields, not 2" in err
    Path("e.parquet").write_bytes(b"PAR1 nothing")
    assert run_app(["cat", "e.parquet"]) == 1
    assert "Hint: no row of it can be read" in capfd.readouterr().err
    said(capfd, "e.parquet", "--schema", code=1)


@pytest.mark.parametrize(
    ("name", "says"),
    [("packet.csv", "did you mean 'packets.csv'?"), ("empty", "no readable files"), ("notes.txt", "cannot tell")],
)
def test_what_it_refuses(capfd: pytest.CaptureFixture[str], name: str, says: str) -> None:
    Path("packets.csv").write_text("n\n1\n")
    Path("notes.txt").write_text("hello")
    Path("empty").mkdir()
    assert run_app(["cat", name]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert says in err


WORDS = st.text(st.sampled_from("ab -.\t\n\x1f\x7f\u00a0\u3000é漢"), max_size=60)
TIMES = st.datetimes(datetime(900, 1, 1)) | st.datetimes(datetime(2026, 1, 1), datetime(2026, 1, 1, 0, 0, 3))
COLUMNS = st.one_of(
    st.lists(st.none() | WORDS).map(lambda some: pa.array(some, pa.string())),
    st.lists(st.none() | st.floats()).map(lambda some: pa.array(some, pa.float64())),
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)).map(lambda some: pa.array(some, pa.int64())),
    st.lists(st.none() | st.booleans()).map(lambda some: pa.array(some, pa.bool_())),
    *(
        st.lists(st.none() | TIMES).map(lambda some, to=kind: pa.array(some, pa.timestamp("us")).cast(to, safe=False))
        for kind in (
            pa.timestamp("us"),
            pa.timestamp("us", "UTC"),
            pa.timestamp("ms", "Europe/Berlin"),
            pa.timestamp("s"),
        )
    ),
)


@given(COLUMNS)
def test_whole_columns_are_shown_as_values_one_by_one(column: pa.Array) -> None:
    assert cells(column).to_pylist() == [cell(value.as_py()) for value in column]


def test_times_say_that_they_are_utc() -> None:
    assert [cell(NOON), cell(NOON.replace(tzinfo=None))] == ["2026-01-01 12:00:00Z", "2026-01-01 12:00:00"]
    assert cell(NOON.astimezone(timezone(timedelta(hours=2)))) == "2026-01-01 12:00:00Z"


def test_many_rows_are_shown_soon(capfd: pytest.CaptureFixture[str]) -> None:
    """Without a step in Python for each value: those took ten seconds for this."""
    written("a.parquet", rows(0, 150_000))
    began = time.process_time()
    said(capfd, "a.parquet")
    assert time.process_time() - began < 3


def test_columns_fit_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    written("a.jsonl", pa.table({"n": [1, 2], "text": ["漢字" * 30, "short"], "more": ["x" * 39] * 2}))

    class Narrow:
        width, is_terminal = 30, True

    monkeypatch.setattr(cat, "console", lambda: Narrow())
    from rich.cells import cell_len

    lines = said(capfd, "a.jsonl").splitlines()
    assert max(map(cell_len, lines)) <= 30
    assert "…" in lines[1]
    assert lines[0].split() == ["n", "text", "more"]


def test_a_large_file_is_not_loaded_for_its_beginning(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A limit reads one piece, whatever the format; --tail reads the last row groups of Parquet only."""
    pq.write_table(rows(0, 20_000), "a.parquet", row_group_size=2_000)
    read: list[Any] = []
    real = pq.ParquetFile.iter_batches

    def noted(self: Any, *arguments: Any, **options: Any) -> Any:
        read.append(options.get("row_groups"))
        return real(self, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    assert numbers(said(capfd, "a.parquet", "--tail", "--limit", 2_500, "--json")) == list(range(17_500, 20_000))
    assert read == [[8, 9]]
    os.mkfifo("endless.jsonl")

    def write() -> None:
        with suppress(BrokenPipeError), open("endless.jsonl", "wb", buffering=0) as file:
            while True:
                file.write(b'{"n": 1}\n' * 1_000)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert said(capfd, "endless.jsonl", "--limit", 5, "--json").count("\n") == 5
    writer.join(30)
    assert not writer.is_alive()  # nobody reads on


def test_nobody_reads_on(folder: Path) -> None:
    written("a.csv", rows(0, 50_000))
    code = f"{sys.executable} -m borealis.cli cat a.csv | head -n 2; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "141"
