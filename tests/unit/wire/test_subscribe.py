"""Subscriptions: what is pushed, from where, to whom, and how they end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hosting import SCHEMA, Facts, Order, TinyHost, next_section, rows
from pyarrow import flight

from borealis.errors import GoneError, StreamError, WireError
from borealis.streams.queue import MovedError, OutputQueue
from borealis.streams.reader_place import ReaderPlace
from borealis.streams.section import Section, boundary_only, wire_schema
from borealis.tuples import FIRST_TIME, LAST_TIME
from borealis.wire.client import Peer
from borealis.wire.feed import FACTS, SECTION_BYTES_MOST, FeedTimings
from borealis.wire.messages import Ack, SectionHead, StreamFacts, Subscribe
from borealis.wire.problems import ReplacedError
from borealis.wire.server import WireServer
from borealis.wire.service import PIECES
from borealis.wire.waiting import PeerTimings

Soon = Callable[..., None]


def fill(queue: OutputQueue, *counts: int) -> None:
    for count in counts:
        queue.append(next_section(queue, count, bound=10 * (queue.next_id + count)))


def end(queue: OutputQueue) -> None:
    queue.append(boundary_only(queue.next_id, queue.schema, np.array([LAST_TIME]), queue.boundary))


def ids(sections: list[Section]) -> list[int]:
    """The ids of all tuples, each checked against what its row says."""
    found = [n for s in sections for n in range(s.first, s.stop)]
    assert found == [x for s in sections for x in s.rows.column("x").to_pylist()]
    assert found == [t for s in sections for t in s.time.tolist()]
    return found


def boundaries(sections: list[Section]) -> list[tuple[int, int]]:
    return [pair for s in sections for pair in zip(s.at.tolist(), s.bound.tolist(), strict=True)]


def readers(queue: OutputQueue) -> list[str]:
    return sorted(queue.status().readers)


def test_a_whole_stream_arrives_and_ends(queue: OutputQueue, peer: Peer) -> None:
    fill(queue, 3, 2)
    end(queue)
    with peer.subscribe(Subscribe(stream="d/a")) as subscription:
        sections = list(subscription)
    assert ids(sections) == [0, 1, 2, 3, 4]
    assert boundaries(sections) == [(3, 30), (5, 50), (5, LAST_TIME)]
    assert sections[-1].ended
    assert (subscription.stream, subscription.epoch, subscription.schema) == ("d/a", queue.epoch, SCHEMA)
    assert (subscription.next_id, subscription.boundary, subscription.lost) == (5, LAST_TIME, 0)


def test_what_is_appended_later_is_pushed(queue: OutputQueue, peer: Peer) -> None:
    with peer.subscribe(Subscribe(stream="d/a")) as subscription:
        sections = iter(subscription)
        for n in (1, 2, 3):
            fill(queue, n)
            assert len(next(sections)) == n


def test_from_an_id_with_a_known_boundary(queue: OutputQueue, peer: Peer) -> None:
    fill(queue, 3, 2, 1)
    end(queue)
    with peer.subscribe(Subscribe(stream="d/a", start=3, boundary=30, epoch=queue.epoch)) as subscription:
        sections = list(subscription)
    assert ids(sections) == [3, 4, 5]
    assert boundaries(sections) == [(5, 50), (6, 60), (6, LAST_TIME)]
    assert sections[0].standing == 30


def test_the_newest_is_what_comes_and_the_boundary_in_force_is_told(queue: OutputQueue, peer: Peer) -> None:
    fill(queue, 3)
    with peer.subscribe(Subscribe(stream="d/a", start="newest")) as subscription:
        sections = iter(subscription)
        first = next(sections)
        assert (first.first, len(first), first.final) == (3, 0, 30)
        fill(queue, 2)
        assert ids([next(sections)]) == [3, 4]


def test_a_range_ends_before_its_stop(queue: OutputQueue, peer: Peer) -> None:
    fill(queue, 3, 3, 3)
    with peer.subscribe(Subscribe(stream="d/a", start=1, stop=5)) as subscription:
        assert ids(list(subscription)) == [1, 2, 3, 4]


def test_a_range_that_is_not_there_yet_is_waited_for(queue: OutputQueue, peer: Peer) -> None:
    fill(queue, 3)
    with peer.subscribe(Subscribe(stream="d/a", stop=5)) as subscription:
        sections = iter(subscription)
        assert ids([next(sections)]) == [0, 1, 2]
        fill(queue, 9)
        assert ids(list(sections)) == [3, 4]


def test_an_empty_range_is_empty(queue: OutputQueue, peer: Peer) -> None:
    fill(queue, 3)
    with peer.subscribe(Subscribe(stream="d/a", start=2, stop=2)) as subscription:
        assert list(subscription) == []


def test_a_large_section_comes_in_pieces(queue: OutputQueue, peer: Peer) -> None:
    queue.append(next_section(queue, 3000, width=2000, bound=7))
    end(queue)
    with peer.subscribe(Subscribe(stream="d/a")) as subscription:
        sections = list(subscription)
    assert ids(sections) == list(range(3000))
    assert boundaries(sections) == [(3000, 7), (3000, LAST_TIME)]
    assert len(sections) >= 3000 * 2000 // SECTION_BYTES_MOST
    assert max(s.nbytes for s in sections) <= 1.1 * SECTION_BYTES_MOST


def test_several_subscribers_each_at_its_own_place(queue: OutputQueue, peer: Peer) -> None:
    fill(queue, 4, 4)
    end(queue)
    subscriptions = [peer.subscribe(Subscribe(stream="d/a", start=n)) for n in range(9)]
    assert [ids(list(s)) for s in subscriptions] == [list(range(n, 8)) for n in range(9)]


# -- refusals


def test_no_such_stream_says_which_there_are(peer: Peer, server: WireServer) -> None:
    with pytest.raises(StreamError, match=r"no stream 'd/smal' here\. Hint: did you mean 'd/small'"):
        peer.subscribe(Subscribe(stream="d/smal"))
    assert peer.ping().node == "tiny"


def test_another_epoch_is_gone(queue: OutputQueue, peer: Peer) -> None:
    with pytest.raises(GoneError, match=f"epoch {queue.epoch}, not of-yore"):
        peer.subscribe(Subscribe(stream="d/a", start=0, epoch="of-yore"))


def test_an_id_that_never_was_is_refused(queue: OutputQueue, peer: Peer) -> None:
    fill(queue, 3)
    with pytest.raises(StreamError, match="no tuple 4 yet: the next is 3"):
        peer.subscribe(Subscribe(stream="d/a", start=4))


def test_an_id_that_is_trimmed_is_refused_with_the_oldest(host: TinyHost, peer: Peer) -> None:
    queue = host.queue("d/small")
    queue.register("r")
    for _ in range(10):
        queue.append(next_section(queue, 100, width=1000))
        queue.ack("r", 1, queue.next_id)
    assert queue.first_id > 0
    with pytest.raises(StreamError, match=rf"from id {queue.first_id} on: 0 is gone"):
        peer.subscribe(Subscribe(stream="d/small", start=0))


def test_a_reader_cannot_pose_as_a_passing_one(peer: Peer) -> None:
    with pytest.raises(StreamError, match="'~me' cannot name a reader"):
        peer.subscribe(Subscribe(stream="d/a", reader="~me"))


# -- readers


def test_a_named_reader_is_kept_for_until_it_acknowledges(queue: OutputQueue, peer: Peer, soon: Soon) -> None:
    fill(queue, 3)
    with peer.subscribe(Subscribe(stream="d/a", reader="r")) as subscription:
        assert ids([next(iter(subscription))]) == [0, 1, 2]
    peer.ack(Ack(stream="d/a", reader="r", level=0, upto=3))
    peer.ack(Ack(stream="d/a", reader="r", level=1, upto=2))
    assert queue.acks()["r"] == ReaderPlace(3, 2)
    with peer.subscribe(Subscribe(stream="d/a", reader="r")) as again:
        assert ids([next(iter(again))]) == [2]
    assert readers(queue) == ["r"]


def test_an_ack_of_what_never_was_is_refused(peer: Peer) -> None:
    with pytest.raises(StreamError, match="acknowledged 9"):
        peer.ack(Ack(stream="d/a", reader="r", level=1, upto=9))


def test_a_passing_reader_is_forgotten_when_it_goes(queue: OutputQueue, peer: Peer, soon: Soon) -> None:
    fill(queue, 3)
    with peer.subscribe(Subscribe(stream="d/a")) as subscription:
        next(iter(subscription))
        assert len(readers(queue)) == 1
    soon(lambda: readers(queue) == [], seconds=2.0)


def test_a_passing_reader_that_never_reads_is_forgotten_too(queue: OutputQueue, peer: Peer, soon: Soon) -> None:
    subscriptions = [peer.subscribe(Subscribe(stream="d/a")) for _ in range(5)]
    assert len(readers(queue)) == 5
    del subscriptions
    soon(lambda: readers(queue) == [], seconds=2.0)


def test_what_was_pushed_to_a_passing_reader_is_done_with(queue: OutputQueue, peer: Peer, soon: Soon) -> None:
    with peer.subscribe(Subscribe(stream="d/a")) as subscription:
        sections = iter(subscription)
        fill(queue, 3)
        next(sections)
        soon(lambda: list(queue.status().readers.values()) == [3])


def test_a_later_subscription_takes_a_name_over(queue: OutputQueue, peer: Peer) -> None:
    fill(queue, 3)
    earlier = peer.subscribe(Subscribe(stream="d/a", reader="r"))
    sections = iter(earlier)
    assert ids([next(sections)]) == [0, 1, 2]
    with peer.subscribe(Subscribe(stream="d/a", reader="r", start=3)) as later:
        with pytest.raises(ReplacedError, match="took over reader 'r'"):
            next(sections)
        fill(queue, 1)
        assert ids([next(s for s in later if len(s))]) == [3]


def test_a_name_given_back_can_be_taken_again(queue: OutputQueue, peer: Peer) -> None:
    for _ in range(3):
        with peer.subscribe(Subscribe(stream="d/a", reader="r")) as subscription:
            fill(queue, 1)
            assert len(next(iter(subscription))) > 0


# -- ends


def test_cancel_from_another_thread_ends_the_iteration(peer: Peer) -> None:
    subscription = peer.subscribe(Subscribe(stream="d/a"))
    beats = subscription.beats()
    threading.Timer(0.1, subscription.cancel).start()
    assert [beat for beat in beats if beat is not None] == []


def test_a_closed_peer_ends_its_subscriptions(server: WireServer) -> None:
    peer = Peer(server.address)
    subscription = peer.subscribe(Subscribe(stream="d/a"))
    closing = threading.Timer(0.1, peer.close)
    closing.start()
    assert list(subscription) == []
    closing.join()
    with pytest.raises(WireError, match="closed"):
        peer.ping()


def test_a_moved_stream_says_where_to(queue: OutputQueue, peer: Peer) -> None:
    fill(queue, 3)
    with peer.subscribe(Subscribe(stream="d/a")) as subscription:
        sections = iter(subscription)
        next(sections)
        queue.close(moved_to="grpc://127.0.0.1:4711")
        with pytest.raises(MovedError, match="moved to grpc") as moved:
            next(sections)
    assert moved.value.moved_to == "grpc://127.0.0.1:4711"
    with pytest.raises(MovedError) as still:
        peer.subscribe(Subscribe(stream="d/a"))
    assert still.value.moved_to == "grpc://127.0.0.1:4711"


def test_a_closed_stream_is_no_end(queue: OutputQueue, peer: Peer) -> None:
    with peer.subscribe(Subscribe(stream="d/a")) as subscription:
        queue.close()
        with pytest.raises(StreamError, match="closed here"):
            list(subscription)


def test_a_closing_server_is_no_end(queue: OutputQueue, server: WireServer, peer: Peer) -> None:
    subscription = peer.subscribe(Subscribe(stream="d/a"))
    threading.Timer(0.1, server.close).start()
    with pytest.raises(WireError, match="is closing"):
        list(subscription)


def test_idle_subscribers_hear_something(host: TinyHost) -> None:
    quick = FeedTimings(tick_s=0.01, heartbeat_s=0.02)
    with (
        WireServer(host, timings=quick) as server,
        Peer(server.address) as peer,
        peer.subscribe(Subscribe(stream="d/a")) as subscription,
    ):
        beats = subscription.beats()
        assert [next(beats) for _ in range(3)] == [None] * 3


# -- pressure


def wait_full(queue: OutputQueue, filling: threading.Thread, soon: Soon) -> int:
    """Wait until the writer stands still at a full queue; says how far it came."""
    seen = [-1, -2]

    def stands() -> bool:
        time.sleep(0.2)
        seen.append(queue.next_id)
        return filling.is_alive() and not queue.has_room() and seen[-1] == seen[-2]

    soon(stands, seconds=20.0)
    return queue.next_id


def test_a_slow_reader_stops_the_writer_and_loses_nothing(host: TinyHost, peer: Peer, soon: Soon) -> None:
    queue = host.queue("d/small")
    total = 60_000  # of a kilobyte each: far above what queue, wire and reader may hold together

    def write() -> None:
        while queue.next_id < total:
            queue.append(next_section(queue, 100, width=1000))
        end(queue)

    with peer.subscribe(Subscribe(stream="d/small")) as subscription:
        sections = iter(subscription)
        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        seen = next(sections).stop
        stopped_at = wait_full(queue, writing, soon)
        assert stopped_at < total // 2
        assert queue.status().held_bytes < 3 << 20
        for section in sections:
            assert section.first == seen
            seen = section.stop
    assert seen == total
    assert (subscription.lost, queue.dropped) == (0, 0)
    writing.join(5)


def test_a_slow_reader_of_a_lossy_stream_is_told_exactly_what_it_lost(host: TinyHost, peer: Peer) -> None:
    queue = host.queue("d/lossy")
    total = 60_000
    with peer.subscribe(Subscribe(stream="d/lossy")) as subscription:
        sections = iter(subscription)
        while queue.next_id < total:
            queue.append(next_section(queue, 100, width=1000))
        end(queue)
        got = list(sections)
    assert ids(got) != list(range(total))
    assert subscription.lost > 0
    assert len(ids(got)) + subscription.lost == total
    assert got[-1].stop == total


def test_many_idle_subscriptions_leave_room_for_actions(queue: OutputQueue, peer: Peer, server: WireServer) -> None:
    idle = [peer.subscribe(Subscribe(stream="d/a", start="newest")) for _ in range(60)]
    with Peer(server.address) as other:
        other.act("facts", Order(), Facts)
    fill(queue, 5)
    assert [ids([next(s for s in one if len(s))]) for one in idle] == [[0, 1, 2, 3, 4]] * 60


def test_close_does_not_wait_for_stuck_readers(host: TinyHost, soon: Soon) -> None:
    queue = host.queue("d/lossy")
    server = WireServer(host).start()
    with Peer(server.address) as peer:
        stuck = [peer.subscribe(Subscribe(stream="d/lossy")) for _ in range(3)]
        for _ in range(300):  # so much that gRPC holds their threads
            queue.append(next_section(queue, 100, width=1000))
        soon(lambda: len(readers(queue)) == 3)
        server.close()  # although nobody reads
        server.close()
        soon(lambda: readers(queue) == [])
        for subscription in stuck:
            with pytest.raises(WireError):
                list(subscription)


def test_nobody_polls_on_the_way(queue: OutputQueue, host: TinyHost) -> None:
    seldom = FeedTimings(tick_s=600.0)  # who looks, and is not told, looks so often
    with (
        WireServer(host, timings=seldom) as server,
        Peer(server.address) as peer,
        peer.subscribe(Subscribe(stream="d/a")) as subscription,
    ):
        sections = iter(subscription)
        for _ in range(40):
            fill(queue, 10)
            next(sections)
            time.sleep(0.001)  # the sender waits again by then, most of the time
        queue.close()  # wakes its reader, too


# -- a peer that does not keep its word


class Strange(flight.FlightServerBase):
    """Serves whatever a test gives it."""

    def __init__(self, schema: object, pushed: Callable[[], object]) -> None:
        self.schema, self.pushed = schema, pushed
        super().__init__("grpc://127.0.0.1:0")

    def do_get(self, context: object, ticket: object) -> object:
        return flight.GeneratorStream(self.schema, self.pushed())

    def do_action(self, context: object, action: object) -> list[bytes]:
        return []


def from_strange(pushed: Callable[[], object], schema: object = None, silence_s: float = 5.0) -> list[Section]:
    facts = StreamFacts(stream="d/a", epoch="e", first=5)
    schema = schema or wire_schema(SCHEMA).with_metadata({FACTS: facts.encode()})
    server = Strange(schema, pushed)
    try:
        with Peer(f"grpc://127.0.0.1:{server.port}", timings=PeerTimings(silence_s=silence_s)) as peer:
            return list(peer.subscribe(Subscribe(stream="d/a", start=5)))
    finally:
        server.shutdown()


def pushed(n: int, **more: Any) -> tuple[pa.RecordBatch, bytes]:
    columns = [*rows(5, n).columns, pa.array(np.arange(n, dtype=np.int64))]
    head = SectionHead(**({"first": 5, "standing": FIRST_TIME} | more))
    return pa.RecordBatch.from_arrays(columns, schema=wire_schema(SCHEMA)), head.encode()


@pytest.mark.parametrize(
    "more",
    [
        {"at": [6], "bound": []},
        {"at": [4], "bound": [1]},
        {"at": [8], "bound": [1]},
        {"at": [6, 5], "bound": [1, 2]},
        {"at": [6, 6], "bound": [2, 2]},
        {"at": [6], "bound": [FIRST_TIME]},
        {"first": 6},
        {"first": 7, "lost": 1},
        {"lost": 1},
    ],
)
def test_sections_that_cannot_be_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(WireError, match=r"after tuple 5|a broken batch"):
        from_strange(lambda: iter([pushed(2, **more)]))


def test_a_clean_end_before_the_end_is_no_end() -> None:
    with pytest.raises(WireError, match="before its end"):
        from_strange(lambda: iter([pushed(2)]))


def test_a_batch_without_a_head_is_refused() -> None:
    with pytest.raises(WireError, match="without its head"):
        from_strange(lambda: iter([pushed(2)[0]]))


def test_a_head_of_another_version_is_refused() -> None:
    with pytest.raises(WireError, match="a SectionHead of version 2"):
        from_strange(lambda: iter([(pushed(2)[0], b'{"v": 2, "first": 5, "standing": 0}')]))


def test_a_stream_of_strangers_is_refused() -> None:
    with pytest.raises(WireError, match="bad StreamFacts"):
        from_strange(lambda: iter([]), schema=SCHEMA)


def test_silence_is_noticed() -> None:
    def silent() -> Iterator[tuple[pa.RecordBatch, bytes]]:
        yield pushed(2)
        threading.Event().wait(3)
        yield pushed(2, first=7)

    with pytest.raises(WireError, match=r"silent for 0\.6 s"):
        from_strange(silent, silence_s=0.6)


def test_an_export_that_falls_silent_is_given_up() -> None:
    def silent() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([b"a piece"])], schema=PIECES)
        threading.Event().wait(2)

    server = Strange(PIECES, silent)
    with Peer(f"grpc://127.0.0.1:{server.port}", timings=PeerTimings(answer_s=0.6)) as peer:
        pieces = peer.export("bytes")
        assert next(pieces) == b"a piece"
        with pytest.raises(WireError, match=r"silent for 0\.6 s"):
            next(pieces)
    server.shutdown()
