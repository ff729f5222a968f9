"""Late data: `slack` waits for stragglers, and those that come even later are set aside, never lost.

The boundary of an input stays `slack` behind its newest tuple. A tuple older than the boundary is *late*: it is
counted, reported, and goes to the side stream `events.late`, which is an output like any other.

    python examples/04_late_data.py
"""

from datetime import UTC, datetime, timedelta

from borealis import Diagram, run, window

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECONDS = [1, 3, 2, 6, 5, 12, 11, 4, 17, 13]  # the times of the tuples, as they arrive: 4 and 13 are far behind


def main() -> None:
    """Count per five seconds, once without and once with patience."""
    rows = [(NOON + timedelta(seconds=s), s) for s in SECONDS]
    for slack in ("2 seconds", "10 seconds"):
        d = Diagram("patience")
        events = d.input("events", "ts TIMESTAMP, second INT", slack=slack)
        events.aggregate(over=window("5 seconds"), n="count(*)").output("counts")
        events.late.output("stragglers")
        result = run(d, inputs={"events": rows})
        counts = [f"{row['window_start']:%S}s: {row['n']}" for row in result.rows("counts")]
        print(f"slack {slack}: {', '.join(counts)}")
        print(f"  late: {[row['second'] for row in result.rows('stragglers')]}")
        for warning in result.to_json()["warnings"]:
            print(f"  {warning}")


if __name__ == "__main__":
    main()
