"""Drop: sheds tuples, by a chance that is a function of the tuple, by a predicate, or by what a tuple is worth."""

from __future__ import annotations

import math
from typing import ClassVar

from borealis.diagram import sql
from borealis.diagram.boxes.base import Box, Names, flat
from borealis.diagram.names import require_columns
from borealis.errors import DiagramError

PARTS = 1_000_000  # a rate is counted in millionths
SEEDS = 2**63  # a seed is a BIGINT that is not negative


class Drop(Box):
    """Drops the tuples that fulfil all that is given: a share of them (`rate`), `where`, worth less than `below`.

    The choice by rate is a hash of the tuple's columns and the seed, so equal tuples share one fate; with `key` a hash
    of these columns only, so that a key is dropped as a whole. A null condition or utility drops nothing.
    """

    kind: ClassVar[str] = "drop"
    operator_class: ClassVar[str] = "repeatable"  # not Hwang's random filter, which throws dice and is arbitrary
    class_reason: ClassVar[str] = "each tuple is looked at alone: its chance is a hash of its own columns"
    expression_fields: ClassVar[tuple[str, ...]] = ("where", "utility")

    rate: float | None = None
    seed: int = 0
    key: Names = ()
    where: str | None = None
    utility: str | None = None
    below: float | None = None

    @property
    def parts(self) -> int:
        """The rate in millionths."""
        return round((self.rate or 0.0) * PARTS)

    def examine(self, inputs: list[list[str]]) -> None:
        if self.rate is None and self.where is None and self.utility is None:
            raise DiagramError("nothing says what to drop", hint="give a rate such as 0.3, or where=")
        if self.rate is not None and not 0 <= self.rate <= 1:
            raise DiagramError(f"a rate of {self.rate}", hint="give a share between 0 (none) and 1 (all)")
        if not 0 <= self.seed < SEEDS:
            raise DiagramError(f"a seed of {self.seed}", hint="give a whole number from 0 to 2**63 - 1")
        if self.key and self.rate is None:
            raise DiagramError("a key without a rate", hint="say which share of the keys to drop, such as rate 0.3")
        if (self.utility is None) != (self.below is None):
            hint = 'give both: utility="sev / 10", below=0.4'
            raise DiagramError("'utility' says what a tuple is worth, 'below' from where on it stays", hint=hint)
        if self.below is not None and not math.isfinite(self.below):
            raise DiagramError(f"below {self.below}", hint="give a number, as a utility is: from 0 to 1")
        for what, text in (("condition", self.where), ("utility", self.utility)):
            if text is not None and sql.is_empty(text):
                raise DiagramError(f"the {what} is empty", hint="give an expression, or leave it out")
        require_columns(self.key, inputs[0])

    def describe(self) -> str:
        what = "all" if self.rate is None else f"{100 * self.rate:g} %"
        of = f" of {', '.join(self.key)}" if self.key else ""
        conditions = [flat(self.where)] if self.where is not None else []
        conditions += [f"{flat(self.utility)} < {self.below:g}"] if self.utility is not None else []
        return f"drop {what}{of}" + (f" where {' and '.join(conditions)}" if conditions else "")
