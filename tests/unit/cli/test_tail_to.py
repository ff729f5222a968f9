"""`tail --to` with files: each row once whoever is killed, and tentative rows in a file of their own."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from town import NONE, SCHEMA, STREAM, Place, add, eventually, finish, rows

from borealis.cli.ending import run_app
from borealis.streams.queue import OutputQueue
from borealis.streams.section import Section

TAIL = ["tail", "packets", "--to"]


def guess(queue: OutputQueue, count: int) -> None:
    """So many tentative rows, whose `n` is 100 more than their id."""
    assert queue.tail is not None
    first = queue.tail.held.next
    many = rows(first + 100, count)
    queue.append_tentative(Section(first, many, np.arange(count), NONE, NONE, fork=queue.tail.fork))


def numbers(path: str) -> list[int]:
    """The `n` of a file's rows, as far as they are there."""
    try:
        data = Path(path).read_bytes()
        text = (gzip.decompress(data) if path.endswith(".gz") else data).decode()
    except (FileNotFoundError, EOFError):
        return []
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    if ".csv" in path:
        return [int(line.split(",")[0]) for line in lines[1:]]
    return [json.loads(line)["n"] for line in lines]


def acked(queue: OutputQueue, upto: int) -> bool:
    """Whether a folder and a Parquet file have so many rows."""
    acks = queue.acks()
    return all(name in acks and acks[name][1] == upto for name in ("file.out", "file.out.parquet"))


