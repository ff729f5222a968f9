"""Expressions: they compute from a tuple, and nothing in them runs code, reads files or asks for variables."""

from __future__ import annotations

from borealis.diagram.boxes import Box
from borealis.diagram.harmless import require_harmless
from borealis.diagram.spec import Input, Output, Spec
from borealis.errors import DiagramError


def check(spec: Spec) -> Spec:
    parts: list[Input | Box | Output] = [*spec.inputs, *spec.boxes, *spec.outputs]
    for one in parts:
        for expression in one.expressions:
            try:
                require_harmless(expression)
            except DiagramError as e:
                raise one.wrong(e.message, e.hint) from None
    return spec
