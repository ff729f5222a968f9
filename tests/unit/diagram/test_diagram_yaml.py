"""A diagram survives being written down, whatever its strings; a bad text is refused in one line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from borealis.diagram import Diagram, Spec, notation, window
from borealis.diagram.boxes import BOXES
from borealis.diagram.boxes.aggregate import Aggregate
from borealis.diagram.boxes.filter import Filter
from borealis.diagram.boxes.join import Join
from borealis.diagram.boxes.map import Map
from borealis.diagram.boxes.union import Union
from borealis.diagram.differences import differences
from borealis.diagram.durations import show
from borealis.diagram.model import Input, Output
from borealis.errors import DiagramError

GOLDEN = """\
borealis: 1
name: traffic
inputs:
  packets: {columns: 'ts TIMESTAMP, src STRING, bytes INT', time: ts, slack: 2 seconds}
boxes:
  filter_1:
    filter: {from: packets, predicate: bytes > 100}
  map_1:
    map:
      from: filter_1
      exprs: {src: src, kb: bytes / 1024.0, one: '1', 'true': 'null', on: '''é: 日本'''}
  aggregate_1:
    aggregate:
      from: map_1
      by: [src]
      size: 10 seconds
      slide: 1 second
      exprs: {n: count(*), kb: sum(kb)}
  join_1:
    join:
      from: [map_1, packets]
      on: left.src = right.src
      within: 10 milliseconds
outputs:
  per_source: aggregate_1
  pairs: join_1
  too_late: packets.late
