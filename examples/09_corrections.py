"""Corrections: a quote is replaced, one is withdrawn, one comes an hour late, and the results are corrected.

An input with a `key` and a `history` takes rows that change earlier ones: a column `_kind` says what each row does.
What was given already and is wrong now is given again, signed: `-U` and `+U` are the row that goes and the one that
comes in its place. `result.table(...)` is what stands after all of it.

    python examples/09_corrections.py
"""

from datetime import UTC, datetime, timedelta

from borealis import Diagram, run, window

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(minute: int, quote: int, symbol: str, price: float, kind: str = "+I") -> dict[str, object]:
    return {"_kind": kind, "ts": NOON + timedelta(minutes=minute), "id": quote, "symbol": symbol, "price": price}


QUOTES = [
    at(1, 1, "ACME", 10.0),
    at(2, 2, "ACME", 1200.0),  # a slip of the pen
    at(7, 3, "ACME", 12.0),  # the first five minutes are over: their result is given
    at(2, 2, "ACME", 12.0, kind="+U"),  # what was meant
    at(64, 4, "ACME", 14.0),
    at(3, 5, "ACME", 14.0),  # an hour late
    {"_kind": "-D", "id": 3},  # withdrawn
]


def main() -> None:
    """The highest price of every five minutes, as it is given and as it stands in the end."""
    d = Diagram("ticker")
    quotes = d.input(
        "quotes", "ts TIMESTAMP, id INT, symbol STRING, price DOUBLE", key="id", history="2 hours", late="revise"
    )
    quotes.aggregate(by="symbol", over=window("5 minutes"), n="count(*)", highest="max(price)").output("highest")
    result = run(d, inputs={"quotes": QUOTES})
    print("as it was given:")
    for row in result.rows("highest"):
        print(f"  {row['_kind']} {row['window_start']:%H:%M} {row['symbol']} {row['n']} quotes, up to {row['highest']}")
    print("what stands:")
    for row in result.table("highest").to_pylist():
        print(f"     {row['window_start']:%H:%M} {row['symbol']} {row['n']} quotes, up to {row['highest']}")


if __name__ == "__main__":
    main()
