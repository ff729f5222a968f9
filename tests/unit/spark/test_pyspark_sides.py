"""The Spark source and sink of a stream, as Spark calls them: against a real node, without a Spark session."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from borealis.diagram.spec import Input
from borealis.entry.point import Entry, StreamConfig
from borealis.errors import GoneError, InputError, OutputError, StateError, StreamError, WireError
from borealis.node.node import Node
from borealis.spark import public_writer
from borealis.spark.interpreter import VARIABLE as PYTHON
from borealis.spark.interpreter import worker_python
from borealis.spark.public import BorealisSource, register
from borealis.spark.public_reader import HeldReader, Offset, StreamReader, StreamReadOptions
from borealis.spark.public_writer import StreamWriter, TaskRows, WriteOptions
from borealis.spark.stream_client import StreamAddress
from borealis.state.delta import to_stream
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.streams.section import NOTHING, section
from borealis.tuples import KIND, TIMESTAMP
from borealis.wire.auth import Security
from borealis.wire.endpoints import Location
from borealis.wire.messages import BatchHead, Receipt
from borealis.wire.server import WireServer
from entry_pair import running

STREAM = "t/p"
KEY = ("t", "in-p")
COLUMNS = "ts TIMESTAMP, n BIGINT, tags ARRAY<STRING>"
SCHEMA = pa.schema([("ts", TIMESTAMP), ("n", pa.int64()), ("tags", pa.list_(pa.string()))])
SPARK_SCHEMA = from_arrow_schema(SCHEMA)
ALL = ReadAllAvailable()
QUERY = "0f9e-query"


class Place:
    """A node with one input, and everything that came through it."""

    def __init__(self, limits: QueueLimits | None = None) -> None:
        self.node = Node("n1")
        self.server = WireServer(self.node).start()
        self.options = {"address": self.server.address, "stream": STREAM}
        self.readers: list[StreamReader] = []  # of jobs that ended without a word, as they do
        self.begin(limits)

    def begin(self, limits: QueueLimits | None = None) -> None:
        """The stream from nothing: in a new epoch."""
        place = StreamConfig(STREAM, SCHEMA, limits or QueueLimits())
        self.entry = Entry(Input(name="p", columns=COLUMNS, slack="1 second"), 1_000_000, place)
        self.queue = self.entry.queue
        self.node.queues.update({queue.stream: queue for queue in self.entry.queues.values()})
        self.node.entries[KEY] = running(self.entry)

    def publish(self, count: int) -> None:
        """So many tuples whose `n` is their id."""
        first, known = self.queue.next_id, self.entry.known("me").number
        self.entry.take("me", BatchHead(number=known + 1), numbers(range(first, first + count)))

    def held(self) -> list[int]:
        """The `n` of all tuples in the queue, in order."""
        found: list[int] = []
        at, boundary = self.queue.first_id, -(2**63)
        while (section := self.queue.read(at, boundary, 0)) is not None:
            found += section.rows.column("n").to_pylist()
            at, boundary = section.stop, section.final
        return found

    def close(self) -> None:
        for one in self.readers:
            one.stop()
        self.node.close()
        self.server.close()


def numbers(some: Any, at_once: int = 1) -> pa.RecordBatch:
    """Tuples; so many have the same time, then comes the next millisecond."""
    n = np.array(some, np.int64)
    tags = pa.array([[f"t{i % 3}"] * (i % 2) for i in n], pa.list_(pa.string()))
    return pa.record_batch([pa.array(n // at_once * 1000, TIMESTAMP), pa.array(n), tags], schema=SCHEMA)


@pytest.fixture
def place() -> Iterator[Place]:
    one = Place()
    yield one
    one.close()


# -- the source


def reader(place: Place, elsewhere_s: float = 10.0, **options: str) -> StreamReader:
    """As a new start of the job has it."""
    reading = StreamReadOptions.of(place.options | options)
    address = replace(reading.address, elsewhere_s=elsewhere_s)
    place.readers.append(StreamReader(replace(reading, address=address), SPARK_SCHEMA))
    return place.readers[-1]


def rows_of(one: StreamReader, start: Offset, end: Offset) -> list[int]:
    """A micro-batch, read as tasks do."""
    return [n for part in one.partitions(start, end) for b in one.read(part) for n in b.column("n").to_pylist()]


def test_a_micro_batch_is_a_range_of_ids(place: Place) -> None:
    place.publish(10)
    one = reader(place, reader="job", partitions="3")
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(7))
    assert rows_of(one, start, end) == list(range(7))
    assert len(one.partitions(start, end)) == 3
    rest = one.latestOffset(end, ALL)
    assert rows_of(one, end, rest) == [7, 8, 9]
    assert one.latestOffset(rest, ALL) == rest
    assert one.partitions(rest, rest) == []


def test_only_what_spark_has_done_is_acknowledged(place: Place) -> None:
    place.publish(10)
    one = reader(place, reader="job")
    start = one.initialOffset()
    assert place.queue.acks()["job"][1] == 0
    end = one.latestOffset(start, ReadMaxRows(6))
    rows_of(one, start, end)
    assert place.queue.acks()["job"][1] == 0  # it was read, and may have to be read again
    one.latestOffset(end, ALL)
    assert place.queue.acks()["job"][1] == 6
    one.commit({"id": 8, "epoch": place.queue.epoch})
    assert place.queue.acks()["job"][1] == 8


def test_the_first_micro_batch_is_the_same_when_it_is_repeated(place: Place) -> None:
    """Spark notes only where it ends, and asks anew where it begins."""
    for name in ({"reader": "job"}, {}):
        place.begin()
        place.publish(5)
        options = {"from": "newest"} | name
        one = reader(place, **options)
        start = one.initialOffset()
        place.publish(5)
        assert one.initialOffset() == start
        end = one.latestOffset(start, ALL)
        place.publish(5)
        again = reader(place, **options)
        assert rows_of(again, again.initialOffset(), end) == [5, 6, 7, 8, 9]
        nothing = again.initialOffset()  # a first micro-batch without rows: it ends where it begins
        assert rows_of(again, nothing, start) == []


def test_a_full_stream_goes_on_when_a_micro_batch_is_done() -> None:
    place = Place(QueueLimits(bytes_most=1, keep_bytes=0))
    one = reader(place, reader="job")
    start = one.initialOffset()
    place.publish(5)
    assert not place.queue.has_room()
    end = one.latestOffset(start, ALL)
    assert rows_of(one, start, end) == list(range(5))
    assert not place.queue.has_room()
    assert one.latestOffset(end, ALL) == end  # Spark makes no micro-batch of nothing, and so does not commit
    assert place.queue.has_room()
    place.close()


def test_a_stream_that_began_anew_is_an_error_or_a_gap(place: Place) -> None:
    place.publish(5)
    one = reader(place, reader="job")
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    place.begin()
    place.publish(3)
    with pytest.raises(GoneError, match="restarted from nothing"):
        one.latestOffset(end, ALL)
    with pytest.raises(GoneError, match="epoch"):
        rows_of(one, start, end)
    bold = reader(place, reader="job", onGap="continue")
    assert rows_of(bold, start, end) == []
    anew = bold.latestOffset(end, ALL)
    assert rows_of(bold, end, anew) == [0, 1, 2]


def test_what_nobody_kept_for_a_nameless_job_is_an_error_or_a_gap() -> None:
    place = Place(QueueLimits(bytes_most=1 << 20, keep_bytes=1))
    one = reader(place)
    start = one.initialOffset()
    for _ in range(4):
        place.publish(5)
    first = place.queue.first_id
    assert first > 0
    with pytest.raises(GoneError, match=f"held from id {first} on: 0"):
        one.latestOffset(start, ALL)
    noted = {"id": 20, "epoch": place.queue.epoch, "from": 0}
    with pytest.raises(GoneError, match=f"held from id {first} on"):
        rows_of(one, start, noted)
    bold = reader(place, onGap="continue")
    assert rows_of(bold, start, noted) == list(range(first, 20))
    place.close()


def test_available_now_ends_where_the_stream_was(place: Place) -> None:
    place.publish(5)
    one = reader(place, reader="job")
    one.prepareForTriggerAvailableNow()
    place.publish(5)
    end = one.latestOffset(one.initialOffset(), ALL)
    assert end["id"] == 5
    assert one.latestOffset(end, ALL) == end


def test_from_an_id_and_with_headers(place: Place) -> None:
    place.publish(5)
    options = place.options | {"from": "3", "headers": "true"}
    schema = BorealisSource(options).schema()
    assert schema.simpleString().startswith("struct<_id:bigint,_time:bigint,_kind:string,_stable:boolean,ts:timestamp")
    one = StreamReader(StreamReadOptions.of(options), schema)
    start = one.initialOffset()
    [part] = one.partitions(start, one.latestOffset(start, ALL))
    [batch] = one.read(part)
    assert batch.column("_id").to_pylist() == [3, 4]
    assert batch.column("_time").to_pylist() == [3000, 4000]
    with pytest.raises(GoneError, match="read from 9"):
        reader(place, **{"from": "9"}).initialOffset()


def test_corrections_go_in_behind_insertions_and_come_out_with_kinds(place: Place) -> None:
    keyed = SCHEMA.append(pa.field(KIND, pa.string()))
    spec = Input(name="p", columns=COLUMNS, slack="1 second", time="ts", key=("n",), history="1 hour")
    place.entry = Entry(spec, 1_000_000, StreamConfig(STREAM, keyed))
    place.node.queues.update({queue.stream: queue for queue in place.entry.queues.values()})
    place.node.entries[KEY] = running(place.entry)
    gone = {"ts": None, "n": 2, "tags": None, KIND: "-D"}
    changes = [gone, *(row | {KIND: None} for row in numbers(range(3)).to_pylist())]
    writer(place).commit([TaskRows(QUERY, to_stream(pa.Table.from_pylist(changes, keyed)).to_pybytes())], 0)
    for only, wanted in (("false", [("+I", 0), ("+I", 1), ("+I", 2), ("-D", 2)]), ("true", [0, 1, 2])):
        options = place.options | {"insertionsOnly": only}
        schema = BorealisSource(options).schema()
        one = HeldReader(StreamReadOptions.of(options), schema)
        [batch] = [batch for part in one.partitions() for batch in one.read(part)]
        assert schema.names == batch.schema.names
        found = batch.to_pylist()
        assert [row["n"] if only == "true" else (row[KIND], row["n"]) for row in found] == wanted
        assert schema.names[0] == ("ts" if only == "true" else KIND)


def test_a_batch_read_is_what_is_held(place: Place) -> None:
    place.publish(10)
    held = HeldReader(StreamReadOptions.of(place.options | {"partitions": "3"}), SPARK_SCHEMA)
    assert [n for p in held.partitions() for b in held.read(p) for n in b.column("n").to_pylist()] == list(range(10))


def test_a_job_follows_a_stream_that_moves(place: Place) -> None:
    """The node that had it tells where it went, to the driver and to tasks."""
    place.publish(10)
    one = reader(place, reader="job")
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    other = Node("n2")
    with WireServer(other) as server:
        other.queues[STREAM] = OutputQueue.restore(place.queue.snapshot())
        place.queue.close(moved_to=server.address)
        assert rows_of(one, start, end) == list(range(10))
    other.close()


class Short(StreamAddress):
    """A stream by its short name, which whoever is asked for it knows in full."""

    def locate(self, stream: str) -> Location:
        return Location(STREAM, self.node or "", entry=True)


def test_a_stream_may_have_a_short_name(place: Place) -> None:
    place.publish(4)
    reading = StreamReadOptions.of(place.options)
    one = StreamReader(replace(reading, address=Short("p", node=reading.address.node)), SPARK_SCHEMA)
    start = one.initialOffset()
    assert rows_of(one, start, one.latestOffset(start, ALL)) == list(range(4))


@dataclass(frozen=True)
class Copies(StreamAddress):
    """A stream that a second node serves as well."""

    other: str = ""

    def locate(self, stream: str) -> Location:
        return Location(STREAM, self.node or "", fallback=self.other, replicated=True)


def test_a_job_reads_the_better_of_two_copies(place: Place) -> None:
    place.publish(10)
    place.queue.incarnation = 1
    second = Node("n2")
    copy = second.queues[STREAM] = OutputQueue.restore(place.queue.snapshot())
    copy.incarnation = 1
    with WireServer(second) as server:
        reading = StreamReadOptions.of(place.options | {"partitions": "2"})
        address = Copies("p", node=reading.address.node, other=server.address)
        one = StreamReader(replace(reading, address=address), SPARK_SCHEMA)
        start = one.initialOffset()
        end = one.latestOffset(start, ALL)
        assert rows_of(one, start, end) == list(range(10))
        place.queue.condition = lambda: "failure"  # it is cut off from what it is made of
        assert one.latestOffset(end, ALL) == end, "once may be nothing"
        assert one.latestOffset(end, ALL) == end
        copy.append(section(10, numbers(range(10, 15)), np.arange(5), NOTHING, NOTHING, copy.boundary))
        more = one.latestOffset(end, ALL)
        parts = [pickle.loads(pickle.dumps(part)) for part in one.partitions(end, more)]
        assert [part.location.address for part in parts] == [server.address] * 2
        assert [n for p in parts for b in one.read(p) for n in b.column("n").to_pylist()] == list(range(10, 15))
        copy.condition = lambda: "failure"
        place.queue.condition = lambda: "stable"
        for _ in range(3):
            assert one.latestOffset(more, ALL) == more
        assert one.client.location is not None
        assert one.client.location.address == server.address, "the first copy has not come so far"
        place.publish(7)
        for _ in range(2):
            last = one.latestOffset(more, ALL)
        assert (last["from"], last["id"]) == (15, 17)
        one.stop()
    second.close()


def test_a_copy_that_is_behind_is_waited_for(place: Place) -> None:
    """Another had more, and died."""
    place.publish(10)
    place.queue.incarnation = 1
    one = reader(place)
    before = {"id": 12, "epoch": place.queue.epoch, "incarnation": 1, "from": 0}
    assert one.latestOffset(before, ALL) == before
    place.publish(5)
    end = one.latestOffset(before, ALL)
    assert rows_of(one, before, end) == [12, 13, 14]


def test_a_primary_that_was_deposed_is_not_believed(place: Place) -> None:
    """Neither by the driver, which asks how far the stream is, nor by tasks, nor after a restart."""
    place.publish(4)
    deposed = OutputQueue.restore(place.queue.snapshot())
    place.queue.incarnation, deposed.incarnation = 2, 1
    one = reader(place, 0.3)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert rows_of(one, start, end) == list(range(4))
    place.node.queues[STREAM] = deposed
    for job in (one, reader(place, 0.3)):
        with pytest.raises(StreamError, match="by incarnation 2 of its unit, not by 1"):
            rows_of(job, start, end)
        with pytest.raises(StreamError, match="by incarnation 2 of its unit, not by 1"):
            job.latestOffset(end, ALL)


def test_a_token_goes_along_to_driver_and_tasks(place: Place) -> None:
    place.publish(3)
    with WireServer(place.node, security=Security(token="s3cret")) as server:
        place.options = {"address": server.address, "stream": STREAM}
        with pytest.raises(WireError, match="token"):
            BorealisSource(place.options).schema()
        place.options["token"] = "s3cret"
        one: StreamReader = pickle.loads(pickle.dumps(reader(place, reader="job")))  # as Spark sends it about
        start = one.initialOffset()
        assert rows_of(one, start, one.latestOffset(start, ALL)) == [0, 1, 2]
        writer(place).commit(messages([3]), 0)
        assert "s3cret" not in repr(one.reading)
    assert place.held() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("master", "named", "runs"),
    [("local[2]", None, worker_python()), ("local[2]", "/opt/python", "python3"), ("spark://a:7077", None, "python3")],
)
def test_the_workers_python_has_this_package(
    master: str, named: str | None, runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this machine it is that of the job, whichever python3 comes first on the path."""
    monkeypatch.delenv(PYTHON, raising=False)
    if named is not None:
        monkeypatch.setenv(PYTHON, named)
    context = SimpleNamespace(master=master, environment={}, pythonExec="python3")
    seen: list[str] = []
    sources = SimpleNamespace(register=lambda _: seen.append(context.pythonExec))
    register(SimpleNamespace(sparkContext=context, dataSource=sources))  # type: ignore[arg-type]
    assert seen == [runs]
    assert context.pythonExec == "python3", "what else the session runs is not ours"


