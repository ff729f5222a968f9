"""Two nodes with an entry point between them: the other one goes on, and what is sent there is taken once."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from borealis.diagram.protection import Protection
from borealis.diagram.spec import Input
from borealis.entry.point import Entry, StreamConfig
from borealis.node.node import Node
from borealis.streams.queue import StandbyError
from borealis.wire.messages import BatchHead, Claim, Claimed, Guard
from borealis.wire.server import WireServer
from entry_pair import running

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC"))])
SPEC = Input.model_validate({"name": "a", "columns": "ts TIMESTAMP", "slack": "1 second"})
GUARD = Guard(protection=Protection(ha="passive", ping="20 ms"))
Nodes = list[tuple[Node, WireServer]]


def granted(claims: list[Claim]) -> list[Claimed]:
    return [Claimed(granted=True, incarnation=claim.incarnation) for claim in claims]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = []
    for name in ("node1", "node2"):
        node = Node(name, claim=granted)  # type: ignore[arg-type]
        server = WireServer(node).start()
        node.address, node.http = server.address, "http://127.0.0.1:1"
        made.append((node, server))
    yield made
    for node, server in made:
        node.close()
        server.close()


def batch(second: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([second * 1_000_000], SCHEMA.field(0).type)], SCHEMA)


def test_the_backup_takes_over_when_the_primary_is_gone(nodes: Nodes) -> None:
    (one, server), (two, _) = nodes
    entries = [Entry(SPEC, 1_000_000, StreamConfig("d/a", SCHEMA, epoch="e"), standby=b) for b in (False, True)]
    to_one = {"role": "backup", "partner": one.address, "partner_node": "node1"}
    two._begin(running(entries[1], GUARD.model_copy(update=to_one)))
    one._begin(running(entries[0], GUARD.model_copy(update={"partner": two.address, "partner_node": "node2"})))
    for number in range(3):
        one.entry("d/a").take("p", BatchHead(number=number), batch(number))
    with pytest.raises(StandbyError):
        two.entries["d", "in-a"].entry.take("p", BatchHead(number=3), batch(3))
    [told] = two.status().entries
    assert (told.state, told.guard.state if told.guard else "") == ("standby", "watching")
    server.close()
    assert entries[1].queue.wait_for_release(30)
    while two.entries["d", "in-a"].standby:
        pass
    while entries[1].standby:
        pass
    assert two.entry("d/a").known("p").number == 2
    assert two.entry("d/a").take("p", BatchHead(number=3), batch(3)).next_id == 4
    [told] = two.status().entries
    assert told.guard is not None
    assert (told.state, told.guard.incarnation, told.guard.state) == ("running", 2, "alone")
    [took] = told.guard.takeovers
    assert (took.primary, took.jumped) == ("node1", False)
