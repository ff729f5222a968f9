"""The client library against real Flight servers and a coordinator that only knows where streams are."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from town import NONE, SCHEMA, SOON, STREAM, WAIT_S, Counter, Place, Town, add, eventually, finish, rows

import borealis
from borealis.client.client import Client
from borealis.client.cluster_config import Whereabouts
from borealis.client.publisher import UNDER_WAY, Publisher, Publishing, pieces
from borealis.client.subscriber import Buffer, Came, ReadOptions, Subscription
from borealis.clock import ManualClock
from borealis.errors import BorealisError, DiagramError, FullError, GoneError, InputError, StreamError, WireError
from borealis.retrying import Backoff, Retries
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.streams.section import Section, section
from borealis.wire.auth import Security
from borealis.wire.messages import BatchHead
from borealis.wire.problems import ReplacedError


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def place(town: Town, stack: ExitStack) -> Place:
    """One node with the stream `traffic/packets`, which has an entry point."""
    made = Place()
    stack.callback(made.close)
    queue = made.queues[STREAM] = OutputQueue(STREAM, SCHEMA)
    made.entries[STREAM] = Counter(queue)
    town.places[STREAM] = (made, True)
    return made


@pytest.fixture
def client(town: Town, stack: ExitStack) -> Client:
    return stack.enter_context(Client(Whereabouts("127.0.0.1", town.port), SOON))


# -- reading


def test_rows_batches_frames_and_sections_tell_the_same(place: Place, client: Client) -> None:
    queue = place.queues[STREAM]
    add(queue, 3)
    add(queue, 2)
    finish(queue)
    wanted = [{"n": i, "word": f"w{i}"} for i in range(5)]
    assert list(client.subscribe("packets", "oldest")) == wanted
    batches = list(client.subscribe(STREAM, "oldest").batches())
    assert pa.Table.from_batches(batches).to_pylist() == wanted
    assert all(batch.schema == SCHEMA for batch in batches)
    frames = list(client.subscribe("packets", "oldest").pandas())
    assert sum(len(frame) for frame in frames) == 5
    assert list(frames[0].columns) == ["n", "word"]
    sections = list(client.subscribe("packets", "oldest").sections())
    assert sections[0].first == 0
    assert sections[-1].ended
    headed = list(client.subscribe("packets", "oldest", headers=True))
    assert headed[4] == {"_id": 4, "_time": 4, "_kind": "+I", "_stable": True, "n": 4, "word": "w4"}


def test_a_place_to_start_is_newest_oldest_or_an_id(place: Place, client: Client) -> None:
    queue = place.queues[STREAM]
    add(queue, 10)
    live = client.subscribe("packets")
    late = client.subscribe("packets", 7)
    assert (live.position, late.position) == (10, 7)
    add(queue, 2)
    finish(queue)
    assert [row["n"] for row in live] == [10, 11]
    assert [row["n"] for row in late] == [7, 8, 9, 10, 11]
    assert late.position == 12
    with pytest.raises(InputError, match="no place"):
        client.subscribe("packets", -1)
    with pytest.raises(StreamError):
        client.subscribe("packets", 13)
    with pytest.raises(InputError, match="cannot name a reader"):
        client.subscribe("packets", reader="a b")
    with pytest.raises(InputError, match="cannot name a publisher"):
        client.publisher("packets", "~me")


def test_iterators_share_one_position(place: Place, client: Client) -> None:
    add(place.queues[STREAM], 6)
    subscription = client.subscribe("packets", "oldest")
    assert next(iter(subscription))["n"] == 0
    assert next(iter(subscription))["n"] == 1
    assert next(subscription.batches()).column(0).to_pylist() == [2, 3, 4, 5]


def test_a_lost_connection_is_found_again_without_loss_or_repetition(place: Place, client: Client, town: Town) -> None:
    queue = place.queues[STREAM]
    add(queue, 5)
    subscription = client.subscribe("packets", "oldest")
    got = [next(subscription.rows())["n"]]
    place.again()
    add(queue, 5)
    got += [next(subscription.rows())["n"] for _ in range(7)]
    place.again(elsewhere=True)
    add(queue, 5)
    finish(queue)
    got += [row["n"] for row in subscription]
    assert got == list(range(15))
    assert subscription.reconnects == 2
    assert subscription.ended
    assert (subscription.gaps, subscription.lost) == (0, 0)


def test_newest_means_newest_when_it_was_asked_for(place: Place, client: Client) -> None:
    queue = place.queues[STREAM]
    add(queue, 5)
    subscription = client.subscribe("packets")
    place.again()
    add(queue, 1)  # nothing had come when the connection broke
    assert next(iter(subscription))["n"] == 5


def test_a_stream_that_moves_is_followed(place: Place, client: Client, town: Town, stack: ExitStack) -> None:
    other = Place()
    stack.callback(other.close)
    queue = place.queues[STREAM]
    add(queue, 4)
    subscription = client.subscribe("packets", "oldest")
    assert next(subscription.rows())["n"] == 0
    queue.close(moved_to=other.address)  # the coordinator does not know yet
    moved = other.queues[STREAM] = OutputQueue.restore(queue.snapshot())
    add(moved, 3)
    finish(moved)
    assert [row["n"] for row in subscription] == [1, 2, 3, 4, 5, 6]


def test_the_coordinator_may_be_away_while_a_node_comes_back(place: Place, client: Client, town: Town) -> None:
    queue = place.queues[STREAM]
    add(queue, 2)
    subscription = client.subscribe("packets", "oldest")
    assert next(subscription.rows())["n"] == 0
    town.stop()
    place.again()
    add(queue, 2)
    assert [next(subscription.rows())["n"] for _ in range(3)] == [1, 2, 3]


def test_a_node_that_has_lost_the_stream_for_a_moment_is_waited_for(place: Place, client: Client) -> None:
    queue = place.queues[STREAM]
    add(queue, 2)
    subscription = client.subscribe("packets", "oldest")
    assert [next(subscription.rows())["n"] for _ in range(2)] == [0, 1]
    del place.queues[STREAM]
    place.again()
    eventually(lambda: not subscription.connected)
    place.queues[STREAM] = queue
    add(queue, 1)
    assert next(subscription.rows())["n"] == 2


def anew(place: Place, count: int) -> OutputQueue:
    """The stream from its beginning, in another life."""
    queue = place.queues[STREAM] = OutputQueue(STREAM, SCHEMA)
    add(queue, count)
    return queue


def test_another_life_of_the_stream_is_a_gap(place: Place, client: Client) -> None:
    add(place.queues[STREAM], 5)
    strict = client.subscribe("packets", "oldest")
    easy = client.subscribe("packets", "oldest", on_gap="continue")
    assert [next(s.rows())["n"] for s in (strict, easy) for _ in range(5)] == [*range(5), *range(5)]
    anew(place, 2)
    place.again()
    with pytest.raises(GoneError, match="epoch"):
        next(strict.rows())
    assert [next(easy.rows())["n"] for _ in range(2)] == [0, 1]
    assert easy.gaps == 1
    assert strict.gaps == 0


def test_ids_of_an_earlier_life_are_never_acknowledged_in_a_later_one(place: Place, client: Client) -> None:
    add(place.queues[STREAM], 5)
    subscription = client.subscribe("packets", reader="ada", on_gap="continue")
    assert [next(subscription.rows())["n"] for _ in range(5)] == list(range(5))
    queue = anew(place, 10)
    place.again()
    eventually(lambda: subscription.gaps == 1 and subscription.connected)
    with pytest.raises(GoneError, match="in another epoch"):
        subscription.ack()
    subscription.ack_what_was_had(now=True)
    assert queue.acks()["ada"][1] == 0
    assert [next(subscription.rows())["n"] for _ in range(10)] == list(range(10))
    subscription.ack()
    assert queue.acks()["ada"][1] == 10


def test_tuples_that_are_gone_are_a_gap_and_counted(place: Place, client: Client) -> None:
    queue = place.queues[STREAM] = OutputQueue(STREAM, SCHEMA, QueueLimits(bytes_most=1 << 16, keep_bytes=1 << 13))
    add(queue, 2)
    strict = client.subscribe("packets", 2)
    easy = client.subscribe("packets", 2, on_gap="continue")
    place.server.close()
    eventually(lambda: not queue.status().readers)  # nobody keeps anything
    for _ in range(50):
        add(queue, 10)
    first = queue.first_id
    assert first > 2
    place.back()
    with pytest.raises(GoneError):
        next(strict.rows())
    assert next(easy.rows())["n"] == first
    assert (easy.gaps, easy.lost) == (1, first - 2)


def test_what_a_named_reader_has_not_finished_comes_again(place: Place, client: Client) -> None:
    queue = place.queues[STREAM]
    for _ in range(4):
        add(queue, 5)
    with client.subscribe("packets", reader="ada") as subscription:
        seen = [row["n"] for row, _ in zip(subscription, range(7), strict=False)]
        assert seen == list(range(7))
    assert queue.acks()["ada"][1] == 7  # zip has asked for an eighth row, so the seventh was done with
    with suppress(ZeroDivisionError), client.subscribe("packets", reader="ada") as subscription:
        for row in subscription:
            1 / (9 - row["n"])
    assert queue.acks()["ada"][1] == 9
    with client.subscribe("packets", reader="ada") as subscription:
        assert subscription.position == 9
        assert subscription.read(WAIT_S) is not None
        subscription.ack()
    assert queue.acks()["ada"][1] == 20


def test_acknowledgements_can_be_left_to_the_program(place: Place, client: Client) -> None:
    queue = place.queues[STREAM]
    add(queue, 10)
    finish(queue)
    subscription = client.subscribe("packets", reader="ada", auto_ack=False)
    assert len(list(subscription)) == 10
    assert queue.acks()["ada"][1] == 0
    subscription.ack(4)
    subscription.ack(3)
    assert queue.acks()["ada"][1] == 4
    with pytest.raises(StreamError, match="without a name"):
        client.subscribe("packets").ack()


def test_at_the_end_of_a_stream_all_of_it_is_acknowledged(place: Place, client: Client) -> None:
    queue = place.queues[STREAM]
    add(queue, 10)
    finish(queue)
    assert len(list(client.subscribe("packets", reader="ada"))) == 10
    assert queue.acks()["ada"][1] == 10


def test_two_subscriptions_of_one_name_do_not_fight(place: Place, client: Client) -> None:
    queue = place.queues[STREAM]
    add(queue, 1)
    one = client.subscribe("packets", reader="ada")
    assert next(one.rows())["n"] == 0
    other = client.subscribe("packets", reader="ada")
    with pytest.raises(ReplacedError):
        next(one.rows())
    add(queue, 1)
    assert [next(other.rows())["n"] for _ in range(2)] == [0, 1]


def test_silence_is_told_where_it_is_asked_for(place: Place, client: Client) -> None:
    add(place.queues[STREAM], 1)
    subscription = client.subscribe("packets", "oldest", timeout=0.05)
    assert next(subscription.rows())["n"] == 0
    with pytest.raises(TimeoutError, match=r"nothing came on traffic/packets for 0\.05 s"):
        next(subscription.rows())
    assert subscription.read(0.01) is None
    add(place.queues[STREAM], 1)
    assert subscription.read(WAIT_S).column(0).to_pylist() == [1]  # type: ignore[union-attr]


def test_stopping_from_elsewhere_ends_an_iteration(place: Place, client: Client) -> None:
    add(place.queues[STREAM], 1)
    subscription = client.subscribe("packets", "oldest")
    got: list[int] = []
    reader = threading.Thread(target=lambda: got.extend(row["n"] for row in subscription))
    reader.start()
    eventually(lambda: got == [0])
    subscription.stop()
    reader.join(WAIT_S)
    assert not reader.is_alive()
    assert not subscription.ended
    eventually(lambda: not place.queues[STREAM].status().readers)  # and the node knows that we are gone


def test_a_program_that_does_not_read_slows_the_writer_down(place: Place, client: Client) -> None:
    wide = pa.schema([("blob", pa.binary())])
    queue = place.queues[STREAM] = OutputQueue(STREAM, wide, QueueLimits(bytes_most=1 << 20, keep_bytes=0))
    batch = pa.record_batch([pa.array([b"x" * 1_000_000])], schema=wide)
    reading = ReadOptions("oldest", buffer_bytes=1 << 20, retries=SOON)
    subscription = Subscription(client, "packets", reading)

    def write() -> None:
        for i in range(60):
            queue.append(section(i, batch, np.array([i]), NONE, NONE))
        finish(queue)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    last = -1
    while queue.next_id != last:  # it comes to a halt
        last = queue.next_id
        time.sleep(0.3)
    assert writer.is_alive()
    assert last < 40
    assert sum(b.num_rows for b in subscription.batches()) == 60
    writer.join(WAIT_S)
    assert not writer.is_alive()


def test_what_does_not_exist_is_told_at_once(place: Place, client: Client, town: Town) -> None:
    with pytest.raises(StreamError, match="no stream 'pakets'") as told:
        client.subscribe("pakets")
    assert told.value.hint == "look again"
    town.busy = 2  # the coordinator says: soon
    assert client.subscribe("packets").stream == STREAM
    town.stop()
    with pytest.raises(WireError, match=f"no coordinator at 127.0.0.1:{town.port}. Hint: start one with 'borealis up'"):
        client.subscribe("packets")


def test_a_known_stream_that_is_on_its_way_is_waited_for(place: Place, client: Client) -> None:
    queue, entry = place.queues.pop(STREAM), place.entries.pop(STREAM)

    def come() -> None:
        place.queues[STREAM], place.entries[STREAM] = queue, entry

    threading.Timer(0.3, come).start()
    with client.publisher("packets") as publisher:
        publisher.send(rows(0, 3))
    del place.queues[STREAM]
    threading.Timer(0.3, come).start()
    assert client.subscribe("packets", "oldest").read(WAIT_S).num_rows == 3


def test_the_text_of_a_diagram_is_no_path(client: Client) -> None:
    with pytest.raises(DiagramError, match="not the text of a diagram"):
        client.deploy("borealis: 1\nname: traffic\n")


def test_a_node_that_never_comes_back_is_given_up(place: Place, town: Town, stack: ExitStack) -> None:
    client = stack.enter_context(Client(Whereabouts("127.0.0.1", town.port), Retries(0.01, 0.02, give_up_s=0.2)))
    subscription = client.subscribe("packets")
    place.server.close()
    with pytest.raises(WireError):
        next(subscription.rows())


def test_nodes_with_a_token_want_the_clients(town: Town, stack: ExitStack) -> None:
    place = Place(Security(token="right"))
    stack.callback(place.close)
    queue = place.queues[STREAM] = OutputQueue(STREAM, SCHEMA)
    place.entries[STREAM] = Counter(queue)
    town.places[STREAM] = (place, True)
    with borealis.connect(f"127.0.0.1:{town.port}", "right", retries=SOON) as client:
        client.publish("packets", rows(0, 2))
        assert next(iter(client.subscribe("packets", "oldest")))["n"] == 0
    with borealis.connect(f"127.0.0.1:{town.port}", "wrong", retries=Retries(0.01, 0.01, 0.1)) as client:
        with pytest.raises(WireError, match="another token"):
            client.publish("packets", rows(2, 2))
        with pytest.raises(WireError, match="another token"):
            client.subscribe("packets")
    assert published(place) == [0, 1]


# -- publishing


def numbers(place: Place) -> list[int]:
    """Of the batches that were taken, as one or by themselves."""
    return [n for head in place.entries[STREAM].heads for n in range(head.first, head.number + 1)]


def published(place: Place) -> list[int]:
    queue, found, at = place.queues[STREAM], [], 0
    while (part := queue.read(at, queue.boundary, 0)) is not None and len(part):
        found += part.rows.column(0).to_pylist()
        at = part.stop
    return found


@pytest.mark.parametrize(
    "data",
    [
        [{"n": 0, "word": "w0"}, {"n": 1, "word": "w1"}],
        [(0, "w0"), (1, "w1")],
        rows(0, 2),
        pa.table(rows(0, 2)),
        rows(0, 2).to_pandas(),
        rows(0, 2).to_pandas().set_index("n"),
        ({"word": f"w{i}", "n": i} for i in range(2)),
    ],
    ids=["dicts", "tuples", "batch", "table", "frame", "indexed", "generator"],
)
def test_whatever_holds_rows_can_be_published(place: Place, client: Client, data: object) -> None:
    receipt = client.publish("packets", data)
    assert receipt.next_id == 2
    assert published(place) == [0, 1]


def test_one_row_can_be_published_and_nonsense_cannot(place: Place, client: Client) -> None:
    client.publish("packets", {"n": 7, "word": None})
    client.publish("packets", [{"n": 1}])  # what is absent is null
    with pytest.raises(InputError, match="column 'n' is BIGINT"):
        client.publish("packets", [{"n": "seven", "word": "x"}])
    with pytest.raises(InputError, match="cannot be an input"):
        client.publish("packets", 7)
    client.publish("packets", [{"n": 8, "word": None}])
    assert published(place) == [7, 1, 8]


def test_only_inputs_can_be_published_to(place: Place, client: Client, town: Town) -> None:
    town.places[STREAM] = (place, False)
    with pytest.raises(StreamError, match="only inputs"):
        client.publish("packets", rows(0, 1))


def test_large_tables_go_in_pieces(place: Place) -> None:
    wide = pa.schema([("blob", pa.binary())])
    table = pa.table({"blob": [b"x" * 100_000] * 100}, schema=wide)
    parts = list(pieces(table.to_batches()[0]))
    assert len(parts) > 2
    assert sum(p.num_rows for p in parts) == 100
    assert all(p.nbytes < 5_000_000 for p in parts)


def test_a_publisher_numbers_its_batches_and_a_later_one_goes_on(place: Place, client: Client) -> None:
    with client.publisher("packets", "ada") as out:
        assert out.next_number == 0
        for i in range(5):
            assert out.send(rows(i, 1)) == 1
        assert out.flush(WAIT_S).number == 4
        assert out.pending == 0
    with client.publisher("packets", "ada") as out:
        assert out.next_number == 5
        out.send(rows(5, 1))
    assert published(place) == list(range(6))
    assert numbers(place) == list(range(6))


def test_heartbeat_and_end_travel_in_the_same_order(place: Place, client: Client) -> None:
    with client.publisher("packets") as out:
        out.send(rows(0, 1))
        out.heartbeat(datetime(1970, 1, 1, 0, 0, 1, 5, UTC))
        out.heartbeat(2_000_000)
        out.end()
        with pytest.raises(InputError, match="end"):
            out.send(rows(1, 1))
        with pytest.raises(InputError, match="a heartbeat at"):
            out.heartbeat("noon")  # type: ignore[arg-type]
    heads = place.entries[STREAM].heads
    assert [(h.number, h.heartbeat, h.end) for h in heads if h.number] == [
        (1, 1_000_005, False),
        (2, 2_000_000, False),
        (3, None, True),
    ]
    assert numbers(place) == [0, 1, 2, 3]
    assert place.queues[STREAM].ended


def test_after_a_lost_connection_only_what_is_missing_is_sent_again(place: Place, client: Client) -> None:
    entry = place.entries[STREAM]

    def lose(when: int) -> Callable[[BatchHead], None]:
        def fault(head: BatchHead) -> None:
            if head.first <= when <= head.number:
                entry.before = entry.after = lambda head: None
                raise WireError("the node is closing")

        return fault

    with client.publisher("packets") as out:
        entry.before = lose(2)  # not taken
        for i in range(6):
            out.send(rows(i, 1))
        out.flush(WAIT_S)
        entry.after = lose(8)  # taken, and the receipt is lost
        for i in range(6, 12):
            out.send(rows(i, 1))
        out.flush(WAIT_S)
        assert out.reconnects == 2
        place.again()
        for i in range(12, 14):
            out.send(rows(i, 1))
        out.flush(WAIT_S)
        place.again(elsewhere=True)
        out.send(rows(14, 1))
    assert published(place) == list(range(15))
    assert out.forgotten == 0


def test_an_idle_publisher_finds_its_way_back_by_itself(place: Place, client: Client) -> None:
    entry = place.entries[STREAM]
    entry.open.clear()
    with client.publisher("packets") as out:
        out.send(rows(0, 1))
        place.server.close()  # with a batch under way, and nobody calls us any more
        entry.open.set()
        place.back()
        eventually(lambda: out.pending == 0)
    assert published(place) == [0]


def test_an_entry_point_that_has_forgotten_all_gets_what_is_kept(place: Place, client: Client) -> None:
    with client.publisher("packets") as out:
        for i in range(3):
            out.send(rows(i, 1))
        out.flush(WAIT_S)
        queue = anew(place, 0)
        place.entries[STREAM] = Counter(queue)
        place.again()
        for i in range(3, 5):
            out.send(rows(i, 1))
        out.flush(WAIT_S)
    assert published(place) == [3, 4]
    assert out.forgotten == 1
    assert numbers(place) == [0, 1]


def test_two_publishers_of_one_name_are_told(place: Place, client: Client) -> None:
    one, other = client.publisher("packets", "ada"), client.publisher("packets", "ada")
    for i in range(3):
        one.send(rows(i, 1))
    one.flush(WAIT_S)
    other.send(rows(9, 1))
    with pytest.raises(InputError, match="another program publishes to traffic/packets as 'ada'"):
        other.flush(WAIT_S)
    one.close()


def test_waiting_for_what_was_abandoned_ends(place: Place, client: Client) -> None:
    place.entries[STREAM].open.clear()
    out = client.publisher("packets")
    out.send(rows(0, 1))
    threading.Timer(0.1, out.abandon).start()
    with pytest.raises(InputError, match="abandoned"):
        out.flush(WAIT_S)


def test_what_is_not_acknowledged_is_bounded(place: Place, client: Client) -> None:
    entry = place.entries[STREAM]
    entry.open.clear()
    out = Publisher(client, "packets", Publishing(unacked_batches=3, retries=SOON))
    for i in range(3):
        assert out.has_room()
        out.send(rows(i, 1))
    assert not out.has_room(0.01)
    with pytest.raises(TimeoutError, match="3 batches"):
        out.flush(0.01)
    blocked = threading.Thread(target=out.send, args=(rows(3, 1),))
    blocked.start()
    entry.open.set()
    blocked.join(WAIT_S)
    assert not blocked.is_alive()
    out.close(WAIT_S)
    assert published(place) == [0, 1, 2, 3]
    with pytest.raises(InputError, match="closed"):
        out.send(rows(4, 1))


def test_what_waits_is_sent_as_one_and_few_messages_are_under_way(place: Place, client: Client) -> None:
    entry = place.entries[STREAM]
    entry.open.clear()
    out = client.publisher("packets")
    for i in range(50):
        out.send_batch(rows(i, 1), mark=f"m{i}")
    out.heartbeat(5)
    out.send(rows(50, 1))
    entry.open.set()
    out.close(WAIT_S)
    assert published(place) == list(range(51))
    assert [head.number for head in entry.heads][-2:] == [50, 51]  # nothing goes along behind a heartbeat
    assert len(entry.heads) <= 2 + UNDER_WAY
    assert entry.marks[out.name] is None or entry.marks[out.name] == "m49"
    assert out.receipt.number == 51


@pytest.mark.parametrize("kind", [InputError, StreamError])
def test_of_batches_that_went_together_only_the_bad_one_is_refused(
    place: Place, client: Client, kind: type[BorealisError]
) -> None:
    entry = place.entries[STREAM]
    entry.open.clear()

    def refuse(head: BatchHead) -> None:
        if head.first <= 17 <= head.number:
            raise kind("nulls in column 'n'")

    entry.before = refuse
    out = client.publisher("packets")
    for i in range(20):
        out.send(rows(i, 1))
    entry.open.set()
    with pytest.raises(kind, match="nulls"):
        out.flush(WAIT_S)
    assert published(place) == list(range(17))


@pytest.mark.parametrize("kind", [InputError, StreamError])
def test_what_an_entry_point_refuses_is_told_and_not_tried_forever(
    place: Place, client: Client, kind: type[BorealisError]
) -> None:
    def refuse(head: BatchHead) -> None:
        if head.first <= 1 <= head.number:
            raise kind("nulls in column 'n'")

    place.entries[STREAM].before = refuse
    out = client.publisher("packets")
    out.send(rows(0, 1))
    out.send(rows(1, 1))
    with pytest.raises(kind, match="nulls"):
        out.flush(WAIT_S)
    with pytest.raises(kind, match="nulls"):
        out.send(rows(2, 1))
    with pytest.raises(kind, match="nulls"):
        out.close()
    assert published(place) == [0]


def test_a_full_disk_is_told_once_and_waited_for(
    place: Place, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    left = iter(range(3))

    def full(head: BatchHead) -> None:
        if next(left, None) is not None:
            raise FullError("the disk of node1 is full", hint="make room there")

    place.entries[STREAM].before = full
    out = client.publisher("packets")
    for i in range(3):
        out.send(rows(i, 1))
    out.flush(WAIT_S)
    assert published(place) == [0, 1, 2]
    assert [record.message for record in caplog.records if "full" in record.message] == [
        f"the disk of node1 is full; trying again for {SOON.give_up_s:.0f} s"
    ]
    out.close()
    left = iter(range(1000))
    impatient = Publisher(client, "packets", Publishing(retries=Retries(first_s=0.01, give_up_s=0.05)))
    impatient.send(rows(3, 1))
    with pytest.raises(FullError, match="the disk of node1 is full"):
        impatient.flush(WAIT_S)


def test_after_a_refusal_a_client_can_publish_again(place: Place, client: Client) -> None:
    entry = place.entries[STREAM]

    def refuse(head: BatchHead) -> None:
        raise InputError("no")

    client.publish("packets", rows(0, 1))
    entry.before = refuse
    with pytest.raises(InputError, match="no"):
        client.publish("packets", rows(1, 1))
    entry.before = lambda head: None
    client.publish("packets", rows(2, 1))
    assert published(place) == [0, 2]


def test_chance_cuts_connections_and_nothing_is_lost_or_repeated(place: Place, client: Client) -> None:
    chance, other_chance = random.Random(20_050_104), random.Random(20_050_105)  # one for each thread
    entry, total = place.entries[STREAM], 200

    def fault(head: BatchHead) -> None:
        if other_chance.random() < 0.3:
            raise WireError("by chance")

    subscription = client.subscribe("packets", "oldest")
    got: list[int] = []
    reader = threading.Thread(target=lambda: got.extend(row["n"] for row in subscription))
    reader.start()
    with client.publisher("packets") as out:
        entry.before = entry.after = fault
        at = 0
        while at < total:
            count = min(chance.randint(1, 10), total - at)
            out.send(rows(at, count))
            at += count
            if chance.random() < 0.3:
                out.flush(WAIT_S)
            if chance.random() < 0.1:
                place.again(elsewhere=chance.random() < 0.5)
        entry.before = entry.after = lambda head: None
        out.end()
    reader.join(WAIT_S)
    assert got == list(range(total))
    assert out.reconnects > 2
    assert subscription.reconnects > 0


# -- asyncio


def test_asyncio_iterates_rows_and_batches(place: Place, town: Town) -> None:
    async def program() -> tuple[list[int], int]:
        async with borealis.connect_async(f"127.0.0.1:{town.port}", retries=SOON) as cluster:
            rows_task = asyncio.create_task(numbers(cluster.stream("packets", "oldest")))
            frames = cluster.stream("packets", "oldest")
            receipt = await cluster.publish("packets", rows(0, 3))
            assert receipt.next_id == 3
            async with cluster.publisher("packets") as out:
                assert await out.send(rows(3, 2)) == 2
                await out.flush(WAIT_S)
                await out.heartbeat(1)
                await out.end()
            count = 0
            async for batch in frames.batches():
                count += batch.num_rows
            return await asyncio.wait_for(rows_task, WAIT_S), count

    async def numbers(stream: Any) -> list[int]:
        return [row["n"] async for row in stream]

    assert asyncio.run(program()) == ([0, 1, 2, 3, 4], 5)


def test_asyncio_resumes_acknowledges_times_out_and_stops(place: Place, town: Town) -> None:
    queue = place.queues[STREAM]
    add(queue, 3)

    async def program() -> None:
        async with borealis.connect("127.0.0.1:" + str(town.port), retries=SOON).aio as cluster:
            stream = await cluster.subscribe("packets", reader="ada", timeout=4.0)
            got = []
            async for row in stream:
                got.append(row["n"])
                if row["n"] == 2:
                    await asyncio.to_thread(place.again)
                    add(queue, 2)
                if row["n"] == 4:
                    break
            assert got == [0, 1, 2, 3, 4]
            with pytest.raises(TimeoutError, match="nothing came"):
                await anext(stream.batches())
            await stream.ack()
            assert queue.acks()["ada"][1] == 5
            waiting = asyncio.create_task(anext(stream.sections()))
            add(queue, 1)
            assert (await waiting).first == 5
            await stream.stop()
            assert [row async for row in stream] == []
            with pytest.raises(StreamError, match="no stream"):
                await cluster.subscribe("pakets")

    asyncio.run(program())


def test_the_event_loop_is_free_while_a_stream_is_silent(place: Place, town: Town) -> None:
    async def program() -> int:
        async with borealis.connect_async(f"127.0.0.1:{town.port}") as cluster:
            waiting = [asyncio.create_task(anext(aiter(cluster.stream("packets", "oldest")))) for _ in range(20)]
            ticks = 0
            while len(place.queues[STREAM].status().readers) < 20:
                await asyncio.sleep(0.001)
                ticks += 1
            add(place.queues[STREAM], 1)
            await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
            return ticks

    assert asyncio.run(program()) > 1


# -- parts


def test_waits_grow_up_to_a_bound_and_end_after_long_failure() -> None:
    clock = ManualClock()
    backoff = Backoff(Retries(first_s=1, most_s=4, give_up_s=20), clock)
    error = WireError("away")
    waits = []
    for _ in range(7):
        waits.append(backoff.lost(error))
        clock.advance(waits[-1])
    assert waits == [1, 2, 4, 4, 4, 4, 1]
    with pytest.raises(WireError, match="away"):
        backoff.lost(error)
    backoff.found()
    assert backoff.lost(error) == 1


def test_a_buffer_gives_what_it_has_before_it_tells_why_it_ended() -> None:
    part = Came(Section(0, rows(0, 1), np.array([0]), NONE, NONE), 0, 0)
    buffer = Buffer(1)
    assert buffer.put(part)
    buffer.close(StreamError("gone"))
    assert not buffer.put(part)
    assert buffer.take(0) is part
    with pytest.raises(StreamError, match="gone"):
        buffer.take(0)
    dropped = Buffer(1)
    dropped.put(part)
    dropped.close(drop=True)
    assert dropped.take(0) is None
