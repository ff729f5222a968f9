"""A diagram for people to look at: as text, and as a drawing in Mermaid's notation."""

from __future__ import annotations

from typing import Any

from borealis.diagram.spec import Spec, origin

LABEL_MOST = 60  # characters of a box's parameters


def text_of(spec: Spec) -> str:
    """A line for each input, box and output, each with where its tuples come from."""
    lines = [f"Diagram {spec.name}"]
    lines += [f"  input   {one.name}: {one.columns}, time {one.time}" for one in spec.inputs]
    lines += [f"  box     {box.name}: {box.kind} of {', '.join(box.sources)}{_parameters(box)}" for box in spec.boxes]
    lines += [f"  output  {one.name}: {one.source}" for one in spec.outputs]
    return "\n".join(lines)


def mermaid_of(spec: Spec) -> str:
    """Boxes and arrows; notebooks, GitHub and many editors draw them."""
    lines = ["flowchart LR"]
    lines += [f'  at_{one.name}(["{_quoted(one.name)}"])' for one in spec.inputs]
    lines += [f'  at_{box.name}["{_quoted(box.name + _parameters(box))}"]' for box in spec.boxes]
    lines += [f'  to_{one.name}(["{_quoted(one.name)}"])' for one in spec.outputs]
    for box in spec.boxes:
        lines += [_arrow(source, f"at_{box.name}") for source in box.sources]
    lines += [_arrow(one.source, f"to_{one.name}") for one in spec.outputs]
    return "\n".join(lines) + "\n"


def _arrow(source: str, target: str) -> str:
    start, side = origin(source), source[len(origin(source)) :]
    return f'  at_{start} -- "{_quoted(side)}" --> {target}' if side else f"  at_{start} --> {target}"


def _parameters(box: Any) -> str:
    body = {k: v for k, v in next(iter(box.plain().values())).items() if k != "from"}
    label = ", ".join(f"{key} {_value_text(value)}" for key, value in body.items())
    return f" ({label if len(label) <= LABEL_MOST else label[: LABEL_MOST - 3] + '...'})" if label else ""


def _value_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_value_text(one)}" for key, one in value.items())
    return " and ".join(map(_value_text, value)) if isinstance(value, list | tuple) else str(value)


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
