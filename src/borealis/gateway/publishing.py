"""Rows from curl on their way to entry points: in batches, each taken once, also when a node breaks off."""

from __future__ import annotations

import base64
import threading
import uuid

import pyarrow as pa

from borealis.coordinator.cluster import Cluster
from borealis.coordinator.http_errors import NoEntryError
from borealis.coordinator.naming import Location, locate
from borealis.coordinator.nodes import Publication
from borealis.errors import BorealisError, StreamError, WireError
from borealis.wire.messages import BatchHead, Publish, Receipt, SchemaIs, SchemaOf

ATTEMPTS = 3
GOODBYE_SECONDS = 0.2
TAKEN_WITHIN_SECONDS = 60.0  # a full queue makes its publishers wait


def entry_of(cluster: Cluster, name: str) -> Location:
    """Where a stream is taken in; refused for one that is computed."""
    found = locate(cluster, name)
    if not found.entry:
        inputs = [f"{la.name}/{e.input}" for la in cluster.catalog.layouts() for e in la.entries]
        raise NoEntryError(
            f"stream '{found.stream}' is computed, nobody can publish to it", hint=f"publish to {' or '.join(inputs)}"
        )
    return found


def schema_of(cluster: Cluster, location: Location) -> pa.Schema:
    """The columns of a stream, as its node has them."""
    told = cluster.nodes.act(location.address, "schema", SchemaOf(stream=location.stream), SchemaIs)
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(told.arrow, validate=True)))
    except (ValueError, pa.ArrowException) as error:
        raise WireError(f"{location.address} told a schema of {location.stream} that is none: {error}") from None


class Ways:
    """The ways into all streams that someone has sent rows to."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._name = f"rest~{uuid.uuid4().hex[:12]}"
        self._ways: dict[str, Way] = {}
        self._guard = threading.Lock()

    def way(self, stream: str) -> Way:
        """The way into one stream, by its full name."""
        with self._guard:
            if stream not in self._ways:
                self._ways[stream] = Way(self._cluster, stream, self._name)
            return self._ways[stream]

    def close(self) -> None:
        """Hang up; whoever is sending at this moment goes on until the process ends."""
        with self._guard:
            for way in self._ways.values():
                way.close()


class Way:
    """The way into one stream, for all who send to it: batches go one after the other, each until it is taken over."""

    def __init__(self, cluster: Cluster, stream: str, publisher: str) -> None:
        self._cluster, self._stream, self._publisher = cluster, stream, publisher
        self._open: Publication | None = None
        self._number = -1  # of the last batch that was taken over
        self._guard = threading.Lock()

    def send(self, batch: pa.RecordBatch, heartbeat: int | None = None, end: bool = False) -> Receipt:
        """Send a batch and wait until it is taken over."""
        with self._guard:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    return self._send(batch, heartbeat, end, again=attempt > 1)
                except BorealisError as error:
                    self._open = None
                    broken = isinstance(error, WireError | StreamError)  # the entry point went, perhaps to come anew
                    if not broken or attempt == ATTEMPTS:
                        raise
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Hang up, unless someone is sending."""
        if self._guard.acquire(blocking=False):
            try:
                if self._open is not None:
                    self._open.close(GOODBYE_SECONDS)
            except BorealisError:
                pass  # the other side was faster
            finally:
                self._open = None
                self._guard.release()

    def _send(self, batch: pa.RecordBatch, heartbeat: int | None, end: bool, again: bool) -> Receipt:
        if self._open is None:
            location = entry_of(self._cluster, self._stream)
            wanted = Publish(stream=location.stream, publisher=self._publisher)
            self._open = self._cluster.nodes.publish(location.address, wanted, batch.schema)
            known = self._open.known
            if again and known.number == self._number + 1:
                self._number = known.number
                return known  # the answer was lost, not the batch
            self._number = known.number
        number = self._number + 1
        self._open.send(batch, BatchHead(number=number, heartbeat=heartbeat, end=end))
        receipt = self._open.wait(number, TAKEN_WITHIN_SECONDS)
        self._number = number
        return receipt


def send_numbered(
    cluster: Cluster, stream: str, batch: pa.RecordBatch, publisher: str, head: BatchHead
) -> tuple[Receipt, bool]:
    """One batch under its sender's own name and number, and whether it had come before."""
    location = entry_of(cluster, stream)
    publication = cluster.nodes.publish(location.address, Publish(stream=stream, publisher=publisher), batch.schema)
    if publication.known.number >= head.number:
        publication.close()
        return publication.known, True
    publication.send(batch, head)
    receipt = publication.wait(head.number, TAKEN_WITHIN_SECONDS)
    publication.close()
    return receipt, False
