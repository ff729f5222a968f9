"""The rows that both engines are fed: k uniform over the keys, v a double, ts advancing with the rows.

A row depends only on its position, its stream and the seed, so that every engine and every run sees the same rows.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

EPOCH_US = 1_767_225_600_000_000  # 2026-01-01 00:00 UTC: a multiple of every window
KEYS = 1_000
ROWS_PER_MS = 100  # of stream time
FILE_ROWS = 500_000
ROW_GROUPS = 4  # per file: with a single one, a native scan keeps only one core busy
TICK_S = 0.1  # how often a live feed hands over rows
SEED = 1
SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.float64()), ("ts", pa.timestamp("us", "UTC"))])


def rows_at(first: int, count: int, rows_per_ms: int = ROWS_PER_MS, stream: int = 0) -> pa.RecordBatch:
    """The rows at positions `first` to `first + count`; only whole batches of one size fit together."""
    chance = np.random.default_rng([SEED, stream, first])
    return _batch(chance.integers(0, KEYS, count, np.int32), chance.random(count), first, rows_per_ms)


def rows_touching(first: int, count: int, keys: int, touched: int) -> pa.RecordBatch:
    """Rows that touch exactly `touched` keys out of `keys`, as often each; the next batch touches the next keys."""
    chance = np.random.default_rng([SEED, keys, first])
    block = first // count % (keys // touched)
    k = chance.permutation(np.arange(count, dtype=np.int32) % touched) + np.int32(block * touched)
    return _batch(k, chance.random(count), first, ROWS_PER_MS)


def _batch(k: np.ndarray, v: np.ndarray, first: int, rows_per_ms: int) -> pa.RecordBatch:
    ts = EPOCH_US + np.arange(first, first + len(k), dtype=np.int64) // rows_per_ms * 1000
    return pa.record_batch([pa.array(k, pa.int32()), pa.array(v), pa.array(ts).view(SCHEMA.field("ts").type)], SCHEMA)


def write_files(to: Path, files: int, rows: int, rows_per_ms: int = ROWS_PER_MS, stream: int = 0) -> None:
    """Parquet files of so many rows each, in the order of their names."""
    to.mkdir(parents=True)
    for i in range(files):
        write(to / f"{i:05}.parquet", rows_at(i * rows, rows, rows_per_ms, stream), -(-rows // ROW_GROUPS))


def write(path: Path, batch: pa.RecordBatch, group: int) -> None:
    """One Parquet file, with `group` rows to a row group."""
    pq.write_table(pa.Table.from_batches([batch]), path, row_group_size=group)


def live(rows_per_s: int, stop: threading.Event) -> Iterator[pa.RecordBatch]:
    """Rows in real time, a tenth of a second's worth every tenth of a second; ts advances as fast as they come."""
    count = int(rows_per_s * TICK_S)
    started, at = time.monotonic(), 0
    while not stop.is_set():
        yield rows_at(at * count, count, rows_per_s // 1000)
        at += 1
        stop.wait(max(0.0, started + at * TICK_S - time.monotonic()))


def drop_files(to: Path, rows_per_s: int, stop: threading.Event) -> None:
    """The live rows as files in a watched directory; each appears whole."""
    aside = to.with_name(f"{to.name}.aside")
    aside.mkdir()
    for i, batch in enumerate(live(rows_per_s, stop)):
        write(aside / "next", batch, len(batch))
        os.rename(aside / "next", to / f"{i:06}.parquet")


# -- rows that are corrected later, or come late

KEYED = pa.schema(
    [("id", pa.int64()), ("k", pa.int32()), ("v", pa.float64()), ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
)
LAGS = 6  # a row is corrected one to six files after it came
HOUR_US = 3_600_000_000


def keyed_rows(number: int, count: int, share: float = 0.0) -> pa.Table:
    """File `number` of rows with rising ids. A share of its rows replaces rows of the files before it, and every tenth
    of these deletes one instead; no row is corrected twice."""
    chance = np.random.default_rng([SEED, number, round(share * 1e6)])
    fresh = count - round(share * count)
    ids = [number * count + np.arange(fresh)]
    for back in range(1, min(LAGS, number) + 1):
        mine = np.arange(back - 1, fresh, LAGS)  # those of that file that this one may correct
        ids.append((number - back) * count + chance.choice(mine, (count - fresh) // LAGS, replace=False))
    every = np.concatenate(ids)
    kind = np.zeros(len(every), np.int64)
    kind[fresh:] = np.where(np.arange(len(every) - fresh) % 10 == 9, 2, 1)
    place = np.sort(chance.choice(len(every), fresh, replace=False))
    order = np.full(len(every), -1)
    order[place] = np.arange(fresh)
    order[order < 0] = chance.permutation(np.arange(fresh, len(every)))
    return _keyed(every[order], kind[order], bool(share))


def _keyed(ids: np.ndarray, kind: np.ndarray, kinds: bool) -> pa.Table:
    """What the rows of these ids say: by the id alone, so that a correction knows what it corrects."""
    mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    k = ((mixed >> np.uint64(32)) % np.uint64(KEYS)).astype(np.int32)
    n = (mixed & np.uint64(0xFFFF)).astype(np.int64) + kind
    ts = pa.array(EPOCH_US + ids // ROWS_PER_MS * 1000).view(KEYED.field("ts").type)
    table = pa.table([pa.array(ids), pa.array(k), pa.array(n / 65536), pa.array(n), ts], schema=KEYED)
    names = pa.array(["+I", "+U", "-D"]).take(pa.array(kind))
    return table.append_column("_kind", names) if kinds else table


def late_rows(number: int, count: int, files: int, hours: float) -> pa.Table:
    """File `number` of so many hours of rows in order of time, every twentieth of which comes 55 minutes late."""
    ids = number * count + np.arange(count)
    table = _keyed(ids, np.zeros(count, np.int64), False)
    ts = EPOCH_US + (ids * (hours * HOUR_US / (files * count))).astype(np.int64)
    late = (ids % 20 == 7) & (ts >= EPOCH_US + HOUR_US)
    ts = pa.array(np.where(late, ts - HOUR_US * 55 // 60, ts)).view(KEYED.field("ts").type)
    return table.set_column(KEYED.get_field_index("ts"), "ts", ts)
