"""The Spark session of a node: orders wait for it, and it says what types a diagram has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from borealis.compile.analyze import analyze, input_schema, time_of
from borealis.compile.unit import Compiled, compile_unit
from borealis.diagram import passes
from borealis.diagram.cut import Piece
from borealis.diagram.spec import Input, Spec
from borealis.errors import ClusterError
from borealis.kernels.time_of import TimeOf
from borealis.machine import HERE, Machine
from borealis.spark.plan import check_plan
from borealis.tuples import KIND

READY_S = 120.0  # how long an order waits for Spark
SCHEMAS_MOST = 16  # diagrams whose types are remembered


class Session:
    """Comes some seconds after its node, or never."""

    def __init__(self, node: str, machine: Machine = HERE) -> None:
        self._node = node
        self.state: Literal["starting", "ready", "failed", "stopped"] = "starting"
        self._spark: Any = None
        self._known = machine.threads.event()
        self._schemas: dict[str, dict[str, Any]] = {}  # by a diagram's fingerprint

    def started(self, spark: Any) -> None:
        """It is there: orders can be carried out."""
        self._spark, self.state = spark, "ready"
        self._known.set()

    def failed(self) -> None:
        self.state = "failed"
        self._known.set()

    def get(self) -> Any:
        """Waits for it."""
        if not self._known.wait(READY_S) or self._spark is None:
            raise ClusterError(f"Spark did not start on {self._node}", hint="its log says why")
        return self._spark

    def types(self, spec: Spec) -> dict[str, Any]:
        """The Spark schema of every arrow; a diagram that is deployed is looked at once."""
        key = spec.fingerprint()
        if key not in self._schemas:
            found = analyze(spec, self.get())
            while len(self._schemas) >= SCHEMAS_MOST:
                self._schemas.pop(next(iter(self._schemas)))
            self._schemas[key] = found
        return self._schemas[key]

    def compiled(self, spec: Spec, buckets: int, piece: Piece) -> Compiled:
        """The program of a unit."""
        return compile_unit(spec, self.get(), buckets, piece=piece, schemas=self.types(spec))

    def input_schema(self, one: Input) -> Any:
        return input_schema(one)

    def time_of(self, one: Input) -> TimeOf:
        """How the rows of an input get their times."""
        return time_of(one, self.get())

    def check(self, spec: Spec) -> dict[str, str]:
        """The columns of every arrow, if the types are right, as Spark sees them, and the diagram could run."""
        types = self.types(spec)
        check_plan(spec, self.get(), types)
        return columns_of(types)


@lru_cache(64)
def spec_of(text: str) -> Spec:
    """A diagram that was sent, checked as where it was written."""
    return passes.checked(Spec.from_yaml(text))


def columns_of(types: Mapping[str, Any]) -> dict[str, str]:
    """The columns of each arrow as DDL, as its readers see them: kinds are words, in front."""
    found = {}
    for arrow, schema in types.items():
        columns = [f"{f.name} {f.dataType.simpleString().upper()}" for f in schema.fields if f.name != KIND]
        found[arrow] = ", ".join([f"{KIND} STRING", *columns] if len(columns) < len(schema.fields) else columns)
    return found
