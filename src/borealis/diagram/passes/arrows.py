"""Arrows: each comes from an input, from an input's late tuples, or from a box."""

from __future__ import annotations

from borealis.diagram.spec import Spec


def check(spec: Spec) -> Spec:
    known = set(spec.arrows())
    for box in spec.boxes:
        box.check_arity()
        for source in box.sources:
            if source not in known:
                e = spec.no_arrow(source)
                raise box.wrong(e.message, e.hint)
    for output in spec.outputs:
        if output.source not in known:
            e = spec.no_arrow(output.source)
            raise output.wrong(e.message, e.hint)
    return spec
