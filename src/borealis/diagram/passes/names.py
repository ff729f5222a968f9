"""Names: usable, and no two of a kind alike; inputs and boxes are of one kind, since arrows come from both."""

from __future__ import annotations

from borealis.diagram.boxes.history import history_of
from borealis.diagram.boxes.revisions import revisions_of
from borealis.diagram.names import require_identifier
from borealis.diagram.passes import replays
from borealis.diagram.spec import Spec
from borealis.errors import DiagramError


def check(spec: Spec) -> Spec:
    starts = [*(("input", i.name) for i in spec.inputs), *(("box", box.name) for box in spec.boxes)]
    ends = [("output", output.name) for output in spec.outputs]
    made = {history_of(one.name) for one in spec.inputs} | {revisions_of(one.name) for one in spec.outputs}
    made |= replays.made_names(spec)
    for noun, name in (*starts, *ends):
        if name not in made:
            require_identifier(noun, name)
    _distinct(starts)
    _distinct(ends)
    return spec


def _distinct(things: list[tuple[str, str]]) -> None:
    seen: dict[str, str] = {}
    for noun, name in things:
        if name in seen:
            what = (
                f"two {noun}{'es' if noun == 'box' else 's'}" if seen[name] == noun else f"an {seen[name]} and a {noun}"
            )
            raise DiagramError(f"{what} are called '{name}'", hint="rename one of them")
        seen[name] = noun