def test_mistakes_are_told(place: Place) -> None:
    good = place.options
    for options, words in [
        ({"address": good["address"]}, "no stream"),
        (good | {"form": "oldest"}, "did you mean 'from'"),
        (good | {"from": "yesterday"}, "option from cannot be 'yesterday'. Hint: give oldest, newest or a tuple id"),
        (good | {"headers": "maybe"}, "option headers cannot be 'maybe'. Hint: give false or true"),
        (good | {"partitions": "0"}, "option partitions cannot be '0'. Hint: give a whole number, 1 at least"),
        (good | {"stream": "p"}, "diagram/arrow"),
    ]:
        with pytest.raises(InputError, match=words):
            StreamReadOptions.of(options)
    with pytest.raises(StreamError, match="serves no stream"):
        BorealisSource(good | {"stream": "t/q"}).schema()
    with pytest.raises(WireError, match="no coordinator"):
        BorealisSource({"stream": "p", "coordinator": "127.0.0.1:9"}).schema()


# -- the sink


def writer(place: Place, **options: str) -> StreamWriter:
    """As a new start of the job has it."""
    return StreamWriter(WriteOptions.of(place.options | {"checkpointLocation": "ck"} | options))


def messages(*partitions: Any, query: str = QUERY, at_once: int = 1) -> list[TaskRows | None]:
    """What tasks hand in."""
    return [TaskRows(query, to_stream(pa.Table.from_batches([numbers(p, at_once)])).to_pybytes()) for p in partitions]


