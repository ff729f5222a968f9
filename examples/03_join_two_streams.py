"""Join: pairs of a request and its answer, less than two seconds apart.

In the condition the sides are `left.` and `right.`; a column that both have gets the suffix `_right`. Files and lists
are merged by time, so the result is the same every time.

    python examples/03_join_two_streams.py
"""

from datetime import UTC, datetime, timedelta

from borealis import Diagram, run

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """A time so many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def main() -> None:
    """Which answer belongs to which request, and how long it took."""
    d = Diagram("answers")
    asked = d.input("asked", "ts TIMESTAMP, id INT, path STRING")
    answered = d.input("answered", "ts TIMESTAMP, id INT, status INT")
    pairs = asked.join(answered, on="left.id = right.id AND right.ts >= left.ts", within="2 seconds")
    pairs.map(id="id", path="path", status="status", ms="unix_millis(ts_right) - unix_millis(ts)").output("pairs")

    result = run(
        d,
        inputs={
            "asked": [(at(0), 1, "/"), (at(1), 2, "/slow"), (at(1.5), 3, "/lost"), (at(4), 4, "/late")],
            "answered": [(at(0.2), 1, 200), (at(2.4), 2, 503), (at(9), 4, 200)],
        },
    )
    for row in result.rows("pairs"):
        print(f"{row['path']:6} {row['status']} after {row['ms']} ms")
    print("request 3 was never answered; the answer to request 4 came more than two seconds later")


if __name__ == "__main__":
    main()
