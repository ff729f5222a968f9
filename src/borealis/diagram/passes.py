"""From the diagram that a user draws to the one that is compiled, cut and deployed, in passes, in order.

A pass refuses what cannot be, or returns another diagram that gives the same tuples under the same outputs. What it
makes it names after the user's box that it is for, since errors, metrics and `explain` show that name. Done twice it
changes nothing: coordinator and nodes each start from the user's text, and a diagram that was rewritten may come again.
"""

from __future__ import annotations

from collections.abc import Callable

from borealis.diagram.boxes import Box
from borealis.diagram.harmless import require_harmless
from borealis.diagram.names import require_identifier
from borealis.diagram.spec import LATE, Input, Spec, origin
from borealis.errors import DiagramError

Pass = Callable[[Spec], Spec]


def names(spec: Spec) -> Spec:
    """Usable, and no two of a kind alike; inputs and boxes are of one kind, since arrows come from both."""
    starts = [*(("input", i.name) for i in spec.inputs), *(("box", box.name) for box in spec.boxes)]
    ends = [("output", output.name) for output in spec.outputs]
    for noun, name in (*starts, *ends):
        require_identifier(noun, name)
    for things in (starts, ends):
        seen: dict[str, str] = {}
        for noun, name in things:
            if name in seen:
                two = f"two {noun}{'es' if noun == 'box' else 's'}"
                what = two if seen[name] == noun else f"an {seen[name]} and a {noun}"
                raise DiagramError(f"{what} are called '{name}'", hint="rename one of them")
            seen[name] = noun
    return spec


def arrows(spec: Spec) -> Spec:
    """Each comes from an input, from an input's late tuples, or from a box."""
    known = set(spec.arrows())
    for box in spec.boxes:
        box.check_arity()
        for source in box.sources:
            spec.require_arrow(box, source, known)
    for output in spec.outputs:
        spec.require_arrow(output, output.source, known)
    return spec


def columns(spec: Spec) -> Spec:
    """No arrows in a circle, no length of time that is zero, and each box can stand on the columns that reach it.

    What expressions name is Spark's to check.
    """
    boxes = spec.topological()
    for box in spec.boxes:
        box.check_spans()
    found = {arrow: i.names for i in spec.inputs for arrow in (i.name, i.name + LATE)}
    for box in boxes:
        inputs = [found[source] for source in box.sources]
        box.check(inputs)
        found |= box.arrow_columns(inputs)
    return spec


def expressions(spec: Spec) -> Spec:
    """They compute from a tuple, and nothing in them runs code, reads files or asks for variables."""
    parts: list[Input | Box] = [*spec.inputs, *spec.boxes]
    for one in parts:
        for expression in one.expressions:
            try:
                require_harmless(expression)
            except DiagramError as e:
                raise one.wrong(e.message, e.hint) from None
    return spec


def ends(spec: Spec) -> Spec:
    """Every input is read, and everything leads to an output; what no client sees need not be computed."""
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


# Checks that hold of every diagram, also of one that is still being drawn.
SOUND: tuple[Pass, ...] = (names, arrows, columns, expressions)

PASSES: tuple[Pass, ...] = (*SOUND, ends)


def checked(spec: Spec, passes: tuple[Pass, ...] | None = None) -> Spec:
    """The diagram as the passes leave it; raises the first DiagramError that one finds."""
    for one in PASSES if passes is None else passes:
        spec = one(spec)
    return spec