def test_a_repeated_micro_batch_is_taken_once(place: Place) -> None:
    for _ in range(2):
        writer(place).commit(messages([0, 1], [2]), 0)
    for _ in range(3):
        writer(place).commit(messages([3]), 1)
    assert place.held() == [0, 1, 2, 3]


def test_rows_enter_in_the_order_of_their_times(place: Place) -> None:
    """Whatever the partitions: else most of them would be late."""
    writer(place).commit(messages(range(1, 20_000, 2), range(0, 20_000, 2)), 0)
    assert place.held() == list(range(20_000))
    assert place.entry.late.next_id == 0


def test_empty_and_failed_micro_batches_leave_nothing(place: Place) -> None:
    one = writer(place)
    one.commit([None], 0)
    one.commit([TaskRows(QUERY, b"")], 1)
    one.commit(messages([0]), 2)
    one.abort([*messages([7]), None], 3)
    one.commit([None], 3)
    one.commit(messages([1]), 4)
    one.commit(messages([1]), 4)
    assert place.held() == [0, 1]


def test_a_new_checkpoint_counts_anew_and_an_old_one_is_refused(place: Place) -> None:
    one = writer(place)
    one.commit(messages([0]), 0)
    one.commit(messages([1]), 1)
    one.commit(messages([2], query="another"), 0)
    assert place.held() == [0, 1, 2]
    with pytest.raises(StateError, match="old copy"):
        one.commit(messages([9]), 0)
    assert place.held() == [0, 1, 2]


