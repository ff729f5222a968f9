"""Diagrams and rows for simulated runs: each is sound, each way to run one is allowed, and a seed draws the same."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from borealis.diagram import passes
from borealis.diagram.cut import cut
from borealis.diagram.spec import Input, Spec
from borealis.entry.admission import Cursor, EntryPoint
from borealis.errors import InputError
from borealis.sim.diagrams import DIAGRAMS, UNITS_MAX, allowed, cuts_of, spec_of, yaml_of
from borealis.sim.plan import Options, drawn_plan
from borealis.sim.rows import Drawn
from borealis.sim.shapes import rows
from borealis.tuples import KIND

BOXES = {"filter", "map", "union", "aggregate", "join", "route", "bsort", "resample", "drop", "history", "revisions"}
SCHEMA = pa.schema(
    {"ts": pa.timestamp("us", "UTC"), "k": pa.int32(), "v": pa.float64(), "s": pa.string(), "b": pa.bool_()}
    | {"d": pa.decimal128(10, 2), "e": pa.decimal128(2, 2), "day": pa.date32(), "t": pa.timestamp("us", "UTC")}
    | {"l": pa.list_(pa.int8()), "r": pa.struct({"x": pa.int64()}), "m": pa.map_(pa.string(), pa.int64())}
)


def test_all_kinds_of_boxes_are_there_and_every_diagram_is_sound() -> None:
    assert {box.kind for name in DIAGRAMS for box in spec_of(name).boxes} == BOXES
    for name in DIAGRAMS:
        spec = spec_of(name)
        assert spec == passes.checked(Spec.from_yaml(yaml_of(name)))
        assert not spec.protection
        for one in spec.inputs:
            assert rows(one.name, 0, 3).schema.names == [*one.names, *([KIND] if one.key else [])]


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_has_one_to_three_units_and_some_protection_in_each_form(name: str) -> None:
    spec, found = spec_of(name), Counter[int]()
    for cuts in cuts_of(name):
        units = len(cut(spec, cuts))
        found[units] += 1
        ways = allowed(spec, cuts)
        assert ("passive", "precise") in ways
        assert ("amnesia", "gap") in ways
        assert ("amnesia", "precise") not in ways
        assert not any(approach == "none" for approach, _ in ways)
    assert found.keys() == set(range(1, UNITS_MAX + 1))


def test_what_cannot_be_promised_is_not_drawn() -> None:
    assert ("upstream-backup", "no-loss") not in allowed(spec_of("tens"), ())
    assert ("upstream-backup", "precise") in allowed(spec_of("single"), ())


def test_seeds_draw_all_diagrams_and_only_ways_that_are_allowed() -> None:
    plans = [drawn_plan(seed, Options()) for seed in range(100)]
    assert {plan.name for plan in plans} == DIAGRAMS.keys()
    for plan in plans[:20]:
        assert (plan.approach, plan.guarantee) in allowed(spec_of(plan.name), plan.cuts)


@pytest.mark.parametrize("slack_us", [0, 3_000])
def test_drawn_rows_are_in_time_and_few_of_a_kind(slack_us: int) -> None:
    batch = Drawn(SCHEMA, "ts", "1", slack_us).rows(0, 400)
    assert batch.equals(Drawn(SCHEMA, "ts", "1", slack_us).rows(0, 400))
    assert batch.schema == SCHEMA
    entry = EntryPoint(Input(name="i", columns="ts TIMESTAMP", slack=f"{slack_us} microseconds"), 1, Cursor())
    assert not entry.admit(batch).late.any()
    steps = np.diff(batch.column("ts").cast(pa.int64()).to_numpy())
    assert (steps < 0).any() == (slack_us > 0)
    for name in SCHEMA.names[1:]:
        values = list(map(str, batch.column(name).to_pylist()))
        assert 1 < len(set(values)) < 200
        assert "None" not in values


def test_rows_whose_time_is_no_column_cannot_be_drawn() -> None:
    with pytest.raises(InputError, match="it is no such column"):
        Drawn(SCHEMA, "timestamp_millis(k)", "1")
