"""Marks of publishers: kept with the number of the batch, wherever that is kept."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError

from borealis.diagram.spec import Input
from borealis.entry.point import Entry, StreamConfig
from borealis.errors import UnreachableError
from borealis.streams.queue import QueueLimits
from borealis.wire.messages import BatchHead

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC"))])
PLACE = StreamConfig("d/a", SCHEMA, QueueLimits(), ["d.u1"], [], epoch="e", incarnation=1)
SPEC = Input(name="a", columns="ts TIMESTAMP", time="ts")


def batch(second: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([second * 1_000_000], SCHEMA.field(0).type)], SCHEMA)


def primary(log: Path | None = None) -> Entry:
    return Entry.open(SPEC, 1_000_000, PLACE, log)


def test_a_mark_is_given_back_to_its_publisher_only() -> None:
    one = primary()
    assert one.known("p").mark is None
    one.take("p", BatchHead(number=0, mark="here"), batch(1))
    one.take("p", BatchHead(number=1, mark="there"), batch(2))
    one.take("q", BatchHead(number=0), batch(3))
    assert (one.known("p").number, one.known("p").mark) == (1, "there")
    assert one.known("q").mark is None


def test_a_batch_that_comes_again_or_is_not_taken_leaves_no_mark() -> None:
    one = primary()
    one.take("p", BatchHead(number=0, mark="here"), batch(1))
    one.take("p", BatchHead(number=0, mark="again"), batch(1))

    def lost(_: bytes) -> None:
        raise UnreachableError("the peer is away")

    with pytest.raises(UnreachableError):
        one.set_mirror(lost)
    assert one.known("p").mark == "here"


def test_a_mark_is_in_the_log(tmp_path: Path) -> None:
    one = primary(tmp_path / "log")
    one.take("p", BatchHead(number=0, mark="here"), batch(1))
    one.take("p", BatchHead(number=1), batch(2))
    one.close()
    again = primary(tmp_path / "log")
    assert (again.known("p").number, again.known("p").mark) == (1, "here")
    again.close()


@pytest.mark.parametrize("before", [True, False])
def test_a_mark_is_at_the_peer_and_in_its_log(tmp_path: Path, before: bool) -> None:
    one, two = primary(), Entry.standby(SPEC, 1_000_000, PLACE, tmp_path / "log")
    if not before:
        one.set_mirror(two.apply)
    one.take("p", BatchHead(number=0, mark="here"), batch(1))
    if before:
        one.set_mirror(two.apply)  # as a part of the whole
    two.open_up(2)
    assert (two.known("p").number, two.known("p").mark) == (0, "here")
    two.take("p", BatchHead(number=1, mark="there"), batch(2))
    two.close()
    again = primary(tmp_path / "log")
    assert (again.known("p").number, again.known("p").mark) == (1, "there")
    again.close()


def test_a_mark_has_a_largest_size() -> None:
    with pytest.raises(ValidationError):
        BatchHead(number=0, mark="x" * 65_537)
