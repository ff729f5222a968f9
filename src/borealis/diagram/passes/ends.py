"""Ends: every input is read, and everything leads to an output; what no client sees need not be computed."""

from __future__ import annotations

from borealis.diagram.spec import Spec, origin
from borealis.errors import DiagramError


def check(spec: Spec) -> Spec:
    if not spec.inputs:
        raise DiagramError(f"diagram '{spec.name}' has no input", hint="add one with d.input(name, columns)")
    if not spec.outputs:
        raise DiagramError(
            f"diagram '{spec.name}' has no output",
            hint="end a stream with .output(name); in a file: 'outputs: {NAME: BOX}'",
        )
    useful = {origin(output.source) for output in spec.outputs}
    for box in reversed(spec.topological()):
        if box.name not in useful:
            raise box.wrong("leads to no output", "end it with .output(name), or drop the box")
        useful |= {origin(source) for source in box.sources}
    for i in spec.inputs:
        if i.name not in useful:
            raise i.wrong("is never read", "draw an arrow from it, or drop the input")
    return spec
