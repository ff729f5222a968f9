"""`send` and `tail` as a user types them, against real Flight servers in this process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from town import NONE, SCHEMA, STREAM, WAIT_S, Counter, Place, add, eventually, finish, rows

from borealis.cli.changes import GREEN, PLAIN, RED, ChangedRows
from borealis.cli.ending import run_app
from borealis.kernels.time_of import TimeOf, noted
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.streams.section import Section, section
from borealis.tuples import KIND

WIDE, SLOW_ROWS = 100_000, 400  # together more than any buffer between a queue and its reader


pytestmark = pytest.mark.usefixtures("place")


def a_file(count: int) -> str:
    path = Path("rows.csv")
    path.write_text("n,word\n" + "".join(f"{i},w{i}\n" for i in range(count)))
    return str(path)


def lines(capfd: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_what_is_sent_can_be_tailed(capfd: pytest.CaptureFixture[str], place: Place) -> None:
    assert run_app(["send", "packets", a_file(2500), "--end"]) == 0
    assert capfd.readouterr().out.startswith("2,500 rows to traffic/packets in ")
    assert run_app(["tail", "packets", "--from", "oldest", "--json"]) == 0
    assert [row["n"] for row in lines(capfd)] == list(range(2500))
    assert run_app(["tail", "packets", "--from", "2400", "--limit", "2", "--json", "--headers"]) == 0
    assert lines(capfd)[1] == {"_id": 2401, "_time": 2401, "_kind": "+I", "_stable": True, "n": 2401, "word": "w2401"}
    assert run_app(["tail", "packets", "--from", "oldest", "--limit", "2"]) == 0
    assert capfd.readouterr().out == "n  word\n0  w0\n1  w1\n"


def test_a_tail_that_waits_says_so_and_what_is_held(capfd: pytest.CaptureFixture[str], place: Place) -> None:
    queue = place.queues[STREAM]
    add(queue, 3)
    command = [sys.executable, "-m", "borealis.cli", "tail", "packets", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert tail.stderr.readline() == "waiting for rows of traffic/packets; 3 rows are held: --from oldest\n"
        add(queue, 1)
        assert json.loads(tail.stdout.readline())["n"] == 3
        finish(queue)
        assert tail.wait(WAIT_S) == 0
        assert tail.stderr.read() == "", "it is told once"
    assert run_app(["tail", "packets", "--json"]) == 0
    assert capfd.readouterr().err == "traffic/packets has ended; 4 rows are held: --from oldest\n"


def test_under_a_name_sending_goes_on_where_it_was(capfd: pytest.CaptureFixture[str], place: Place) -> None:
    arguments = ["send", "packets", a_file(2500), "--publisher", "ada", "--batch-rows", "100"]
    command = [sys.executable, "-m", "borealis.cli", *arguments, "--rate", "1000", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sending:
        eventually(lambda: place.queues[STREAM].next_id >= 300)
        sending.send_signal(signal.SIGINT)
        out, _ = sending.communicate(timeout=WAIT_S)
        assert sending.returncode == 130
    told = json.loads(out)
    assert told["stopped"] is True
    assert told["not_acknowledged"] == 0
    assert told["rows"] == place.queues[STREAM].next_id
    assert 300 <= place.queues[STREAM].next_id < 2500
    assert run_app([*arguments, "--end"]) == 0
    out, err = capfd.readouterr()
    assert "going on behind row" in err
    assert f"{2500 - told['rows']:,} rows to traffic/packets" in out
    assert run_app(["tail", "packets", "--from", "oldest", "--json"]) == 0
    assert [row["n"] for row in lines(capfd)] == list(range(2500))


def test_a_named_reader_sees_every_row_once(capfd: pytest.CaptureFixture[str], place: Place) -> None:
    queue = place.queues[STREAM]
    add(queue, 10)
    assert run_app(["tail", "packets", "--reader", "ada", "--limit", "4", "--json"]) == 0
    assert queue.acks()["ada"][1] == 4
    finish(queue)
    assert run_app(["tail", "packets", "--reader", "ada", "--json"]) == 0
    assert [row["n"] for row in lines(capfd)] == list(range(10))
    assert queue.acks()["ada"][1] == 10


def test_rows_are_corrected_by_their_kind_and_shown_so(capfd: pytest.CaptureFixture[str], place: Place) -> None:
    keyed = noted(SCHEMA.append(pa.field(KIND, pa.string())), TimeOf("n"), ["n"])
    queue = place.queues[STREAM] = OutputQueue(STREAM, keyed)
    place.entries[STREAM] = Counter(queue)
    assert run_app(["send", "packets", a_file(2)]) == 0
    Path("keys.csv").write_text("n\n1\n")
    assert run_app(["send", "packets", "keys.csv", "--kind", "-D"]) == 0
    Path("own.jsonl").write_text('{"_kind": "-U", "n": 0, "word": "w0"}\n{"_kind": "+U", "n": 0, "word": "x"}\n')
    assert run_app(["send", "packets", "own.jsonl"]) == 0
    assert run_app(["send", "packets", "own.jsonl", "--kind", "+I", "--end"]) == 0
    capfd.readouterr()
    assert run_app(["tail", "packets", "--from", "oldest"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "   n  word",
        "+  0  w0",
        "+  1  w1",
        "-  1  -",
        "~  0  w0 → x",
        "+  0  w0",
        "+  0  x",
    ]
    assert run_app(["tail", "packets", "--from", "1", "--limit", "2", "--json"]) == 0
    assert lines(capfd) == [{"_kind": "+I", "n": 1, "word": "w1"}, {"_kind": "-D", "n": 1, "word": None}]
    plain = ["tail", "packets", "--from", "oldest", "--json", "--insertions-only"]
    assert run_app([*plain, "--limit", "3", "--reader", "ada"]) == 0
    assert [row["n"] for row in lines(capfd)] == [0, 1, 0]
    assert queue.acks()["ada"][1] == 6
    assert run_app(plain) == 0
    assert [row["word"] for row in lines(capfd)] == ["w0", "w1", "w0", "x"]


def test_kinds_that_cannot_be_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    for kind, says in (
        ("-D", "rows of traffic/packets cannot be corrected: they have no key"),
        ("X", "'X' is no kind"),
    ):
        assert run_app(["send", "packets", a_file(1), "--kind", kind]) == 2
        assert says in capfd.readouterr().err


def test_what_went_is_red_and_what_came_is_green(capfd: pytest.CaptureFixture[str]) -> None:
    kinds, names = ["+I", "-U", "+U", "-D", "+U", "-U"], ["a", "b →", "c", "d", "e", "f"]
    show = ChangedRows(coloured=True)
    show.batch(pa.record_batch({KIND: kinds, "name": names, "n": [1, 2, 2, 3, 4, 5]}))
    shown = capfd.readouterr().out.replace(RED, "<").replace(GREEN, "[").replace(PLAIN, "|").splitlines()
    assert shown == [
        "   name     n",
        "[+  a        1|",
        "~  <b →| → [c|  2",
        "<-  d        3|",
        "[+  e        4|",
        "<-  f        5|",
    ]
    show.batch(pa.record_batch({"n": [1]}))
    assert capfd.readouterr().out == "n\n1\n"


def test_a_rate_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_app(["send", "packets", a_file(300), "--rate", "600", "--json"]) == 0
    [told] = lines(capfd)
    assert told["rows"] == 300
    assert float(str(told["seconds"])) > 0.4  # the last of them is due then


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("n\n1\n", "no column 'word' in rows.csv (has: n)"),
        ("n,word\nx,y\n", "rows.csv, row 1: column 'n' is BIGINT, but the value is 'x'"),
    ],
)
def test_rows_that_do_not_fit_are_told(text: str, says: str, capfd: pytest.CaptureFixture[str], place: Place) -> None:
    Path("rows.csv").write_text(text)
    assert run_app(["send", "packets", "rows.csv"]) == 2
    err = capfd.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert place.queues[STREAM].next_id == 0


def test_streams_that_do_not_exist_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    for command in (["send", "pakets", a_file(1)], ["tail", "pakets"]):
        assert run_app(command) == 2
        assert capfd.readouterr().err == "error: no stream 'pakets'. Hint: look again\n"


def test_a_gap_is_told_and_the_tail_goes_on(place: Place) -> None:
    add(place.queues[STREAM], 3)
    command = [sys.executable, "-m", "borealis.cli", "tail", "packets", "--from", "oldest", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert [json.loads(tail.stdout.readline())["n"] for _ in range(3)] == [0, 1, 2]
        queue = place.queues[STREAM] = OutputQueue(STREAM, SCHEMA)
        place.again()
        add(queue, 1)
        assert json.loads(tail.stdout.readline())["n"] == 0
        tail.send_signal(signal.SIGINT)
        assert tail.wait(WAIT_S) == 130
        assert "gap: traffic/packets goes on at" in tail.stderr.read()
    eventually(lambda: not queue.status().readers)


def test_what_was_tentative_is_void_and_then_all_is_right_again(place: Place) -> None:
    queue = place.queues[STREAM]
    add(queue, 2)
    queue.fork("f")
    at = np.array([2])
    queue.append_tentative(Section(2, rows(7, 1), at, NONE, NONE, fork="f"))
    command = [sys.executable, "-m", "borealis.cli", "tail", "packets", "--from", "oldest", "--json", "--limit", "6"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        shown = [json.loads(tail.stdout.readline()) for _ in range(3)]
        assert [(row["n"], row.get("_stable", True)) for row in shown] == [(0, True), (1, True), (7, False)]
        add(queue, 2)
        queue.drop_fork()
        assert [json.loads(tail.stdout.readline()) for _ in range(3)][::2] == [{"_undo": 1}, {"n": 3, "word": "w3"}]
        queue.recover()
        assert json.loads(tail.stdout.readline()) == {"_done": True}
        add(queue, 1)
        out, err = tail.communicate(timeout=WAIT_S)
    assert json.loads(out)["n"] == 4
    said = [line for line in err.splitlines() if line.startswith(("undone", "right"))]
    assert said == [
        "undone: 1 tentative row above, for which the right ones follow",
        "right again: all tentative rows of traffic/packets are corrected",
    ]


def test_what_a_full_stream_dropped_is_told(place: Place) -> None:
    queue = place.queues[STREAM] = OutputQueue(STREAM, SCHEMA, QueueLimits(bytes_most=1 << 20, full="drop"))
    add(queue, 1)
    command = [sys.executable, "-m", "borealis.cli", "tail", "packets", "--from", "oldest", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        assert json.loads(tail.stdout.readline())["n"] == 0
        tail.send_signal(signal.SIGSTOP)
        while queue.next_id < SLOW_ROWS:
            wide = pa.record_batch([pa.array([queue.next_id], pa.int64()), pa.array(["x" * WIDE])], schema=SCHEMA)
            at = np.array([queue.next_id])
            queue.append(section(queue.next_id, wide, at, NONE, NONE, queue.boundary))
        finish(queue)
        tail.send_signal(signal.SIGCONT)
        out, err = tail.communicate(timeout=WAIT_S)
    told = sum(int(n.replace(",", "")) for n in re.findall(r"lost: ([0-9,]+) tuples of traffic/packets", err))
    assert told > 0
    assert 1 + len(out.splitlines()) + told == SLOW_ROWS


def test_a_tail_that_nobody_reads_ends(place: Place) -> None:
    add(place.queues[STREAM], 1)
    command = [sys.executable, "-m", "borealis.cli", "tail", "packets", "--from", "oldest", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert tail.stdout.readline() == '{"n":0,"word":"w0"}\n'
        tail.stdout.close()
        add(place.queues[STREAM], 1)
        assert tail.wait(WAIT_S) == 141
        assert tail.stderr.read() == ""
