"""Rows that correct earlier ones, through the client library: published by key, and seen by readers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from town import NONE, SOON, STREAM, Counter, Place, Town, eventually, finish

import borealis
from borealis.client.client import Client
from borealis.client.cluster_config import Whereabouts
from borealis.errors import InputError
from borealis.kernels.time_of import TimeOf, noted
from borealis.streams.queue import OutputQueue
from borealis.streams.section import section
from borealis.tuples import KIND

COLUMNS = pa.schema([("id", pa.int32()), ("day", pa.int32()), ("price", pa.float64()), (KIND, pa.string())])
QUOTES = noted(COLUMNS, TimeOf("day"), ["id", "day"])
RESULTS = pa.schema([("n", pa.int64()), (KIND, pa.int8())])
INSERTION, DELETION, BEFORE, AFTER = range(4)
OTHER = "traffic/results"
PLAIN = "traffic/plain"


@pytest.fixture
def place(town: Town) -> Iterator[Place]:
    """A node with an input that has a key, one that has none, and a stream that carries revisions."""
    made = Place()
    plain = pa.schema([("id", pa.int32()), ("price", pa.float64())])
    for stream, schema in ((STREAM, QUOTES), (PLAIN, plain), (OTHER, RESULTS)):
        queue = made.queues[stream] = OutputQueue(stream, schema)
        made.entries[stream] = Counter(queue)
        town.places[stream] = (made, stream != OTHER)
    yield made
    made.close()


@pytest.fixture
def client(town: Town, place: Place) -> Iterator[Client]:
    with ExitStack() as stack:
        yield stack.enter_context(Client(Whereabouts("127.0.0.1", town.port), SOON))


def published(place: Place, stream: str = STREAM) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    queue, at = place.queues[stream], 0
    while at < queue.next_id and (part := queue.read(at, -(2**63), 0)) is not None:
        found += [tuple(row.values()) for row in part.rows.to_pylist()]
        at = part.stop
    return found


def give(place: Place, *changes: tuple[int, int]) -> None:
    """One section of results, each a kind and an `n`."""
    queue = place.queues[OTHER]
    kinds, n = zip(*changes, strict=True)
    rows = pa.record_batch([pa.array(n, pa.int64()), pa.array(kinds, pa.int8())], schema=RESULTS)
    queue.append(section(queue.next_id, rows, np.arange(len(n)), NONE, NONE, queue.boundary))


# -- in


def test_rows_are_inserted_replaced_and_deleted_over_one_path(place: Place, client: Client) -> None:
    row = {"id": 1, "day": 2, "price": 3.0}
    with client.publisher("packets") as out:
        assert out.insert([(1, 2, 3.0), (4, 5, 6.0)]) == 2
        assert out.replace(row | {"price": 4.0}) == 1
        assert out.delete(row | {KIND: "+I"}) == 1
        assert out.send([row | {KIND: "-D"}, row]) == 2
    assert published(place) == [
        (1, 2, 3.0, "+I"),
        (4, 5, 6.0, "+I"),
        (1, 2, 4.0, "+U"),
        (1, 2, None, "-D"),
        (1, 2, 3.0, "-D"),
        (1, 2, 3.0, None),
    ]


@pytest.mark.parametrize(
    "keys",
    [
        [(1, 2)],
        ((1, 2) for _ in range(1)),
        [{"day": 2, "id": 1}],
        pa.table({"day": [2], "id": [1]}),
        pa.record_batch({"id": [1], "price": [9.0], "day": [2]}).to_pandas(),
    ],
    ids=["tuples", "generator", "dicts", "table", "frame"],
)
def test_a_key_is_all_that_a_deletion_needs(place: Place, client: Client, keys: Any) -> None:
    with client.publisher("packets") as out:
        assert out.delete(keys) == 1
    assert published(place) == [(1, 2, None, "-D")]


def test_what_cannot_be_corrected_is_refused_before_it_is_sent(place: Place, client: Client) -> None:
    with client.publisher("packets") as out:
        with pytest.raises(
            InputError, match=r"a row of kind -D has no day\. Hint: rows of traffic/packets go by: id, day"
        ):
            out.delete([{"id": 1, "day": 2}, {"id": 3, "dya": 4}])
        with pytest.raises(InputError, match="has 3 values, declared are 2: id, day"):
            out.delete([(1, 2, 3.0)])
        with pytest.raises(InputError, match=r"a row has the _kind 'D'\. Hint: give one of"):
            out.send([{"id": 1, "day": 2, KIND: "D"}])
    with client.publisher("plain") as plain:
        for correct in (plain.delete, plain.replace):
            with pytest.raises(InputError, match="rows of traffic/plain cannot be corrected: they have no key"):
                correct([{"id": 1}])
        with pytest.raises(InputError, match=r"a row has the _kind '\+U', but rows of traffic/plain cannot"):
            plain.send([{"id": 1}, {"id": 2, KIND: "+U"}])
        assert plain.insert({"id": 1, "price": 1.0}) == 1
        assert plain.send([{"id": 2, KIND: "+I"}]) == 1
    assert published(place) == []
    assert published(place, PLAIN) == [(1, 1.0), (2, None)]


def test_asyncio_has_the_same(place: Place, town: Town) -> None:
    async def program() -> None:
        async with borealis.connect_async(f"127.0.0.1:{town.port}", retries=SOON) as cluster:
            async with cluster.publisher("packets") as out:
                await out.insert([(1, 2, 3.0)])
                await out.replace([(1, 2, 4.0)])
                await out.delete([(1, 2)])
            give(place, (INSERTION, 7), (BEFORE, 7), (AFTER, 8), (INSERTION, 9))
            finish(place.queues[OTHER])
            assert [row async for row in cluster.stream("results", "oldest")][1] == {KIND: "-U", "n": 7}
            plain = cluster.stream("results", "oldest", insertions_only=True)
            assert [row async for row in plain] == [{"n": 7}, {"n": 9}]

    asyncio.run(program())
    assert [row[-1] for row in published(place)] == ["+I", "+U", "-D"]


# -- out


def test_readers_see_kinds_as_words_in_front(place: Place, client: Client) -> None:
    give(place, (INSERTION, 7), (BEFORE, 7), (AFTER, 8))
    give(place, (DELETION, 8))
    finish(place.queues[OTHER])
    wanted = [{KIND: "+I", "n": 7}, {KIND: "-U", "n": 7}, {KIND: "+U", "n": 8}, {KIND: "-D", "n": 8}]
    rows = client.subscribe("results", "oldest")
    assert list(rows) == wanted
    assert rows.schema.names == [KIND, "n"]
    assert pa.Table.from_batches(client.subscribe("results", "oldest").batches()).to_pylist() == wanted
    [*_, last] = client.subscribe("results", "oldest", headers=True)
    assert last == {"_id": 3, "_time": 0, KIND: "-D", "_stable": True, "n": 8}


def test_an_input_is_seen_as_it_was_meant(place: Place, client: Client) -> None:
    client.publish("packets", [(1, 2, 3.0)])
    with client.publisher("packets") as out:
        out.delete([(1, 2)])
    stream = client.subscribe("packets", "oldest", headers=True)
    seen = stream.rows()
    assert [(row[KIND], row["price"]) for row in (next(seen), next(seen))] == [("+I", 3.0), ("-D", None)]
    assert stream.columns == [KIND, "id", "day", "price"]


def test_who_wants_insertions_only_is_not_kept_by_corrections(place: Place, client: Client) -> None:
    queue = place.queues[OTHER]
    give(place, (INSERTION, 0), (BEFORE, 0), (AFTER, 1), (INSERTION, 3), (DELETION, 3))
    stream = client.subscribe("results", "oldest", reader="ada", insertions_only=True)
    assert next(stream.rows()) == {"n": 0}
    assert stream.position == 1
    batches = stream.batches()
    assert next(batches).to_pylist() == [{"n": 3}]
    give(place, (BEFORE, 1), (AFTER, 2))
    eventually(lambda: stream.read(0.01) is None and stream.position == 7)
    give(place, (DELETION, 2), (INSERTION, 8))
    finish(queue)
    assert [batch.to_pylist() for batch in batches] == [[{"n": 8}]], "no batch without rows"
    assert queue.acks()["ada"][1] == 9
    again = client.subscribe("results", "oldest", insertions_only=True, headers=True)
    first = again.read(rows_most=1)
    assert first is not None
    assert first.to_pylist() == [{"_id": 0, "_time": 0, KIND: "+I", "_stable": True, "n": 0}]
    assert [(row["_id"], row["n"]) for row in again] == [(3, 3), (8, 8)]