class Fragile:
    """An entry point that breaks at the given take: before it is done, or just after."""

    def __init__(self, entry: Entry, at: int, after: bool) -> None:
        self._entry, self._at, self._after = entry, at, after
        self.spec, self.schema, self.known, self.takes = entry.spec, entry.schema, entry.known, 0
        self.tick, self.trim, self.time, self.log = entry.tick, entry.trim, entry.time, entry.log

    def take(self, publisher: str, head: BatchHead, batch: pa.RecordBatch) -> Receipt:
        self.takes += 1
        broken = self.takes > self._at
        if not broken or self._after:
            receipt = self._entry.take(publisher, head, batch)
        if broken:
            raise InputError("a power cut")
        return receipt


def test_a_micro_batch_in_parts_is_taken_once_wherever_it_is_broken_off(place: Place) -> None:
    """Also when the rows come in another order, from other partitions, the next time."""
    chance = random.Random(3)
    options = {"partBytes": "400"}
    micro_batch = [*range(100), *range(50, 60)]  # some rows twice
    parts = public_writer.cut(pa.Table.from_batches([numbers(micro_batch, 7)]), "ts", 400)
    assert len(parts) == 8
    for after in (False, True):
        for broken_at in range(len(parts) + 1):
            place.begin()
            writer(place, **options).commit(messages(range(5)), 0)
            fragile: Any = Fragile(place.entry, broken_at, after)
            place.node.entries[KEY].entry = fragile
            if broken_at < len(parts):
                with pytest.raises(InputError, match="power cut"):
                    writer(place, **options).commit(messages(micro_batch, at_once=7), 1)
            else:
                writer(place, **options).commit(messages(micro_batch, at_once=7), 1)
            place.node.entries[KEY].entry = place.entry
            shuffled = chance.sample(micro_batch, len(micro_batch))
            split = chance.randrange(len(shuffled))
            writer(place, **options).commit(messages(shuffled[:split], shuffled[split:], at_once=7), 1)
            writer(place, **options).commit(messages(range(200, 205)), 2)
            assert place.held() == [*range(5), *sorted(micro_batch), *range(200, 205)], (after, broken_at)


