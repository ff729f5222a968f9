"""Under which name a unit is known outside, and the train it had begun: whoever goes on from its state has both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from borealis.clock import WALL
from borealis.compile.lowering import Outlet
from borealis.compile.unit import Compiled
from borealis.connectors.files.sink import file_sink
from borealis.connectors.python.sink import DiscardSink
from borealis.connectors.sink import Sink
from borealis.diagram.model import Diagram
from borealis.diagram.spec import Spec
from borealis.entry.admission import Cursor
from borealis.errors import OutputError, StateError
from borealis.kernels.program import Level, Port, Program
from borealis.kernels.step import Step, schema_text
from borealis.spark.plan import level_schema
from borealis.spark.worker import read_train
from borealis.trains.commit_point import CommitPoint as Done
from borealis.trains.handover import Handover
from borealis.trains.intake import Admission
from borealis.trains.notices import NoticeFile
from borealis.trains.train import unpack
from borealis.trains.unit import UnitOptions, UnitRun
from postgres import Embedded

ROWS = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
OUT = ROWS.append(pa.field("__reason", pa.string()))
INSERT = "INSERT INTO t (n) VALUES (:n)"


class Turns:
    """A live source that gives what it is told to, one row at a time."""

    finite_and_ordered = False

    def __init__(self, first: int, rows: int) -> None:
        self.numbers = np.arange(first, first + rows)

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        for n in self.numbers[skip:].tolist():
            yield pa.record_batch([pa.array([n], pa.timestamp("us", "UTC")), pa.array([n], pa.int64())], schema=schema)


@pytest.fixture
def database(tmp_path: Path) -> Embedded:
    made = Embedded(tmp_path / "a.db")
    made.run("CREATE TABLE t (n BIGINT)")
    return made


def compiled(database: Embedded, inputs: str = "ab") -> tuple[Spec, Compiled]:
    """What Spark would make of a union that is written, made by hand."""
    d = Diagram("d")
    streams = [d.input(name, "ts TIMESTAMP, n BIGINT", slack="1 hour") for name in inputs]
    d_in = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
    d_in.sql_write(INSERT, database=database.url, name="w").output("out")
    options = {"statement": INSERT, "database": database.url, "give_up": 1_000_000, "buckets_by": [[]]}
    steps = (
        Step("union", "both", tuple(inputs), "union_1", False, schema_text(ROWS)),
        Step("sql_write", "judged", ("both",), "w", True, schema_text(OUT), options),
    )
    names = [name + late for name in inputs for late in ("", ".late")]
    leave = (Port(1, "judged", hidden=()),)
    bounds = (("both", tuple(inputs)), ("judged", ("both",)))
    program = Program(1, False, dict.fromkeys(names, schema_text(ROWS)), bounds, [Level([], steps, leave)])
    outlets = {"out": Outlet(1, "judged", OUT)}
    made = Compiled(program, outlets, dict.fromkeys(names, ROWS), {}, {"w": ()}, {}, {})
    return d.validate(), made


def begin(
    database: Embedded,
    sources: dict[str, Any],
    state: Path | None,
    sinks: Mapping[str, Sink] | None = None,
    resume: Handover | None = None,
) -> UnitRun:
    spec, made = compiled(database, "".join(sources))
    return UnitRun("u", spec, made, sources, sinks or {}, UnitOptions(state=state), resume=resume)


def next_train(run: UnitRun) -> tuple[dict[str, Any], pa.Table]:
    """Run the next train, without committing it: its header, and what came of it."""
    number = run.next_train(run.committed(), 10.0)
    assert number is not None
    plan, schema = run.plan(number), to_arrow_schema(level_schema(run.compiled, 0), timezone="UTC")
    return plan, pa.Table.from_batches(list(read_train(plan, 0, schema)))


def written(database: Embedded) -> list[Any]:
    return [n for (n,) in database.run("SELECT n FROM t")]


def test_a_state_directory_keeps_its_name_from_before_the_first_train(database: Embedded, tmp_path: Path) -> None:
    lives = []
    for state in (tmp_path / "s", tmp_path / "s", tmp_path / "other", None, None):
        run = begin(database, {"a": Turns(0, 1)}, state)
        lives.append(run.writer_id)
        assert run.plan(-1)["writer_id"] == run.writer_id
        run.close(False)
    assert lives[0] == lives[1]
    assert len(set(lives)) == 4


def test_a_backup_goes_on_under_the_name_of_its_primary(database: Embedded) -> None:
    primary, backup = (begin(database, {"a": Turns(0, 1)}, None) for _ in range(2))
    step = Done.from_json(primary.step().to_json())
    assert step.writer_id == primary.writer_id != backup.writer_id
    backup.load(step, {})
    assert backup.writer_id == primary.writer_id
    backup.load(Done(0, 0, {"a": Cursor()}, {}), {})  # from nothing, as after amnesia
    anew = backup.writer_id
    assert anew not in ("", primary.writer_id)
    backup.renew_writer_id()
    assert backup.writer_id != anew
    assert primary.freeze(1.0).header["writer_id"] == primary.writer_id
    for run in (primary, backup):
        run.close(False)


def test_figures_go_along_with_a_unit_and_count_on(database: Embedded) -> None:
    one = begin(database, {"a": Turns(0, 5)}, None)
    one.start()
    one.commit(next_train(one)[1])
    known = (one.progress.trains, one.progress.rows_in)
    assert known[0] == 1
    assert known[1] >= 1
    moved = begin(database, {"a": Turns(0, 5)}, None, resume=Handover.from_bytes(one.freeze(1.0).to_bytes()))
    backup = begin(database, {"a": Turns(0, 5)}, None)
    backup.load(Done.from_json(one.step().to_json()), {})
    for run in (moved, backup):
        assert (run.progress.trains, run.progress.rows_in, run.step().rows) == (*known, known[1])
    backup.resume(backup.step())
    for run in (moved, backup):
        run.start()
        while not run.done.is_set():
            run.commit(next_train(run)[1])
        assert run.progress.rows_in == run.step().rows == 5
    for run in (one, moved, backup):
        run.close(False)


def test_a_rehearsal_writes_nothing(database: Embedded) -> None:
    run = begin(database, {"a": Turns(0, 3)}, None)
    schema = to_arrow_schema(level_schema(run.compiled, 0), timezone="UTC")
    run.commit(pa.Table.from_batches(list(read_train(run.plan(-1), 0, schema))))
    assert run.rehearsals.count == 1
    run.close(False)
    assert "borealis_writes" not in {name for (name,) in database.run("SELECT name FROM sqlite_master")}


def test_a_train_that_had_begun_is_run_again_as_it_was(database: Embedded, tmp_path: Path) -> None:
    """First only one input has rows; after the death the other one is faster. The train does not change."""
    run = begin(database, {"a": Turns(0, 3), "b": Turns(100, 0)}, tmp_path / "s")
    run.start()
    until = WALL.now() + 60
    while run.manager._intakes["a"].read.empty():  # or the end of the other may be a train of its own
        assert WALL.now() < until
        WALL.sleep(0.001)
    before, _ = next_train(run)
    first = written(database)
    assert first
    run.close(False)  # in the database, and not committed
    run = begin(database, {"a": Turns(0, 3), "b": Turns(100, 4)}, tmp_path / "s")
    run.start()
    again, result = next_train(run)
    same = [
        {n: {k: v for k, v in one.items() if k not in ("rows", "late")} for n, one in p["inputs"].items()}
        for p in (before, again)
    ]
    assert same[0] == same[1]
    assert written(database) == first
    run.commit(result)
    while not run.done.is_set():
        run.commit(next_train(run)[1])
    run.close(True)
    assert written(database)[: len(first)] == first
    assert len(written(database)) == len(set(written(database)))


def test_only_trains_that_could_come_out_otherwise_are_kept(database: Embedded, tmp_path: Path) -> None:
    for sources, kept in (({"a": Turns(0, 2)}, False), ({"a": Turns(0, 2), "b": Turns(9, 2)}, True)):
        state = tmp_path / str(kept)
        run = begin(database, sources, state)
        run.start()
        next_train(run)
        run.close(False)
        assert (state / "begun.bin").exists() is kept


def test_a_kept_train_of_another_version_is_refused() -> None:
    with pytest.raises(StateError, match="not of this version"):
        unpack(b"XXXX")


def test_the_state_of_another_diagram_says_what_differs(database: Embedded, tmp_path: Path) -> None:
    begin(database, {"a": Turns(0, 1)}, tmp_path / "s").close(False)
    with pytest.raises(
        StateError, match=r"of another diagram: input 'b' is only here; box 'union_1' is only here; box"
    ):
        begin(database, {"a": Turns(0, 1), "b": Turns(0, 1)}, tmp_path / "s")
    (tmp_path / "s" / "diagram.yaml").unlink()  # as a state that was made before there was such a file
    with pytest.raises(StateError, match=r"of another diagram: [0-9a-f]{64}"):
        begin(database, {"a": Turns(0, 1), "b": Turns(0, 1)}, tmp_path / "s")
    begin(database, {"a": Turns(0, 1)}, tmp_path / "s").close(False)
    assert (tmp_path / "s" / "diagram.yaml").read_text().startswith("borealis: 1")


def test_an_output_that_went_elsewhere_before_is_refused_with_both_places(database: Embedded, tmp_path: Path) -> None:
    """Also where the new file is long enough to be cut: the numbers of one place mean nothing in another."""
    a, b, long = (tmp_path / name for name in ("a.csv", "b.csv", "long.csv"))
    long.write_text("x" * 10_000)

    def goes_to(sink: Sink, state: str = "s") -> None:
        run = begin(database, {"a": Turns(0, 3)}, tmp_path / state, {"out": sink})
        run.start()
        while not run.done.is_set():
            run.commit(next_train(run)[1])
        run.close(True)

    goes_to(file_sink(a))
    rows = a.read_bytes()
    with pytest.raises(OutputError, match=rf"output 'out' went to {a} up to train \d+, not to {b}"):
        goes_to(file_sink(b))
    with pytest.raises(OutputError, match=rf"output 'out' went to {a} up to train \d+, not to no file"):
        goes_to(DiscardSink())
    a.rename(b)  # moved by its owner, as it was
    goes_to(file_sink(b))
    assert b.read_bytes() == rows
    with pytest.raises(OutputError, match=r"a.csv is gone, but \d+ bytes were committed"):
        goes_to(file_sink(a))
    goes_to(DiscardSink(), "other")
    with pytest.raises(OutputError, match=rf"output 'out' went to no file up to train \d+, not to {long}"):
        goes_to(file_sink(long), "other")
    assert long.stat().st_size == 10_000


def test_troubles_are_told_while_they_last(database: Embedded) -> None:
    run = begin(database, {"a": Turns(0, 1)}, None)
    assert (run.troubles.now(), run.troubles.note) == ([], "")
    place = Path(run.plan(-1)["troubles"])
    NoticeFile(f"{place}/w.0", 0).tell("box 'w': database x cannot be used")
    NoticeFile(f"{place}/v.0", 0).give_up("box 'v': database y could not be used")
    [(told, first), _] = run.troubles.now()
    assert told == "box 'v': database y could not be used"
    [(_, later), _] = run.troubles.now()
    assert later > first
    assert run.troubles.note.endswith("; box 'w': database x cannot be used (for 0 s)")
    run.start()
    run.commit(next_train(run)[1])
    assert run.troubles.now() == []
    run.close(False)


def plain(rows: int) -> UnitRun:
    """A unit that gives on what it reads, of which all is there before the first train."""
    d = Diagram("d")
    d.input("a", "ts TIMESTAMP, n BIGINT", slack="1 hour").filter("true").output("out")
    program = Program(1, False, {"a": schema_text(ROWS)}, (), [Level([], (), (Port(1, "a", hidden=()),))])
    made = Compiled(program, {"out": Outlet(1, "a", ROWS)}, {"a": ROWS}, {}, {}, {}, {})
    options = UnitOptions(admission=Admission(rows_most=1))
    return UnitRun("u", d.validate(), made, {"a": Turns(0, rows)}, {"out": DiscardSink()}, options)


def test_a_train_is_handed_out_before_the_last_is_committed_and_not_before_a_rehearsal() -> None:
    run = plain(4)
    run.start()
    first, result = next_train(run)
    assert first["train"] == 1
    until = WALL.now() + 60
    while (ahead := run.next_ahead(1)) is None:  # as soon as there is one
        assert WALL.now() < until
        WALL.sleep(0.001)
    assert ahead == 2
    run.commit(result)
    assert run.committed() == 1
    run.rehearse()
    assert run.next_ahead(2) is None  # the rehearsal comes first
    number = run.next_train(1, 1.0)
    assert number == -1
    assert run.next_ahead(number) is None  # and none is ahead of that
    run.close(False)


def test_a_unit_with_a_database_waits_for_each_commit(database: Embedded) -> None:
    run = begin(database, {"a": Turns(0, 4)}, None)
    run.start()
    assert run.next_train(0, 10.0) == 1
    assert run.next_ahead(1) is None
    run.close(False)
