"""Feeds from queues of this node: where they take a stream up, what they acknowledge, and when they give up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from borealis.errors import GoneError, StreamError
from borealis.node.feeds import AckSender, Routes, StreamFeed, StreamTimings, keep_from
from borealis.node.node import Node
from borealis.retrying import Retries
from borealis.streams.queue import OutputQueue
from borealis.streams.section import section
from borealis.tuples import FIRST_TIME
from borealis.wire.client import Peers
from borealis.wire.endpoints import Location
from borealis.wire.server import WireServer

SCHEMA = pa.schema([("n", pa.int64())])
Place = tuple[dict[str, OutputQueue], Routes, Peers, AckSender]


def queue(rows: int, epoch: str = "one") -> OutputQueue:
    made = OutputQueue("d/s", SCHEMA, readers=["d.u1"], epoch=epoch)
    nothing = np.empty(0, np.int64)
    made.append(section(0, pa.table({"n": range(rows)}), np.arange(rows), nothing, nothing))
    return made


@pytest.fixture
def place() -> Iterator[Place]:
    """Where a feed finds its stream."""
    queues: dict[str, OutputQueue] = {}
    routes, peers = Routes(queues.get, lambda _: None), Peers(None)
    acks = AckSender(routes, peers)
    yield queues, routes, peers, acks
    acks.stop()
    peers.close()


def test_what_was_committed_is_acknowledged_to_a_queue_that_came_from_elsewhere(place: Place) -> None:
    queues, *rest = place
    queues["d/s"] = queue(5)
    feed = StreamFeed("d/s", "d.u1", *rest, "one")
    section = next(feed.sections(3, FIRST_TIME))
    assert section.first == 3
    assert queues["d/s"].acks()["d.u1"][1] == 3
    feed.stop()


def test_a_stream_may_begin_anew_only_for_those_who_have_seen_nothing(place: Place) -> None:
    queues, *rest = place
    queues["d/s"] = queue(5, epoch="two")
    fresh = StreamFeed("d/s", "d.u1", *rest, None)
    fresh.epoch = "one"  # where it was connected, and nothing came
    assert len(next(fresh.sections(0, FIRST_TIME))) == 5
    fresh.stop()
    for start in (3, 0):  # 0: what was seen is to be read again
        late = StreamFeed("d/s", "d.u1", *rest, "one")
        with pytest.raises(GoneError, match="in epoch"):
            next(late.sections(start, FIRST_TIME))


def test_a_unit_that_may_lose_tuples_begins_anew_at_what_is_newest(place: Place) -> None:
    queues, *rest = place
    queues["d/s"] = queue(5)
    feed = StreamFeed("d/s", "d.u1", *rest, None)
    feed.fresh = "newest"
    none = np.empty(0, np.int64)
    queues["d/s"].append(section(5, SCHEMA.empty_table(), none, np.array([5]), np.array([100])))
    first = next(feed.sections(0, FIRST_TIME))
    assert (first.first, len(first), first.final) == (5, 0, 100)
    feed.stop()


def test_one_that_forgets_goes_on_at_the_oldest_tuple_there_is(place: Place) -> None:
    """Also where the queue knows the reader, from before it came to hold what it holds."""
    queues, *rest = place
    made = queues["d/s"] = OutputQueue("d/s", SCHEMA, readers=["d.u1"], epoch="one")
    made.begin_at((100, FIRST_TIME))
    nothing = np.empty(0, np.int64)
    made.append(section(100, pa.table({"n": [100]}), np.array([100]), nothing, nothing))
    feed = StreamFeed("d/s", "d.u1", *rest, None)
    with pytest.raises(GoneError, match="0 is gone"):
        next(feed.sections(0, FIRST_TIME))
    feed.forgetful = True
    assert next(feed.sections(0, FIRST_TIME)).first == 100
    feed.stop()


def test_what_a_backup_will_read_is_kept_where_it_is_served_now() -> None:
    """The node that it was told of is dead, and the stream was taken over by another."""
    node = Node("other")
    node.served.standby_queues["d/s"] = node.queues["d/s"] = kept = queue(5)
    with WireServer(node) as server:
        peers = Peers(None)
        routes = Routes(lambda _: None, lambda stream: Location(stream, server.address))
        routes.put("d/s", "grpc://127.0.0.1:1")
        keep_from(routes, peers, "d/s", "d.u2", 3)
        assert kept.acks()["d.u2"][1] == 3
        with pytest.raises(StreamError, match="no stream d/other"):
            keep_from(routes, peers, "d/other", "d.u2", 3)
        peers.close()
    node.close()


def test_one_that_waits_for_a_stream_hears_at_once_where_it_is(place: Place) -> None:
    """A pause would last for an hour: the route that comes meanwhile ends it."""
    queues, routes, *rest = place
    feed = StreamFeed("d/s", "d.u1", routes, *rest, None, StreamTimings(Retries(3600.0, 3600.0)))
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.append(len(next(feed.sections(0, FIRST_TIME)))), daemon=True)
    reader.start()
    until = time.monotonic() + 10
    while not feed.waiting_for and time.monotonic() < until:
        time.sleep(0.005)
    assert "no node serves stream d/s yet" in feed.waiting_for
    queues["d/s"] = queue(5)
    routes.put("d/s", "grpc://127.0.0.1:1")
    reader.join(10)
    assert found == [5]
    feed.stop()
