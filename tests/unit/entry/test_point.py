"""Entry points: batches once and in order, boundaries among them, late tuples aside, and a log that survives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from borealis.clock import WALL, Clock, ManualClock
from borealis.diagram.spec import Input
from borealis.entry.point import Entry, StreamConfig
from borealis.errors import InputError, StateError
from borealis.machine import Machine
from borealis.streams.queue import QueueLimits
from borealis.streams.section import Section
from borealis.tuples import FIRST_TIME, KIND, LAST_TIME
from borealis.wire.messages import BatchHead

SECOND = 1_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int32())])


def entry(log: Path | None = None, clock: Clock = WALL, **fields: object) -> Entry:
    spec = Input.model_validate({"name": "a", "columns": "ts TIMESTAMP, n INT", "slack": "1 second", **fields})
    return Entry(spec, SECOND, StreamConfig("d/a", SCHEMA, QueueLimits(), ["d.u1"], []), log, machine=Machine(clock))


def batch(*seconds: float | None) -> pa.RecordBatch:
    times = [None if s is None else int(s * SECOND) for s in seconds]
    return pa.record_batch([pa.array(times, SCHEMA.field(0).type), pa.array(range(len(times)), pa.int32())], SCHEMA)


def all_of(one: Entry) -> Section | None:
    return one.queue.read(one.queue.first_id, FIRST_TIME, 0)


def shown(section: Section | None) -> tuple[list[float], list[tuple[int, float]]]:
    assert section is not None
    bounds = [(int(a), int(b) / SECOND) for a, b in zip(section.at, section.bound, strict=True)]
    return (section.time / SECOND).tolist(), bounds


def test_ids_times_and_boundaries() -> None:
    one = entry()
    receipt = one.take("p", BatchHead(number=0), batch(10, 10.5, 12))
    assert (receipt.number, receipt.next_id, receipt.late) == (0, 3, 0)
    assert shown(all_of(one)) == ([10, 10.5, 12], [(0, 9), (2, 11)])


def test_late_tuples_go_aside_and_the_boundary_stands_before_the_next_good_one() -> None:
    one = entry()
    receipt = one.take("p", BatchHead(number=0), batch(10, 2, 3, 12, 5, 12.5))
    assert receipt.late == 3
    assert shown(all_of(one)) == ([10, 12, 12.5], [(0, 9), (1, 11)])
    late = one.late.read(0, FIRST_TIME, 0)
    assert late is not None
    assert (late.time / SECOND).tolist() == [2, 3, 5]


def test_what_is_late_has_no_kind(tmp_path: Path) -> None:
    place = StreamConfig("d/a", SCHEMA.append(pa.field(KIND, pa.string())), QueueLimits(keep_bytes=1 << 20))
    spec = Input(name="a", columns="ts TIMESTAMP, n INT", time="ts", key=("n",), history="1 hour", durable=True)
    one = Entry(spec, SECOND, place, tmp_path)
    rows = batch(10, 2, None).append_column(KIND, pa.array([None, "+I", "-D"]))
    one.take("p", BatchHead(number=0), rows)
    one.close()
    again = Entry(spec, SECOND, place, tmp_path)
    late = again.late.read(0, FIRST_TIME, 0)
    assert late is not None
    assert late.rows.to_pylist() == batch(10, 2).to_pylist()[1:]
    on_time = all_of(again)
    assert on_time is not None
    assert on_time.rows.column(KIND).to_pylist() == [None, "-D"]


def test_a_batch_that_comes_again_is_answered_but_not_taken() -> None:
    one = entry()
    one.take("p", BatchHead(number=0), batch(10))
    one.take("p", BatchHead(number=1), batch(11))
    assert one.take("p", BatchHead(number=0), batch(10)).number == 1
    assert one.take("p", BatchHead(number=1), batch(11)).next_id == 2
    assert one.known("p").number == 1
    assert one.known("q").number == -1
    with pytest.raises(InputError, match="sent batch 5 to d/a after batch 1"):
        one.take("p", BatchHead(number=5), batch(12))
    assert one.take("q", BatchHead(number=0), batch(12)).next_id == 3


def test_a_batch_is_taken_whole_or_not_at_all() -> None:
    one = entry(late="fail")
    one.take("p", BatchHead(number=0), batch(10))
    for bad in (batch(11, None, 12), batch(20, 3)):
        with pytest.raises(InputError):
            one.take("p", BatchHead(number=1), bad)
    assert one.queue.next_id == 1
    assert one.take("p", BatchHead(number=1), batch(11)).next_id == 2
    assert shown(all_of(one)) == ([10, 11], [(0, 9), (1, 10)])


def test_heartbeats_and_the_end() -> None:
    one = entry()
    one.take("p", BatchHead(number=0), batch(10))
    one.take("p", BatchHead(number=1, heartbeat=15 * SECOND + 7), batch())
    one.take("p", BatchHead(number=2, end=True), batch(16))
    assert one.queue.ended
    assert one.late.ended
    times, bounds = shown(all_of(one))
    assert times == [10, 16]
    assert bounds == [(0, 9), (1, 15), (2, LAST_TIME / SECOND)]
    with pytest.raises(InputError, match="has ended"):
        one.take("p", BatchHead(number=3), batch(17))


def test_silence_writes_boundaries_by_the_clock() -> None:
    clock = ManualClock()
    one = entry(clock=clock, idle="5 seconds")
    one.tick()
    one.take("p", BatchHead(number=0), batch(10))
    clock.advance(4)
    one.tick()
    assert one.queue.boundary == 9 * SECOND
    clock.advance(2)
    one.tick()
    assert one.queue.boundary == 15 * SECOND


def test_a_durable_entry_goes_on_after_a_restart(tmp_path: Path) -> None:
    one = entry(tmp_path)
    one.take("p", BatchHead(number=0), batch(10, 3, 12))
    one.take("q", BatchHead(number=0, heartbeat=20 * SECOND), batch(13))
    epoch, before, late = one.queue.epoch, all_of(one), one.late.next_id
    one.log.close()
    two = entry(tmp_path)
    assert two.queue.epoch == epoch
    assert shown(all_of(two)) == shown(before)
    assert two.late.next_id == late == 1
    assert (two.known("p").number, two.known("q").number) == (0, 0)
    assert two.take("p", BatchHead(number=0), batch(10, 3, 12)).next_id == 3
    two.take("p", BatchHead(number=1), batch(19.5, 21.5))
    assert two.late.next_id == 2
    assert shown(two.queue.read(3, 20 * SECOND, 0)) == ([21.5], [])
    two.log.close()


def test_a_crash_while_writing_loses_only_what_nobody_was_answered_for(tmp_path: Path) -> None:
    one = entry(tmp_path)
    one.take("p", BatchHead(number=0), batch(10))
    one.take("p", BatchHead(number=1), batch(11))
    one.log.close()
    newest = max(tmp_path.glob("segment-*.bin"))
    newest.write_bytes(newest.read_bytes()[:-3])
    two = entry(tmp_path)
    assert two.known("p").number == 0
    assert two.take("p", BatchHead(number=1), batch(11)).next_id == 2
    assert np.array_equal(shown(all_of(two))[0], [10, 11])
    two.log.close()


def test_what_readers_have_acknowledged_leaves_the_log(tmp_path: Path) -> None:
    one = entry(tmp_path)
    assert one.log._segments is not None
    one.log._segments.segment_bytes = 1
    for number in range(20):
        one.take("p", BatchHead(number=number), batch(10 + number))
    one.queue.limits = QueueLimits(keep_bytes=0)
    one.queue.ack("d.u1", 1, 15)
    one.trim()
    assert len(list(tmp_path.glob("segment-*.bin"))) < 10
    one.log.close()
    two = entry(tmp_path)
    assert two.known("p").number == 19
    assert 10 < two.queue.first_id <= 15
    assert two.queue.next_id == 20
    assert two.queue.boundary == 28 * SECOND
    two.log.close()


def test_another_streams_log_is_refused(tmp_path: Path) -> None:
    entry(tmp_path).log.close()
    spec = Input.model_validate({"name": "a", "columns": "ts TIMESTAMP, n INT"})
    with pytest.raises(StateError, match="another stream"):
        Entry(spec, SECOND, StreamConfig("d/b", SCHEMA), tmp_path)


def test_the_log_of_a_diagram_that_is_no_more_is_no_more(tmp_path: Path) -> None:
    one = entry(tmp_path / "log")
    one.take("p", BatchHead(number=0), batch(10))
    one.log.close()
    one.log.erase()
    two = entry(tmp_path / "log")
    assert two.queue.next_id == 0
    assert two.known("p").number == -1
    two.log.close()