"""


def traffic() -> Diagram:
    d = Diagram("traffic")
    packets = d.input("packets", "ts TIMESTAMP, src STRING, bytes INT", slack="2 s")
    named = {"true": "null", "on": "'é: 日本'"}
    big = packets.filter("bytes > 100").map({"src": "src", "kb": "bytes / 1024.0", "one": "1"} | named)
    per_source = big.aggregate(by=["src"], over=window("10 seconds", "1 second"), n="count(*)", kb="sum(kb)")
    per_source.output("per_source")
    big.join(packets, on="left.src = right.src", within="10 ms").output("pairs")
    packets.late.output("too_late")
    return d


def test_golden() -> None:
    assert traffic().to_yaml() == GOLDEN
    assert Diagram.from_yaml(GOLDEN).spec == traffic().validate()
    assert Diagram.from_yaml(GOLDEN).spec.fingerprint() == traffic().spec.fingerprint()


def test_short_forms_are_read() -> None:
    text = """
    borealis: 1
    name: traffic
    inputs:
      packets: {columns: "ts TIMESTAMP, src STRING", slack: 2000 ms, idle: null}
    boxes:
      filter_1: {filter: {from: packets, predicate: true}}
      aggregate_1: {aggregate: {from: filter_1, by: src, size: 10 seconds, exprs: {n: count(*)}}}
    outputs: {per_source: aggregate_1}
    """
    spec = Diagram.from_yaml(text).validate()
    assert spec.input("packets").slack == "2 seconds"
    assert spec.input("packets").time == "ts"
    assert spec.input("packets").idle is None
    assert spec.box("filter_1") == Filter(name="filter_1", sources=("packets",), predicate="true")
    assert Diagram.from_yaml(spec.to_yaml()).spec == spec


def test_save_and_load(tmp_path: Path) -> None:
    traffic().save(tmp_path / "t.yaml")
    assert Diagram.load(tmp_path / "t.yaml").spec == traffic().spec
    assert Diagram.load(str(tmp_path / "t.yaml")).to_yaml() == GOLDEN


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)
texts = st.text(max_size=30)
durations = st.integers(0, 10**13).map(show)
exprs = st.dictionaries(texts, texts, max_size=4)
columns = st.text(st.characters(exclude_characters="`", exclude_categories=["C", "Z"]), min_size=1, max_size=9).map(
    lambda odd: f"ts TIMESTAMP, `x{odd}` INT"
)
boxes = st.one_of(
    st.builds(Filter, name=names, sources=st.tuples(names), predicate=texts),
    st.builds(Map, name=names, sources=st.tuples(names), exprs=exprs),
    st.builds(Union, name=names, sources=st.tuples(names, names, names)),
    st.builds(
        Aggregate,
        name=names,
        sources=st.tuples(names),
        by=st.lists(texts, max_size=3).map(tuple),
        size=durations,
        slide=durations,
        exprs=exprs,
    ),
    st.builds(Join, name=names, sources=st.tuples(names, names), on=texts, within=durations),
)
later = st.none() | st.integers(1, 10**13).map(show)
outputs = st.one_of(
    st.builds(Output, name=names, source=names, revisions=st.sampled_from(["all", "final", "drop"])),
    st.builds(
        Output, name=names, source=names, important=texts.map("v{}".format), full=st.sampled_from(["wait", "drop"])
    ),
)
specs = st.builds(
    Spec,
    name=texts.filter(bool),
    inputs=st.lists(
        st.builds(
            Input,
            name=names,
            columns=columns,
            time=st.just("ts"),
            slack=durations,
            idle=later,
            every=later,
            late=st.sampled_from(["keep", "fail"]),
        ),
        max_size=2,
        unique_by=lambda i: i.name,
    ).map(tuple),
    boxes=st.lists(boxes, max_size=4, unique_by=lambda box: box.name).map(tuple),
    outputs=st.lists(outputs, max_size=2, unique_by=lambda o: o.name).map(tuple),
)


@given(specs)
def test_any_spec_round_trips(spec: Spec) -> None:
    text = spec.to_yaml()
    back = Spec.from_yaml(text)
    assert back == spec
    assert [list(b.exprs) for b in back.boxes if isinstance(b, Map)] == [
        list(b.exprs) for b in spec.boxes if isinstance(b, Map)
    ]
    assert back.to_yaml() == text
    assert back.fingerprint() == spec.fingerprint()


@pytest.mark.parametrize(
    "odd", ["\n", "\r\n", "\x85", "\u2028", "\u2029", "\ufeff", "\t", "\0", "\x7f", "\xa0", "😀", " "]
)
def test_odd_characters_survive(odd: str) -> None:
    for predicate in (odd, f"a{odd}", f"{odd}a", f"a {odd} b", f"a{odd}{odd}b: #"):
        spec = Spec(name=predicate, boxes=(Map(name="m", sources=("s",), exprs={predicate: predicate}),))
        assert Spec.from_yaml(spec.to_yaml()) == spec


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for whole in (text, f"borealis: 1\nname: d\ninputs: {text}", f"borealis: 1\nname: d\nboxes: {{f: {text}}}"):
        with suppress(DiagramError):
            Diagram.from_yaml(whole)


HEAD = "borealis: 1\nname: d\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a diagram. Hint: its first line is 'borealis: 1'"),
        ("borealis: 2\nname: d", "a diagram of version 2. Hint: this Borealis reads version 1"),
        ("borealis: 1", "the diagram has no name. Hint: add a line such as 'name: traffic'"),
        (HEAD + "input: {}", "diagram: unknown key 'input'. Hint: did you mean 'inputs'?"),
        (
            HEAD + "inputs: [a]",
            "'inputs' must hold one entry per name, not ['a']. Hint: write 'inputs:' and indent them",
        ),
        (
            HEAD + "inputs: {p: {columns: ts TIMESTAMP, slak: 1 s}}",
            "input 'p': unknown key 'slak'. Hint: did you mean 'slack'?",
        ),
        (
            HEAD + "inputs: {p: {time: ts}}",
            "input 'p': 'columns' is missing. Hint: write them as in \"ts TIMESTAMP, src STRING\"",
        ),
        (
            HEAD + "boxes: {f: {filtr: {from: p}}}",
            "box 'f': no kind of box 'filtr'. Hint: did you mean 'filter'?",
        ),
        (
            HEAD + "boxes: {f: {filter: {from: p, predicat: a}}}",
            "box 'f': unknown key 'predicat'. Hint: did you mean 'predicate'?",
        ),
        (
            HEAD + "boxes: {f: {filter: {from: p}}}",
            "box 'f': 'predicate' is missing. Hint: give a condition, such as predicate: bytes > 100",
        ),
        (
            HEAD + "boxes: {f: {filter: {predicate: a}}}",
            "box 'f': 'from' is missing. Hint: say where its tuples come from",
        ),
        (
            HEAD + "boxes: {f: {}}",
            f"box 'f' must have one kind. Hint: write one of {', '.join(BOXES)}, and its parameters under it",
        ),
        (HEAD + "outputs: {o: [a]}", "output 'o': 'source' must be text, not ['a']"),
        (
            HEAD + "x: !!python/object/apply:os.system [ls]",
            "bad YAML in line 3, column 4: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/object/apply:os.system'. Hint: mend the text there",
        ),
        (
            "a: [",
            "bad YAML in line 1, column 5: expected the node content, but found '<stream end>'. "
            "Hint: mend the text there",
        ),
        ("[" * 3000, "bad YAML: nested too deep. Hint: a diagram needs five levels"),
    ],
)
def test_bad_texts(text: str, message: str) -> None:
    with pytest.raises(DiagramError) as e:
        Diagram.from_yaml(text)
    assert str(e.value) == message


def test_bad_files(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "other.yaml").write_text("a: 1")
    for name, part in (
        ("none.yaml", "No such file or directory. Hint: check the path"),
        ("bad.yaml", "not UTF-8 text. Hint: is it a diagram?"),
        ("other.yaml", "other.yaml: not a diagram. Hint:"),
        (".", "Is a directory"),
    ):
        with pytest.raises(DiagramError) as e:
            Diagram.load(tmp_path / name)
        assert part in str(e.value)
    with pytest.raises(DiagramError, match="cannot write"):
        traffic().save(tmp_path / "no" / "t.yaml")


def test_other_readers_see_the_same() -> None:
    """Only `on`, which YAML 1.1 takes for true, looks different to a plain loader."""
    seen = yaml.safe_load(GOLDEN)
    assert seen["boxes"]["map_1"]["map"]["exprs"]["one"] == "1"
    assert seen["boxes"]["map_1"]["map"]["exprs"]["true"] == "null"


ALIASES = "[&a0 [x, x], &a1 [*a0, *a0]]"


@pytest.mark.parametrize(
    "text",
    [
        f"borealis: {ALIASES}",
        f"borealis: 1\nname: a\ninputs: {ALIASES}",
        "borealis: 1\nname: a\ninputs: {p: &p {columns: ts TIMESTAMP}, q: *p}\noutputs: {o: p, r: q}",
        "borealis: 1\nname: &n a\ninputs: {p: {columns: ts TIMESTAMP}}\noutputs: {o: p, *n : p}",
    ],
)
def test_nothing_stands_for_something_else(text: str) -> None:
    with pytest.raises(DiagramError, match=r"bad YAML in line \d, column \d+: an alias \(\*\w+\): write out"):
        Spec.from_yaml(text)


def test_what_stands_in_two_places_is_written_twice() -> None:
    shared = {"columns": ["a", "b"]}
    assert notation.load(notation.dump({"one": shared, "other": shared})) == {"one": shared, "other": shared}


MANY = "[" + ", ".join(["x"] * 2_000) + "]"


@pytest.mark.parametrize(
    "text",
    [
        f"borealis: {MANY}",
        f"borealis: {'1' * 2_000}",
        f"borealis: 1\nname: a\ninputs: {MANY}",
        f"borealis: 1\nname: a\ninputs: {{i: {MANY}}}",
        f"borealis: 1\nname: a\ninputs: {{i: {{columns: {MANY}, time: t}}}}",
        f"borealis: 1\nname: a\nprotection: {MANY}",
        f"borealis: 1\nname: a\nprotection: {{b: {MANY}}}",
    ],
)
def test_what_is_wrong_is_told_briefly_however_long_it_is(text: str) -> None:
    with pytest.raises(DiagramError) as e:
        Spec.from_yaml(text)
    assert len(str(e.value)) < 300


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("bytes > 100", "bytes > 200", ["box 'filter_1': predicate 'bytes > 100' there, 'bytes > 200' here"]),
        ("kb: sum(kb)", "kb: max(kb)", ["box 'aggregate_1': kb 'sum(kb)' there, 'max(kb)' here"]),
        ("{n: count(*), kb", "{kb", ["box 'aggregate_1': n 'count(*)' there, not given here"]),
        ("slack: 2 seconds", "slack: 1 second", ["input 'packets': slack '2 seconds' there, '1 second' here"]),
        ("per_source: agg", "by_source: agg", ["output 'per_source' is called 'by_source' here"]),
        ("  pairs: join_1\n", "", ["output 'pairs' is only there"]),
        ("pairs: join_1", "pairs: join_1\n  more: join_1", ["output 'more' is only here"]),
        ("pairs: join_1", "pairs: map_1", ["output 'pairs': from 'join_1' there, 'map_1' here"]),
        (
            "filter: {from: packets, predicate: bytes > 100}",
            "union: {from: [packets]}",
            ["box 'filter_1': a filter there"],
        ),
        ("name: traffic", "name: other", ["called 'traffic' there, 'other' here"]),
        ("  per_source: aggregate_1\n  pairs: join_1", "  pairs: join_1\n  per_source: aggregate_1", ["another order"]),
        ("bytes > 100", "bytes > 100", []),
    ],
)
def test_what_tells_one_diagram_from_another(was: str, now: str, said: list[str]) -> None:
    assert was in GOLDEN
    found = differences(Spec.from_yaml(GOLDEN), Spec.from_yaml(GOLDEN.replace(was, now)))
    assert len(found) == len(said), found
    assert all(part in whole for part, whole in zip(said, found, strict=True)), found
