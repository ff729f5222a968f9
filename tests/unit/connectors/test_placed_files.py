"""Files with the position of their last row: whatever a crash leaves, the next life goes on behind that row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from borealis.connectors.files.placed import PlacedFile
from borealis.connectors.files.source import replay
from borealis.connectors.placed import Position

SCHEMA = pa.schema([("n", pa.int64())])
NAMES = ["out.jsonl", "out.csv", "out.csv.gz", "out.parquet", "out.arrow"]


def rows(first: int, stop: int) -> pa.Table:
    return pa.table({"n": pa.array(range(first, stop), pa.int64())})


def life(path: Path) -> tuple[PlacedFile, Position | None]:
    """A process that begins to write, and how far the files were."""
    placed = PlacedFile(str(path))
    known = placed.open("traffic/packets", "ada")
    placed.begin(SCHEMA, known or Position(0, "e"))
    return placed, known


def crash(placed: PlacedFile) -> None:
    """The system closes what a dead process had open."""
    assert placed._lock is not None
    placed._lock.close()


@pytest.mark.parametrize("name", NAMES)
def test_rows_whose_position_was_not_written_down_come_again(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    one, known = life(path)
    assert known is None
    crash(one)  # the files are begun, and no row is in them
    two, known = life(path)
    assert known == Position(0, "e")
    two.publish(rows(0, 5), Position(5, "e"))
    two._sink.write(rows(5, 9))
    two._sink.flush(sync=True)
    crash(two)
    three, known = life(path)
    assert known == Position(5, "e")
    three.publish(rows(5, 7), Position(7, "e"))
    three.publish(rows(8, 9), Position(9, "e"))  # ids may jump
    three.close(complete=False)
    four, known = life(path)
    assert known == Position(9, "e")
    four.close(complete=True)
    found = [batch.column(0).to_pylist() for batch in replay(str(path)).batches(SCHEMA, 0, 1000)]
    assert [n for some in found for n in some] == [0, 1, 2, 3, 4, 5, 6, 8]
    assert sorted(one.name for one in tmp_path.iterdir()) == [f".{name}.state", name]
