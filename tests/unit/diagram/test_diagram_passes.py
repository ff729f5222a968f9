"""Every way for a whole diagram to be wrong, and what is said about it."""

from __future__ import annotations

import pytest

from borealis.diagram import Diagram, passes, window
from borealis.diagram.boxes.filter import Filter
from borealis.diagram.boxes.history import History
from borealis.diagram.cut import cut, even_cuts
from borealis.diagram.passes.revisions import revised_arrows
from borealis.diagram.spec import Spec
from borealis.errors import DiagramError

IN = '{columns: "ts TIMESTAMP, k STRING, v INT"}'
CORRECTED = '{columns: "ts TIMESTAMP, k STRING, v INT", key: k, history: 1 hour}'

REPLAYED = "aggregate: {{from: {}, {}, history_at: {}, exprs: {{m: max(v)}}}}"


def replayed(source: str = "p", over: str = "size: 1 s", at: str = "p", boxes: str = "") -> str:
    """A diagram whose aggregate shall be given rows again."""
    inputs = f"inputs: {{p: {CORRECTED}, q: {IN}}}\n"
    return f"{inputs}boxes:\n{boxes}  w: {{{REPLAYED.format(source, over, at)}}}\noutputs: {{o: w, q: q}}"


LEAVE_OUT = "Hint: leave history_at out: then it keeps the rows it needs"

