"""`borealis sample`: files to try things with, packets and the diagram of the tutorial; `borealis demo` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
from typer import Argument, Option

from borealis.cli.screen import span
from borealis.diagram import Diagram, window
from borealis.errors import OutputError

DIAGRAMS = (".yaml", ".yml")
SEED = 20_050_104
PACKETS_PER_SECOND = 500  # of the stream
SOURCES = 200
START_US = 1_767_225_600_000_000  # 2026-01-01
DELAY_MOST_US = 1_500_000  # packets overtake each other by up to this, less than the slack
SLACK = "2 seconds"
SIZES = (40, 64, 128, 576, 1_200, 1_500)  # bytes, as packets tend to have
SIZES_SHARE = (0.30, 0.15, 0.10, 0.15, 0.10, 0.20)

SCHEMA = pa.schema(
    [("ts", pa.timestamp("us", "UTC")), ("src", pa.string()), ("dst", pa.string()), ("bytes", pa.int32())]
)


def sample(
    path: Annotated[
        list[Path],
        Argument(metavar="PATH...", help="packets.parquet (or .csv, .jsonl, .arrow); traffic.yaml for a diagram."),
    ],
    seconds: Annotated[float, Option(min=1, max=36_000, help="How long the packets were sent: 500 a second.")] = 60,
) -> None:
    from borealis.connectors.files.sink import file_sink

    sinks = {}
    for one in path:
        if one.exists():
            raise OutputError(f"there is a file '{one}' already", hint="use that one, or give another name")
        if not one.parent.is_dir():
            raise OutputError(f"there is no folder '{one.parent}'", hint=f"mkdir -p {one.parent}")
        if one.suffix not in DIAGRAMS:
            sinks[one] = file_sink(one)
    for one in path:
        if one not in sinks:
            diagram = traffic()
            diagram.save(one)
            print(f"{one}: the diagram {diagram.name}, from packets to per_source")
            continue
        table, sink = packets(seconds), sinks[one]
        sink.open(table.schema, None)
        sink.write(table)
        sink.close(complete=True)
        print(f"{one}: {table.num_rows:,} packets of {SOURCES} sources in {span(seconds * 1e6)}")


def traffic() -> Diagram:
    """The diagram of the tutorial: what each source sends, over the last ten seconds, every second."""
    d = Diagram("traffic")
    packets = d.input("packets", "ts TIMESTAMP, src STRING, dst STRING, bytes INT", time="ts", slack=SLACK)
    big = packets.filter("bytes > 100").map(src="src", kb="bytes / 1024.0")
    big.aggregate(by=["src"], over=window("10 seconds", "1 second"), n="count(*)", kb="sum(kb)").output("per_source")
    return d


def packets(stream_seconds: float) -> pa.Table:
    """Packets in the order in which they arrive, which is not quite that of their times; the same each time."""
    chance = np.random.default_rng(SEED)
    count = max(1, int(stream_seconds * PACKETS_PER_SECOND))
    sent = np.sort(chance.integers(0, max(1, int(stream_seconds * 1e6)), count))
    delay = np.minimum(chance.exponential(DELAY_MOST_US / 10, count), DELAY_MOST_US).astype(np.int64)
    share = 1 / np.arange(1, SOURCES + 1)
    who = chance.choice(SOURCES, count, p=share / share.sum())
    whom = chance.integers(0, SOURCES, count)
    names = pa.array([f"10.0.{i // 50}.{i % 50 + 1}" for i in range(SOURCES)])
    table = pa.table(
        {
            "ts": pa.array(START_US + sent, pa.timestamp("us", "UTC")),
            "src": names.take(pa.array(who)),
            "dst": names.take(pa.array(whom)),
            "bytes": pa.array(chance.choice(SIZES, count, p=SIZES_SHARE), pa.int32()),
        },
        schema=SCHEMA,
    )
    return table.take(pa.array(np.argsort(sent + delay, kind="stable")))
