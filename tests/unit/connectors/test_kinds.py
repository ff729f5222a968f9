"""Kinds of rows come in from everywhere, and need not be there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from borealis.connectors.sources import as_source
from borealis.diagram.spec import Input
from borealis.entry.admission import Cursor, EntryPoint
from borealis.kernels.kinds import kinds_of
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
