"""Filter and map: the two boxes that look at one tuple at a time.

A diagram says what to compute; nothing runs before `run`. Expressions are Spark SQL. Without `outputs` the results
are collected in memory, and `result.rows("big")` gives them as dicts.

    python examples/01_filter_and_map.py
"""

from datetime import UTC, datetime, timedelta

from borealis import Diagram, run

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def main() -> None:
    """Keep large packets, and tell their size in kilobytes."""
    d = Diagram("sizes")
    packets = d.input("packets", "ts TIMESTAMP, src STRING, bytes INT")
    packets.filter("bytes > 100").map(ts="ts", src="upper(src)", kb="round(bytes / 1024.0, 2)").output("big")

    sizes = [40, 1500, 99, 101, 576, 64]
    rows = [{"ts": NOON + timedelta(seconds=i), "src": f"host{i % 2}", "bytes": size} for i, size in enumerate(sizes)]
    result = run(d, inputs={"packets": rows})
    for row in result.rows("big"):
        print(f"{row['ts']:%H:%M:%S}  {row['src']}  {row['kb']} kB")


if __name__ == "__main__":
    main()
