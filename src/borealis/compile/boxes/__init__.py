"""How Spark runs each box, one file a box: what it must check of types, its plain batch form, and its steps.

A file here is the twin of the one of the same name in `diagram/boxes`, whose `kind` it is found by.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any, Protocol

from pyspark.sql import DataFrame

from borealis.compile.lowering import Lowering
from borealis.diagram.boxes.base import Box


class Form(Protocol):
    """What a file in this folder holds."""

    def check(self, box: Any, sources: list[DataFrame]) -> None:
        """Raise a DiagramError if it does not type; `sources` have no rows."""

    def batch(self, box: Any, inputs: list[DataFrame]) -> DataFrame | Mapping[str, DataFrame]:
        """It over finite frames that carry TIME and POSITION along; a frame, or one for each of its arrows."""

    def lower(self, box: Any, low: Lowering) -> None:
        """Add its steps; afterwards there is a flow for each of its arrows."""

    # And, where it does not need all columns of what it reads:
    # def reads(box, sources: list[DataFrame], wanted: dict[str, frozenset[str]]) -> list[frozenset[str]]
    # gives those of each source, where these are wanted of its arrows.


_FORMS: dict[str, Any] = {
    m.name: importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)
}


def form_of(box: Box) -> Form:
    form: Form = _FORMS[box.kind]
    return form


def batch_arrows(box: Box, inputs: list[DataFrame]) -> dict[str, DataFrame]:
    """Its batch form, a frame for each of its arrows."""
    found = form_of(box).batch(box, inputs)
    return {box.name: found} if isinstance(found, DataFrame) else dict(found)
