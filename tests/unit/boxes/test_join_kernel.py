"""The join kernel by example."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from borealis.kernels import join_index
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.join import JoinKernel
from borealis.state.delta import Change
from borealis.tuples import CAUSE, FIRST_TIME, LAST_TIME, SUB, TIME

PACKET = pa.schema([("host", pa.string()), ("bytes", pa.int64()), ("note", pa.string())])
ALARM = pa.schema([("name", pa.string()), ("level", pa.int64())])
COLUMNS = [("left", "bytes", "bytes"), ("right", "level", "level")]


def flow(
    schema: pa.Schema, rows: list[tuple[Any, ...]], *, bound: int | None = None, standing: int = FIRST_TIME
) -> Flow:
    """Rows as (cause, time, column, column ...), and the boundary after them."""
    cause, time = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    columns = [pa.array([row[i + 2] for row in rows], field.type) for i, field in enumerate(schema)]
    table = pa.Table.from_arrays(columns, schema=schema)
    raised = [] if bound is None else [bound]
    bounds = Bounds(standing, np.full(len(raised), 10**6, np.int64), np.array(raised, np.int64))
    return Flow(table, time, cause, np.zeros(len(rows), np.int64), bounds)


def packets(*rows: tuple[Any, ...], bound: int | None = None) -> Flow:
    return flow(PACKET, [(*row, "x") for row in rows], bound=bound)


def alarms(*rows: tuple[Any, ...], bound: int | None = None) -> Flow:
    return flow(ALARM, list(rows), bound=bound)


def rows_held(k: JoinKernel) -> int:
    return sum(table.num_rows for table in k.tables_now().values())


def kernel(within: int = 10) -> JoinKernel:
    return JoinKernel(PACKET, ALARM, [("host", "name")], within, COLUMNS)


def seen(out: Flow) -> list[tuple[Any, ...]]:
    columns = [column.to_pylist() for column in out.rows.columns]
    return list(zip(out.cause.tolist(), out.sub.tolist(), out.time.tolist(), *columns, strict=True))


def held(k: JoinKernel, side: str) -> list[int]:
    return list(k.tables_now()[side][TIME].to_pylist())


def test_pairs_near_in_time_and_equal_in_key_come_once_in_order() -> None:
    k = kernel()
    out, _ = k.step(packets((0, 100, "a", 1), (1, 101, "b", 2)), alarms((2, 105, "a", 7)))
    assert seen(out) == [(2, 0, 105, 1, 7)]
    out, _ = k.step(packets((3, 108, "a", 3), (5, 99, "a", 4)), alarms((4, 109, "a", 8)))
    assert seen(out) == [(3, 0, 108, 3, 7), (4, 0, 109, 1, 8), (4, 1, 109, 3, 8), (5, 0, 105, 4, 7)]


def test_the_window_is_open_at_both_ends() -> None:
    out, _ = kernel().step(
        packets((0, 100, "a", 1)), alarms(*[(i + 1, t, "a", t) for i, t in enumerate((90, 91, 109, 110))])
    )
    assert [row[-1] for row in seen(out)] == [91, 109]


def test_two_rows_of_one_cause_pair_once() -> None:
    k = kernel()
    assert seen(k.step(packets((4, 1, "a", 1)), alarms((4, 2, "a", 2)))[0]) == [(4, 0, 2, 1, 2)]
    assert seen(k.step(packets(), alarms())[0]) == []


def test_a_null_key_matches_nothing_and_is_never_held() -> None:
    k = kernel()
    out, delta = k.step(packets((0, 1, None, 1)), alarms((1, 1, None, 2)))
    assert (seen(out), delta, rows_held(k)) == ([], {}, 0)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_nan_matches_nan_and_minus_zero_matches_zero(kind: pa.DataType) -> None:
    schema = pa.schema([("x", kind)])
    k = JoinKernel(schema, schema, [("x", "x")], 10, [("left", "x", "l"), ("right", "x", "r")])
    out, _ = k.step(flow(schema, [(0, 0, math.nan), (1, 0, 0.0)]), flow(schema, [(2, 0, -0.0), (3, 0, -math.nan)]))
    rows = out.rows.to_pylist()
    assert out.cause.tolist() == [2, 3]
    assert math.copysign(1, rows[0]["r"]) == -1.0
    assert math.isnan(rows[1]["l"])


def test_a_row_is_held_until_the_other_boundary_leaves_its_window() -> None:
    k = kernel(within=10)
    _, delta = k.step(packets((0, 90, "a", 1), (1, 91, "a", 2)), alarms(bound=100))
    assert held(k, "left") == [91]  # 90 + 10 is not above 100
    assert delta["left"].put[TIME].to_pylist() == [91]
    assert delta["left"].floor is None  # nothing that stood in the state has gone
    _, delta = k.step(packets(), alarms(bound=101))
    assert (held(k, "left"), delta["left"].floor, delta["left"].put.num_rows) == ([], 92, 0)


def test_the_boundary_of_its_own_input_drops_nothing() -> None:
    k = kernel()
    k.step(packets((0, 90, "a", 1), bound=10**9), alarms())
    assert held(k, "left") == [90]


def test_nothing_is_held_for_a_stream_that_has_ended() -> None:
    k = kernel(within=2**70)
    k.step(packets((0, LAST_TIME - 1, "a", 1)), alarms((1, FIRST_TIME, "a", 1)))
    assert rows_held(k) == 2
    _, delta = k.step(packets((2, 5, "a", 1)), alarms((3, 5, "a", 1), bound=LAST_TIME))
    assert held(k, "left") == []
    assert delta["left"].floor == LAST_TIME
    assert held(k, "right") == [FIRST_TIME, 5]


def test_times_at_the_ends_of_time_do_not_wrap() -> None:
    k = kernel(within=10)
    out, _ = k.step(
        packets((0, FIRST_TIME, "a", 1), (1, LAST_TIME - 1, "a", 2)),
        alarms((2, FIRST_TIME + 9, "a", 3), (3, LAST_TIME - 2, "a", 4), (4, FIRST_TIME + 10, "a", 5)),
    )
    assert [row[3:] for row in seen(out)] == [(1, 3), (2, 4)]


def test_a_train_that_changes_nothing_has_an_empty_delta() -> None:
    k = kernel()
    assert k.step(packets(bound=50), alarms(bound=60))[1] == {}
    k.step(packets((0, 100, "a", 1)), alarms())
    assert k.step(packets(), alarms(bound=70))[1] == {}
    assert set(k.step(packets(), alarms((1, 300, "zz", 1)))[1]) == {"right"}


def test_only_the_needed_columns_are_held() -> None:
    now = kernel().tables_now()
    assert now["left"].schema.names == [CAUSE, SUB, TIME, "host", "bytes"]
    assert now["right"].schema.names == [CAUSE, SUB, TIME, "name", "level"]
    assert [spec.name for spec in JoinKernel.tables] == list(now)


def test_without_keys_and_without_columns_of_a_side() -> None:
    k = JoinKernel(PACKET, ALARM, [], 10, [("right", "level", "level")])
    k.step(packets((0, 1, "a", 1), (1, 2, None, 1)), alarms())
    copy = JoinKernel(PACKET, ALARM, [], 10, [("right", "level", "level")])
    copy.apply({name: Change(table) for name, table in k.tables_now().items()})
    for one in (k, copy):
        assert seen(one.step(packets((2, 3, "b", 1)), alarms((3, 4, "z", 5)))[0]) == [(3, i, 4, 5) for i in range(3)]
    nothing = JoinKernel(PACKET, ALARM, [], 10, [])
    out, _ = nothing.step(packets((0, 1, "a", 1)), alarms((1, 1, "a", 1)))
    assert (len(out), out.rows.num_columns) == (1, 0)


def test_strings_whose_hashes_are_equal_are_still_compared() -> None:
    names = ["a", "b", "a", "c"]
    with patch.object(join_index, "hash_text", lambda array: np.zeros(len(array), np.int64)):
        k = kernel()
        k.step(packets(*[(i, 0, name, i) for i, name in enumerate(names)]), alarms())
        out, _ = k.step(packets(), alarms((9, 0, "a", 1), (10, 0, "z", 1)))
    assert [row[3] for row in seen(out)] == [0, 2]


def test_hashes_see_every_byte_and_the_length() -> None:
    texts = ["", "\0", "\0\0", "\0" * 8, "\0" * 9, "x" * 128, "x" * 129, "x" * 1000, "x" * 999 + "y", "ab", "ba"]
    texts += ["x" * n for n in range(1, 40)] + ["x" * n + "y" + "x" * (20 - n) for n in range(21)]
    for kind in (pa.string(), pa.large_string()):
        array = pa.array(["lead", *texts, *texts], kind)[1:]  # an offset of one
        hashes = join_index.hash_text(array).tolist()
        assert hashes[: len(texts)] == hashes[len(texts) :]
        assert len(set(hashes)) == len(set(texts))


def test_columns_of_every_type_come_through() -> None:
    types: dict[str, tuple[pa.DataType, Any]] = {
        "list": (pa.list_(pa.string()), ["a", None]),
        "struct": (pa.struct([("x", pa.int64()), ("y", pa.list_(pa.float64()))]), {"x": 1, "y": [0.5]}),
        "map": (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
        "bool": (pa.bool_(), True),
        "binary": (pa.binary(), b"\0\1"),
        "decimal": (pa.decimal128(38, 18), None),
        "duration": (pa.duration("us"), None),
    }
    schema = pa.schema([("k", pa.int16()), *[(name, kind) for name, (kind, _) in types.items()]])
    row = (5, *[value for _, value in types.values()])
    empty = (5, *[None for _ in types])
    columns = [(side, name, f"{side}_{name}") for side in ("left", "right") for name in schema.names]
    k = JoinKernel(schema, schema, [("k", "k")], 10, columns)
    k.step(flow(schema, [(0, 0, *row), (1, 0, *empty)]), flow(schema, []))
    out, _ = k.step(flow(schema, [(2, 1, *row)]), flow(schema, [(3, 2, *row)]))
    assert len(out) == 3
    for i, expected in enumerate((row, empty, row)):
        got = out.rows.slice(i, 1).to_pylist()[0]
        assert tuple(got[f"left_{name}"] for name in schema.names) == expected
        assert tuple(got[f"right_{name}"] for name in schema.names) == row


def test_a_large_join_agrees_with_a_dense_one() -> None:
    rng = np.random.default_rng(7)
    schema = pa.schema([("k", pa.int64()), ("row", pa.int64())])

    def side(parity: int) -> Flow:
        n = 20_000
        table = pa.table([rng.integers(0, 50, n) * 2**40, np.arange(n)], schema=schema)
        cause = np.arange(n) * 2 + parity
        return Flow(table, np.arange(n) // 5 * 100 + rng.integers(-300, 300, n), cause, np.zeros(n, np.int64), Bounds())

    left, right = side(0), side(1)
    k = JoinKernel(schema, schema, [("k", "k")], 1_000, [("left", "row", "l"), ("right", "row", "r")])
    got = set()
    for some in (slice(0, 9_000), slice(9_000, 9_001), slice(9_001, 20_000)):
        out, _ = k.step(*(f.take(np.arange(20_000)[some]) for f in (left, right)))
        pairs = list(zip(out.rows["l"].to_pylist(), out.rows["r"].to_pylist(), strict=True))
        assert len(got | set(pairs)) == len(got) + len(pairs)
        got |= set(pairs)
    keys = [f.rows["k"].to_numpy() for f in (left, right)]
    expected = set()
    for i in range(20_000):
        for j in np.flatnonzero((keys[1] == keys[0][i]) & (np.abs(right.time - left.time[i]) < 1_000)).tolist():
            expected.add((i, j))
    assert got == expected


def test_the_state_stays_bounded_and_in_few_chunks() -> None:
    k, copy = kernel(within=1_000), kernel(within=1_000)
    for train in range(200):
        rows = [(10 * train + i, 10 * train + i, f"h{i}", i) for i in range(10)]
        bound = 10 * train
        _, delta = k.step(packets(*rows, bound=bound), alarms(*rows, bound=bound))
        copy.apply(delta)
    assert rows_held(k) == rows_held(copy) == 2 * (1_000 + 10 - 1)
    for one in (k, copy):
        for side in one._sides:
            assert len(side.chunks) < 12
            assert sum(len(chunk) for chunk in side.chunks) < 3 * 1_009  # dead rows are swept out


def test_boundaries_alone_sweep_a_chunk_out() -> None:
    k = kernel(within=10)
    k.step(packets(*[(i, i, "a", i) for i in range(100)]), alarms())
    for bound, in_memory in ((20, 100), (70, 39), (75, 39), (99, 10), (200, 0)):
        k.step(packets(), alarms(bound=bound))
        assert held(k, "left") == list(range(max(0, bound - 9), 100))
        assert sum(len(chunk) for chunk in k._sides[0].chunks) == in_memory


def test_apply_puts_in_place_of_the_same_key() -> None:
    k = kernel()
    k.step(packets((0, 1, "a", 1), (1, 1, "b", 2)), alarms())
    other = kernel()
    other.step(packets((0, 1, "a", 9)), alarms())
    k.apply({"left": Change(other.tables_now()["left"])})
    assert k.tables_now()["left"]["bytes"].to_pylist() == [9, 2]
