"""Laws of the state log: load(merge(base, deltas)) is the live state, whatever was merged, cut or applied twice."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import SECOND, random_table, random_times
from harness import examples
from hypothesis import given
from hypothesis import strategies as st

from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.aggregate import AggregateKernel
from borealis.kernels.bsort import BSortKernel
from borealis.kernels.count_windows import CountWindows
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.join import JoinKernel
from borealis.kernels.resample import VALUE, ResampleKernel
from borealis.kernels.timed_windows import TimedWindows
from borealis.state import log as state_log
from borealis.state.cache import Cache
from borealis.state.delta import Change, Delta, TableSpec, merge, merge_deltas, pack, unpack
from borealis.state.log import StateLog, mapped, stretch_name
from borealis.tuples import LAST_TIME

SEEDS = st.integers(0, 2**32 - 1)

# -- changes of one table, against a dict

SPEC = TableSpec("t", ("k", "g"), floor="k")
NO_FLOOR = TableSpec("t", ("k", "g"))
Twin = dict[tuple[int, int], int]


def change_of(puts: Twin, cuts: list[tuple[int, int]], floor: int | None) -> Change:
    columns = {"k": [k for k, _ in puts], "g": [g for _, g in puts], "v": list(puts.values())}
    put = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
    keys = {"k": [k for k, _ in cuts], "g": [g for _, g in cuts]}
    cut = pa.table({name: pa.array(values, pa.int64()) for name, values in keys.items()}) if cuts else None
    return Change(put, cut, floor)


def apply_slowly(spec: TableSpec, state: Twin, change: Change) -> Twin:
    """What `Change` says it means."""
    cut = set() if change.cut is None else {(r["k"], r["g"]) for r in change.cut.to_pylist()}
    state = {key: v for key, v in state.items() if key not in cut}
    if spec.floor is not None and change.floor is not None:
        state = {key: v for key, v in state.items() if key[0] >= change.floor}
    return state | {(r["k"], r["g"]): r["v"] for r in change.put.to_pylist()}


@st.composite
def some_changes(draw: st.DrawFn) -> tuple[TableSpec, list[Change]]:
    spec = draw(st.sampled_from([SPEC, NO_FLOOR]))
    key = st.tuples(st.integers(0, 5), st.integers(0, 2))
    changes, floor = [], 0
    for _ in range(draw(st.integers(1, 6))):
        rises = spec.floor is not None and draw(st.booleans())
        if rises:
            floor += draw(st.integers(0, 2))
        puts = {k: v for k, v in draw(st.dictionaries(key, st.integers(0, 99), max_size=5)).items() if k[0] >= floor}
        changes.append(change_of(puts, draw(st.lists(key, max_size=3)), floor if rises else None))
    return spec, changes


@examples(200)
@given(
    some_changes(), st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 2)), st.integers(100, 199)), st.data()
)
def test_a_merged_change_does_what_its_parts_do(some: tuple[TableSpec, list[Change]], base: Twin, data: Any) -> None:
    spec, changes = some
    after = [base]
    for change in changes:
        after.append(apply_slowly(spec, after[-1], change))
    start = data.draw(st.integers(0, len(changes) - 1))
    stop = data.draw(st.integers(start + 1, len(changes)))
    merged = merge(spec, changes[start:stop])
    for already in range(start, stop + 1):  # also where some of them were applied already
        assert apply_slowly(spec, after[already], merged) == after[stop]
    keys = merged.put.select(["k", "g"]).to_pylist()
    assert len({tuple(k.values()) for k in keys}) == len(keys)
    # merging merged ones is merging all
    middle = data.draw(st.integers(start + 1, stop))
    parts = [c for c in (changes[start:middle], changes[middle:stop]) if c]
    assert apply_slowly(spec, base, merge(spec, [merge(spec, p) for p in parts])) == apply_slowly(spec, base, merged)
    back = unpack(pack({"t": merged}))["t"]
    assert (back.put, back.cut, back.floor) == (merged.put, merged.cut, merged.floor)


@given(some_changes())
def test_from_nothing_a_whole_merge_needs_no_cuts(some: tuple[TableSpec, list[Change]]) -> None:
    spec, changes = some
    state: Twin = {}
    for change in changes:
        state = apply_slowly(spec, state, change)
    whole = merge_deltas([spec], [{"t": c} for c in changes], whole=True)["t"]
    assert whole.cut is None
    assert apply_slowly(spec, {}, whole) == state


# -- kernels and their deltas

COLUMNS = {"k": "INT", "s": "STRING", "v": "DOUBLE", "m": "DECIMAL(10,2)"}
CALLS = [
    Call("count", None, pa.int64()), Call("sum", "v", pa.float64()), Call("sum", "m", pa.decimal128(20, 2)),
    Call("min", "s", pa.string()), Call("last", "s", pa.string()), Call("stddev", "v", pa.float64()),
    Call("max", "v", pa.float64()), Call("collect_list", "s", pa.list_(pa.string())),
    Call("max_by", "s", pa.string(), ("v",)), Call("count_distinct", "s", pa.int64(), ("m",)),
    Call("mode", "s", pa.string()), Call("percentile", "v", pa.float64(), (), (0.5,)),
    Call("corr", "v", pa.float64(), ("m",)),
]  # fmt: skip
Kernel = AggregateKernel | CountWindows | TimedWindows | JoinKernel | BSortKernel | ResampleKernel


def schema() -> pa.Schema:
    return random_table(Random(0), COLUMNS, []).schema


def aggregate_kernel(rng: Random) -> AggregateKernel:
    size, slide = rng.choice([(4, 2), (2, 2), (1, 3), (3, 2), (5, 1)])
    by = rng.choice([["k"], ["k", "s"], [], ["v"]])
    return AggregateKernel(schema(), by, size * SECOND, slide * SECOND, CALLS)


def count_kernel(rng: Random) -> CountWindows:
    size, slide = rng.choice([(4, 2), (2, 2), (1, 3), (3, 2), (5, 1)])
    by = rng.choice([["k"], ["k", "s"], [], ["v"]])
    timeout = rng.choice([None, None, SECOND // 2, 3 * SECOND])
    return CountWindows(schema(), by, size, slide, timeout, CALLS, ["v", "m", "s"])


def timed_kernel(rng: Random) -> TimedWindows:
    size, slide = rng.choice([(4, 2), (2, 2), (1, 3), (3, 2), (5, 1)])
    by = rng.choice([["k"], ["k", "s"], [], ["v"]])
    timeout = rng.choice([1, SECOND // 2, 3 * SECOND])
    return TimedWindows(schema(), by, size * SECOND, slide * SECOND, timeout, CALLS)


def join_kernel(rng: Random) -> JoinKernel:
    columns = [("left", "s", "a"), ("right", "v", "b")]
    return JoinKernel(schema(), schema(), rng.choice([[("k", "k")], []]), rng.choice([1, 3]) * SECOND, columns)


def bsort_kernel(rng: Random) -> BSortKernel:
    by = rng.choice([["k"], ["k", "s"], []])
    return BSortKernel(schema(), rng.choice(["v", "s", "m", "k"]), by, rng.choice([1, 2, 3, 10]), schema().names)


def resample_kernel(rng: Random) -> ResampleKernel:
    how, by, value = rng.choice(["previous", "nearest", "linear", None]), rng.choice([["k"], []]), schema().field("v")
    given = pa.schema([*(schema().field(name) for name in by), value.with_name(VALUE)])
    calls = [] if how else [Call("count", None, pa.int64()), Call("sum", VALUE, pa.float64())]
    return ResampleKernel(schema(), given, by, rng.choice([1, 3]) * SECOND, how, calls)


def with_value(flow: Flow) -> Flow:
    """As what a resample looks at: `v` is the value."""
    return flow.with_rows(flow.rows.rename_columns([VALUE if n == "v" else n for n in flow.rows.column_names]))


def random_flow(rng: Random, rows: int, start: int) -> list[Flow]:
    """A stream as one flow per row, with a boundary behind it now and then."""
    stamps = random_times(rng, rows, 2 * SECOND, start)
    table = random_table(rng, COLUMNS, stamps)
    flows, standing = [], -(2**63)
    for i, time in enumerate(stamps):
        later = min(stamps[i + 1 :], default=LAST_TIME)
        bound = LAST_TIME if i == rows - 1 else later // SECOND * SECOND
        rises = bound > standing and (rng.random() < 0.6 or i == rows - 1)
        one = np.array([i], np.int64)
        at = Bounds(standing, 2 * one + 1 if rises else one[:0], np.array([bound]) if rises else one[:0])
        flows.append(Flow(table.slice(i, 1), np.array([time], np.int64), 2 * one, 0 * one, at))
        standing = bound if rises else standing
    return flows


def joined(flows: list[Flow]) -> Flow:
    """Flows that follow each other as one."""
    bounds = [f.bounds for f in flows]
    return Flow(
        pa.concat_tables([f.rows for f in flows]),
        *(np.concatenate([getattr(f, name) for f in flows]) for name in ("time", "cause", "sub")),
        Bounds(bounds[0].standing, *(np.concatenate([getattr(b, name) for b in bounds]) for name in ("cause", "time"))),
    )


def cut_up(rng: Random, flows: list[Flow]) -> list[Flow]:
    places = sorted({0, len(flows), *(rng.randrange(len(flows)) for _ in range(rng.randrange(2, 16)))})
    return [joined(flows[a:b]) for a, b in pairwise(places)]


def history(rng: Random, rows: int) -> tuple[Any, list[tuple[Flow, ...]]]:
    """How to make a kernel, and the trains it gets."""
    kinds = [aggregate_kernel, count_kernel, timed_kernel, bsort_kernel, join_kernel, resample_kernel]
    kind, seed = rng.choice(kinds), rng.randrange(2**32)
    start = rng.choice([0, -3_000_000_000 * SECOND])
    left = cut_up(rng, random_flow(rng, rows, start))
    if kind not in (join_kernel, resample_kernel):
        return lambda: kind(Random(seed)), [(f,) for f in left]
    right = cut_up(rng, random_flow(rng, rows, start))
    if kind is resample_kernel:
        right = [with_value(flow) for flow in right]
    trains = list(zip(left, right, strict=False))
    for f, rest in ((0, left[len(trains) :]), (1, right[len(trains) :])):
        for more in rest:  # the other side has ended
            other = trains[-1][1 - f]
            nothing = Flow(other.rows.slice(0, 0), *(other.time[:0],) * 3, Bounds(other.bounds.final))
            trains.append((more, nothing) if f == 0 else (nothing, more))
    return lambda: kind(Random(seed)), _renumbered(trains)


def _renumbered(trains: list[tuple[Flow, ...]]) -> list[tuple[Flow, ...]]:
    """Causes in one order over both inputs."""
    out, at = [], 0
    for train in trains:
        flows = []
        for flow in train:
            every = np.unique(np.concatenate([flow.cause, flow.bounds.cause]))
            cause = at + np.searchsorted(every, flow.cause)
            bounds = Bounds(flow.bounds.standing, at + np.searchsorted(every, flow.bounds.cause), flow.bounds.time)
            flows.append(Flow(flow.rows, flow.time, cause, flow.sub, bounds))
            at += len(every)
        out.append(tuple(flows))
    return out


def state(kernel: Kernel) -> dict[str, list[str]]:
    return {name: [repr(r) for r in table.to_pylist()] for name, table in kernel.tables_now().items()}


def sorted_state(kernel: Kernel) -> dict[str, list[str]]:
    return {name: sorted(rows) for name, rows in state(kernel).items()}


@examples(80)
@given(SEEDS, st.integers(1, 30))
def test_a_kernel_loaded_from_any_merge_of_its_deltas_is_the_live_one(seed: int, rows: int) -> None:
    rng = Random(seed)
    make, trains = history(rng, rows)
    live, deltas, states = make(), [], []
    for flows in trains:
        _, delta = live.step(*flows)
        deltas.append(unpack(pack(delta)))
        states.append(sorted_state(live))
    for upto in {rng.randrange(len(deltas)) for _ in range(4)} | {len(deltas) - 1}:
        loaded, at = make(), 0
        while at <= upto:
            stop = rng.randint(at + 1, upto + 1)
            loaded.apply(merge_deltas(live.tables, deltas[at:stop], whole=at == 0 and rng.random() < 0.5))
            at = stop
        assert sorted_state(loaded) == states[upto]


@examples(80)
@given(SEEDS, st.integers(1, 30))
def test_a_kernel_may_catch_up_with_what_it_partly_knows(seed: int, rows: int) -> None:
    rng = Random(seed)
    make, trains = history(rng, rows)
    live, deltas, states = make(), [], []
    for flows in trains:
        deltas.append(unpack(pack(live.step(*flows)[1])))
        states.append(sorted_state(live))
    # a worker ran some trains itself, then catches up with a stretch that starts before where it stands, then goes on
    stands = rng.randrange(len(trains) + 1)
    behind = make()
    for flows in trains[:stands]:
        behind.step(*flows)
    first = rng.randrange(stands + 1)
    last = rng.randint(stands, len(trains))
    if last > first:
        behind.apply(merge_deltas(live.tables, deltas[first:last], whole=False))
    assert last == 0 or sorted_state(behind) == states[last - 1]
    for number, flows in enumerate(trains[last:], last):
        behind.step(*flows)
        assert sorted_state(behind) == states[number]


@examples(40)
@given(SEEDS, st.integers(1, 30))
def test_a_loaded_kernel_goes_on_like_the_live_one(seed: int, rows: int) -> None:
    rng = Random(seed)
    make, trains = history(rng, rows)
    live, deltas, outputs = make(), [], []
    for flows in trains:
        out, delta = live.step(*flows)
        deltas.append(delta)
        outputs.append(repr((out.rows.to_pylist(), out.time.tolist(), out.cause.tolist(), out.sub.tolist())))
    start = rng.randrange(len(trains))
    other = make()
    if start:
        other.apply(merge_deltas(live.tables, deltas[:start], whole=True))
    for number in range(start, len(trains)):
        out, delta = other.step(*trains[number])
        assert repr((out.rows.to_pylist(), out.time.tolist(), out.cause.tolist(), out.sub.tolist())) == outputs[number]
        assert pack(delta) == pack(
            deltas[number]
        )  # the same bytes: a retried task may be committed in place of another


# -- the log itself


def loaded_from(log: StateLog, key: tuple[str, int], make: Any) -> Kernel:
    kernel: Kernel = make()
    for first, last in log.manifest().get(f"{key[0]}.{key[1]}", []):
        kernel.apply(unpack(mapped(f"{log.root}/{stretch_name(key, first, last)}")))
    return kernel


@examples(40)
@given(SEEDS, st.integers(5, 40))
def test_a_worker_catches_up_from_wherever_it_stands(seed: int, rows: int) -> None:
    rng = Random(seed)
    make, trains = history(rng, rows)
    key, workers = ("box", 0), [Cache[Kernel]() for _ in range(3)]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        patch.setattr(state_log, "STRETCHES_MOST", rng.choice([1, 2, 4]))
        log = StateLog(Path(home), {"box": make().tables})
        try:
            live = make()
            for number, flows in enumerate(trains, 1):
                out, _ = live.step(*flows)
                if rng.random() < 0.5:
                    log.merge()
                worker = rng.choice(workers)
                kernel = worker.take(log.root, key, number - 1, log.manifest().get("box.0", []), make)
                again, delta = kernel.step(*flows)
                worker.give(log.root, key, number, kernel)
                assert repr(again.rows.to_pylist()) == repr(out.rows.to_pylist())
                assert sorted_state(kernel) == sorted_state(live)
                log.commit(number, {key: pack(delta)} if delta else {})
        finally:
            log.close()


@examples(30)
@given(SEEDS, st.integers(5, 40))
def test_the_log_is_the_live_state_after_every_train_and_every_cut(seed: int, rows: int) -> None:
    rng = Random(seed)
    make, trains = history(rng, rows)
    key = ("box", 0)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        patch.setattr(state_log, "STRETCHES_MOST", rng.choice([1, 2, 4]))
        log = StateLog(Path(home), {"box": make().tables})
        try:
            live, states = make(), [sorted_state(make())]
            for number, flows in enumerate(trains, 1):
                _, delta = live.step(*flows)
                log.commit(number, {key: pack(delta)} if delta else {})
                states.append(sorted_state(live))
                if rng.random() < 0.3:
                    log.merge()
                assert sorted_state(loaded_from(log, key, make)) == states[-1]
            whole: Delta = unpack(log.whole()().get(key) or pack({}))
            again = make()
            again.apply(whole)
            assert sorted_state(again) == states[-1]
        finally:
            log.close()
