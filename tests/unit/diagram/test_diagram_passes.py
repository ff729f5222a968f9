"""Every way for a whole diagram to be wrong, and what is said about it."""

from __future__ import annotations

import pytest

from borealis.diagram import Diagram, passes, window
from borealis.diagram.boxes.filter import Filter
from borealis.diagram.cut import cut
from borealis.diagram.spec import Spec
from borealis.errors import DiagramError

IN = '{columns: "ts TIMESTAMP, k STRING, v INT"}'

# Inputs, boxes and outputs as YAML, and the message; names stand for what is wrong.
WRONG = {
    "dangling arrow": (
        f"inputs: {{packets: {IN}}}\nboxes: {{f: {{filter: {{from: packet, predicate: v > 1}}}}}}\noutputs: {{o: f}}",
        "box 'f': no input or box 'packet' (has: packets, f). Hint: did you mean 'packets'?",
    ),
    "dangling output": (
        f"inputs: {{packets: {IN}}}\noutputs: {{o: packets.lat}}",
        "output 'o': no input or box 'packets.lat' (has: packets). Hint: did you mean 'packets.late'?",
    ),
    "late of a box": (
        f"inputs: {{p: {IN}}}\nboxes: {{f: {{filter: {{from: p, predicate: v > 1}}}}}}\noutputs: {{o: f.late}}",
        "output 'o': no input or box 'f.late' (has: p, f). Hint: did you mean 'p.late'?",
    ),
    "cycle": (
        f"inputs: {{p: {IN}}}\nboxes:\n  a: {{union: {{from: [p, c]}}}}\n  b: {{filter: {{from: a, predicate: v}}}}\n"
        "  c: {filter: {from: b, predicate: v}}\n  d: {filter: {from: c, predicate: v}}\noutputs: {o: d}",
        "a cycle: a -> b -> c -> a. Hint: a box cannot read what comes from itself: cut one of these arrows",
    ),
    "cycle of one": (
        f"inputs: {{p: {IN}}}\nboxes: {{a: {{union: {{from: [p, a]}}}}}}\noutputs: {{o: a}}",
        "a cycle: a -> a. Hint: a box cannot read what comes from itself: cut one of these arrows",
    ),
    "box called like an input": (
        f"inputs: {{p: {IN}}}\nboxes: {{p: {{filter: {{from: p, predicate: v}}}}}}\noutputs: {{o: p}}",
        "an input and a box are called 'p'. Hint: rename one of them",
    ),
    "two inputs of one name": (
        f"inputs:\n  p: {IN}\n  p: {IN}\noutputs: {{o: p}}",
        "bad YAML in line 5, column 3: 'p' appears twice. Hint: mend the text there",
    ),
    "unusable name": (
        f"inputs: {{1p: {IN}}}\noutputs: {{o: 1p}}",
        "input '1p' is not a usable name. Hint: use letters, digits and _, no digit first",
    ),
    "slide of zero": (
        f"inputs: {{p: {IN}}}\nboxes: {{a: {{aggregate: {{from: p, size: 1 s, slide: 0 s, "
        "exprs: {n: count(*)}}}}\noutputs: {o: a}",
        "box 'a': 'slide' must be more than zero. Hint: give a slide such as '1 second'",
    ),
    "join without a window": (
        f"inputs: {{p: {IN}}}\nboxes: {{j: {{join: {{from: [p, p], on: left.k = right.k}}}}}}\noutputs: {{o: j}}",
        "box 'j': 'within' is missing. Hint: a join needs a window, such as within: 10 seconds",
    ),
    "join with an empty window": (
        f"inputs: {{p: {IN}}}\nboxes: {{j: {{join: {{from: [p, p], on: left.k = right.k, "
        "within: 0 s}}}\noutputs: {o: j}",
        "box 'j': 'within' must be more than zero. Hint: give a within such as '1 second'",
    ),
    "unknown group column": (
        f"inputs: {{p: {IN}}}\nboxes: {{a: {{aggregate: {{from: p, by: kk, size: 1 s, exprs: {{n: count(*)}}}}}}}}\n"
        "outputs: {o: a}",
        "box 'a': no column 'kk' (has: ts, k, v). Hint: did you mean 'k'?",
    ),
    "unread input": (
        f"inputs: {{p: {IN}, q: {IN}}}\noutputs: {{o: p}}",
        "input 'q': is never read. Hint: draw an arrow from it, or drop the input",
    ),
    "box without an end": (
        f"inputs: {{p: {IN}}}\nboxes: {{f: {{filter: {{from: p, predicate: v}}}}}}\noutputs: {{o: p}}",
        "box 'f': leads to no output. Hint: end it with .output(name), or drop the box",
    ),
    "no output": (
        f"inputs: {{p: {IN}}}",
        "diagram 'd' has no output. Hint: end a stream with .output(name); in a file: 'outputs: {NAME: BOX}'",
    ),
    "no input": ("outputs: {}", "diagram 'd' has no input. Hint: add one with d.input(name, columns)"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_diagrams(what: str) -> None:
    text, message = WRONG[what]
    with pytest.raises(DiagramError) as e:
        Diagram.from_yaml(f"borealis: 1\nname: d\n{text}\n").validate()
    assert str(e.value) == message


def test_the_order_of_passes() -> None:
    assert [one.__module__.rsplit(".", 1)[1] for one in passes.PASSES] == [
        "names",
        "arrows",
        "cycles",
        "windows",
        "columns",
        "expressions",
        "revisions",
        "ends",
        "revisions",
    ]


def kept(spec: Spec) -> Spec:
    """Rewrites: in front of each output stands a box, called after the one that the user drew there."""
    boxes, outputs = list(spec.boxes), []
    for one in spec.outputs:
        name = one.source.removesuffix("_kept") + "_kept"
        if name not in {box.name for box in boxes}:
            boxes.append(Filter(name=name, sources=(one.source,), predicate="true"))
        outputs.append(one.model_copy(update={"source": name}))
    return spec.model_copy(update={"boxes": tuple(boxes), "outputs": tuple(outputs)})


def test_what_a_pass_returns_is_what_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES, kept))
    d = Diagram("d")
    d.input("p", "ts TIMESTAMP, v INT").filter("v > 1", name="big").output("o")
    spec = d.validate()
    assert [box.name for box in spec.boxes] == ["big", "big_kept"]
    assert passes.checked(spec) == spec  # it may come again
    assert [box.name for box in d.spec.boxes] == ["big"]  # what was drawn stays as it is, also for those who go on
    assert "kept" not in d.to_yaml()
    assert [piece.boxes for piece in cut(spec, local=True)] == [("big", "big_kept")]


def test_all_passes_that_are_there_change_nothing_the_second_time() -> None:
    d = Diagram("d")
    a = d.input("a", "ts TIMESTAMP, k STRING, v INT")
    a.union(a.late).aggregate(by="k", over=window("1 minute"), n="count(*)").output("o")
    assert passes.checked(d.validate()) == d.validate()