def test_rows_that_do_not_fit_are_refused_whole(place: Place) -> None:
    one = writer(place)
    without = pa.table({"ts": pa.array([0], TIMESTAMP), "m": [1]})
    with pytest.raises(OutputError, match=r"no column 'n' in the DataFrame .* give it all columns of the stream"):
        one.commit([TaskRows(QUERY, to_stream(without).to_pybytes())], 0)
    timeless = pa.table({"ts": pa.array([0, None], TIMESTAMP), "n": [1, 2], "tags": [["a"], None]})
    with pytest.raises(InputError, match="has no time"):
        writer(place, partBytes="8").commit([TaskRows(QUERY, to_stream(timeless).to_pybytes())], 0)
    assert place.held() == []
    for options, words in [
        ({"publisher": "a/b"}, "publisher cannot be"),
        ({"partBytes": str(1 << 40)}, "partBytes cannot be"),
    ]:
        with pytest.raises(OutputError, match=words):
            writer(place, **options)
    with pytest.raises(OutputError, match=r"use df\.writeStream"):
        BorealisSource(place.options).writer(SPARK_SCHEMA, overwrite=False)
    with pytest.raises(OutputError, match="overwritten"):
        BorealisSource(place.options).streamWriter(SPARK_SCHEMA, overwrite=True)


def test_a_computed_stream_cannot_be_written_to(place: Place) -> None:
    del place.node.entries[KEY]
    writing = writer(place).writing
    soon = StreamWriter(replace(writing, address=replace(writing.address, elsewhere_s=0.2)))
    with pytest.raises(StreamError, match="computed"):
        soon.commit(messages([0]), 0)
