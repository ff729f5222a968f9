"""Late readings: meters report at once or an hour later, and results are there at once and corrected later.

Nothing waits for stragglers. With `late="revise"` a row that comes late is an insertion like any other, as far back as
the `history` reaches, and what was computed without it is given again: `-U` is the row that goes, `+U` the one that
comes in its place. A bill is sent only once: its output says `revisions="final"`, and gives each result when nothing
can change it any more. A screen shall not flicker for every watt hour: `important` says which corrections it gives.

    python examples/10_iot_late.py
"""

from datetime import UTC, datetime, timedelta

from borealis import Diagram, run, window

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(minute: int, meter: str, watt_hours: int) -> dict[str, object]:
    return {"ts": NOON + timedelta(minutes=minute), "meter": meter, "wh": watt_hours}


READINGS = [
    at(5, "cellar", 300),
    at(20, "attic", 80),
    at(35, "cellar", 250),
    at(62, "attic", 90),  # the first hour is over: its results are given
    at(65, "cellar", 280),
    at(10, "attic", 5),  # an hour late: the attic's radio was off
    at(25, "cellar", 900),  # and the cellar's
    at(130, "attic", 70),
    at(250, "cellar", 260),  # two hours behind the first hour: its results are final
]


def main() -> None:
    """What each meter uses in an hour: at once with corrections, on a screen, and for bills."""
    d = Diagram("meters")
    readings = d.input("readings", "ts TIMESTAMP, meter STRING, wh INT", late="revise", history="2 hours")
    used = readings.aggregate(by="meter", over=window("1 hour"), n="count(*)", wh="sum(wh)")
    used.output("used")
    used.output("bills", revisions="final")
    used.output("screen", important="wh > 1000")
    result = run(d, inputs={"readings": READINGS})
    for output in ("used", "screen"):
        print(f"{output}:")
        for row in result.rows(output):
            print(f"  {row['_kind']} {row['window_start']:%H:%M} {row['meter']} {row['wh']} Wh of {row['n']} readings")
    print("bills:")
    for row in result.rows("bills"):
        print(f"     {row['window_start']:%H:%M} {row['meter']} {row['wh']} Wh of {row['n']} readings")


if __name__ == "__main__":
    main()
