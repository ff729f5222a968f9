"""A streaming DataFrame as an input: every row once, through interrupts, restarts and failures."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from borealis import Diagram, run, window
from borealis.errors import InputError
from borealis.spark.frames import FrameSource, as_frame_source
from borealis.trains.progress import Progress

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
ROWS = 10  # in a file, half a second apart


def add_file(directory: Path, number: int) -> None:
    """File k holds rows k * ROWS and following."""
    first = number * ROWS
    times = pa.array([n * 500_000 for n in range(first, first + ROWS)], SCHEMA.field("ts").type)
    table = pa.table({"ts": times, "n": pa.array(range(first, first + ROWS), pa.int64())})
    pq.write_table(table, directory / f".{number}.parquet")
    os.replace(directory / f".{number}.parquet", directory / f"{number:03}.parquet")
    os.utime(directory / f"{number:03}.parquet", (number, number))  # Spark takes the oldest first


@pytest.fixture
def arrivals(tmp_path: Path) -> Path:
    (tmp_path / "arrivals").mkdir()
    for number in range(4):
        add_file(tmp_path / "arrivals", number)
    return tmp_path / "arrivals"


@pytest.fixture(autouse=True)
def _no_query_is_left(spark: SparkSession) -> Iterator[None]:
    yield
    assert [q.name for q in spark.streams.active] == []


def stream(spark: SparkSession, directory: Path) -> DataFrame:
    reader = spark.readStream.schema("ts TIMESTAMP, n BIGINT").option("maxFilesPerTrigger", "1")
    return reader.parquet(str(directory))


def diagram() -> Diagram:
    d = Diagram("frames")
    rows = d.input("rows", "ts TIMESTAMP, n BIGINT")
    rows.output("all")
    rows.aggregate(over=window("2 seconds"), n="count(*)", total="sum(n)").output("sums")
    return d


def stop_at(spark: SparkSession, position: int) -> Callable[[list[Progress]], None]:
    """Ends the input when so many of its rows are committed."""

    def watch(units: list[Progress]) -> None:
        if any(c.position >= position for u in units for c in u.cursors.values()):
            for query in spark.streams.active:
                if query.name == "borealis input rows":
                    query.stop()

    return watch


def interrupt_at(position: int) -> Callable[[list[Progress]], None]:
    """Control-C when so many rows are committed."""

    def watch(units: list[Progress]) -> None:
        if any(c.position >= position for u in units for c in u.cursors.values()):
            signal.raise_signal(signal.SIGINT)

    return watch


def numbers(path: Path) -> list[int]:
    return [int(line.split(",")[1]) for line in path.read_text().splitlines()[1:]]


def test_rows_of_a_directory_until_its_query_is_stopped(spark: SparkSession, arrivals: Path) -> None:
    result = run(diagram(), {"rows": stream(spark, arrivals)}, spark=spark, watch=stop_at(spark, 40))
    assert result["all"]["n"].to_pylist() == list(range(40))
    assert result["sums"]["total"].to_pylist() == [sum(range(k, k + 4)) for k in range(0, 40, 4)]


def test_the_rate_source(spark: SparkSession) -> None:
    d = Diagram("rate")
    # its rows come partition by partition, out of order
    d.input("rows", "timestamp TIMESTAMP, value BIGINT", slack="1 hour").output("all")
    frame = spark.readStream.format("rate").option("rowsPerSecond", "40").load()
    result = run(d, {"rows": frame}, spark=spark, watch=stop_at(spark, 20))
    values = sorted(result["all"]["value"].to_pylist())
    assert len(values) >= 20
    assert values == list(range(len(values)))


def test_an_interrupted_run_leaves_what_it_committed_and_goes_on_from_there(
    spark: SparkSession, arrivals: Path, tmp_path: Path
) -> None:
    outputs = {"all": tmp_path / "all.csv", "sums": tmp_path / "sums.parquet"}
    options: dict[str, Any] = {"state": tmp_path / "state", "spark": spark}
    with pytest.raises(KeyboardInterrupt):
        run(diagram(), {"rows": stream(spark, arrivals)}, outputs, watch=interrupt_at(15), **options)
    first = numbers(outputs["all"])
    assert first == list(range(len(first)))
    assert len(first) >= 15
    assert pq.read_table(outputs["sums"]).num_rows  # whole, although the run was cut short
    for number in (4, 5):
        add_file(arrivals, number)
    result = run(diagram(), {"rows": stream(spark, arrivals)}, outputs, watch=stop_at(spark, 60), **options)
    assert result.units[0].resumed_after > 0
    assert numbers(outputs["all"]) == list(range(60))
    sums = pq.read_table(outputs["sums"])
    assert sums["total"].to_pylist() == [sum(range(k, k + 4)) for k in range(0, 60, 4)]
    kept = list((tmp_path / "state" / "rows.frame").glob("rows-*"))
    assert len(kept) <= 2  # what is committed is not kept, but for the newest
    again = run(diagram(), {"rows": stream(spark, arrivals)}, outputs, **options)  # it has ended: nothing to do
    assert again.units[0].trains == 0
    assert numbers(outputs["all"]) == list(range(60))


def test_a_failing_frame_is_told_in_one_line_and_what_came_before_is_committed(
    spark: SparkSession, arrivals: Path, tmp_path: Path
) -> None:
    frame = stream(spark, arrivals).selectExpr("ts", "if(n = 25, raise_error('rotten row'), n) AS n")
    with pytest.raises(InputError, match="rotten row") as error:
        run(diagram(), {"rows": frame}, {"all": tmp_path / "all.csv"}, spark=spark)
    assert "\n" not in str(error.value)
    assert "input 'rows'" in str(error.value)
    assert numbers(tmp_path / "all.csv") == list(range(20))


def test_frames_that_do_not_fit(spark: SparkSession, arrivals: Path) -> None:
    with pytest.raises(InputError, match=r"no column 'ts' in the DataFrame \(has: id\)"):  # one that has an end
        run(diagram(), {"rows": spark.range(3)}, spark=spark)
    with pytest.raises(InputError, match="no column 'n' in the streaming DataFrame"):
        run(diagram(), {"rows": stream(spark, arrivals).select("ts")}, spark=spark)
    wrong = stream(spark, arrivals).selectExpr("ts", "struct(n) AS n")
    with pytest.raises(InputError, match="column 'n' of the streaming DataFrame"):
        run(diagram(), {"rows": wrong}, spark=spark)


# -- the protocol, step by step


def read(source: FrameSource, skip: int, most: int) -> list[int]:
    """So many rows from a position on; then the source is stopped, as by a crash that commits nothing more."""
    found: list[int] = []
    for batch in source.batches(SCHEMA, skip, 3):
        assert batch.num_rows <= 3
        found += batch.column("n").to_pylist()
        if len(found) >= most:
            break
    source.stop()
    return found[:most]


def forget_last(directory: Path, pattern: str) -> None:
    last = max(directory.glob(pattern), key=lambda p: int(p.name.split("-")[1] if "-" in p.name else p.name))
    last.unlink()


def test_rows_that_were_acknowledged_but_not_committed_come_again(
    spark: SparkSession, arrivals: Path, tmp_path: Path
) -> None:
    keep = tmp_path / "keep"
    assert read(as_frame_source(stream(spark, arrivals), "rows", keep), 0, 25) == list(range(25))
    assert read(as_frame_source(stream(spark, arrivals), "rows", keep), 7, 33) == list(range(7, 40))
    again = as_frame_source(stream(spark, arrivals), "rows", keep)
    assert read(again, 12, 28) == list(range(12, 40))


def test_a_micro_batch_that_spark_repeats_is_skipped(spark: SparkSession, arrivals: Path, tmp_path: Path) -> None:
    """A crash after the rows were kept and before Spark noted the acknowledgement."""
    keep = tmp_path / "keep"
    source = as_frame_source(stream(spark, arrivals), "rows", keep)
    assert read(source, 0, 40) == list(range(40))
    for done in sorted((keep / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))[-1:]:
        done.unlink()
        done.with_name(f".{done.name}.crc").unlink(missing_ok=True)
    add_file(arrivals, 4)
    assert read(as_frame_source(stream(spark, arrivals), "rows", keep), 40, 10) == list(range(40, 50))


def test_a_micro_batch_that_was_never_kept_is_repeated(spark: SparkSession, arrivals: Path, tmp_path: Path) -> None:
    """A crash after Spark noted what the micro-batch is to hold and before its rows were kept."""
    keep = tmp_path / "keep"
    assert read(as_frame_source(stream(spark, arrivals), "rows", keep), 0, 40) == list(range(40))
    commits = keep / "checkpoint" / "commits"
    (commits / "3").unlink(missing_ok=True)
    (commits / ".3.crc").unlink(missing_ok=True)
    (keep / "rows-30-3-40.arrow").unlink()
    (keep / "rows-30-3-40.arrow.tmp").write_bytes(b"half")
    assert read(as_frame_source(stream(spark, arrivals), "rows", keep), 5, 35) == list(range(5, 40))
    assert not list(keep.glob("*.tmp"))


def test_what_is_no_longer_there_is_refused(spark: SparkSession, arrivals: Path, tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    source = as_frame_source(stream(spark, arrivals), "rows", keep)
    assert read(source, 0, 40) == list(range(40))
    source.committed(35)
    assert sorted(p.name for p in keep.glob("rows-*")) == ["rows-30-3-40.arrow"]

    def refused(skip: int, words: str) -> None:
        with pytest.raises(InputError, match=words) as error:
            read(as_frame_source(stream(spark, arrivals), "rows", keep), skip, 1)
        assert error.value.hint

    refused(12, "behind row 12 are gone")  # the commits were set back
    refused(41, "behind row 41 are gone")
    shutil.move(keep / "checkpoint", tmp_path / "elsewhere")
    refused(35, "the checkpoint of input 'rows' is gone")
    shutil.move(tmp_path / "elsewhere", keep / "checkpoint")
    assert read(as_frame_source(stream(spark, arrivals), "rows", keep), 35, 5) == list(range(35, 40))
    (keep / "rows-30-3-40.arrow").write_bytes(b"rotten")
    refused(35, "cannot be read")


def test_no_room_to_keep_rows_is_told(
    spark: SparkSession, arrivals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("borealis.spark.frames.write_whole", no_room)
    with pytest.raises(InputError, match=r"cannot keep rows of input 'rows'.*No space left.*make room"):
        run(diagram(), {"rows": stream(spark, arrivals)}, state=tmp_path / "state", spark=spark)
