"""Programs of simulated units: Spark types each diagram once, for all nodes of all runs of this process."""

from __future__ import annotations

from functools import cache
from typing import Any

from borealis.compile.analyze import analyze, input_schema, time_of
from borealis.compile.lowering import Answers
from borealis.compile.unit import Compiled, compile_unit
from borealis.diagram.cut import Piece
from borealis.diagram.spec import ERRORS, Input, Spec
from borealis.kernels.time_of import TimeOf
from borealis.machine import Machine
from borealis.node.session import Session, columns_of


class Programs:
    """What Spark says of diagrams, remembered. Spark starts when it is first needed."""

    def __init__(self, spark: Any = None) -> None:
        self._spark, self._mine, self._closed = spark, spark is None, False
        self._types: dict[str, dict[str, Any]] = {}
        self._compiled: dict[tuple[str, int, Piece | None], Compiled] = {}
        self._answers: Answers = {}  # a diagram is cut in many ways, and most of its boxes are the same in all
        self._schemas: dict[Any, Any] = {}  # of inputs, by what their columns and keys say
        self._times: dict[Input, TimeOf] = {}

    def spark(self) -> Any:
        if self._closed:
            raise RuntimeError("a diagram comes that Spark has not compiled beforehand")
        if self._spark is None:
            from borealis.spark.session import session

            self._spark = session("local[1]", {"spark.app.name": "borealis sim"})
        return self._spark

    def types(self, spec: Spec) -> dict[str, Any]:
        key = _key(spec)
        if key not in self._types:
            self._types[key] = analyze(spec, self.spark())
        return self._types[key]

    def compiled(self, spec: Spec, buckets: int, piece: Piece | None) -> Compiled:
        key = (_key(spec), buckets, piece)
        if key not in self._compiled:
            errors = None if spec.errors == "fail" else spec.name + ERRORS  # of the whole; a piece has its own
            types = self.types(spec)
            errors = errors if piece is None else None
            how: Any = {"piece": piece, "schemas": types, "errors": errors, "answers": self._answers}
            self._compiled[key] = compile_unit(spec, self.spark(), buckets, **how)
        return self._compiled[key]

    def input_schema(self, one: Input) -> Any:
        said = (one.columns, one.key)
        if said not in self._schemas:
            self.spark()
            self._schemas[said] = input_schema(one)
        return self._schemas[said]

    def time_of(self, one: Input) -> TimeOf:
        if one not in self._times:
            self._times[one] = TimeOf(one.time) if one.time_expression is None else time_of(one, self.spark())
        return self._times[one]

    def close(self) -> None:
        """Let go of Spark, and stop one that was started here. What it has said stays; nothing else can be asked."""
        self._closed = True
        if self._spark is not None and self._mine:
            self._spark.stop()
        self._spark = None


@cache
def _key(spec: Spec) -> str:
    """The same for diagrams that Spark cannot tell apart."""
    inputs = tuple(one.model_copy(update={"durable": False}) for one in spec.inputs)
    return spec.model_copy(update={"inputs": inputs}).fingerprint()


class SimSession(Session):
    """The Spark of a simulated node: there at once."""

    def __init__(self, node: str, programs: Programs, machine: Machine) -> None:
        super().__init__(node, machine)
        self._programs = programs
        self.started(programs)

    def types(self, spec: Spec) -> dict[str, Any]:
        return self._programs.types(spec)

    def compiled(self, spec: Spec, buckets: int, piece: Piece) -> Compiled:
        return self._programs.compiled(spec, buckets, piece)

    def input_schema(self, one: Input) -> Any:
        return self._programs.input_schema(one)

    def time_of(self, one: Input) -> TimeOf:
        return self._programs.time_of(one)

    def check(self, spec: Spec) -> dict[str, str]:
        return columns_of(self.types(spec))
