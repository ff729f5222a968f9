"""Entry points and their peers: nothing that a publisher was answered for is lost with one of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from borealis.clock import ManualClock
from borealis.diagram.spec import Input
from borealis.entry.mirror import Mirror
from borealis.entry.point import Entry, StreamConfig
from borealis.errors import InputError, StateError, UnreachableError
from borealis.streams.queue import MovedError, OutputQueue, QueueLimits, StandbyError
from borealis.tuples import FIRST_TIME
from borealis.wire.messages import BatchHead

SECOND = 1_000_000
TRILLION = 1_000_000_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int32())])
Rows = list[tuple[int, int]]


def spec(**fields: object) -> Input:
    return Input.model_validate({"name": "a", "columns": "ts TIMESTAMP, n INT", "slack": "1 second", **fields})


PLACE = StreamConfig("d/a", SCHEMA, QueueLimits(keep_bytes=0), ["d.u1"], ["d.u2"], epoch="e", incarnation=1)


def primary(log: Path | None = None, clock: ManualClock | None = None, **fields: object) -> Entry:
    return Entry.open(spec(**fields), SECOND, PLACE, log, clock)


def standby(log: Path | None = None, clock: ManualClock | None = None, **fields: object) -> Entry:
    return Entry.standby(spec(**fields), SECOND, PLACE, log, clock)


def batch(*seconds: float, n: int = 0) -> pa.RecordBatch:
    times = pa.array([int(s * SECOND) for s in seconds], SCHEMA.field(0).type)
    return pa.record_batch([times, pa.array(range(n, n + len(times)), pa.int32())], SCHEMA)


def pair(**fields: Any) -> tuple[Entry, Entry]:
    one, two = primary(**fields), standby(**fields)
    one.set_mirror(two.apply)
    return one, two


def tuples(queue: OutputQueue, start: int | None = None) -> Rows:
    """Ids and `n` of all that is there."""
    at, boundary, found = queue.first_id if start is None else start, FIRST_TIME, []
    while (part := queue.read(at, boundary, 0)) is not None:
        found += list(zip(range(part.first, part.stop), part.rows.column("n").to_pylist(), strict=True))
        at, boundary = part.stop, part.final
    return found


def bounds(queue: OutputQueue) -> Rows:
    """Ids and times of all boundaries that are there."""
    parts = queue.snapshot().sections
    return [(int(a), int(b) // SECOND) for p in parts for a, b in zip(p.at, p.bound, strict=True)]


# -- what is mirrored


def test_the_peer_goes_on_where_the_other_one_was() -> None:
    one, two = pair()
    one.take("p", BatchHead(number=0), batch(10, 3, 12))
    one.take("q", BatchHead(number=0, heartbeat=20 * SECOND), batch(13, n=3))
    two.open_up(2)
    for here, there in ((one.queue, two.queue), (one.late, two.late)):
        assert tuples(there) == tuples(here)
        assert bounds(there) == bounds(here)
        assert (there.epoch, there.next_id, there.boundary) == (here.epoch, here.next_id, here.boundary)
        assert (there.incarnation, there.held) == (2, False)
    assert (two.known("p").number, two.known("q").number, two.known("r").number) == (0, 0, -1)
    assert two.take("p", BatchHead(number=0), batch(10, 3, 12)).next_id == 3
    assert two.take("p", BatchHead(number=1), batch(19, 21)).late == 2
    assert two.queue.next_id == 4


def test_what_was_there_before_is_mirrored_first() -> None:
    one, two = primary(), standby()
    one.take("p", BatchHead(number=0), batch(10, 11, 12))
    one.queue.ack("d.u1", 1, 3)
    one.take("p", BatchHead(number=1), batch(13, n=3))
    assert not two.loaded
    one.set_mirror(two.apply)
    assert two.loaded
    one.take("p", BatchHead(number=2), batch(14, n=4))
    assert (one.stale.records, one.stale.wholes) == (two.stale.records, two.stale.wholes) == (2, 1)
    assert one.stale.bytes == two.stale.bytes > 0
    two.open_up(2)
    assert tuples(two.queue) == [(3, 3), (4, 4)]
    assert two.queue.acks() == {"d.u1": (3, 3)}


def test_nobody_reads_or_writes_on_standby() -> None:
    one, two = pair()
    one.take("p", BatchHead(number=0), batch(10))
    assert two.queue.read(0, FIRST_TIME, 0) is None
    with pytest.raises(StandbyError, match="on standby"):
        two.known("p")
    with pytest.raises(StandbyError, match="on standby"):
        two.take("p", BatchHead(number=1), batch(11))


def test_silence_is_mirrored_and_a_standby_is_never_silent() -> None:
    clock = ManualClock()
    one, two = pair(clock=clock, idle="5 seconds")
    one.take("p", BatchHead(number=0), batch(10))
    clock.advance(6)
    two.tick()
    assert two.queue.boundary == 9 * SECOND
    one.tick()
    assert two.queue.boundary == one.queue.boundary == 15 * SECOND
    clock.advance(100)  # nobody can publish before it is opened: that is no silence
    two.open_up(2)
    two.tick()
    assert two.queue.boundary == 15 * SECOND
    clock.advance(1)
    two.tick()
    assert two.queue.boundary == 16 * SECOND


def test_acknowledgements_and_readers_that_are_gone_come_along() -> None:
    one, two = pair()
    one.queue.register("job")
    one.take("p", BatchHead(number=0), batch(10, 11))
    one.queue.ack("d.u1", 1, 2)
    one.queue.ack("job", 0, 1)
    one.take("p", BatchHead(number=1), batch(12))
    assert two.queue.acks() == {"d.u1": (2, 2), "job": (1, 0)}
    assert two.queue.first_id == 0
    one.queue.forget("job")
    one.take("p", BatchHead(number=2), batch(13))
    assert two.queue.acks() == {"d.u1": (2, 2)}
    assert two.queue.first_id == one.queue.first_id == 2


def test_going_on_alone_and_with_another_peer() -> None:
    one, two = pair()
    one.set_mirror(None)
    one.take("p", BatchHead(number=0), batch(10))
    assert two.queue.next_id == 0
    three = standby()
    one.set_mirror(three.apply)
    one.set_mirror(two.apply)
    assert (two.queue.next_id, three.queue.next_id) == (1, 1)


# -- what goes wrong


class Line:
    """The way to a peer: it can break before or after a record has come through, or damage it."""

    def __init__(self, apply: Callable[[bytes], None]) -> None:
        self.apply, self.sent = apply, list[bytes]()
        self.broken = self.deaf = self.noisy = False

    def __call__(self, data: bytes) -> None:
        self.sent.append(data)
        if self.broken:
            raise UnreachableError("nobody there")
        if self.noisy:
            self.noisy = False
            data = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
        self.apply(data)
        if self.deaf:
            raise UnreachableError("no answer")


def with_line(**fields: Any) -> tuple[Entry, Entry, Line]:
    one, two = primary(**fields), standby(**fields)
    line = Line(two.apply)
    one.set_mirror(line)
    return one, two, line


@pytest.mark.parametrize("deaf", [False, True])
def test_a_batch_that_is_not_mirrored_is_not_taken(deaf: bool) -> None:
    one, two, line = with_line()
    one.take("p", BatchHead(number=0), batch(10))
    line.broken, line.deaf = not deaf, deaf
    with pytest.raises(UnreachableError):
        one.take("p", BatchHead(number=1), batch(20, n=1))
    assert (one.queue.next_id, one.queue.boundary, one.known("p").number) == (1, 9 * SECOND, 0)
    line.broken = line.deaf = False
    one.take("q", BatchHead(number=0), batch(11, n=2))  # another one comes in between
    one.take("p", BatchHead(number=1), batch(20, n=1))
    two.open_up(2)
    assert tuples(two.queue) == tuples(one.queue) == [(0, 0), (1, 2), (2, 1)]
    assert bounds(two.queue) == bounds(one.queue)


def test_a_whole_record_does_not_know_of_the_batch_that_comes_after_it() -> None:
    one, two, line = with_line()
    one.take("p", BatchHead(number=0), batch(10))
    line.broken = True
    with pytest.raises(UnreachableError):
        one.take("p", BatchHead(number=1), batch(20, n=1))
    line.broken, line.deaf = False, True  # the whole record comes through, and nothing after it
    with pytest.raises(UnreachableError):
        one.take("p", BatchHead(number=1), batch(20, n=1))
    two.open_up(2)
    assert two.take("q", BatchHead(number=0), batch(11, n=2)).late == 0
    assert two.take("p", BatchHead(number=1), batch(20, n=1)).next_id == 3


def test_a_batch_that_the_log_refuses_is_taken_back_from_the_peer(tmp_path: Path) -> None:
    one, two = primary(tmp_path), standby()
    one.set_mirror(two.apply)
    assert one._log is not None
    log = one._log.segments[-1]
    log._failure = StateError("the disk is full")
    with pytest.raises(StateError, match="disk is full"):
        one.take("p", BatchHead(number=0), batch(20))
    assert (one.queue.next_id, two.queue.next_id) == (0, 1)
    log._failure = None
    one.take("q", BatchHead(number=0), batch(10, n=5))
    assert (two.queue.next_id, two.queue.boundary) == (1, 9 * SECOND)
    two.open_up(2)
    assert two.known("p").number == -1
    assert tuples(two.queue) == [(0, 5)]
    one.close()


def test_damage_is_found_counted_and_mended() -> None:
    one, two, line = with_line()
    line.noisy = True
    one.take("p", BatchHead(number=0), batch(10))
    assert two.discarded == 1
    assert one.stale.wholes == 2
    assert two.queue.next_id == 1
    good = line.sent[-1]
    for bad in (b"", good[:7], good[:-1], b"XXXX" + good[4:], *(_flipped(good, at) for at in range(0, len(good), 7))):
        with pytest.raises(StateError, match="damaged"):
            two.apply(bad)
    assert two.queue.next_id == 1
    one.take("p", BatchHead(number=1), batch(11))
    assert two.queue.next_id == 2


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def test_a_record_that_comes_again_changes_nothing_and_a_missing_one_is_missed() -> None:
    one, two, line = with_line()
    for number in range(3):
        one.take("p", BatchHead(number=number), batch(10 + number, n=number))
    for data in line.sent:
        two.apply(data)
    assert (two.queue.next_id, two.discarded) == (3, 0)
    three = standby()
    for start in (1, 2, 3):
        with pytest.raises(StateError, match="does not follow"):
            three.apply(line.sent[start])
    three.apply(line.sent[0])
    with pytest.raises(StateError, match="does not follow"):
        three.apply(line.sent[2])
    assert (three.queue.next_id, three.discarded) == (0, 4)


def test_records_of_another_stream_are_refused() -> None:
    one, two, line = with_line()
    other = Entry.standby(spec(), SECOND, StreamConfig("d/b", SCHEMA, incarnation=1))
    with pytest.raises(StateError, match="came to d/b"):
        other.apply(line.sent[0])
    with pytest.raises(MovedError, match="served here as incarnation 1"):
        one.apply(line.sent[0])
    assert two.loaded


# -- takeovers


def test_a_deposed_one_hears_of_it_and_steps_down() -> None:
    one, two = pair()
    one.take("p", BatchHead(number=0), batch(10))
    two.open_up(2)
    with pytest.raises(MovedError, match="as incarnation 2"):
        one.take("p", BatchHead(number=1), batch(11))
    assert one.queue.next_id == 1
    one.step_down("grpc://two:1")
    for call in (
        lambda: one.take("p", BatchHead(number=1), batch(11)),
        lambda: one.known("p"),
        lambda: one.queue.read(0, FIRST_TIME, 0),
    ):
        with pytest.raises(MovedError) as caught:
            call()
        assert caught.value.moved_to == "grpc://two:1"
    one.tick()
    assert two.take("p", BatchHead(number=1), batch(11)).next_id == 2


def test_one_that_waits_for_room_hears_of_it_too() -> None:
    one = primary()
    one.queue.limits = one.late.limits = QueueLimits(bytes_most=1, keep_bytes=0)
    one.take("p", BatchHead(number=0), batch(10))
    caught: list[BaseException] = []

    def publish() -> None:
        try:
            one.take("p", BatchHead(number=1), batch(11))
        except MovedError as error:
            caught.append(error)

    thread = Thread(target=publish)
    thread.start()
    while not one._waiting:
        pass
    two = standby()
    one.set_mirror(two.apply)  # does not wait for room
    one.step_down("")
    thread.join(5)
    assert len(caught) == 1
    assert two.queue.next_id == 1


def test_one_that_is_deposed_while_it_mirrors_answers_nobody() -> None:
    one, two = primary(), standby()
    one.set_mirror(two.apply)

    def deposes(data: bytes) -> None:
        two.apply(data)
        one.step_down("")

    one._mirror = Mirror(deposes, one.stale)
    with pytest.raises(MovedError):
        one.take("p", BatchHead(number=0), batch(10))
    two.open_up(2)
    assert two.take("p", BatchHead(number=0), batch(10)).next_id == 1


def test_what_cannot_be_opened() -> None:
    one, two = pair()
    with pytest.raises(StateError, match="nothing of stream d/a has come"):
        standby().open_up(2)
    with pytest.raises(StateError, match="cannot become incarnation 0"):
        two.open_up(0)
    with pytest.raises(StateError, match="cannot become incarnation 2: it is 1 and open here"):
        one.open_up(2)


def test_the_peer_of_the_peer() -> None:
    one, two = pair()
    one.take("p", BatchHead(number=0), batch(10))
    two.open_up(2)
    three = standby()
    two.set_mirror(three.apply)
    two.take("p", BatchHead(number=1), batch(11, n=1))
    assert three.queue.incarnation == 2
    with pytest.raises(MovedError):
        one.set_mirror(three.apply)  # a deposed one that does not know it yet
    three.open_up(3)
    assert tuples(three.queue) == [(0, 0), (1, 1)]


# -- amnesia


def test_without_a_mirror_ids_jump_and_publishers_go_on() -> None:
    two = standby()
    two.open_up(2, jump=True)
    assert two.known("p").number == -1
    assert two.take("p", BatchHead(number=17), batch(10)).next_id == TRILLION + 1
    assert two.take("p", BatchHead(number=17), batch(10)).next_id == TRILLION + 1
    with pytest.raises(InputError, match="sent batch 19 to d/a after batch 17"):
        two.take("p", BatchHead(number=19), batch(11))
    assert tuples(two.queue, 123) == [(TRILLION, 0)]


def test_the_next_jump_is_beyond_the_last_one() -> None:
    two = standby()
    two.open_up(3, jump=True)
    assert two.queue.next_id == two.late.next_id == 2 * TRILLION
    three = standby()
    three.queue.ack("d.u1", 0, 5 * TRILLION)
    three.open_up(2, jump=True)
    assert (three.queue.next_id, three.late.next_id) == (6 * TRILLION, TRILLION)
    four = standby()
    four.open_up(2, jump=True, above=7 * TRILLION)
    assert four.queue.next_id == 8 * TRILLION


# -- durable inputs


def test_a_durable_peer_has_all_of_it_on_disk(tmp_path: Path) -> None:
    one, two = primary(tmp_path / "one"), standby(tmp_path / "two")
    one.take("p", BatchHead(number=0), batch(10, 3, 12))
    one.queue.ack("d.u1", 1, 2)
    one.set_mirror(two.apply)
    one.take("q", BatchHead(number=0, heartbeat=20 * SECOND), batch(13, n=3))
    two.close()
    again = primary(tmp_path / "two")
    assert tuples(again.queue) == [(2, 3)]
    assert (tuples(again.late), bounds(again.queue)) == (tuples(one.late), bounds(one.queue))
    assert (again.known("p").number, again.known("q").number) == (0, 0)
    assert again.queue.epoch == "e"
    assert again.late.epoch == "e.late"
    again.take("p", BatchHead(number=1), batch(21, n=4))
    again.close()
    one.close()


def test_a_whole_record_takes_the_place_of_an_old_log(tmp_path: Path) -> None:
    old = primary(tmp_path)
    for number in range(5):
        old.take("p", BatchHead(number=number), batch(50 + number))
    old.close()
    one, two = primary(), standby(tmp_path)
    assert two.queue.next_id == 5
    one.set_mirror(two.apply)
    one.take("q", BatchHead(number=0), batch(10))
    two.open_up(2)
    two.take("q", BatchHead(number=1), batch(11, n=1))
    two.trim()
    two.close()
    again = primary(tmp_path)
    assert tuples(again.queue) == [(0, 0), (1, 1)]
    assert (again.known("p").number, again.known("q").number) == (-1, 1)
    again.close()


def test_a_jump_survives_a_restart_and_a_whole_record(tmp_path: Path) -> None:
    one = standby(tmp_path / "one")
    one.open_up(2, jump=True)
    one.close()
    one = primary(tmp_path / "one")
    assert (one.queue.next_id, one.late.next_id) == (TRILLION, TRILLION)
    one.take("p", BatchHead(number=0), batch(10))
    one.close()
    one = primary(tmp_path / "one")
    assert tuples(one.queue, 77) == [(TRILLION, 0)]
    two = standby(tmp_path / "two")
    one.set_mirror(two.apply)
    one.take("p", BatchHead(number=1), batch(11, n=1))
    two.open_up(2)
    assert tuples(two.queue, 77) == [(TRILLION, 0), (TRILLION + 1, 1)]
    two.close()
    two = primary(tmp_path / "two")
    assert tuples(two.queue, 77) == [(TRILLION, 0), (TRILLION + 1, 1)]
    one.close()
    two.close()


def test_a_log_that_cannot_be_written_anew_is_no_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = primary(), standby(tmp_path / "two")
    line = Line(two.apply)
    one.set_mirror(line)
    whole = line.sent[0]
    monkeypatch.setattr("borealis.entry.follower.written_anew", _full)
    other = primary()
    other.take("p", BatchHead(number=0), batch(10))
    with pytest.raises(StateError, match="disk is full"):
        other.set_mirror(two.apply)
    assert not two.loaded
    monkeypatch.undo()
    two.apply(whole)
    assert two.loaded
    two.close()


def _full(*_: object) -> None:
    raise StateError("the disk is full")


def test_a_given_epoch_is_that_of_both_queues() -> None:
    one = primary()
    assert (one.queue.epoch, one.late.epoch) == ("e", "e.late")
    assert Entry.open(spec(), SECOND, StreamConfig("d/a", SCHEMA)).queue.epoch not in ("", "e")
    assert (one.queue.incarnation, one.late.incarnation) == (1, 1)
