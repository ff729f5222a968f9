"""Python rows as a source: lists, tables, generators that stall."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from borealis.connectors.sources import Source, as_source, rows
from borealis.errors import InputError
from borealis.tuples import TIMESTAMP

N = pa.schema([("n", pa.int32())])
PATIENCE_SECONDS = 20


def take(source: Source, schema: pa.Schema = N, skip: int = 0, most_rows: int = 1000) -> list[dict[str, Any]]:
    batches = list(source.batches(schema, skip, most_rows))
    assert all(batch.schema == schema and 0 < batch.num_rows <= most_rows for batch in batches)
    return pa.Table.from_batches(batches, schema).to_pylist()  # type: ignore[no-any-return]


def some(start: int, stop: int) -> pa.RecordBatch:
    return pa.record_batch({"x": ["x"] * (stop - start), "N": pa.array(range(start, stop), pa.int64())})


FORMS: dict[str, tuple[Any, bool]] = {
    "dicts": ([{"n": n} for n in range(50)], True),
    "tuples": (tuple((n,) for n in range(50)), True),
    "mixed": ([{"N": 0}, [1], some(2, 30), (30,), pa.Table.from_batches([some(31, 50)])], True),
    "table": (pa.Table.from_batches([some(0, 20), some(20, 50)]), True),
    "batch": (some(0, 50), True),
    "generator": (((n,) for n in range(50)), False),
    "callable": (lambda: ({"n": n} for n in range(50)), False),
    "callable of batches": (lambda: (some(n, n + 10) for n in range(0, 50, 10)), False),
    "callable of a table": (lambda: pa.Table.from_batches([some(0, 50)]), False),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_its_rows(form: str) -> None:
    value, ordered = FORMS[form]
    source = as_source(value)
    assert source.finite_and_ordered is ordered
    assert take(source) == [{"n": n} for n in range(50)]


@pytest.mark.parametrize("form", [form for form in FORMS if form != "generator"])
@pytest.mark.parametrize("most_rows", [1, 7, 50])
def test_any_position_and_batch_size_give_the_same_rows(form: str, most_rows: int) -> None:
    source = as_source(FORMS[form][0])
    for skip in (0, 1, 25, 49, 50, 60):
        assert take(source, N, skip, most_rows) == [{"n": n} for n in range(skip, 50)]


def test_values_of_many_kinds() -> None:
    schema = pa.schema(
        [
            ("ts", TIMESTAMP),
            ("i", pa.int64()),
            ("x", pa.float64()),
            ("d", pa.decimal128(10, 2)),
            ("day", pa.date32()),
            ("ok", pa.bool_()),
            ("s", pa.string()),
            ("raw", pa.binary()),
            ("tags", pa.list_(pa.int32())),
            ("m", pa.map_(pa.string(), pa.float64())),
            ("st", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ]
    )
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    plain = (noon, 1, 1.5, Decimal("2.50"), date(2024, 5, 1), True, "x", b"y", [1], [("k", 1.0)], {"a": 1, "b": "z"})
    given: list[tuple[Any, ...]] = [
        plain,
        (None,) * 11,
        (
            datetime(2024, 5, 1, 12),
            np.int32(1),
            np.float64(1.5),
            2.5,
            datetime(2024, 5, 1),
            np.bool_(True),
            np.str_("x"),
            bytearray(b"y"),
            np.array([1]),
            {"k": 1},
            (1, "z"),
        ),
        (
            datetime(2024, 5, 1, 14, tzinfo=timezone(timedelta(hours=2))),
            1.0,
            np.float32(1.5),
            "2.5",
            "2024-05-01",
            "true",
            "x",
            "eQ==",
            (Decimal(1),),
            [("k", Decimal(1))],
            {"b": "z", "a": np.int8(1)},
        ),
        (np.datetime64("2024-05-01T12:00:00", "ns"), "1", "1.5", 2.5, np.datetime64("2024-05-01"), *plain[5:]),
        ("2024-05-01T12:00:00Z", Decimal(1), Decimal("1.5"), np.float64(2.5), pa.scalar(date(2024, 5, 1)), *plain[5:]),
    ]
    expected = [plain, (None,) * 11, plain, plain, plain, plain]
    assert [tuple(row.values()) for row in take(rows(given), schema)] == expected
    for one, wanted in zip(given, expected, strict=True):
        assert [tuple(row.values()) for row in take(rows([one]), schema)] == [wanted]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), 2**31),
        (pa.int32(), 1.5),
        (pa.int32(), True),
        (pa.int32(), "x"),
        (pa.int64(), 2**80),
        (pa.int64(), float("nan")),
        (pa.float64(), "x"),
        (pa.string(), 1),
        (pa.string(), "\ud800"),
        (TIMESTAMP, 1700000000),
        (TIMESTAMP, "soon"),
        (pa.date32(), datetime(2024, 5, 1, 12)),
        (pa.decimal128(4, 2), Decimal("1.255")),
        (pa.decimal128(4, 2), float("inf")),
        (pa.decimal128(4, 2), 5e-324),
        (pa.decimal128(4, 2), Decimal("1e-999999999")),
        (pa.decimal128(4, 2), Decimal("1e-59")),
        (pa.decimal128(4, 2), Decimal("NaN")),
        (pa.decimal128(4, 2), "1e-999999999"),
        (pa.list_(pa.decimal128(4, 2)), [Decimal("1e-999999999")]),
        (pa.int64(), Decimal("1e9999999")),
        (pa.int64(), Decimal("1e-9999999")),
        (pa.int64(), Decimal("NaN")),
        (pa.float64(), Decimal("1e9999999")),
        (pa.bool_(), 1),
        (pa.list_(pa.int32()), "abc"),
        (pa.list_(pa.int32()), [1, "x"]),
        (pa.map_(pa.string(), pa.int32()), 3),
        (pa.struct([("a", pa.int32())]), {"a": 2**40}),
    ],
)
@pytest.mark.parametrize("skip", [0, 2])
def test_a_value_that_does_not_fit_is_found(kind: pa.DataType, value: Any, skip: int) -> None:
    given = [{"x": None}] * 4 + [{"x": value}, {"x": None}]
    with pytest.raises(InputError, match=r"the rows, row 5: column 'x' is .*, but the value is"):
        take(rows(given), pa.schema([("x", kind)]), skip, 3)
    with pytest.raises(InputError, match=r"the rows, row 5: column 'x' is .*, but the value is"):
        take(rows(iter(given)), pa.schema([("x", kind)]), skip, 3)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((1, 2), "row 2 has 2 values, declared are 1: n"),
        (7, "row 2 is of type int.*rows are dicts"),
        ("ab", "row 2 is of type str"),
    ],
)
def test_a_bad_row_is_told(row: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        take(rows([{"n": 1}, row]))


def test_a_table_without_the_column_is_told() -> None:
    with pytest.raises(InputError, match=r"no column 'n' in the rows \(has: m\)"):
        take(as_source(pa.table({"m": [1]})))


def test_a_stalled_generator_does_not_hold_back_what_it_gave() -> None:
    go_on = threading.Event()

    def stalling() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        yield {"n": 2}
        assert go_on.wait(PATIENCE_SECONDS)
        yield {"n": 3}

    batches = rows(stalling()).batches(N, 0, 1000)
    got: list[int] = []
    while len(got) < 2:
        got += next(batches)["n"].to_pylist()
    go_on.set()
    for batch in batches:
        got += batch["n"].to_pylist()
    assert got == [1, 2, 3]


def test_an_endless_generator_is_drawn_in_bounds_and_left_alone_at_the_end() -> None:
    drawn = itertools.count()
    last = 0

    def endless() -> Iterator[dict[str, int]]:
        nonlocal last
        for last in drawn:
            yield {"n": last}

    batches = rows(endless()).batches(N, 5, 10)
    got: list[int] = []
    while len(got) < 25:
        got += next(batches)["n"].to_pylist()
    assert got == list(range(5, 5 + len(got)))
    batches.close()  # type: ignore[attr-defined]
    assert last <= 5 + len(got) + 20


def test_rows_before_an_error_come_first() -> None:
    def failing() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        raise RuntimeError("no more")

    batches = rows(failing()).batches(N, 0, 10)
    assert next(batches)["n"].to_pylist() == [1]
    with pytest.raises(InputError, match="ended with RuntimeError: no more"):
        next(batches)


def test_a_generator_is_read_once_a_function_anew() -> None:
    once = rows({"n": n} for n in range(3))
    take(once)
    with pytest.raises(InputError, match=r"only once.*give the function"):
        take(once)
    anew = rows(lambda: ({"n": n} for n in range(3)))
    assert take(anew) == take(anew) == [{"n": n} for n in range(3)]


def test_as_source_takes_sources_and_refuses_others() -> None:
    source = rows([])
    assert as_source(source) is source
    assert take(source) == []
    for bad in (3, None, {"n": 1}, b"x"):
        with pytest.raises(InputError, match="cannot be an input"):
            as_source(bad)
