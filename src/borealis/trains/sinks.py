"""The sinks of a unit: opened where the last commit left them, written train by train, made whole at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from borealis.connectors.sink import FollowingSink, Sink
from borealis.errors import BorealisError, OutputError
from borealis.kernels.flow import Flow
from borealis.tuples import headed, kinds_apart, with_header, with_kinds


class Sinks:
    """By the names of their outputs. Those that run a user's code come first: what they refuse has gone to no file."""

    def __init__(self, sinks: Mapping[str, Sink], schemas: Mapping[str, pa.Schema], headers: bool) -> None:
        self._sinks = dict(sorted(sinks.items(), key=lambda item: item[1].durable))
        self._headers = headers
        self._schemas = {name: self._shown(schemas[name]) for name in sinks}
        self.places = {name: place_of(sink) for name, sink in sinks.items()}
        self.positions: dict[str, Any] = {}  # as of the last commit

    def __iter__(self) -> Iterator[str]:
        return iter(self._sinks)

    def _shown(self, schema: pa.Schema) -> pa.Schema:
        rows, kind = kinds_apart(schema.empty_table())
        if self._headers:
            return headed(rows.schema)
        return schema if kind is None else with_kinds(rows, kind).schema

    def open(self, header: dict[str, Any] | None, train: int) -> None:
        """Go on where the commit of a train left them; an output that the earlier run did not have starts afresh."""
        self.positions = {n: p for n, p in header["sinks"].items() if n in self._sinks} if header else {}
        before = header.get("places", {}) if header else {}
        for name, sink in self._sinks.items():
            went, goes = before.get(name), self.places[name]
            moved = OutputError(
                f"output '{name}' went to {went and went[1]} up to train {train:,}, not to {goes[1]}",
                hint="let it go there again, or give another state directory to start over",
            )
            if self.positions.get(name) and went is not None and went[0] != goes[0]:
                raise moved
            try:
                sink.open(self._schemas[name], self.positions.get(name))
            except OutputError:
                if went is None or went == goes:
                    raise
                raise moved from None

    def write(self, name: str, flow: Flow, first_id: int) -> None:
        rows, kind = kinds_apart(flow.rows)
        if self._headers:
            rows = with_header(rows, first_id, flow.time, kind)
        elif kind is not None:
            rows = with_kinds(rows, kind)
        self._sinks[name].write(rows)

    def flush(self, durable: bool) -> dict[str, Any]:
        """Where each stands then."""
        return {name: sink.flush(durable) for name, sink in self._sinks.items()}

    def committed(self) -> None:
        """The positions are those of a commit: sinks that wait for it go on."""
        for name, sink in self._sinks.items():
            if isinstance(sink, FollowingSink):
                sink.committed(self.positions[name])

    def check(self) -> None:
        """Raises why a sink failed that writes behind the commits."""
        for sink in self._sinks.values():
            if (failed := getattr(sink, "failure", None)) is not None:
                raise failed

    def close(self, complete: bool) -> None:
        """Make all of them whole; raises what went wrong first, behind the last."""
        errors: list[BorealisError] = []
        for name, sink in self._sinks.items():
            try:
                if sink.durable and not complete:  # a train that failed may have got as far as this file
                    sink.open(self._schemas[name], self.positions.get(name))
                sink.close(complete)
            except BorealisError as error:
                errors.append(error)
        if errors:
            raise errors[0]


def place_of(sink: Sink) -> list[str]:
    """How a sink counts its positions, and where it leads, for a later run to compare."""
    where = getattr(sink, "target", None)
    if isinstance(where, Path):
        return [type(sink).__name__, str(where.absolute())]
    topic = getattr(sink, "topic", None)
    return [type(sink).__name__, f"topic {topic}"] if topic else ["rows", "no file"]
