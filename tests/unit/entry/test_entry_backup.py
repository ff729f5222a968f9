"""Entry points and their backups: nothing that a publisher was answered for is lost with one of them."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from borealis.clock import WALL, Clock, ManualClock
from borealis.diagram.spec import Input
from borealis.entry.log import EntryLog
from borealis.entry.point import Entry, StreamConfig
from borealis.errors import FullError, InputError, StateError
from borealis.machine import Machine
from borealis.node.primary import PrimaryGuard
from borealis.streams.queue import MovedError, OutputQueue, QueueLimits, StandbyError
from borealis.streams.reader_place import ReaderPlace
from borealis.tuples import FIRST_TIME
from borealis.wire.messages import BatchHead, GuardAnswer, Protect
from entry_pair import Host, guard_of, protect, take_over

SECOND = 1_000_000
TRILLION = 1_000_000_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int32())])
PLACE = StreamConfig("d/a", SCHEMA, QueueLimits(keep_bytes=0), ["d.u1"], ["d.u2"], epoch="e")
Rows = list[tuple[int, int]]


def spec(**fields: object) -> Input:
    return Input.model_validate({"name": "a", "columns": "ts TIMESTAMP, n INT", "slack": "1 second", **fields})


def primary(log: Path | None = None, clock: Clock = WALL, **fields: object) -> Entry:
    return Entry(spec(**fields), SECOND, PLACE, log, machine=Machine(clock))


def standby(log: Path | None = None, clock: Clock = WALL, **fields: object) -> Entry:
    return Entry(spec(**fields), SECOND, PLACE, log, standby=True, machine=Machine(clock))


def batch(*seconds: float, n: int = 0) -> pa.RecordBatch:
    times = pa.array([int(s * SECOND) for s in seconds], SCHEMA.field(0).type)
    return pa.record_batch([times, pa.array(range(n, n + len(times)), pa.int32())], SCHEMA)


def pair(**fields: Any) -> tuple[Entry, Entry, Host, PrimaryGuard]:
    one, two = primary(**fields), standby(**fields)
    guard = guard_of(one)
    return one, two, protect(guard, two), guard


def tuples(queue: OutputQueue, start: int | None = None) -> Rows:
    """Ids and `n` of all that can be read."""
    at, boundary, found = queue.first_id if start is None else start, FIRST_TIME, []
    while (part := queue.read(at, boundary, 0)) is not None:
        found += list(zip(range(part.first, part.stop), part.rows.column("n").to_pylist(), strict=True))
        at, boundary = part.stop, part.final
    return found


def bounds(queue: OutputQueue) -> Rows:
    """Ids and times of all boundaries that are there."""
    parts = queue.snapshot().sections
    return [(int(a), int(b) // SECOND) for p in parts for a, b in zip(p.at, p.bound, strict=True)]


# -- what the backup has


def test_the_backup_goes_on_where_the_primary_was() -> None:
    one, two, host, _ = pair()
    one.take("p", BatchHead(number=0), batch(10, 3, 12))
    one.take("q", BatchHead(number=0, heartbeat=20 * SECOND), batch(13, n=3))
    take_over(host)
    for here, there in ((one.queue, two.queue), (one.late, two.late)):
        assert tuples(there) == tuples(here)
        assert bounds(there) == bounds(here)
        assert (there.epoch, there.next_id, there.boundary) == (here.epoch, here.next_id, here.boundary)
        assert (there.incarnation, there.held) == (2, False)
    assert (two.known("p").number, two.known("q").number, two.known("r").number) == (0, 0, -1)
    assert two.take("p", BatchHead(number=0), batch(10, 3, 12)).next_id == 3
    assert two.take("p", BatchHead(number=1), batch(19, 21)).late == 2
    assert two.queue.next_id == 4


def test_what_was_there_before_is_sent_first() -> None:
    one, two = primary(), standby()
    one.take("p", BatchHead(number=0), batch(10, 11, 12))
    one.queue.ack("d.u1", 1, 3)
    one.take("p", BatchHead(number=1), batch(13, n=3))
    host = protect(guard_of(one), two)
    assert host.standby is not None
    assert host.standby.ready
    one.take("p", BatchHead(number=2), batch(14, n=4))
    assert [parcel.want.kind for parcel in host.sent] == ["whole", "delta"]
    take_over(host)
    assert tuples(two.queue) == [(3, 3), (4, 4)]
    assert two.queue.acks() == {"d.u1": ReaderPlace(3, 3)}


def test_while_a_fresh_backup_is_sent_the_whole_nobody_waits_and_it_cannot_take_over() -> None:
    """What comes meanwhile is read and answered; then all is held until the backup has had that, too."""
    one, two = primary(), standby()
    one.take("p", BatchHead(number=0), batch(10))
    guard = guard_of(one)
    host: Host = guard._host  # type: ignore[assignment]

    def comes(*numbers: int) -> None:
        assert host.standby is not None
        assert not host.standby.ready
        assert one.queue.held is not bool(numbers)
        for number in numbers:
            one.take("p", BatchHead(number=number), batch(10 + number, n=number))
            assert tuples(one.queue)[-1] == (number, number)

    protect(guard, two, lambda: comes(1, 2, 3), lambda: comes(4), comes, fresh=True)
    assert [(parcel.want.kind, parcel.want.complete) for parcel in host.sent] == [
        ("whole", False),
        ("delta", False),
        ("delta", True),
    ]
    assert host.standby is not None
    assert host.standby.ready
    assert guard.status().state == "protected"
    one.take("p", BatchHead(number=5), batch(15, n=5))
    take_over(host)
    assert tuples(two.queue) == [(n, n) for n in range(6)]


@pytest.mark.parametrize("lost", range(3))
@pytest.mark.parametrize("how", ["lost", "no answer", "damaged", "twice"])
def test_a_fresh_backup_gets_all_whatever_becomes_of_a_message(how: str, lost: int) -> None:
    one, two = primary(), standby()
    one.take("p", BatchHead(number=0), batch(10))
    guard = guard_of(one)
    host = protect(guard, two, *["well"] * lost, how, fresh=True)
    one.take("p", BatchHead(number=1), batch(11, n=1))
    assert one.queue.held
    take_over(host)
    assert tuples(two.queue) == [(0, 0), (1, 1)]


def test_nothing_is_read_from_or_written_to_a_standby() -> None:
    one, two, _, _ = pair()
    one.take("p", BatchHead(number=0), batch(10))
    assert two.queue.read(0, FIRST_TIME, 0) is None
    with pytest.raises(StandbyError, match="on standby"):
        two.known("p")
    with pytest.raises(StandbyError, match="on standby"):
        two.take("p", BatchHead(number=1), batch(11))


def test_silence_comes_along_and_a_standby_is_never_silent() -> None:
    clock = ManualClock()
    one, two, host, guard = pair(clock=clock, idle="5 seconds")
    one.take("p", BatchHead(number=0), batch(10))
    clock.advance(6)
    two.tick()
    assert two.queue.boundary == 9 * SECOND
    one.tick()
    assert one.queue.read(1, 9 * SECOND, 0) is None, "not before the backup has it"
    guard._converse()
    assert two.queue.boundary == one.queue.boundary == 15 * SECOND
    clock.advance(100)  # no publisher can come before it is started: that is no silence
    take_over(host)
    two.tick()
    assert two.queue.boundary == 15 * SECOND
    clock.advance(1)
    two.tick()
    assert two.queue.boundary == 16 * SECOND


def test_acknowledgements_and_readers_that_are_gone_come_along() -> None:
    one, two, _, _ = pair()
    one.queue.register("job")
    one.take("p", BatchHead(number=0), batch(10, 11))
    one.queue.ack("d.u1", 1, 2)
    one.queue.ack("job", 0, 1)
    one.take("p", BatchHead(number=1), batch(12))
    assert two.queue.acks() == {"d.u1": ReaderPlace(2, 2), "job": ReaderPlace(1, 0)}
    assert two.queue.first_id == 0
    one.queue.forget("job")
    one.take("p", BatchHead(number=2), batch(13))
    assert two.queue.acks() == {"d.u1": ReaderPlace(2, 2)}
    assert two.queue.first_id == one.queue.first_id == 2


def test_going_on_alone_and_with_another_backup() -> None:
    one, two, _, guard = pair()
    guard.protect(Protect(diagram="d", unit="in-in", incarnation=1))
    one.take("p", BatchHead(number=0), batch(10))
    assert two.queue.next_id == 0
    three = standby()
    protect(guard, three)
    assert (tuples(one.queue), three.queue.next_id) == ([(0, 0)], 1)


# -- what goes wrong


@pytest.mark.parametrize("trouble", ["lost", "no answer", "damaged", "twice"])
def test_a_batch_is_neither_shown_nor_answered_for_before_the_backup_has_it(trouble: str) -> None:
    one, two, host, _ = pair()
    one.take("p", BatchHead(number=0), batch(10))
    seen: list[Rows] = []
    host.coming += [trouble, lambda: seen.append(tuples(one.queue))] if trouble != "twice" else [trouble]
    assert one.take("p", BatchHead(number=1), batch(20, n=1)).number == 1
    assert seen == ([[(0, 0)]] if trouble != "twice" else [])
    take_over(host)
    assert tuples(two.queue) == tuples(one.queue) == [(0, 0), (1, 1)]
    assert bounds(two.queue) == bounds(one.queue)
    assert host.standby is not None
    assert host.standby.status().discarded == (trouble == "damaged")


def test_a_publisher_that_connects_is_told_only_of_what_the_backup_has() -> None:
    one, _, host, _ = pair()
    asked: list[int] = []
    ask = Thread(target=lambda: asked.append(one.known("p").number))
    seen: list[tuple[bool, list[int]]] = []

    def wait() -> None:
        ask.start()
        ask.join(0.05)
        seen.append((ask.is_alive(), list(asked)))

    host.coming.append(wait)
    one.take("p", BatchHead(number=0), batch(10))
    ask.join()
    assert (seen, asked) == ([(True, [])], [0])


def test_a_batch_that_the_log_refuses_never_was(tmp_path: Path) -> None:
    one, two = primary(tmp_path), standby()
    host = protect(guard_of(one), two)
    assert one.log._segments is not None
    log = one.log._segments.segments[-1]
    log._failure = StateError("the disk is broken")
    with pytest.raises(StateError, match="disk is broken"):
        one.take("p", BatchHead(number=0), batch(20))
    assert (one.queue.next_id, two.queue.next_id) == (0, 0)
    log._failure = None
    one.take("q", BatchHead(number=0), batch(10, n=5))
    assert (two.queue.next_id, two.queue.boundary) == (1, 9 * SECOND)
    take_over(host)
    assert two.known("p").number == -1
    assert tuples(two.queue) == [(0, 5)]
    one.log.close()


def test_steps_that_come_while_a_message_is_under_way_go_together() -> None:
    one, two, host, _ = pair()
    others = [Thread(target=one.take, args=(name, BatchHead(number=0), batch(11))) for name in "qr"]

    def meanwhile() -> None:
        for other in others:
            other.start()
        while one.queue.next_id < 3:
            pass

    host.coming.append(meanwhile)
    one.take("p", BatchHead(number=0), batch(10))
    for other in others:
        other.join()
    assert [parcel.want.step.train for parcel in host.sent] == [0, 1, 3]
    assert (two.queue.next_id, sorted(two.state.publishers)) == (3, ["p", "q", "r"])


def test_what_a_backup_that_was_answers_late_is_not_heard() -> None:
    one, _, _, guard = pair()
    guard.policy.committed(guard.unit.run.step())
    late = guard.policy.want(float("inf"), {})
    assert late is not None
    protect(guard, standby())
    guard._answered(late, GuardAnswer(verdict="full", why="no room"), 0.0, {})
    assert (one.refusal, guard.status().state) == (None, "protected")


# -- takeovers


def test_a_deposed_one_hears_of_it_and_steps_down() -> None:
    one, two, host, _ = pair()
    one.take("p", BatchHead(number=0), batch(10))
    take_over(host)
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
    protect(guard_of(one), two)  # does not wait for room
    one.step_down("")
    thread.join(5)
    assert len(caught) == 1
    assert two.queue.next_id == 1


def test_one_that_is_deposed_while_it_waits_answers_nothing() -> None:
    one, two, host, _ = pair()
    host.coming.append(lambda: one.step_down(""))
    with pytest.raises(MovedError):
        one.take("p", BatchHead(number=0), batch(10))
    take_over(host)
    assert two.take("p", BatchHead(number=0), batch(10)).next_id == 1


def test_the_backup_of_the_backup() -> None:
    one, two, host, _ = pair()
    one.take("p", BatchHead(number=0), batch(10))
    later = take_over(host)
    three = standby()
    host = protect(later, three)
    two.take("p", BatchHead(number=1), batch(11, n=1))
    take_over(host)
    assert three.queue.incarnation == 3
    assert tuples(three.queue) == [(0, 0), (1, 1)]


# -- amnesia


def test_without_its_state_ids_jump_and_publishers_go_on() -> None:
    one, two = primary(), standby()
    host = protect(guard_of(one, "amnesia"), two)
    one.take("p", BatchHead(number=0), batch(10))
    take_over(host)
    assert two.known("p").number == -1
    assert two.take("p", BatchHead(number=17), batch(11)).next_id == TRILLION + 1
    assert two.take("p", BatchHead(number=17), batch(11)).next_id == TRILLION + 1
    with pytest.raises(InputError, match="sent batch 19 to d/a after batch 17"):
        two.take("p", BatchHead(number=19), batch(12))
    assert tuples(two.queue, 123) == [(TRILLION, 0)]


def test_the_next_jump_is_beyond_the_last_one() -> None:
    one, two, three = primary(), standby(), standby()
    later = take_over(protect(guard_of(one, "amnesia"), two))
    assert two.queue.next_id == two.late.next_id == TRILLION
    two.take("p", BatchHead(number=3), batch(10))
    take_over(protect(later, three))
    assert (three.queue.next_id, three.late.next_id) == (2 * TRILLION, 2 * TRILLION)


def test_what_is_before_the_boundary_that_readers_had_is_late() -> None:
    one, two = primary(), standby()
    one.take("p", BatchHead(number=0), batch(10))
    take_over(protect(guard_of(one, "amnesia"), two))
    assert two.take("p", BatchHead(number=1), batch(8, 9)).late == 1
    assert (two.queue.boundary, tuples(two.late)) == (9 * SECOND, [(TRILLION, 0)])


# -- durable inputs


def test_a_durable_backup_has_all_of_it_on_disk(tmp_path: Path) -> None:
    one, two = primary(tmp_path / "one"), standby(tmp_path / "two")
    one.take("p", BatchHead(number=0), batch(10, 3, 12))
    one.queue.ack("d.u1", 1, 2)
    protect(guard_of(one), two)
    one.take("q", BatchHead(number=0, heartbeat=20 * SECOND), batch(13, n=3))
    two.log.close()
    again = primary(tmp_path / "two")
    assert tuples(again.queue) == [(2, 3)]
    assert (tuples(again.late), bounds(again.queue)) == (tuples(one.late), bounds(one.queue))
    assert (again.known("p").number, again.known("q").number) == (0, 0)
    assert (again.queue.epoch, again.late.epoch) == ("e", "e.late")
    again.take("p", BatchHead(number=1), batch(21, n=4))
    again.log.close()
    one.log.close()


@pytest.mark.parametrize("trouble", ["lost", "no answer", "twice"])
def test_the_log_of_a_backup_has_nothing_twice(tmp_path: Path, trouble: str) -> None:
    one, two = primary(), standby(tmp_path)
    host = protect(guard_of(one), two)
    for number in range(4):
        host.coming += [trouble, trouble]
        one.take("p", BatchHead(number=number), batch(10 + number, 3, n=10 * number))
    two.log.close()
    again = primary(tmp_path)
    for here, there in ((one.queue, again.queue), (one.late, again.late)):
        assert (tuples(here), bounds(here)) == (tuples(there), bounds(there))
    again.log.close()


def test_a_whole_takes_the_place_of_an_old_log(tmp_path: Path) -> None:
    old = primary(tmp_path)
    for number in range(5):
        old.take("p", BatchHead(number=number), batch(50 + number))
    old.log.close()
    one, two = primary(), standby(tmp_path)
    host = protect(guard_of(one), two)
    one.take("q", BatchHead(number=0), batch(10))
    take_over(host)
    two.take("q", BatchHead(number=1), batch(11, n=1))
    two.trim()
    two.log.close()
    again = primary(tmp_path)
    assert tuples(again.queue) == [(0, 0), (1, 1)]
    assert (again.known("p").number, again.known("q").number) == (-1, 1)
    again.log.close()


def test_a_restarted_primary_goes_on_counting_its_steps(tmp_path: Path) -> None:
    """Or its backup would take what it sends for what it had before."""
    one, two = primary(tmp_path), standby()
    host = protect(guard_of(one), two)
    for number in range(3):
        one.take("p", BatchHead(number=number), batch(10 + number))
    one.log.close()
    again = primary(tmp_path)
    guard = guard_of(again)
    guard._host = host  # type: ignore[assignment]
    guard.guard = guard.guard.model_copy(update={"partner": "grpc://two:1"})
    guard._join()
    again.take("p", BatchHead(number=3), batch(14))
    assert two.queue.next_id == 4
    again.log.close()


def test_a_jump_survives_a_restart_and_a_whole(tmp_path: Path) -> None:
    one = standby(tmp_path / "one")
    take_over(protect(guard_of(primary(), "amnesia"), one))
    one.log.close()
    one = primary(tmp_path / "one")
    assert (one.queue.next_id, one.late.next_id) == (TRILLION, TRILLION)
    one.take("p", BatchHead(number=0), batch(10))
    one.log.close()
    one = primary(tmp_path / "one")
    assert tuples(one.queue, 77) == [(TRILLION, 0)]
    two = standby(tmp_path / "two")
    host = protect(guard_of(one), two)
    one.take("p", BatchHead(number=1), batch(11, n=1))
    take_over(host)
    assert tuples(two.queue, 77) == [(TRILLION, 0), (TRILLION + 1, 1)]
    two.log.close()
    two = primary(tmp_path / "two")
    assert tuples(two.queue, 77) == [(TRILLION, 0), (TRILLION + 1, 1)]
    one.log.close()
    two.log.close()


def test_a_backup_that_cannot_load_the_whole_is_none_and_holds_up_no_publisher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = primary(), standby(tmp_path / "two")
    one.take("p", BatchHead(number=0), batch(10))

    def broken(*_: object) -> None:
        raise StateError("the disk is broken")

    monkeypatch.setattr(EntryLog, "_new", broken)
    guard = guard_of(one)
    host = protect(guard, two)
    assert host.standby is not None
    assert not host.standby.ready
    assert one.take("p", BatchHead(number=1), batch(11)).number == 1
    told = guard.status()
    assert (told.state, told.why) == ("alone", "its backup cannot stand by: the disk is broken")
    monkeypatch.undo()
    again = {"partner": "grpc://two:1", "partner_node": "two"}  # as the coordinator orders
    guard.protect(Protect(diagram="d", unit="in-in", incarnation=1, **again))
    guard._converse()
    assert host.standby.ready
    assert one.take("p", BatchHead(number=2), batch(12)).number == 2
    assert two.queue.next_id == 3
    two.log.close()


def test_a_whole_that_was_taken_is_not_taken_again_for_want_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = primary(), standby()
    one.take("p", BatchHead(number=0), batch(10))
    loads: list[int] = []
    load = two.load
    monkeypatch.setattr(two, "load", lambda *what: (loads.append(1), load(*what)))
    guard = guard_of(one)
    protect(guard, two, "no answer", "no answer")
    for _ in range(3):
        guard._converse()
    assert (loads, guard.status().state) == ([1], "protected")


def test_a_log_that_another_process_has_is_not_touched(tmp_path: Path) -> None:
    one = primary(tmp_path)
    one.take("p", BatchHead(number=0), batch(10))
    with pytest.raises(StateError, match="in use"):
        standby(tmp_path)
    one.log.close()


def test_a_log_that_is_lost_is_written_before_anything_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole came twice, and the second time the disk was full after all."""
    one, two = primary(), standby(tmp_path)
    guard = guard_of(one)
    host = protect(guard, two)
    one.take("p", BatchHead(number=0), batch(10))

    def full(*_: object) -> None:
        raise FullError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(EntryLog, "_new", full)
        with pytest.raises(FullError, match="the disk is full: no room"):
            two.load(one.state.facts(), {name: queue.snapshot() for name, queue in one.queues.items()})
        take_over(host)
        status = two.log.status()
        assert status is not None
        assert status.full
        with pytest.raises(FullError):
            two.take("p", BatchHead(number=1), batch(11))
    assert two.take("p", BatchHead(number=1), batch(11)).next_id == 2
    two.log.close()
    again = primary(tmp_path)
    assert (len(tuples(again.queue)), again.known("p").number) == (2, 1)
    again.log.close()


