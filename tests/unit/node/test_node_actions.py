"""Orders that make no sense: each is refused with a sentence, and the node stays as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis.errors import BorealisError, ClusterError, StreamError, WireError
from borealis.node.node import ACTIONS, Node
from borealis.streams.queue import OutputQueue
from borealis.wire.messages import Forget, Ping, Reroute, UnitName, UnitOrder

YAML = """\
borealis: 1
name: d
inputs:
  a: {columns: 'ts TIMESTAMP, k INT', time: ts}
boxes:
  f: {filter: {from: a, predicate: k > 0}}
outputs:
  out: f
"""
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["d", "u1", "d/a", YAML]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["v", "diagram", "yaml", "unit", "boxes", "buckets", "feeds", "readers", "take_over", "input", "stream",
          "address", "late_readers"]  # fmt: skip


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node whose Spark did not start: what needs Spark says so."""
    one = Node("lonely")
    one.session.failed()
    yield one
    one.close()


@given(action=st.sampled_from([a for a in ACTIONS if a != "stop"]), body=st.binary(max_size=64))
def test_bytes_that_are_no_message(node: Node, action: str, body: bytes) -> None:
    with suppress(BorealisError):
        node.act(action, body)
    assert not node.units
    assert not node.entries


@given(
    action=st.sampled_from([a for a in ACTIONS if a != "stop"]),
    fields=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6),
)
def test_json_that_is_no_order(node: Node, action: str, fields: dict[str, Any]) -> None:
    with suppress(BorealisError):
        node.act(action, json.dumps(fields).encode())
    assert not node.units
    assert not node.entries


@given(what=st.text(max_size=10) | st.just("unit"), body=st.binary(max_size=40))
def test_exports_that_are_not_there(node: Node, what: str, body: bytes) -> None:
    with pytest.raises(BorealisError):
        list(node.export(what, body))


def test_what_is_not_here_is_said_by_name(node: Node) -> None:
    with pytest.raises(WireError, match="no action 'strat'"):
        node.act("strat", b"{}")
    with pytest.raises(StreamError, match="lonely serves no stream d/a"):
        node.queue("d/a")
    with pytest.raises(StreamError, match="not the entry point of d/a"):
        node.entry("d/a")
    with pytest.raises(ClusterError, match="no unit u1 of d on lonely"):
        node.act("thaw", UnitName(diagram="d", unit="u1").encode())
    with pytest.raises(ClusterError, match="Spark did not start"):
        node.act("start", UnitOrder(diagram="d", yaml=YAML, unit="u1", boxes=["f"]).encode())


def test_a_version_that_is_not_spoken_here(node: Node) -> None:
    with pytest.raises(WireError, match="a Ping of version 2"):
        node.act("ping", b'{"v": 2}')
    assert b"lonely" in node.act("ping", Ping().encode())


def test_what_has_to_be_dropped_need_not_be_there(node: Node) -> None:
    """Said twice it is done once; nothing of another diagram goes with it."""
    away = "grpc://127.0.0.1:1"
    for stream in ("d/f", "e/f"):
        node.act("reroute", Reroute(stream=stream, address=away).encode())
    for _ in range(2):
        node.act("drop", UnitName(diagram="d", unit="u1").encode())
        node.act("drop", UnitName(diagram="d", unit="in-a").encode())
        node.act("undeploy", b'{"diagram": "d"}')
        assert [node.routes.address(stream) for stream in ("d/f", "e/f")] == [None, away]
    node.routes.forget("e")


def test_a_reader_that_will_not_come_back_is_forgotten_but_never_a_unit(node: Node) -> None:
    queue = node.queues["d/f"] = OutputQueue("d/f", pa.schema([("k", pa.int32())]), readers=["d.u2", "gone"])
    try:
        node.act("forget", Forget(stream="d/f", reader="gone").encode())
        assert list(queue.status().readers) == ["d.u2"]
        with pytest.raises(StreamError, match="no reader 'gone'"):
            node.act("forget", Forget(stream="d/f", reader="gone").encode())
        with pytest.raises(StreamError, match="is a unit"):
            node.act("forget", Forget(stream="d/f", reader="d.u2").encode())
    finally:
        del node.queues["d/f"]


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("protect", {"diagram": "d", "unit": "in-a", "partner": "nonsense", "incarnation": 1}),
        ("reroute", {"stream": "d/a", "address": "nonsense"}),
        ("moved", {"diagram": "d", "unit": "u1", "address": "http://127.0.0.1:1"}),
    ],
)
def test_an_address_where_no_node_can_be(node: Node, action: str, body: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="no address of a node"):
        node.act(action, json.dumps({"v": 1} | body).encode())
