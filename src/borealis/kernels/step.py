"""A step of a unit's program, and what every stateful kernel is."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from borealis.kernels.expr import Expr, from_json
from borealis.kernels.flow import Flow
from borealis.state.delta import Delta, TableSpec


@dataclass(frozen=True)
class Step:
    """One kernel run: `op` over the flows `sources` gives the flow `out`."""

    op: str  # filter, map, union, or a file in this folder that has a `make`
    out: str
    sources: Sequence[str]
    box: str
    parted: bool
    schema: str  # of `out`
    options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def predicate(self) -> Expr:
        """Of a filter."""
        return from_json(self.options["predicate"])

    @cached_property
    def exprs(self) -> list[tuple[str, Expr]]:
        """Of a map: its columns."""
        return [(name, from_json(e)) for name, e in self.options["exprs"]]


class Kernel(Protocol):
    """What a stateful box does to a train. All it remembers is in its tables; two copies that get the same deltas, or
    run the same trains, hold the same.

    One with a method `begin(train, bucket, notice)` is shown the header of each train before it gets its rows, and
    where to report what keeps it waiting.
    """

    tables: ClassVar[tuple[TableSpec, ...]]

    @property
    def step(self) -> Callable[..., tuple[Flow, Delta]]:
        """Take a train's rows and boundaries, a flow per source: what comes of them, and what changed in the tables."""
        ...

    def apply(self, delta: Delta) -> None:
        """Catch up with a change that another copy made."""

    def tables_now(self) -> dict[str, pa.Table]:
        """The whole state, each table in key order."""
        ...


def schema_text(schema: pa.Schema) -> str:
    """A schema as text that fits into JSON."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


@cache
def schema_of(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
