"""Packets, and the diagram of the tutorial over them: what `borealis sample` writes and `borealis demo` runs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from borealis.diagram import Diagram, window

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


def traffic() -> Diagram:
    """The diagram of the tutorial: what each source sends, over the last ten seconds, every second."""
    d = Diagram("traffic")
    packets = d.input("packets", "ts TIMESTAMP, src STRING, dst STRING, bytes INT", time="ts", slack=SLACK)
    big = packets.filter("bytes > 100").map(src="src", kb="bytes / 1024.0")
    big.aggregate(by=["src"], over=window("10 seconds", "1 second"), n="count(*)", kb="sum(kb)").output("per_source")
    return d


def packets(stream_seconds: float, seed: int = SEED) -> pa.Table:
    """Packets in the order in which they arrive, which is not quite that of their times; the same for a seed."""
    chance = np.random.default_rng(seed)
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
