"""Whatever is thrown at the coordinator: it answers, it goes on, and what runs is not disturbed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import Served, rows
from stand_ins import traffic

from borealis.wire.messages import Problem

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
PATHS = st.sampled_from(
    [
        "/v1/diagrams",
        "/v1/diagrams/traffic2",
        "/v1/units/u1/move",
        "/v1/nodes",
        "/v1/nodes/node9",
        "/v1/streams",
        "/v1/streams/packets",
        "/v1/streams/nothing",
        "/v1/locate",
        "/v1/health",
        "/v1/",
        "/",
    ]
)
KEYS = st.sampled_from(["yaml", "cut", "place", "units", "buckets", "node", "diagram", "v", "version", "units", "x"])
BODIES = (
    st.binary(max_size=200)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(KEYS, JSON, max_size=5).map(lambda value: json.dumps(value).encode())
    | st.lists(st.sampled_from([rows(1), b"{", b"\n", b'{"ts": 1}\n', b"\xff\n", b"null\n"])).map(b"".join)
)
HEADERS = st.dictionaries(
    st.sampled_from(["content-type", "borealis-publisher", "borealis-number", "last-event-id", "host", "origin", "x"]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30),
    max_size=3,
)
QUERIES = st.dictionaries(
    st.sampled_from(["from", "start", "limit", "headers", "heartbeat", "end", "stream", "x"]),
    st.text(max_size=12),
    max_size=3,
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("fuzz") / "catalog.sqlite")
    try:
        made.deploy()
        yield made
    finally:
        made.close()


def undisturbed(served: Served) -> None:
    assert served.http.get("/v1/health").json()["ok"] is True
    assert [list(node.units) for node in served.nodes.values()] == [[("traffic", "u1")], []]
    assert [o for node in served.nodes.values() for o in node.orders if o != "check"] == [
        "start traffic.in-packets",
        "start traffic.u1",
    ]


@settings(max_examples=4 * settings.default.max_examples)
@given(st.sampled_from(["GET", "POST", "DELETE", "PUT"]), PATHS, BODIES, HEADERS, QUERIES)
def test_any_request_is_answered(
    served: Served, method: str, path: str, body: bytes, headers: dict[str, str], query: dict[str, str]
) -> None:
    try:
        with served.http.stream(method, path, content=body, headers=headers, params=query) as answer:
            if answer.headers.get("content-type", "").startswith("text/event-stream"):
                return
            answer.read()
    except (httpx.LocalProtocolError, httpx.InvalidURL):
        return  # the client itself would not send it
    assert answer.status_code < 500 or answer.status_code == 503, answer.text
    if answer.status_code >= 400:
        Problem.decode(answer.content)
    undisturbed(served)


@settings(max_examples=2 * settings.default.max_examples)
@given(st.dictionaries(st.sampled_from(["v", "node", "incarnation", "version", "units", "queues", "spark"]), JSON))
def test_any_heartbeat_is_answered(served: Served, odd: dict[str, Any]) -> None:
    heartbeat = json.loads(served.nodes["node1"].status().encode()) | {"node": "odd", "incarnation": "odd"} | odd
    answer = served.http.post("/v1/nodes", content=json.dumps(heartbeat).encode())
    assert answer.status_code in (200, 400, 409), answer.text
    if answer.status_code != 200:
        Problem.decode(answer.content)
    undisturbed(served)


def test_a_diagram_that_is_odd_text(served: Served) -> None:
    for odd in ("\0", "a: &a [*a]", "borealis: 1\n" * 1000, "{" * 50_000, traffic("x").replace("INT", "INT\0")):
        answer = served.http.post("/v1/diagrams", json={"yaml": odd})
        assert answer.status_code == 400, answer.text
        assert Problem.decode(answer.content).kind == "DiagramError"
    undisturbed(served)


@settings(max_examples=3 * settings.default.max_examples)
@given(st.binary(max_size=300), st.booleans())
def test_bytes_that_are_no_http(served: Served, data: bytes, begins_well: bool) -> None:
    host, _, port = served.address.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as raw:
        raw.sendall((b"POST /v1/streams/packets HTTP/1.1\r\nhost: localhost\r\n" if begins_well else b"") + data)
        raw.shutdown(socket.SHUT_WR)
    undisturbed(served)


def test_a_body_that_breaks_off_counts_for_what_came(served: Served) -> None:
    queue = next(n.queues["traffic/packets"] for n in served.nodes.values() if "traffic/packets" in n.queues)
    before = queue.next_id
    host, _, port = served.address.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as raw:
        head = b"POST /v1/streams/packets HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n"
        raw.sendall(head + rows(1, 2) + rows(3)[:-5])
        assert queue.read(before, -(2**63), 30) is not None
    undisturbed(served)
    assert queue.next_id == before + 2, "a row that was cut off is no row"
