"""Windows: every length of time in a box is more than zero."""

from __future__ import annotations

from borealis.diagram.spec import Spec


def check(spec: Spec) -> Spec:
    for box in spec.boxes:
        box.check_spans()
    return spec
