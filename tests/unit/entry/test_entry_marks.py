"""Marks of publishers: kept with the number of the batch, wherever that is kept."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError

from borealis.diagram.spec import Input
from borealis.entry.point import Entry, StreamConfig
from borealis.streams.queue import QueueLimits
from borealis.wire.messages import BatchHead
from entry_pair import guard_of, protect, take_over

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC"))])
PLACE = StreamConfig("d/a", SCHEMA, QueueLimits(), ["d.u1"], [], epoch="e")
SPEC = Input(name="a", columns="ts TIMESTAMP", time="ts")


def batch(second: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([second * 1_000_000], SCHEMA.field(0).type)], SCHEMA)


def primary(log: Path | None = None) -> Entry:
    return Entry(SPEC, 1_000_000, PLACE, log)


def test_a_mark_is_given_back_to_its_publisher_only() -> None:
    one = primary()
    assert one.known("p").mark is None
    one.take("p", BatchHead(number=0, mark="here"), batch(1))
    one.take("p", BatchHead(number=1, mark="there"), batch(2))
    one.take("q", BatchHead(number=0), batch(3))
    assert (one.known("p").number, one.known("p").mark) == (1, "there")
    assert one.known("q").mark is None


def test_a_batch_that_comes_again_leaves_no_mark() -> None:
    one = primary()
    one.take("p", BatchHead(number=0, mark="here"), batch(1))
    one.take("p", BatchHead(number=0, mark="again"), batch(1))
    assert one.known("p").mark == "here"


def test_a_mark_is_in_the_log(tmp_path: Path) -> None:
    one = primary(tmp_path / "log")
    one.take("p", BatchHead(number=0, mark="here"), batch(1))
    one.take("p", BatchHead(number=1), batch(2))
    one.log.close()
    again = primary(tmp_path / "log")
    assert (again.known("p").number, again.known("p").mark) == (1, "here")
    again.log.close()


@pytest.mark.parametrize("before", [True, False])
def test_a_mark_is_at_the_backup_and_in_its_log(tmp_path: Path, before: bool) -> None:
    one, two = primary(), Entry(SPEC, 1_000_000, PLACE, tmp_path / "log", standby=True)
    guard = guard_of(one)
    if not before:
        protect(guard, two)
    one.take("p", BatchHead(number=0, mark="here"), batch(1))
    if before:
        protect(guard, two)  # as a part of the whole
    take_over(guard._host)  # type: ignore[arg-type]
    assert (two.known("p").number, two.known("p").mark) == (0, "here")
    two.take("p", BatchHead(number=1, mark="there"), batch(2))
    two.log.close()
    again = primary(tmp_path / "log")
    assert (again.known("p").number, again.known("p").mark) == (1, "there")
    again.log.close()


def test_a_mark_has_a_largest_size() -> None:
    with pytest.raises(ValidationError):
        BatchHead(number=0, mark="x" * 65_537)
