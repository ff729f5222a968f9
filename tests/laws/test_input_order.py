"""Laws of the input manager: the order of events is a function of the inputs, never of batches, trains or threads."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from chance import SECOND, random_table, random_times
from harness import Pieces, examples, pieces_of
from hypothesis import given
from hypothesis import strategies as st

from borealis.diagram.spec import Input
from borealis.entry.admission import Cursor
from borealis.state.delta import from_stream
from borealis.trains.input_manager import InputManager
from borealis.trains.intake import Admission
from borealis.trains.location import read
from borealis.tuples import CAUSE, FIRST_TIME, LAST_TIME

SEEDS = st.integers(0, 2**32 - 1)
COLUMNS = {"k": "INT", "s": "STRING"}
Events = dict[str, list[Any]]


def random_inputs(rng: Random, rows: int, inputs: int) -> tuple[list[Input], dict[str, pa.Table]]:
    specs, tables = [], {}
    for name in "abc"[:inputs]:
        slack = rng.choice(["0 s", "1 s"])
        spec = Input(name=name, columns="ts TIMESTAMP, k INT, s STRING", slack=slack)  # type: ignore[call-arg]
        n = rng.choice([rows, rows // 2, 1, 0])
        stamps = random_times(rng, n, spec.slack_us, rng.choice([0, 0, -3 * SECOND]), tardy=rng.choice([0, 0.2]))
        specs.append(spec)
        tables[name] = random_table(rng, COLUMNS, stamps)
    return specs, tables


def events_of(specs: list[Input], sources: dict[str, Any], paces: dict[str, int], admission: Admission) -> Events:
    """All trains joined: what happened at each input, with the cause of each, and the cursors at the end."""
    schema = random_table(Random(0), COLUMNS, []).schema
    out: Events = {s.name: [] for s in specs}
    with tempfile.TemporaryDirectory() as home:
        manager = InputManager(
            specs, sources, {s.name: schema for s in specs}, paces, Path(home) / "trains", admission=admission
        )
        manager.start()
        number, final, next_cause = 0, False, 0
        standing = {s.name: FIRST_TIME for s in specs}
        try:
            while not final:
                number = manager.next_train(number, 10.0) or 0
                if not number:
                    raise manager.failure or TimeoutError("no train came")
                train, header = manager.train(number), manager.header(number)
                assert train.rows <= max(len(specs), admission.rows_most)  # a row of each live input always has room
                causes: list[int] = []
                for name, one in header["inputs"].items():
                    assert one["standing"] == standing[name]
                    for cause, bound in zip(one["cause"], one["bound"], strict=True):
                        assert bound > standing[name]
                        standing[name] = bound
                        out[name].append((cause, "bound", bound))
                        causes.append(cause)
                    for kind in ("rows", "late"):
                        if one[kind] is not None:
                            rows = from_stream(read(one[kind])).to_pylist()
                            out[name] += [(row.pop(CAUSE), kind, repr(row)) for row in rows]
                            causes += [at for at, *_ in out[name][-len(rows) :]]
                    assert train.cursors[name].boundary == standing[name]
                # causes count the events, without a gap, and go on where the last train ended
                assert sorted(causes) == list(range(next_cause, train.next_cause))
                next_cause, final = train.next_cause, train.final
                manager.release(number)
        finally:
            manager.stop()
    for name in standing:
        assert standing[name] == LAST_TIME
        out[name].sort()
    return out | {"cursors": [sorted((n, repr(c)) for n, c in manager.cursors().items())]}


@examples(40)
@given(SEEDS, st.integers(0, 25), st.integers(1, 3))
def test_file_like_inputs_are_merged_by_time_whatever_the_batches_and_trains(seed: int, rows: int, inputs: int) -> None:
    rng = Random(seed)
    specs, tables = random_inputs(rng, rows, inputs)
    paces = {s.name: rng.choice([1, 300_000, SECOND]) for s in specs}
    whole = events_of(specs, {n: Pieces([t]) for n, t in tables.items()}, paces, Admission())
    for _ in range(3):
        sources = {name: pieces_of(table, rng) for name, table in tables.items()}
        admission = Admission(rng.choice([1, 2, 3, 7, 1000]), rng.choice([1, 200, 64 << 20]))
        assert events_of(specs, sources, paces, admission) == whole
    # the tuple whose input had come less far goes first
    newest, order = dict.fromkeys(tables, FIRST_TIME), []
    stamps = {name: table["ts"].cast(pa.int64()).to_pylist() for name, table in tables.items()}
    for i, (name, times) in enumerate(stamps.items()):
        for at, time in enumerate(times):
            newest[name] = max(newest[name], time)
            order.append((newest[name], i, at, name))
    rows_in_order = sorted((e[0], name) for name in tables for e in whole[name] if e[1] != "bound")
    assert [name for _, name in rows_in_order] == [name for *_, name in sorted(order)]


@examples(15)
@given(SEEDS, st.integers(0, 25))
def test_one_live_input_has_the_order_of_a_file(seed: int, rows: int) -> None:
    rng = Random(seed)
    specs, tables = random_inputs(rng, rows, 1)
    whole = events_of(specs, {"a": Pieces([tables["a"]])}, {"a": SECOND}, Admission())
    live = {"a": pieces_of(tables["a"], rng, ordered=False)}
    assert events_of(specs, live, {"a": SECOND}, Admission(rng.choice([1, 3, 1000]))) == whole


@examples(15)
@given(SEEDS, st.integers(0, 25), st.integers(1, 2))
def test_no_tuple_is_lost_on_time_and_late_are_all(seed: int, rows: int, inputs: int) -> None:
    rng = Random(seed)
    specs, tables = random_inputs(rng, rows, inputs)
    sources = {name: pieces_of(table, rng, ordered=rng.random() < 0.5) for name, table in tables.items()}
    found = events_of(specs, sources, {s.name: SECOND for s in specs}, Admission(rng.choice([1, 4, 1000])))
    for name, table in tables.items():
        mine = [row for _, kind, row in found[name] if kind != "bound"]
        assert mine == [repr(row) for row in table.to_pylist()]


@examples(15)
@given(SEEDS, st.integers(1, 25), st.integers(1, 2))
def test_a_manager_that_starts_at_a_train_goes_on_with_the_same_events(seed: int, rows: int, inputs: int) -> None:
    rng = Random(seed)
    specs, tables = random_inputs(rng, rows, inputs)
    schema = random_table(Random(0), COLUMNS, []).schema
    paces = {s.name: SECOND for s in specs}

    def trains(cursors: dict[str, Cursor] | None, next_cause: int, made: int, most: int) -> list[Any]:
        with tempfile.TemporaryDirectory() as home:
            manager = InputManager(
                specs, {n: pieces_of(t, rng) for n, t in tables.items()}, {s.name: schema for s in specs}, paces,
                Path(home) / "trains", cursors=cursors, next_cause=next_cause, trains=made, admission=Admission(most),
            )  # fmt: skip
            manager.start()
            out, number = [], made
            try:
                while not out or not out[-1][0].final:
                    number = manager.next_train(number, 10.0) or 0
                    assert number, manager.failure
                    train, events = manager.train(number), []
                    for name, one in manager.header(number)["inputs"].items():
                        events += [(c, name, b) for c, b in zip(one["cause"], one["bound"], strict=True)]
                        for kind in ("rows", "late"):
                            if one[kind] is not None:
                                found = from_stream(read(one[kind])).to_pylist()
                                events += [(r.pop(CAUSE), name, kind + repr(r)) for r in found]
                    out.append((train, sorted(events)))
                    manager.release(number)
            finally:
                manager.stop()
            return out

    first = trains(None, 0, 0, rng.choice([1, 3, 7]))
    stop = rng.randrange(len(first))
    train = first[stop][0]
    if train.final:
        return
    rest = trains(train.cursors, train.next_cause, train.number, rng.choice([1, 4, 1000]))
    assert [e for _, events in rest for e in events] == [e for _, events in first[stop + 1 :] for e in events]
    assert rest[-1][0].cursors == first[-1][0].cursors