def test_nothing_is_written_for_a_diagram_that_is_no_more(tmp_path: Path) -> None:
    one, two = primary(), standby(tmp_path)
    two.close()
    two.log.erase()
    with pytest.raises(StateError, match="closed here"):
        two.load(one.state.facts(), {name: queue.snapshot() for name, queue in one.queues.items()})
    assert not tmp_path.exists()


def test_who_reads_what_is_newest_begins_at_what_is_shown() -> None:
    one, _, host, _ = pair()
    one.take("p", BatchHead(number=0), batch(10))
    seen: list[int] = []
    host.coming.append(lambda: seen.append(one.queue.newest()))
    one.take("p", BatchHead(number=1), batch(11))
    assert (seen, one.queue.newest()) == ([1], 2)


def test_an_ended_stream_stays_ended_after_amnesia() -> None:
    one, two = primary(), standby()
    host = protect(guard_of(one, "amnesia"), two)
    one.take("p", BatchHead(number=0, end=True), batch(10))
    guard: Any = one.flush.__self__  # type: ignore[attr-defined]
    while guard.policy._acked < 1:
        guard._converse()
    take_over(host)
    with pytest.raises(InputError, match="has ended"):
        two.take("p", BatchHead(number=1), batch(11))


def test_a_given_epoch_is_that_of_both_queues() -> None:
    one = primary()
    assert (one.queue.epoch, one.late.epoch) == ("e", "e.late")
    assert Entry(spec(), SECOND, StreamConfig("d/a", SCHEMA)).queue.epoch not in ("", "e")
