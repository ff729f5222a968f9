"""Drop: what is refused, what it says of itself, and how fair its chance is."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from borealis.diagram import Diagram
from borealis.errors import DiagramError
from borealis.kernels.expr import Call, Column, Literal, mask
from borealis.kernels.xxhash import xxhash64

# of SELECT xxhash64(X'...') on Spark
ANSWERS = {b"": -7444071767201028348, b"a": -8582455328737087284, b"abc": 1423657621850124518}


@pytest.mark.parametrize("text", ANSWERS)
def test_bytes_are_hashed_as_spark_does(text: bytes) -> None:
    assert xxhash64([pa.array([text])], 1).to_pylist() == [ANSWERS[text]]


def test_columns_are_chained_and_nulls_pass_the_seed_on() -> None:
    one, nothing = pa.array([1, 2], pa.int64()), pa.nulls(2, pa.string())
    assert xxhash64([one, nothing], 2) == xxhash64([nothing, one], 2) == xxhash64([one], 2)
    assert xxhash64([one, pa.scalar(7)], 2) != xxhash64([pa.scalar(7), one], 2)
    assert xxhash64([nothing], 2).to_pylist() == [42, 42]


def test_equal_values_have_equal_hashes() -> None:
    zeros = xxhash64([pa.array([0.0, -0.0])], 2).to_pylist()
    assert zeros[0] == zeros[1]
    money = [pa.array([Decimal("1.50")], pa.decimal128(p, 2)) for p in (10, 18, 19, 38)]
    hashes = [xxhash64([m], 1).to_pylist() for m in money]
    assert hashes[0] == hashes[1]
    assert hashes[2] == hashes[3]


def test_a_piece_of_a_column_is_hashed_like_the_whole() -> None:
    texts = pa.array(["é" * i for i in range(60)] + [None, "z"])
    numbers = pa.array([Decimal(10**i) for i in range(31)] * 2, pa.decimal128(38, 0))
    whole = xxhash64([texts, numbers], 62).to_pylist()
    pieces = [xxhash64([texts.slice(i, 7), numbers.slice(i, 7)], len(texts.slice(i, 7))) for i in range(0, 62, 7)]
    assert [x for piece in pieces for x in piece.to_pylist()] == whole
    assert xxhash64([pa.chunked_array([texts.slice(0, 9), texts.slice(9)])], 62) == xxhash64([texts], 62)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 1.0])
def test_a_rate_is_the_share_that_goes(rate: float) -> None:
    rows = 20_000
    table = pa.table({"n": pa.array(np.arange(rows)), "s": pa.array([f"host{i % 50}" for i in range(rows)])})
    chance = Call("xxhash64", (Column("n", "long"), Column("s", "string"), Literal("7", "long")), "long")
    positive = Call("bit_and", (chance, Literal(str(2**63 - 1), "long")), "long")
    part = Call("remainder", (positive, Literal("1000000", "long")), "long")
    gone = mask(Call("lt", (part, Literal(str(round(rate * 1e6)), "long")), "boolean"), table)
    deviation = 4 * (rate * (1 - rate) / rows) ** 0.5
    assert abs(sum(gone.to_pylist()) / rows - rate) <= deviation


def drawn() -> Any:
    return Diagram("d").input("s", "ts TIMESTAMP, src STRING, sev INT")


def test_drawing() -> None:
    s = drawn()
    s.drop(0.3, seed=7).drop(0.25, key="src").drop(0.9, where="sev < 3").drop(utility="sev / 10", below=0.4)
    boxes = s.diagram.spec.boxes
    assert [box.describe() for box in boxes] == [
        "drop 30 %",
        "drop 25 % of src",
        "drop 90 % where sev < 3",
        "drop all where sev / 10 < 0.4",
    ]
    assert {box.operator_class for box in boxes} == {"repeatable"}
    assert {box.holds_us for box in boxes} == {0}
    assert Diagram.from_yaml(s.diagram.to_yaml()).spec == s.diagram.spec


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "nothing says what to drop"),
    ({"rate": 1.5}, "a rate of 1.5"),
    ({"rate": float("nan")}, "a rate of nan"),
    ({"rate": 0.5, "seed": -1}, "a seed of -1"),
    ({"key": "src", "where": "true"}, "a key without a rate"),
    ({"rate": 0.5, "key": "srcs"}, "no column 'srcs'"),
    ({"utility": "sev"}, "'utility' says what a tuple is worth"),
    ({"below": 0.5, "rate": 0.1}, "'utility' says what a tuple is worth"),
    ({"utility": "sev", "below": float("inf")}, "below inf"),
    ({"where": " "}, "the condition is empty"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DiagramError) as e:
        drawn().drop(**fields)
    assert message in str(e.value)
    assert e.value.hint
