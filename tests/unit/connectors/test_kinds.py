"""Kinds of rows come in from everywhere, and need not be there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from borealis.connectors.dead_letters import DeadLetters
from borealis.connectors.sources import SortedSource, as_source, rows, watch
from borealis.diagram.spec import Input
from borealis.entry.admission import Cursor, EntryPoint
from borealis.kernels.kinds import kinds_of
from borealis.kernels.time_of import TimeOf
from borealis.tuples import FIRST_TIME, KIND, TIMESTAMP

SCHEMA = pa.schema([("ts", TIMESTAMP), ("id", pa.int32()), (KIND, pa.string())])
AT = "2026-01-01T00:00:01Z"


def read(source: Any) -> pa.Table:
    return pa.Table.from_batches(list(as_source(source).batches(SCHEMA, 0, 100)), SCHEMA)


def written(tmp_path: Path, name: str, lines: list[str]) -> str:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_files_have_them_in_a_column(tmp_path: Path) -> None:
    csv = written(tmp_path, "a.csv", ["_kind,id,ts", f"+I,1,{AT}", f",2,{AT}", "-D,1,"])
    lines = [f'{{"id": 1, "ts": "{AT}"}}', f'{{"_kind": "+U", "id": 1, "ts": "{AT}"}}', '{"_kind": "-D", "id": 1}']
    jsonl = written(tmp_path, "a.jsonl", lines)
    assert kinds_of(read(csv)).tolist() == [0, 0, 1]
    assert kinds_of(read(jsonl)).tolist() == [0, 3, 1]
    pq.write_table(read(jsonl), tmp_path / "a.parquet")
    assert read(str(tmp_path / "a.parquet")).equals(read(jsonl))


def test_files_and_tables_need_not_have_them(tmp_path: Path) -> None:
    csv = written(tmp_path, "a.csv", ["id,ts", f"1,{AT}"])
    table = read(csv).drop_columns([KIND])
    pq.write_table(table, tmp_path / "a.parquet")
    for source in (csv, str(tmp_path / "a.parquet"), table, [(AT, 1)], [{"ts": AT, "id": 1}]):
        found = as_source(source)
        rows = pa.Table.from_batches(list(found.batches(SCHEMA, 0, 100)), SCHEMA)
        assert rows.column_names == SCHEMA.names
        assert kinds_of(rows).tolist() == [0]
        assert not getattr(found, "warnings", list)(), "it is no mistake"


LIVE = {
    "a.jsonl": [f'{{"id": 1, "ts": "{AT}"}}', '{"_kind": "-D", "id": 1}', '{"_kind": "?", "id": 2}', '{"id": 3}'],
    "a.csv": ["_kind,id,ts", f",1,{AT}", "-D,1,", f"?,2,{AT}", "+U,3,"],
}


@pytest.mark.parametrize("name", LIVE)
def test_a_live_source_sets_aside_what_has_no_kind_or_comes_without_a_time(name: str, tmp_path: Path) -> None:
    written(tmp_path, name, LIVE[name])
    (tmp_path / "END").touch()
    source = watch(tmp_path, poll="5 ms", settle="0 seconds", until="END")
    reasons: list[str] = []
    source.dead_letters = DeadLetters(lambda letter: reasons.append(letter["reason"]))
    source.begin("i", "ts", None)
    assert kinds_of(read(source)).tolist() == [0, 1]
    assert reasons == ["it has no kind that is known (one of +I, -D, -U, +U)", "it has no time: column 'ts' is null"]


def test_what_is_sorted_stays_behind_what_it_corrects() -> None:
    first, then, last = (f"2026-01-01T00:00:0{second}Z" for second in range(3))
    given = [(then, 1, None), (first, 2, None), (None, 1, "-D"), (first, 2, "+U"), (last, 3, None)]
    source = rows(given, sort=True)
    assert isinstance(source, SortedSource)
    source.time = TimeOf("ts")
    assert [(row["id"], row[KIND]) for row in read(source).to_pylist()] == [
        (2, None),
        (1, None),
        (1, "-D"),
        (2, "+U"),
        (3, None),
    ]


def entry(late: str = "keep") -> EntryPoint:
    spec = Input(name="i", columns="ts TIMESTAMP, id INT", time="ts", key=("id",), history="1 hour", late=late)  # type: ignore[arg-type]
    return EntryPoint(spec, 10, Cursor())


def batch(*rows: tuple[str | None, int | None]) -> pa.Table:
    times, kinds = pa.array([time for _, time in rows], pa.int64()).cast(TIMESTAMP), [kind for kind, _ in rows]
    return pa.table([times, list(range(len(rows))), kinds], schema=SCHEMA)


def test_what_takes_a_row_back_comes_at_the_newest_time() -> None:
    one = entry()
    first = one.admit(batch(("-D", None), ("+I", 100), ("-D", None), ("-U", 5), ("+U", 30)))
    assert first.time.tolist() == [FIRST_TIME, 100, 100, 100, 30]
    assert first.late.tolist() == [False] * 5, "a replacement is not late"
    assert one.admit(batch(("-D", None))).time.tolist() == [100]


@pytest.mark.parametrize(("late", "mask"), [("keep", [False, True]), ("revise", [False, False])])
def test_an_insertion_is_late_unless_it_revises(late: str, mask: list[bool]) -> None:
    assert entry(late).admit(batch(("+I", 100), (None, 30))).late.tolist() == mask


def test_what_is_no_kind_is_refused_where_it_stands() -> None:
    one = entry()
    assert len(one.admit(batch(("+I", 100), ("-D", None), ("?", 110), ("+I", 120)))) == 2
    assert "row 3 has no kind that is known (one of +I, -D, -U, +U)" in str(one.refused)
    assert len(entry().admit(batch(("+I", 100), ("+U", None)))) == 1, "what comes has a time"
