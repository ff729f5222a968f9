"""What tells one diagram from another, in words that name box and parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from borealis.diagram.spec import Spec
from borealis.errors import article, brief

SHOWN_MAX = 4  # differences in one sentence; the rest is counted


def differences(there: Spec, here: Spec) -> list[str]:
    """Each difference in a few words: `box 'filter_1': predicate 'bytes > 100' there, 'bytes > 200' here`."""
    found = [f"called '{there.name}' there, '{here.name}' here"] if there.name != here.name else []
    for noun in ("input", "box", "output"):
        found += _of_kind(noun, _named(there, noun), _named(here, noun))
    if not found and there.to_yaml() != here.to_yaml():
        found.append("its inputs, boxes or outputs stand in another order, or their protection is another")
    return found


def sentence(found: list[str]) -> str:
    """The first few of them in one sentence.

    >>> sentence(["a", "b", "c", "d", "e", "f"])
    'a; b; c; d; and 2 more'
    """
    more = len(found) - SHOWN_MAX
    return "; ".join([*found[:SHOWN_MAX], *([f"and {more} more"] if more > 0 else [])])


def _named(spec: Spec, noun: str) -> dict[str, Any]:
    if noun == "box":
        return {box.name: {"kind": box.kind, **box.plain()[box.kind]} for box in spec.boxes}
    if noun == "input":
        return {one.name: one.plain() for one in spec.inputs}
    return {one.name: one.body() for one in spec.outputs}


def _of_kind(noun: str, there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    gone = [name for name in there if name not in here]
    new = [name for name in here if name not in there]
    for name in list(gone):
        other = next((n for n in new if here[n] == there[name]), None)
        if other is not None:
            gone.remove(name)
            new.remove(other)
            yield f"{noun} '{name}' is called '{other}' here"
    yield from (f"{noun} '{name}' is only there" for name in gone)
    yield from (f"{noun} '{name}' is only here" for name in new)
    for name, body in there.items():
        if name in here and here[name] != body:
            yield f"{noun} '{name}': {', '.join(_of_body(body, here[name]))}"


def _of_body(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    """Of two sets of parameters; those of some boxes have more below them."""
    if there.get("kind") != here.get("kind"):
        yield f"{article(there['kind'])} there, {article(here['kind'])} here"
        return
    for key in {**there, **here}:
        one, other = there.get(key), here.get(key)
        if one == other:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _of_body(one, other)
        else:
            yield f"{key} {_shown(one)} there, {_shown(other)} here"


def _shown(value: Any) -> str:
    return "not given" if value is None else f"'{value}'" if isinstance(value, str) else brief(value)