# Inputs, boxes and outputs as YAML, and the message; names stand for what is wrong.
WRONG = {
    "history at no input": (
        replayed(at="pp"),
        "box 'w': history_at: no input 'pp'. Hint: did you mean 'p'?",
    ),
    "history at an input without a key": (
        replayed(source="q", at="q"),
        "box 'w': history_at: input 'q' has no key, so that it never takes a row back. Hint: give 'q' a key and a "
        "history, or leave history_at out",
    ),
    "history at an input that it does not read": (
        replayed(source="q"),
        f"box 'w': history_at: it reads 'q', which does not come from 'p'. {LEAVE_OUT}",
    ),
    "history at an input beyond a union": (
        replayed("f", boxes="  u: {union: {from: [p, q]}}\n  f: {filter: {from: u, predicate: v > 1}}\n"),
        "box 'w': history_at: 'u', a union, is on the way from 'p': its tuples are not those of the input. "
        + LEAVE_OUT,
    ),
    "history at an input for a window of tuples": (
        replayed(over="count: 5"),
        f"box 'w': history_at for a window of tuples, of which results hang on more than one pane. {LEAVE_OUT}",
    ),
    "history at an input for a window with a timeout": (
        replayed(over="size: 1 s, timeout: 1 s"),
        f"box 'w': history_at for a window with a timeout, of which results hang on more than one pane. {LEAVE_OUT}",
    ),
    "a second arrow into an aggregate": (
        replayed(source="[p, p]"),
        "box 'w': a aggregate takes 1 input, not 2. Hint: mend its arrows",
    ),
    "a window behind a sort of corrections": (
        f"inputs: {{p: {CORRECTED}}}\nboxes:\n  s: {{bsort: {{from: p, value: v, buffer: 9}}}}\n"
        "  f: {filter: {from: s, predicate: v > 1}}\n"
        "  w: {aggregate: {from: f, size: 1 s, exprs: {n: count(*)}}}\noutputs: {o: w}",
        "box 'w': 'f' carries corrections of what 's' sorts: what leaves that, and when, would change with every tuple "
        "before it that is corrected. Hint: draw it from what 's' reads, or leave the history of the input out",
    ),
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
    "an output without corrections to leave out": (
        f"inputs: {{p: {IN}}}\noutputs: {{o: {{from: p, revisions: final}}}}",
        "output 'o': nothing that leads to it is ever corrected. Hint: give an input before it a history, or leave out "
        "what shall become of corrections",
    ),
    "important corrections, of which none are given": (
        f"inputs: {{p: {IN}}}\noutputs: {{o: {{from: p, revisions: drop, important: v > 1}}}}",
        "output 'o': 'important' and revisions: drop. Hint: leave 'important' out: with revisions drop no changes are "
        "given",
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
        "replays",
        "ends",
        "revisions",
        "replays",
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


@pytest.mark.parametrize("call", ["rand()", "current_timestamp"])
def test_what_gives_something_else_the_next_time_is_no_way_for_corrections(call: str) -> None:
    d = Diagram("d")
    p = d.input("p", "ts TIMESTAMP, k STRING", key="k", history="1 hour")
    with pytest.raises(DiagramError, match=r"'p' carries corrections, and .*cannot be taken back"):
        p.map(k="k", x=call)


def test_all_passes_that_are_there_change_nothing_the_second_time() -> None:
    d = Diagram("d")
    a = d.input("a", "ts TIMESTAMP, k STRING, v INT")
    a.union(a.late).aggregate(by="k", over=window("1 minute"), n="count(*)").output("o")
    assert passes.checked(d.validate()) == d.validate()


def test_an_output_that_wants_less_gets_a_box_of_its_own() -> None:
    d = Diagram("d")
    a = d.input("a", "ts TIMESTAMP, v INT", late="revise", history="1 hour")
    a.output("every")
    a.output("once", revisions="final")
    a.output("early", revisions="drop")
    a.filter("v > 0").output("some", important="v > 9")
    spec = d.validate()
    assert {one.name: one.source for one in spec.outputs} == {
        "every": "a~history",
        "once": "once~revisions",
        "early": "early~revisions",
        "some": "some~revisions",
    }
    assert revised_arrows(spec).keys() == {"a~history", "filter_1", "some~revisions"}
    assert spec.box("once~revisions").holds_us == 3_600_000_000
    assert [spec.box(f"{name}~revisions").stateful for name in ("once", "early", "some")] == [True, False, True]
    assert passes.checked(spec) == spec
    assert Spec.from_yaml(spec.to_yaml()) == spec
    with pytest.raises(DiagramError, match="output 'odd': 'java_method' runs"):
        a.output("odd", important="java_method('x', 'y')")


def test_rows_come_again_through_copies_of_the_boxes_on_the_way() -> None:
    d = Diagram("d")
    p = d.input("p", "ts TIMESTAMP, id INT, k STRING, v DOUBLE", key="id", history="1 hour")
    slim = p.map(group="`K`", odd="upper(k)", v="v", name="slim")
    dear, _ = slim.route(dear="v > 5", otherwise="rest", name="worth")
    over = window("10 seconds", "4 seconds")
    dear.aggregate(by=["group", "odd"], over=over, m="max(v)", history_at="p", name="w").output("o")
    p.aggregate(over=window("1 minute"), m="max(v)", history_at="p", name="all").output("a")
    spec = d.validate()
    assert {box.name: box.sources for box in spec.boxes if "again" in box.name or box.kind == "aggregate"} == {
        "w": ("worth.dear", "worth~again~w.dear"),
        "worth~again~w": ("slim~again~w",),
        "slim~again~w": ("p~history.again~w",),
        "all": ("p~history", "p~history.again~all"),
    }
    history = spec.box("p~history")
    assert isinstance(history, History)
    assert history.replays == {"p~history.again~w": (2_000_000, ("k",)), "p~history.again~all": (60_000_000, ())}
    assert revised_arrows(spec).keys() == {"p~history", "slim", "worth.dear", "worth.rest", "w", "all"}
    assert passes.checked(spec) == spec
    assert Spec.from_yaml(spec.to_yaml()) == spec
    assert Diagram.from_yaml(d.to_yaml()).validate() == spec


def test_what_gives_rows_again_is_in_one_unit_with_what_gets_them() -> None:
    d = Diagram("d")
    p = d.input("p", "ts TIMESTAMP, id INT, v DOUBLE", key="id", history="1 hour").filter("v > 1", name="some")
    highest = p.aggregate(over=window("1 minute"), m="max(v)", history_at="p", name="w")
    highest.filter("m > 3", name="behind").output("o")
    spec = d.validate()
    for cuts, places in ((["w"], {}), (["some"], {}), ((), {"p~history": "node1", "w": "node2"})):
        with pytest.raises(DiagramError, match="box 'w': history_at: it cannot be in another unit than '"):
            cut(spec, cuts, places)
    assert [piece.boxes[-1] for piece in cut(spec, ["behind"])] == ["w", "behind"]
    assert even_cuts(spec, 3) == ["behind"]
