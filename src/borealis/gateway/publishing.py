"""Rows from curl on their way to entry points: in batches, each taken once, also when a node breaks off."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pyarrow as pa

from borealis.coordinator.cluster import Cluster
from borealis.coordinator.http_errors import NoEntryError, UnservedError
from borealis.coordinator.naming import locate
from borealis.gateway.events import CatalogRoute
from borealis.machine import HERE
from borealis.retrying import Retries
from borealis.wire.endpoints import Location
from borealis.wire.messages import BatchHead, Publish, Receipt

if TYPE_CHECKING:
    from borealis.client.publisher import Publisher

TAKEN_WITHIN_S = 60.0  # a full queue makes its publishers wait
SOON = Retries(give_up_s=2.0)  # a client of HTTP waits for a takeover, not for a node that is started again


def entry_of(cluster: Cluster, name: str) -> Location:
    """Where a stream is taken in; refused for one that is computed."""
    found = locate(cluster, name)
    if not found.entry:
        inputs = [f"{la.name}/{e.input}" for la in cluster.catalog.layouts() for e in la.entries]
        raise NoEntryError(
            f"stream '{found.stream}' is computed, no client can publish to it",
            hint=f"publish to {' or '.join(inputs)}",
        )
    return found


def schema_of(cluster: Cluster, location: Location) -> pa.Schema:
    """The columns of a stream, as its node has them."""
    from borealis.client import publisher  # here: it knows all sources, and the coordinator starts without

    return publisher.schema_of(cluster.nodes.at(location.address), location.stream)


class SharedPublishers:
    """A publisher for each stream that was sent rows, for all requests: one after the other, each until its batch is
    taken over.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._route, self._name = CatalogRoute(cluster), f"rest-{HERE.chance.token(12)}"
        self._turns: dict[str, threading.Lock] = {}
        self._idle: dict[str, Publisher] = {}

    def send(self, stream: str, batch: pa.RecordBatch, heartbeat: int | None = None, end: bool = False) -> Receipt:
        """Send a batch and wait until it is taken over."""
        with self._turns.setdefault(stream, threading.Lock()):
            publisher = self._publisher(stream, batch.schema)
            try:
                publisher.send_batch(batch)
                if heartbeat is not None:
                    publisher.heartbeat(heartbeat)
                if end:
                    publisher.end()
                receipt = publisher.flush(TAKEN_WITHIN_S)
                if not end:
                    self._idle[stream] = publisher
                return receipt
            except TimeoutError as error:
                raise UnservedError(str(error), hint="its queue is full, perhaps: see the status") from None
            finally:
                if self._idle.get(stream) is not publisher:
                    publisher.abandon()

    def _publisher(self, stream: str, schema: pa.Schema) -> Publisher:
        from borealis.client.publisher import Publisher, Publishing

        found = self._idle.pop(stream, None)
        if found is not None and not found.schema.equals(schema):  # the diagram was replaced, with other columns
            found.abandon()
            found = None
        return found or Publisher(self._route, stream, Publishing(name=self._name, retries=SOON))

    def close(self) -> None:
        """Hang up; a request that is sending at this moment goes on until the process ends."""
        for publisher in list(self._idle.values()):
            publisher.abandon()


def send_numbered(
    cluster: Cluster, stream: str, batch: pa.RecordBatch, publisher: str, head: BatchHead
) -> tuple[Receipt, bool]:
    """One batch under its sender's own name and number, and whether it had come before."""
    wanted, address = Publish(stream=stream, publisher=publisher), entry_of(cluster, stream).address
    with cluster.nodes.connect(address) as peer, peer.publish(wanted, batch.schema) as publication:
        if publication.known.number >= head.number:
            return publication.known, True
        publication.send(batch, head)
        return publication.wait(head.number, TAKEN_WITHIN_S), False
