"""What every box is: a name, the arrows into it, and what it says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from borealis.diagram.durations import parse
from borealis.diagram.frozen import Frozen
from borealis.errors import DiagramError

# Hwang's operator taxonomy (3.2.2), from the strongest promise to the weakest; a diagram has the weakest of its boxes.
CLASSES = ("repeatable", "convergent-capable", "deterministic", "arbitrary")

Names = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]


class Box(Frozen):
    """An operator with its parameters; inert. `kernels/` and `compile/` know how to run it."""

    noun: ClassVar[str] = "box"
    kind: ClassVar[str] = ""
    stateful: ClassVar[bool] = False
    sources_min: ClassVar[int] = 1
    sources_max: ClassVar[int | None] = 1  # None: any number
    operator_class: ClassVar[str]  # its place in the operator taxonomy, one of CLASSES
    class_reason: ClassVar[str] = ""  # why its operator class is what it is
    unrevised: ClassVar[str] = ""  # why it cannot take rows that correct earlier ones; empty if it can
    holds_revised: ClassVar[bool] = False  # it has state where its tuples can be corrected: of those that still can
    outside: ClassVar[bool] = False  # it changes something that no commit of ours can take back
    expression_fields: ClassVar[tuple[str, ...]] = ()  # parameters that hold Spark SQL
    span_fields: ClassVar[tuple[str, ...]] = ()  # parameters that are lengths of time, more than zero

    name: str
    sources: Names = Field(description="say where its tuples come from")

    def __hash__(self) -> int:
        return hash((self.kind, self.name, self.sources))

    @property
    def nondeterminism(self) -> str:
        """Why it gives something else the next time, from the same input; empty if it does not."""
        return ""

    @property
    def holds_us(self) -> int | None:
        """How long a tuple may count after its own time; None: for ever, as of a stateful box that does not say."""
        return None if self.stateful else 0

    @property
    def expressions(self) -> list[str]:
        """All Spark SQL in it."""
        given = [value for field in self.expression_fields if (value := getattr(self, field)) is not None]
        return [text for value in given for text in (value.values() if isinstance(value, dict) else [value])]

    @property
    def grid_us(self) -> int:
        """It can emit only at multiples of this; 0 if it has no such grid."""
        return 0

    @property
    def reach_us(self) -> int:
        """How far back in time its state reaches without a grid; 0 if it does not."""
        return 0

    @property
    def ports(self) -> tuple[str, ...]:
        """What it gives, each as the end of an arrow's name: "" is the arrow that is called like the box itself."""
        return ("",)

    @property
    def arrows(self) -> list[str]:
        return [self.name + port for port in self.ports]

    def columns(self, inputs: list[list[str]]) -> list[str]:
        """The names of its output columns, given those of its inputs; where it does not say, as in the first."""
        return list(inputs[0])

    def arrow_columns(self, inputs: list[list[str]]) -> dict[str, list[str]]:
        return {arrow: self.columns(inputs) for arrow in self.arrows}

    def check(self, inputs: list[list[str]]) -> None:
        """Raise a DiagramError if it cannot stand on these input columns."""
        self.check_arity()
        try:
            self.examine(inputs)
        except DiagramError as e:
            raise self.wrong(e.message, e.hint) from None

    def check_arity(self) -> None:
        """Raise a DiagramError if the number of arrows into it is wrong."""
        n = len(self.sources)
        if n < self.sources_min or (self.sources_max is not None and n > self.sources_max):
            wanted = str(self.sources_min) if self.sources_min == self.sources_max else f"at least {self.sources_min}"
            raise self.wrong(f"a {self.kind} takes {wanted} input{'s' * (wanted != '1')}, not {n}", "mend its arrows")

    def check_spans(self) -> None:
        """Raise a DiagramError if a length of time is zero."""
        for what in self.span_fields:
            if getattr(self, what) is not None and parse(getattr(self, what)) == 0:
                raise self.wrong(f"'{what}' must be more than zero", f"give a {what} such as '1 second'")

    def examine(self, inputs: list[list[str]]) -> None:
        """What this kind of box checks; errors need not name the box."""

    def describe(self) -> str:
        """It, in one line for people."""
        raise NotImplementedError

    def plain(self) -> dict[str, Any]:
        body: dict[str, Any] = {"from": self.sources[0] if len(self.sources) == 1 else list(self.sources)}
        for field in type(self).model_fields:
            value = getattr(self, field)
            if field not in ("name", "sources") and value is not None:
                body[field] = list(value) if isinstance(value, tuple) else value
        return {self.kind: body}

    @classmethod
    def from_plain(cls, name: str, body: Mapping[str, Any]) -> Box:
        fields = dict(body)
        if "sources" in fields:
            raise DiagramError(f"box '{name}': unknown key 'sources'", hint="did you mean 'from'?")
        if "name" in fields:
            raise DiagramError(f"box '{name}': unknown key 'name'", hint="a box's name is the key it stands under")
        if "from" not in fields:
            raise DiagramError(f"box '{name}': 'from' is missing", hint="say where its tuples come from")
        return cls(name=name, sources=fields.pop("from"), **fields)


def flat(expression: str) -> str:
    """An expression on one line."""
    return " ".join(expression.split())
