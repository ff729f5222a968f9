"""Expressions: they compute from a tuple, and nothing in them runs code, reads files or asks for variables."""

from __future__ import annotations

from borealis.diagram.harmless import require_harmless
from borealis.diagram.spec import Spec
from borealis.errors import DiagramError


def check(spec: Spec) -> Spec:
    """Refuse expressions that could do more than compute."""
    for one in spec.inputs:
        if one.time_expression is not None:
            try:
                require_harmless(one.time_expression)
            except DiagramError as e:
                raise one.wrong(e.message, e.hint) from None
    for box in spec.boxes:
        for expression in box.expressions:
            try:
                require_harmless(expression)
            except DiagramError as e:
                raise box.wrong(e.message, e.hint) from None
    return spec
