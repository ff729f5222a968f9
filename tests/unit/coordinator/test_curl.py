"""Rows in and out for people with nothing but curl: a real coordinator and a real wire, nodes without Spark."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from served import Served, rows
from stand_ins import give, packets, traffic

from borealis.errors import WireError
from borealis.gateway import stream_api as curl
from borealis.gateway.events import HEARTBEAT_S
from borealis.gateway.ndjson import rows_of
from borealis.streams.queue import OutputQueue
from borealis.streams.section import NOTHING, Section
from borealis.tuples import KIND, LAST_TIME
from borealis.wire.auth import Security
from borealis.wire.calls import cut_connections
from borealis.wire.messages import Problem, UnitOrder


def taken(served: Served) -> list[int]:
    queue = served.nodes["node1"].queues["traffic/packets"]
    if queue.next_id == 0:
        return []
    section = queue.read(0, -(2**63), 0, 1 << 30)
    assert section is not None
    return section.rows.column("bytes").to_pylist()  # type: ignore[no-any-return]


def refused(answer: httpx.Response, status: int, kind: str) -> Problem:
    assert answer.status_code == status, answer.text
    found = Problem.decode(answer.content)
    assert found.kind == kind
    return found


# -- rows in


def test_rows_are_taken_and_counted(served: Served) -> None:
    answer = served.http.post("/v1/streams/packets", content=rows(1, 2, 3))
    assert answer.json() == {"v": 1, "stream": "traffic/packets", "taken": 3, "next_id": 3}
    answer = served.http.post("/v1/streams/traffic/packets", content=rows(4)[:-1])
    assert answer.json()["next_id"] == 4
    assert served.http.post("/v1/streams/packets", content=b"\n\n").json() == {
        "v": 1, "stream": "traffic/packets", "taken": 0, "next_id": None,
    }  # fmt: skip
    assert taken(served) == [1, 2, 3, 4]


def test_rows_that_come_in_pieces_are_taken_as_they_come(served: Served) -> None:
    """The first rows are there before the last are sent."""
    queue = served.nodes["node1"].queues["traffic/packets"]

    def body() -> Iterator[bytes]:
        data = rows(*range(100))
        yield data[:1000]
        section = queue.read(0, -(2**63), 30)
        assert section is not None
        assert section.rows.column("bytes")[0].as_py() == 0
        yield data[1000:]

    assert served.http.post("/v1/streams/packets", content=body()).json()["taken"] == 100
    assert taken(served) == list(range(100))


def test_many_rows(served: Served) -> None:
    data = rows(*range(1000)) * 20
    assert served.http.post("/v1/streams/packets", content=data).json()["taken"] == 20_000
    assert taken(served) == list(range(1000)) * 20


def test_several_senders_at_once_lose_and_repeat_nothing(served: Served) -> None:
    def send(first: int) -> None:
        for i in range(10):
            served.http.post("/v1/streams/packets", content=rows(first + i)).raise_for_status()

    senders = [threading.Thread(target=send, args=(100 * i,)) for i in range(4)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(60)
    assert sorted(taken(served)) == [100 * i + j for i in range(4) for j in range(10)]


def test_lines_before_a_bad_one_are_taken(served: Served) -> None:
    body = rows(1, 2) + b'{"ts": "2024-05-01T12:00:00Z", "src": "a", "bytes": "many"}\n' + rows(3)
    answer = served.http.post("/v1/streams/packets", content=body)
    problem = refused(answer, 400, "InputError")
    assert problem.message == (
        "line 3: column 'bytes' is INT, but the value is 'many'; the 2 lines before it are taken"
    )
    assert answer.headers["borealis-taken"] == "2"
    assert taken(served) == [1, 2]
    problem = refused(served.http.post("/v1/streams/packets", content=b"nothing"), 400, "InputError")
    assert problem.message.endswith("nothing is taken")


def test_the_answer_to_a_bad_line_is_read_by_who_still_sends(served: Served) -> None:
    def body() -> Iterator[bytes]:
        yield b"bad\n"
        for _ in range(50):
            yield rows(*range(200))

    problem = refused(served.http.post("/v1/streams/packets", content=body()), 400, "InputError")
    assert problem.message.startswith("line 1 is not JSON")
    assert taken(served) == []


def test_a_line_that_never_ends_is_refused(served: Served) -> None:
    refused(served.http.post("/v1/streams/packets", content=b"x" * (1 << 21)), 413, "WireError")


def test_streams_that_take_no_rows(served: Served) -> None:
    problem = refused(served.http.post("/v1/streams/per_source", content=rows(1)), 400, "StreamError")
    assert problem.message == "stream 'traffic/agg' is computed, no client can publish to it"
    assert problem.hint == "publish to traffic/packets"
    refused(served.http.post("/v1/streams/nothing", content=rows(1)), 404, "StreamError")
    refused(served.http.post("/v1/streams/packets.late", content=rows(1)), 400, "StreamError")


def test_a_numbered_body_is_taken_once(served: Served) -> None:
    def send(number: int | str, *values: int) -> httpx.Response:
        headers = {"Borealis-Publisher": "probe", "Borealis-Number": str(number)}
        return served.http.post("/v1/streams/packets", content=rows(*values), headers=headers)

    first = {"v": 1, "stream": "traffic/packets", "taken": 2, "repeated": False, "number": 0, "next_id": 2}
    assert send(0, 1, 2).json() == first
    assert send(0, 1, 2).json() == first | {"taken": 0, "repeated": True}
    assert send(1, 3).json()["number"] == 1
    assert send(0, 1, 2).json()["repeated"] is True
    assert taken(served) == [1, 2, 3]
    refused(send("x", 1), 400, "WireError")
    refused(send(-1, 1), 400, "WireError")


def test_a_numbered_body_is_taken_whole_or_not_at_all(served: Served) -> None:
    headers = {"Borealis-Publisher": "probe", "Borealis-Number": "0"}
    answer = served.http.post("/v1/streams/packets", content=rows(1) + b"bad\n", headers=headers)
    assert refused(answer, 400, "InputError").message.endswith("nothing is taken")
    assert taken(served) == []
    assert served.http.post("/v1/streams/packets", content=rows(1), headers=headers).json()["taken"] == 1
    for half in ({"Borealis-Publisher": "probe"}, {"Borealis-Number": "1"}):
        problem = refused(served.http.post("/v1/streams/packets", content=rows(2), headers=half), 400, "WireError")
        assert "go together" in problem.message
    odd = {"Borealis-Publisher": "a b", "Borealis-Number": "1"}
    refused(served.http.post("/v1/streams/packets", content=rows(2), headers=odd), 400, "WireError")


def test_a_long_numbered_body_holds_up_no_other(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def patient(*args: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return rows_of(*args)

    monkeypatch.setattr(curl, "rows_of", patient)
    headers = {"Borealis-Publisher": "probe", "Borealis-Number": "0"}
    answers: list[httpx.Response] = []
    sender = threading.Thread(
        target=lambda: answers.append(served.http.post("/v1/streams/packets", content=rows(1), headers=headers))
    )
    sender.start()
    try:
        assert begun.wait(30)
        assert served.http.get("/v1/nodes", timeout=30).status_code == 200
    finally:
        go_on.set()
        sender.join(30)
    assert [answer.json()["taken"] for answer in answers] == [1]


def test_an_answer_that_is_lost_repeats_nothing(served: Served) -> None:
    """The node takes the batch and breaks off; the batch is not sent a second time."""
    entry = served.nodes["node1"].entries["traffic/packets"]
    served.http.post("/v1/streams/packets", content=rows(1)).raise_for_status()
    take, broken = entry.take, []

    def lose(*given: Any) -> Any:
        receipt = take(*given)
        if not broken:
            broken.append(receipt)
            raise WireError("the answer is lost")
        return receipt

    entry.take = lose  # type: ignore[method-assign]
    assert served.http.post("/v1/streams/packets", content=rows(2)).json()["taken"] == 1
    assert served.http.post("/v1/streams/packets", content=rows(3)).json()["taken"] == 1
    assert len(broken) == 1
    assert taken(served) == [1, 2, 3]


def test_rows_go_to_a_node_that_began_anew(served: Served) -> None:
    served.http.post("/v1/streams/packets", content=rows(1)).raise_for_status()
    node = served.nodes.pop("node1")
    served.servers["node1"].close()
    again = served.start("node1")
    assert again.incarnation != node.incarnation
    again.act("start", _entry_order().encode())
    assert served.http.post("/v1/streams/packets", content=rows(2)).json()["taken"] == 1
    assert taken(served) == [2]


def _entry_order() -> UnitOrder:
    return UnitOrder(diagram="traffic", yaml=traffic(), unit="in-packets", boxes=[])


def test_rows_go_into_a_diagram_that_was_deployed_anew(served: Served) -> None:
    served.http.post("/v1/streams/packets", content=rows(1)).raise_for_status()
    served.http.delete("/v1/diagrams/traffic").raise_for_status()
    served.deploy(place={"packets": "node1"})
    assert served.http.post("/v1/streams/packets", content=rows(2)).json() == {
        "v": 1,
        "stream": "traffic/packets",
        "taken": 1,
        "next_id": 1,
    }


def test_heartbeats_and_the_end_may_come_with_rows_or_alone(served: Served) -> None:
    heads = served.nodes["node1"].entries["traffic/packets"].heads
    served.http.post("/v1/streams/packets?heartbeat=1970-01-01T00:00:02Z", content=rows(1)).raise_for_status()
    served.http.post("/v1/streams/packets", params={"heartbeat": "1970-01-01 01:00:03+01:00"}).raise_for_status()
    assert [(h.heartbeat, h.end) for h in heads] == [(None, False), (2_000_000, False), (3_000_000, False)]
    numbered = {"Borealis-Publisher": "probe", "Borealis-Number": "0"}
    served.http.post("/v1/streams/packets?end=1", content=rows(2), headers=numbered).raise_for_status()
    assert (heads[-1].heartbeat, heads[-1].end) == (None, True)
    assert taken(served) == [1, 2]
    refused(served.http.post("/v1/streams/packets?heartbeat=soon"), 400, "WireError")
    bad = served.http.post("/v1/streams/packets?end=1", content=b"bad")
    refused(bad, 400, "InputError")
    assert len(heads) == 4, "nothing ends behind a bad line"


def test_rows_go_in_again_when_a_stream_that_had_ended_is_deployed_anew(served: Served) -> None:
    served.http.post("/v1/streams/packets?end=1", content=rows(1)).raise_for_status()
    served.http.delete("/v1/diagrams/traffic").raise_for_status()
    served.deploy(place={"packets": "node1"})
    assert served.http.post("/v1/streams/packets", content=rows(2)).json()["taken"] == 1
    assert taken(served) == [2]


def test_rows_wait_a_little_for_an_entry_point_that_is_away(served: Served) -> None:
    served.http.post("/v1/streams/packets", content=rows(1)).raise_for_status()
    entry = served.nodes["node1"].entries["traffic/packets"]
    take, refusals = entry.take, [WireError("away"), WireError("away"), WireError("away")]

    def refuse(*given: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return take(*given)

    entry.take = refuse  # type: ignore[method-assign]
    assert served.http.post("/v1/streams/packets", content=rows(2)).json()["taken"] == 1
    assert taken(served) == [1, 2]


# -- rows out


class Ear:
    """Server-sent events as a client hears them."""

    def __init__(self, served: Served, name: str, query: str = "", last: int | None = None) -> None:
        headers = {} if last is None else {"last-event-id": str(last)}
        self._context = served.http.stream("GET", f"/v1/streams/{name}{query}", headers=headers)
        self.answer = self._context.__enter__()
        self._lines = self.answer.iter_lines()

    def __enter__(self) -> Ear:
        return self

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(None, None, None)

    def events(self) -> Iterator[dict[str, str]]:
        """All events, comments among them."""
        event: dict[str, str] = {}
        for line in self._lines:
            key, _, value = line.partition(": ")
            if line:
                event[key] = value
            elif event:
                yield event
                event = {}

    def hear(self, count: int) -> list[tuple[int, int]]:
        """The ids and bytes of so many rows."""
        numbered = (e for e in self.events() if "id" in e)
        return [(int(e["id"]), json.loads(e["data"])["bytes"]) for e in itertools.islice(numbered, count)]


def test_a_stream_is_heard_from_its_oldest_tuple_on_and_live(served: Served) -> None:
    queue = served.nodes["node2"].queues["traffic/agg"]
    give(queue, packets(3))
    with Ear(served, "per_source", "?start=oldest") as ear:
        assert ear.answer.headers["content-type"].startswith("text/event-stream")
        assert ear.hear(3) == [(0, 0), (1, 1), (2, 2)]
        give(queue, packets(2))
        assert ear.hear(2) == [(3, 0), (4, 1)]


def test_a_stream_is_heard_from_where_the_listener_says(served: Served) -> None:
    queue = served.nodes["node2"].queues["traffic/agg"]
    give(queue, packets(5))
    with Ear(served, "traffic/agg", "?from=3") as ear:
        assert ear.hear(2) == [(3, 3), (4, 4)]
    with Ear(served, "traffic/agg", "?from=oldest", last=3) as ear:
        assert ear.hear(1) == [(4, 4)]
    with Ear(served, "traffic/agg", "?start=newest") as ear:
        give(queue, packets(1))
        assert ear.hear(1) == [(5, 0)]
    with Ear(served, "traffic/agg") as ear:  # as for `tail`
        give(queue, packets(1))
        assert ear.hear(1) == [(6, 0)]


def test_a_listener_hears_as_many_rows_as_it_wants(served: Served) -> None:
    queue = served.nodes["node2"].queues["traffic/agg"]
    for _ in range(2):
        give(queue, packets(1500))

    def ids(query: str) -> tuple[list[int], dict[str, str]]:
        with Ear(served, "per_source", query) as ear:
            *heard, last = [e for e in ear.events() if "retry" not in e]
            return [int(e["id"]) for e in heard], last

    for limit in (1, 1000, 2000, 3000):
        heard, last = ids(f"?start=oldest&limit={limit}&headers=1")
        assert heard == list(range(limit))
        assert last == {"event": "limit", "data": f'{{"next_id": {limit}}}'}
    assert ids("?start=2998&limit=1")[0] == [2998]


def test_parameters_that_no_route_knows_are_refused(served: Served) -> None:
    problem = refused(served.http.get("/v1/streams/per_source?limt=2"), 400, "WireError")
    assert problem.message == "GET /v1/streams/per_source takes no parameter 'limt'"
    assert problem.hint == "did you mean 'limit'? known: start, from, limit, headers, insertions_only, tentative"
    problem = refused(served.http.post("/v1/streams/packets?start=1", content=rows(1)), 400, "WireError")
    assert problem.hint == "known: heartbeat, end"
    assert refused(served.http.get("/v1/status?watch=1"), 400, "WireError").hint == "it takes none"
    assert (
        "did you mean 'only_dead'?" in refused(served.http.delete("/v1/nodes/node9?onlydead=1"), 400, "WireError").hint
    )
    assert refused(served.http.get("/docs?x=1"), 400, "WireError").hint == "it takes none"
    assert taken(served) == []


def test_rows_may_have_headers(served: Served) -> None:
    give(served.nodes["node2"].queues["traffic/agg"], packets(2))
    with Ear(served, "per_source", "?headers=1&from=1") as ear:
        event = next(e for e in ear.events() if "data" in e)
    assert json.loads(event["data"]) == {
        "_id": 1,
        "_time": 1,
        "_kind": "+I",
        "_stable": True,
        "ts": "1970-01-01T00:00:01.000000Z",
        "src": "a",
        "bytes": 1,
    }


def test_rows_that_were_corrected_come_with_kinds_or_not_at_all(served: Served) -> None:
    node = served.nodes["node2"]
    kinds = [pa.array([0, 2, 3, 0, 1], pa.int8())]
    signed = pa.RecordBatch.from_arrays([*packets(5).columns, *kinds], names=[*packets(5).schema.names, KIND])
    queue = node.queues["traffic/agg"] = OutputQueue("traffic/agg", signed.schema)
    give(queue, signed)
    with Ear(served, "per_source", "?from=oldest&limit=5") as ear:
        found = [json.loads(e["data"]) for e in ear.events() if "id" in e]
    assert [next(iter(row.items())) for row in found] == [(KIND, kind) for kind in ("+I", "-U", "+U", "+I", "-D")]
    give(queue, signed)
    with Ear(served, "per_source", "?from=1&limit=2&insertions_only=1") as ear:
        first, second, last = [e for e in ear.events() if "retry" not in e]
    assert (first["id"], second["id"], last["data"]) == ("3", "5", '{"next_id": 6}')
    assert json.loads(second["data"]) == {"ts": "1970-01-01T00:00:00.000000Z", "src": "a", "bytes": 0}


def guess(queue: OutputQueue, count: int) -> None:
    """Rows of a fork, which begins where the stable ones end."""
    assert queue.tail is not None
    first, numbers = queue.tail.held.next, np.arange(count)
    queue.append_tentative(Section(first, packets(count), numbers, NOTHING, NOTHING, fork=queue.tail.fork))


def test_who_wants_tentative_rows_hears_them_and_that_they_are_void(served: Served) -> None:
    queue = served.nodes["node2"].queues["traffic/agg"]
    give(queue, packets(2))
    with Ear(served, "per_source", "?start=oldest") as calm, Ear(served, "agg", "?start=1&tentative=1") as ear:
        heard, calmly = (one.events() for one in (ear, calm))
        assert next(heard) == {"retry": "1000"}
        assert next(heard)["id"] == "1"
        queue.fork("f")
        guess(queue, 1500)
        guesses = list(itertools.islice(heard, 1500))
        assert {tuple(one) for one in guesses} == {("data",)}, (
            "who comes back with the last id goes on behind stable rows"
        )
        rows = [json.loads(one["data"]) for one in guesses]
        assert [(row["bytes"], row["_stable"]) for row in rows] == [(n, False) for n in range(1500)]
        give(queue, packets(2))
        queue.drop_fork()
        queue.recover()
        assert next(heard) == {"event": "undo", "data": '{"_undo": 1500}'}
        assert [next(heard).get("id") for _ in range(2)] == ["2", "3"]
        assert next(heard) == {"event": "done", "data": '{"_done": true}'}
        give(queue, packets(1), bound=LAST_TIME)
        right = list(heard)
        assert [one.get("id") for one in right] == ["4", None]
        assert "_stable" not in right[0]["data"]
        assert right[-1]["event"] == "end"
        assert [one.get("id") for one in calmly] == [None, "0", "1", "2", "3", "4", None]


def test_a_limit_counts_tentative_rows_and_names_a_stable_id(served: Served) -> None:
    queue = served.nodes["node2"].queues["traffic/agg"]
    give(queue, packets(2))
    queue.fork("f")
    guess(queue, 5)
    with Ear(served, "agg", "?start=oldest&tentative=1&limit=4&headers=1") as ear:
        *heard, last = [e for e in ear.events() if "retry" not in e]
    rows = [json.loads(one["data"]) for one in heard]
    assert [(row["_id"], row["_stable"]) for row in rows] == [(0, True), (1, True), (2, False), (3, False)]
    assert last == {"event": "limit", "data": '{"next_id": 2}'}


def test_the_end_of_a_stream_is_told(served: Served) -> None:
    queue = served.nodes["node2"].queues["traffic/agg"]
    give(queue, packets(2), bound=LAST_TIME)
    with Ear(served, "per_source", "?start=oldest") as ear:
        events = [e for e in ear.events() if "retry" not in e]
    assert [e.get("event", "row") for e in events] == ["row", "row", "end"]


def test_many_rows_come_in_order_and_once(served: Served) -> None:
    queue = served.nodes["node2"].queues["traffic/agg"]
    for _ in range(10):
        give(queue, packets(2500))
    with Ear(served, "per_source", "?start=oldest") as ear:
        assert ear.hear(25_000) == [(i, i % 2500) for i in range(25_000)]


def test_a_listener_follows_a_unit_that_moves(served: Served) -> None:
    give(served.nodes["node2"].queues["traffic/agg"], packets(2))
    with Ear(served, "per_source", "?start=oldest") as ear:
        assert ear.hear(2) == [(0, 0), (1, 1)]
        assert served.http.post("/v1/units/u1/move", json={"node": "node1"}).status_code == 200
        give(served.nodes["node1"].queues["traffic/agg"], packets(1))
        assert ear.hear(1) == [(2, 0)]


def test_a_listener_never_goes_back_to_a_primary_that_was_deposed(served: Served) -> None:
    node = served.nodes["node2"]
    primary, deposed = node.queues["traffic/agg"], OutputQueue.restore(node.queues["traffic/agg"].snapshot())
    primary.incarnation, deposed.incarnation = 2, 1
    give(primary, packets(2))
    give(deposed, packets(5))
    with Ear(served, "per_source", "?start=oldest") as ear:
        assert ear.hear(2) == [(0, 0), (1, 1)]
        node.queues["traffic/agg"] = deposed
        cut_connections(served.servers["node2"].port)
        until = time.monotonic() + 30
        while not node.heard:  # it is asked, refuses, and knows why
            assert time.monotonic() < until
            time.sleep(0.01)
        assert set(node.heard) == {2}
        node.queues["traffic/agg"] = primary
        give(primary, packets(1))
        assert ear.hear(1) == [(2, 0)]


def test_a_listener_of_a_stream_that_began_anew_is_told_so(served: Served) -> None:
    give(served.nodes["node2"].queues["traffic/agg"], packets(2))
    with Ear(served, "per_source", "?start=oldest") as ear:
        assert len(ear.hear(2)) == 2
        order = served.nodes["node2"].units["traffic", "u1"]
        served.nodes.pop("node2")
        served.servers["node2"].close()
        served.start("node2").act("start", order.encode())
        last = [e for e in ear.events() if e.get("event") == "problem"]
    assert Problem.decode(last[0]["data"]).kind == "GoneError"


def test_a_listener_of_a_diagram_that_is_undeployed_is_told_so(served: Served) -> None:
    with Ear(served, "per_source") as ear:
        served.http.delete("/v1/diagrams/traffic")
        last = [e for e in ear.events() if e.get("event") == "problem"]
    assert "no stream 'traffic/agg'" in Problem.decode(last[0]["data"]).message


def test_a_listener_hears_something_even_when_nothing_comes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert HEARTBEAT_S <= 15
    monkeypatch.setattr("borealis.gateway.events.HEARTBEAT_S", 0.05)
    with Ear(served, "per_source") as ear:
        assert "still there" in str(list(itertools.islice(ear.events(), 3)))


def test_a_listener_hears_something_even_when_only_boundaries_come(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("borealis.gateway.events.HEARTBEAT_S", 0.2)
    queue, heard = served.nodes["node2"].queues["traffic/agg"], threading.Event()

    def promise() -> None:
        bound = max(queue.boundary, 0)
        while not heard.wait(0.01):  # so that there never is silence
            bound += 1
            give(queue, packets(0), bound)

    promising = threading.Thread(target=promise, daemon=True)
    with Ear(served, "per_source") as ear:
        promising.start()
        assert "still there" in str(list(itertools.islice(ear.events(), 3)))
        heard.set()
        promising.join()


def test_what_cannot_be_listened_to(served: Served) -> None:
    refused(served.http.get("/v1/streams/nothing"), 404, "StreamError")
    refused(served.http.get("/v1/streams/big"), 404, "StreamError")
    refused(served.http.get("/v1/streams/packets?from=later"), 400, "WireError")
    refused(served.http.get("/v1/streams/packets?from=-1"), 400, "WireError")
    refused(served.http.get("/v1/streams/packets?start="), 400, "WireError")
    refused(served.http.get("/v1/streams/packets?limit=0"), 400, "WireError")
    refused(served.http.get("/v1/streams/packets?start=1&from=2"), 400, "WireError")
    refused(served.http.get("/v1/streams/packets", headers={"last-event-id": "x"}), 400, "WireError")
    assert served.http.get("/v1/streams/packets?from=77").status_code == 404


def test_a_listener_that_goes_leaves_nothing_behind(served: Served) -> None:
    queue = served.nodes["node2"].queues["traffic/agg"]
    with Ear(served, "per_source"):
        assert len(queue.status().readers) == 1
    deadline = threading.Event()
    for _ in range(100):
        if not queue.status().readers:
            break
        deadline.wait(0.1)
    assert queue.status().readers == {}


def test_listeners_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("borealis.gateway.stream_api.LISTENERS_MOST", 1)
    few = Served(tmp_path / "few.sqlite", nodes=1)
    try:
        few.deploy()
        with Ear(few, "packets", "?start=oldest") as ear:
            give(few.nodes["node1"].queues["traffic/packets"], packets(1))
            assert ear.hear(1) == [(0, 0)]
            refused(few.http.get("/v1/streams/packets"), 503, "ClusterError")
    finally:
        few.close()


def test_with_a_token(tmp_path: Path) -> None:
    served = Served(tmp_path / "catalog.sqlite", nodes=1, security=Security(token="secret"))
    try:
        served.deploy()
        assert served.http.post("/v1/streams/packets", content=rows(1)).json()["taken"] == 1
        with Ear(served, "packets", "?start=oldest") as ear:
            assert ear.hear(1) == [(0, 1)]
        assert httpx.get(f"{served.address}/v1/streams/packets", trust_env=False).status_code == 401
        assert httpx.post(f"{served.address}/v1/shutdown", trust_env=False).status_code == 401
    finally:
        served.close()


def test_the_openapi_page_says_it_all_in_a_closed_network(served: Served) -> None:
    answer = served.http.get("/docs")
    described = served.http.get("/openapi.json").json()["paths"]
    assert {"/v1/streams/{name}", "/metrics"} <= set(described)
    for path, methods in described.items():
        for method, operation in methods.items():
            assert f"<code>{method.upper()} {path}</code>" in answer.text
            for parameter in operation.get("parameters", ()):
                assert f'name="{parameter["name"]}" data-in="{parameter["in"]}"' in answer.text
    assert "//" not in answer.text.replace("</", ""), "nothing comes from another server"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