@contextmanager
def tailing(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, killed in the end if it has not ended by itself."""
    with subprocess.Popen([sys.executable, "-m", "borealis.cli", *TAIL, *arguments]) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.csv.gz"])
def test_a_stream_is_in_a_text_file_once_whoever_is_killed(
    name: str, place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    queue = place.queues[STREAM]
    for many in (500, 1000):
        with tailing(name):
            add(queue, 500)
            eventually(lambda many=many: len(numbers(name)) == many)  # type: ignore[misc]
    with Path(name).open("ab") as file:
        file.write(b"what a killed process had written last")
    add(queue, 10)
    finish(queue)
    capfd.readouterr()
    for again in (False, True):
        assert run_app([*TAIL, name, "--json"]) == 0
        out, err = capfd.readouterr()
        rows = json.loads(out)["rows"]  # with those that were written, and then killed before that was written down
        assert json.loads(out) == {"stream": STREAM, "to": name, "reader": f"file.{name}", "rows": rows}
        assert rows == 0 if again else rows >= 10
        assert err == ""
        assert numbers(name) == list(range(1010))
    assert queue.acks()[f"file.{name}"][1] == 1010


def test_a_stream_without_a_pause_is_written_nevertheless(place: Place) -> None:
    with tailing("out.jsonl"):

        def another() -> bool:
            add(place.queues[STREAM], 1)
            return len(numbers("out.jsonl")) > 0

        eventually(another)


def test_a_folder_and_a_parquet_file_have_each_row_once(place: Place) -> None:
    queue = place.queues[STREAM]
    for upto in (700, 1000):
        with tailing("out/"), tailing("out.parquet"):
            add(queue, upto - queue.next_id)
            eventually(lambda upto=upto: acked(queue, upto))  # type: ignore[misc]
    finish(queue)
    for name in ("out/", "out.parquet"):
        assert run_app([*TAIL, name]) == 0
        assert pq.read_table(name)["n"].to_pylist() == list(range(1000))
    assert run_app(["tail", "packets", "--from", "oldest", "--to", "part.parquet", "--limit", "7"]) == 0
    assert pq.read_table("part.parquet").num_rows == 7


def test_tentative_rows_have_a_file_of_their_own_which_an_undo_empties(place: Place) -> None:
    queue = place.queues[STREAM]
    stable, guesses = "out.jsonl", "guesses.jsonl"
    Path(guesses).write_text('{"n": 7}\n')  # of an earlier life
    files = [stable, "--tentative-to", guesses]
    has: Callable[[list[int], list[int]], None] = lambda one, other: eventually(  # noqa: E731
        lambda: (numbers(stable), numbers(guesses)) == (one, other)
    )
    with tailing("calm.jsonl"):
        with tailing(*files):
            add(queue, 3)
            has([0, 1, 2], [])
            queue.fork("f")
            guess(queue, 2)
            has([0, 1, 2], [103, 104])
            guess(queue, 1)
            has([0, 1, 2], [103, 104, 105])
            with Path(guesses).open() as reading:
                reading.readline()
                add(queue, 2)
                queue.drop_fork()
                has([0, 1, 2, 3, 4], [])
                assert len(reading.readlines()) == 2, "whoever reads the file has what it was"
            queue.fork("g")
            guess(queue, 1)
            has([0, 1, 2, 3, 4], [105])
        guess(queue, 1)  # nobody is there
        with tailing(*files) as again:
            has([0, 1, 2, 3, 4], [105, 106])
            add(queue, 1)
            queue.drop_fork()
            has([0, 1, 2, 3, 4, 5], [])
            finish(queue)
            assert again.wait(15) == 0
        eventually(lambda: len(numbers("calm.jsonl")) == 6)
    assert Path(stable).read_bytes() == Path("calm.jsonl").read_bytes()


def test_a_file_of_tentative_rows_has_the_columns_of_the_stable_ones(place: Place) -> None:
    queue = place.queues[STREAM]
    add(queue, 1)
    queue.fork("f")
    guess(queue, 1)
    with tailing("out.csv", "--headers", "--tentative-to", "guesses.csv"):
        eventually(lambda: Path("guesses.csv").exists() and "w101" in Path("guesses.csv").read_text())
        head, row = Path("guesses.csv").read_text().splitlines()
        assert (head, row) == ("_id,_time,_kind,_stable,n,word", "1,0,+I,false,101,w101")
        assert Path("out.csv").read_text().splitlines() == [head, "0,0,+I,true,0,w0"]
        queue.drop_fork()
        eventually(lambda: Path("guesses.csv").read_text() == head + "\n")


def test_a_parquet_file_and_a_folder_are_whole_when_the_command_is_stopped(place: Place) -> None:
    queue = place.queues[STREAM]
    add(queue, 5)
    with tailing("out/") as one, tailing("out.parquet") as two:
        eventually(lambda: acked(queue, 5))
        for process in (one, two):
            process.send_signal(signal.SIGINT)
            assert process.wait(15) == 130
    for name in ("out/", "out.parquet"):
        assert pq.read_table(name)["n"].to_pylist() == list(range(5))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tentative-to", "a.jsonl"], "--tentative-to says where rows go that are not stable"),
        (["--to", "a.jsonl", "--tentative-to", "./a.jsonl"], "stable and tentative rows go to one place, ./a.jsonl"),
        (["--to", "a.jsonl", "--tentative-to", "b.parquet"], "tentative rows cannot go to b.parquet"),
        (["--to", "a.jsonl", "--tentative-to", "b/"], "tentative rows cannot go to b/"),
        (["--to", "a.xlsx"], "cannot tell the format of 'a.xlsx' by its suffix"),
        (["--to", "nowhere/a.csv"], "cannot write nowhere/a.csv: no directory"),
        (["--to", "there.csv"], "there.csv is there already. Hint: move it away"),
        (["--to", "a.jsonl", "--from", "soon"], "--from 'soon' is no place in a stream"),
    ],
)
def test_places_that_cannot_be_are_refused(
    arguments: list[str], says: str, place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("there.csv").write_text("of somebody else")
    assert run_app(["tail", "packets", *arguments]) == 2
    assert says in capfd.readouterr().err
    assert sorted(path.name for path in Path().iterdir() if path.name != "home") == ["there.csv"]


def test_files_go_on_with_the_same_stream_columns_and_reader_only(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    add(place.queues[STREAM], 5)
    assert run_app([*TAIL, "out.jsonl", "--limit", "3"]) == 0
    with tailing("out.jsonl"):
        eventually(lambda: len(numbers("out.jsonl")) == 5)
        assert run_app([*TAIL, "out.jsonl"]) == 2
        assert "is in use by another writer of the same files" in capfd.readouterr().err
    assert run_app([*TAIL, "out.jsonl", "--headers"]) == 2
    assert "out.jsonl has the columns n, word, not _id, _time" in capfd.readouterr().err
    assert run_app([*TAIL, "out.jsonl", "--reader", "ada"]) == 2
    assert "is of another reader: file.out.jsonl, not ada" in capfd.readouterr().err
    queue = place.queues[STREAM] = OutputQueue(STREAM, SCHEMA)
    place.again()
    add(queue, 9)
    assert run_app([*TAIL, "out.jsonl"]) == 2
    assert "in another epoch since out.jsonl was written" in (err := capfd.readouterr().err)
    assert "delete .out.jsonl.state to write the new stream from its beginning" in err
    assert numbers("out.jsonl") == [0, 1, 2, 3, 4]
    Path(".out.jsonl.state/position.json").write_text("{}")
    assert run_app([*TAIL, "out.jsonl"]) == 2
    assert "position.json is damaged, or of another version" in capfd.readouterr().err
