"""Backfill: the same diagram over last year's data, in one batch of plain Spark SQL.

`batch` takes ordinary DataFrames and gives ordinary DataFrames. It shares no code with the streaming kernels,
so it is also what the tests hold the engine to: here both get the same rows and must agree.

    python examples/06_backfill_with_batch.py
"""

from datetime import UTC, datetime, timedelta

from borealis import Diagram, batch, run, window

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def main() -> None:
    """Compute it twice, and compare."""
    d = Diagram("spread")
    values = d.input("values", "ts TIMESTAMP, k STRING, v INT")
    spread = values.filter("v % 7 != 0")
    spread.aggregate(by="k", over=window("10 seconds", "2 seconds"), n="count(*)", gap="max(v) - min(v)").output("gaps")

    rows = [(NOON + timedelta(milliseconds=37 * i), "xy"[i % 2], i * i % 101) for i in range(1_000)]
    result = run(d, inputs={"values": rows})
    streamed = {tuple(row.values()) for row in result.rows("gaps")}

    frame = result.spark.createDataFrame(rows, "ts TIMESTAMP, k STRING, v INT")
    gaps = batch(d, result.spark, {"values": frame})["gaps"]
    gaps.orderBy("window_end", "k").show(4, truncate=False)
    plain = {tuple(row.values()) for row in gaps.toArrow().to_pylist()}

    print(f"stream and batch agree on all {len(plain)} rows: {streamed == plain}")
    assert streamed == plain


if __name__ == "__main__":
    main()
