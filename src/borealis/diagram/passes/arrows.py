"""Arrows: each comes from an input, from an input's late tuples, or from a box."""

from __future__ import annotations

from borealis.diagram.spec import Spec


def check(spec: Spec) -> Spec:
    known = set(spec.arrows())
    for box in spec.boxes:
        box.check_arity()
        for source in box.sources:
            spec.require_arrow(box, source, known)
    for output in spec.outputs:
        spec.require_arrow(output, output.source, known)
    return spec
