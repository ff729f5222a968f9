"""Publications: receipts, numbers, and what is refused on arrival."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hosting import SCHEMA, TinyEntry, TinyHost, next_section, rows
from pyarrow import flight

from borealis.errors import ClusterError, StreamError, WireError
from borealis.streams.queue import OutputQueue
from borealis.tuples import LAST_TIME
from borealis.wire.client import Peer
from borealis.wire.messages import BatchHead, Publish, Receipt, Subscribe
from borealis.wire.publication import Publication
from borealis.wire.server import WireServer
from borealis.wire.service import BATCH_BYTES_MOST, published
from borealis.wire.waiting import PeerTimings

Soon = Callable[..., None]
ME = Publish(stream="d/a", publisher="me")


def head(number: int, **more: Any) -> BatchHead:
    return BatchHead(number=number, **more)


def test_every_batch_gets_a_receipt(queue: OutputQueue, peer: Peer) -> None:
    with peer.publish(ME, SCHEMA) as publication:
        assert publication.known == Receipt(number=-1, next_id=0)
        for number in range(5):
            publication.send(rows(3 * number, 3), head(number))
        assert publication.wait(2).number >= 2
        assert publication.close() == Receipt(number=4, next_id=15)
    read = queue.read(0, 0, 0.0)
    assert read is not None
    assert read.rows.column("x").to_pylist() == list(range(15))


def test_a_publisher_that_comes_back_knows_where_to_go_on(queue: OutputQueue, peer: Peer) -> None:
    with peer.publish(ME, SCHEMA) as publication:
        publication.send(rows(0, 3), head(0))
    with peer.publish(ME, SCHEMA) as again:
        assert again.known == Receipt(number=0, next_id=3)
        again.send(rows(0, 3), head(0))
        again.send(rows(3, 1), head(1))
    assert queue.next_id == 4
    with peer.publish(Publish(stream="d/a", publisher="other"), SCHEMA) as other:
        assert other.known.number == -1


def test_heartbeats_and_the_end_come_along(queue: OutputQueue, peer: Peer) -> None:
    with peer.publish(ME, SCHEMA) as publication:
        publication.send(rows(0, 2), head(0))
        publication.send(rows(0, 0), head(1, heartbeat=70))
        publication.wait(1)
        assert queue.boundary == 70
        publication.send(rows(2, 1), head(2, end=True))
    with peer.subscribe(Subscribe(stream="d/a")) as subscription:
        sections = list(subscription)
    assert [(a, b) for s in sections for a, b in zip(s.at.tolist(), s.bound.tolist(), strict=True)] == [
        (2, 70),
        (3, LAST_TIME),
    ]


def test_what_the_entry_point_says_reaches_the_publisher(peer: Peer) -> None:
    publication = peer.publish(ME, SCHEMA)
    publication.send(rows(0, 1), head(7))
    with pytest.raises(StreamError, match=r"batch 7 of me after -1\. Hint: send 0"):
        publication.wait(7)
    with pytest.raises(StreamError, match="batch 7"):
        publication.send(rows(0, 1), head(0))
    with pytest.raises(StreamError, match="batch 7"):
        publication.close()


def test_no_such_entry_point(peer: Peer) -> None:
    with pytest.raises(StreamError, match="did you mean 'd/a'"):
        peer.publish(Publish(stream="d/aa", publisher="me"), SCHEMA)


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("x", pa.int64())]),
        pa.schema([("x", pa.int32()), ("s", pa.string())]),
        pa.schema([("s", pa.string()), ("x", pa.int64())]),
        pa.schema([("x", pa.int64()), ("s", pa.string()), ("y", pa.int64())]),
        pa.schema([("x", pa.int64()), ("t", pa.string())]),
        pa.schema([("x", pa.int64()), ("s", pa.dictionary(pa.int32(), pa.string()))]),
        pa.schema([]),
    ],
)
def test_wrong_columns_are_named(peer: Peer, queue: OutputQueue, schema: pa.Schema) -> None:
    with pytest.raises(StreamError, match=r"has columns \(x int64, s string\), not \(") as refused:
        peer.publish(ME, schema)
    assert ", ".join(f"{f.name} {f.type}" for f in schema) in str(refused.value)
    assert queue.next_id == 0


def test_nulls_are_judged_by_what_is_there_not_by_what_is_declared(peer: Peer, queue: OutputQueue) -> None:
    loose = pa.schema([("x", pa.int64()), ("s", pa.string())])
    with peer.publish(ME, loose) as publication:
        publication.send(pa.record_batch([[1, 2], ["a", None]], schema=loose), head(0))
    assert queue.next_id == 2
    publication = peer.publish(ME, loose)
    publication.send(pa.record_batch([[1, None], ["a", "b"]], schema=loose), head(1))
    with pytest.raises(StreamError, match="nulls in column 'x' of d/a"):
        publication.close()
    assert queue.next_id == 2


def raw_put(peer: Peer, command: bytes, batch: pa.RecordBatch, metadata: bytes | None) -> None:
    """What anybody could send."""
    client = flight.FlightClient(peer.address)
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(command), batch.schema)
    if metadata is None:
        writer.write_batch(batch)
    else:
        writer.write_with_metadata(batch, metadata)
    writer.close()


def test_a_batch_too_large_is_refused_on_both_sides(peer: Peer, queue: OutputQueue) -> None:
    large = rows(0, 70, width=1 << 20)
    assert large.nbytes > BATCH_BYTES_MOST
    with peer.publish(ME, SCHEMA) as publication:
        with pytest.raises(WireError, match=r"a batch of 73,\d+,\d+ bytes\. Hint: cut it"):
            publication.send(large, head(0))
        with pytest.raises(WireError, match=r"a batch of \(y int64\)\. Hint: this sends \(x int64, s string\)"):
            publication.send(pa.record_batch({"y": [1]}), head(0))
        publication.send(large.slice(0, 10), head(0))  # nothing was sent, so it goes on
    with pytest.raises(WireError, match="this publication is closed"):
        publication.send(large.slice(0, 10), head(1))
    with pytest.raises(flight.FlightServerError, match="a batch of 73"):
        raw_put(peer, ME.encode(), large, head(1).encode())
    assert queue.next_id == 10


def test_a_batch_without_a_head_is_refused(peer: Peer, queue: OutputQueue) -> None:
    with pytest.raises(flight.FlightServerError, match="without a BatchHead"):
        raw_put(peer, ME.encode(), rows(0, 1), None)
    assert queue.next_id == 0


@pytest.mark.parametrize("command", [b"", b"{}", b"\xff\x00", b'{"v": 2, "stream": "d/a", "publisher": "me"}'])
def test_a_descriptor_that_is_none_is_refused(peer: Peer, command: bytes) -> None:
    with pytest.raises(flight.FlightServerError, match="Publish"):
        raw_put(peer, command, rows(0, 1), head(0).encode())


def test_offsets_that_point_outside_are_refused(peer: Peer, queue: OutputQueue) -> None:
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 1 << 20, 3)))
    bad = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"abc")])
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), bad], schema=SCHEMA)
    publication = peer.publish(ME, SCHEMA)
    publication.send(batch, head(0))
    with pytest.raises(WireError, match="cannot read what came for a publication"):
        publication.close()
    assert queue.next_id == 0
    assert peer.ping().node == "tiny"


def test_more_rows_than_there_are_bytes_for_are_refused() -> None:
    """Asked for its size before it is checked, Arrow would follow the offsets out of it, and the node would die."""
    count, claimed = 12_345, 1 << 40
    whole = pa.record_batch({"x": range(count), "s": ["xy"] * count}, schema=SCHEMA).serialize().to_pybytes()
    batch = pa.ipc.read_record_batch(
        pa.py_buffer(whole.replace(struct.pack("<q", count), struct.pack("<q", claimed))), SCHEMA
    )
    assert batch.num_rows == claimed
    with pytest.raises(pa.ArrowInvalid):
        published("d/a", SimpleNamespace(app_metadata=head(0).encode(), data=batch), SCHEMA)


def test_text_that_is_no_text_is_refused(peer: Peer, queue: OutputQueue) -> None:
    bad = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    publication = peer.publish(ME, SCHEMA)
    publication.send(pa.RecordBatch.from_arrays([pa.array([1]), bad], schema=SCHEMA), head(0))
    with pytest.raises(WireError, match="cannot read"):
        publication.close()
    assert queue.next_id == 0


def test_a_full_queue_stops_the_publisher_and_loses_nothing(host: TinyHost, peer: Peer, soon: Soon) -> None:
    queue = host.queue("d/small")
    queue.register("r")
    batches = 200
    sent = []

    def publish() -> None:
        with peer.publish(Publish(stream="d/small", publisher="me"), SCHEMA) as publication:
            for number in range(batches):
                publication.send(rows(100 * number, 100, width=3000), head(number))
                sent.append(number)

    publishing = threading.Thread(target=publish, daemon=True)
    publishing.start()
    soon(lambda: not queue.has_room())
    soon(lambda: (n := len(sent), time.sleep(0.3), n == len(sent))[2], seconds=20)
    assert len(sent) < batches // 2
    with peer.subscribe(Subscribe(stream="d/small", reader="r", stop=100 * batches)) as subscription:
        seen = []
        for section in subscription:
            seen += section.rows.column("x").to_pylist()
            queue.ack("r", 1, section.stop)
    assert seen == list(range(100 * batches))
    publishing.join(10)
    assert not publishing.is_alive()


def test_a_closing_server_ends_idle_publications(server: WireServer, peer: Peer) -> None:
    publication = peer.publish(ME, SCHEMA)
    server.close()
    with pytest.raises(WireError):
        publication.close()


def test_an_abandoned_publication_lets_the_server_go(peer: Peer, queue: OutputQueue) -> None:
    def fail() -> None:
        with peer.publish(ME, SCHEMA) as publication:
            publication.send(rows(0, 1), head(0))
            publication.wait(0)
            raise KeyError("on the way")

    with pytest.raises(KeyError, match="on the way"):
        fail()
    with peer.publish(ME, SCHEMA) as again:
        assert again.known.number == 0


def test_waiting_for_a_receipt_has_an_end(host: TinyHost, peer: Peer) -> None:
    queue = host.queue("d/small")
    queue.register("r")
    queue.append(next_section(queue, 100, width=20_000))
    publication = peer.publish(Publish(stream="d/small", publisher="me"), SCHEMA)
    publication.send(rows(0, 1), head(0))
    with pytest.raises(WireError, match=r"did not take a batch over within 0\.2 s"):
        publication.wait(0, within=0.2)
    queue.ack("r", 1, 100)
    assert publication.close(within=30).number == 0


def test_a_mistake_of_the_entry_point_is_no_end_of_the_server(
    host: TinyHost, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(TinyEntry):
        def take(self, publisher: str, head: BatchHead, batch: pa.RecordBatch) -> Receipt:
            raise ZeroDivisionError("oops")

    host.entries["d/a"] = Broken(host.queue("d/a"))
    publication: Publication = peer.publish(ME, SCHEMA)
    publication.send(rows(0, 1), head(0))
    with pytest.raises(ClusterError, match="failed inside the node: ZeroDivisionError: oops"):
        publication.close()
    assert "a publication failed" in caplog.text
    assert peer.ping().node == "tiny"


def test_a_long_wait_looks_whether_the_node_is_there(host: TinyHost, server: WireServer) -> None:
    queue = host.queue("d/small")
    queue.register("r")
    queue.append(next_section(queue, 100, width=20_000))
    with Peer(server.address, timings=PeerTimings(connect_s=1, silence_s=0.1)) as peer:
        publication = peer.publish(Publish(stream="d/small", publisher="me"), SCHEMA)
        publication.send(rows(0, 1), head(0))
        threading.Timer(0.5, lambda: queue.ack("r", 1, 100)).start()
        assert publication.wait(0).number == 0  # several looks later
        publication.close()
