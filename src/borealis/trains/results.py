"""What comes of a train, as Spark hands it over: packets of bytes, and rows that went through Catalyst."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from borealis.errors import WireError
from borealis.kernels import aside
from borealis.kernels.aside import BOX, ERRORS, EXPRESSION, REASON, TUPLE
from borealis.kernels.flow import Bounds, Flow, merge_bounds
from borealis.kernels.kinds import mended
from borealis.kernels.program import (
    DELTA_TAG,
    ERRORS_TAG,
    TRAIN_TAG,
    Packet,
    Program,
    all_bounds,
    flow_from_packets,
    flow_of,
    flow_table,
)
from borealis.state.delta import box_of, to_stream
from borealis.state.log import Key
from borealis.trains.header import TrainHeader, TrainInputs
from borealis.trains.location import joined, read
from borealis.tuples import CAUSE, FIRST_TIME, KIND, LAST_TIME, SUB, TIME, Int64s

if TYPE_CHECKING:
    from borealis.trains.progress import Progress

# columns of what passes between levels; behind them one struct column per flow that goes through Catalyst
TAG, BUCKET, PAYLOAD, FILE = "__tag", "__bucket", "__payload", "__file"
HIDDEN = {TIME: "__time", CAUSE: "__cause", SUB: "__sub"}
FAILED = "__failed"  # of a row that failed in Catalyst: where, and the row, as JSON
FAILED_TAG = -4  # of such rows
REASONS_ALL, REASONS_EVERY = 1_000, 100  # tuples that fail in Spark of which the reason is asked: the first, then some
UNASKED = "it fails in Spark, as others before it"

Reason = Callable[[str, str, str], str]  # why a tuple fails in a box's expression


def rows_column(tag: int) -> str:
    """The struct column that carries a flow's rows through Catalyst."""
    return f"__f{tag}"


def train_bounds(program: Program, train: TrainInputs) -> dict[str, Bounds]:
    """The boundaries of every flow, from the train's header."""
    inputs = {}
    for name, one in train["inputs"].items():
        cause, time = np.array(one["cause"], np.int64), np.array(one["bound"], np.int64)
        inputs[name] = Bounds(one["standing"], cause, time)
        # late tuples come with no promise at all, until the input ends
        standing, ends = LAST_TIME if one["standing"] == LAST_TIME else FIRST_TIME, one["bound"][-1:] == [LAST_TIME]
        inputs[f"{name}.late"] = Bounds(standing, cause[-1:], time[-1:]) if ends else Bounds(standing)
    late = [inputs[f"{name}.late"] for name in train["inputs"]]
    return all_bounds(program, inputs) | {ERRORS: merge_bounds(late)}


class Arrived:
    """What came out of a level: packets, and rows by their tag."""

    def __init__(
        self,
        batches: Iterable[pa.RecordBatch] = (),
        train: TrainHeader | None = None,
        packets: Iterable[Packet] = (),
    ) -> None:
        """Out of what Spark gives, or what lanes gave of this train."""
        self.packets: list[Packet] = list(packets)
        self._rows: dict[int, list[pa.RecordBatch]] = {}
        self._pieces: dict[str, dict[int, pa.Buffer]] = {}
        self.train = train
        self.bucket = -1
        for batch in batches:
            self._add(batch)
        self.packets += [_errors(batch) for batch in self._rows.pop(FAILED_TAG, [])]
        if self._pieces:
            raise WireError(f"of {len(self._pieces)} results of a train only pieces came")

    def _add(self, batch: pa.RecordBatch) -> None:
        tags, payloads, files = (batch.column(name) for name in (TAG, PAYLOAD, FILE))
        tags, packed = tags.to_numpy(), pc.or_(payloads.is_valid(), files.is_valid()).to_numpy(zero_copy_only=False)
        for i in np.flatnonzero(packed).tolist():
            file, payload = files[i].as_py(), payloads[i].as_buffer()
            if file is not None and payload is not None:
                payload, file = self._whole(file, payload), None
                if payload is None:
                    continue
            elif file is not None:
                payload = read(file)
            packet = Packet(int(tags[i]), batch.column(BUCKET)[i].as_py(), payload, file)
            if packet.tag == TRAIN_TAG and self.train is None:
                self.train, self.bucket = json.loads(payload.to_pybytes()), packet.bucket
            self.packets.append(packet)
        for tag in np.unique(tags[~packed]).tolist():
            mine = (tags == tag) & ~packed
            self._rows.setdefault(tag, []).append(batch if mine.all() else batch.filter(pa.array(mine)))

    def _whole(self, name: str, piece: pa.Buffer) -> pa.Buffer | None:
        """The payload that this piece was the last one missing of."""
        _, number, count, whose = name.split(" ")
        pieces = self._pieces.setdefault(whose, {})
        pieces[int(number)] = piece
        if len(pieces) < int(count):
            return None
        del self._pieces[whose]
        return joined(sum(p.size for p in pieces.values()), (pieces[n] for n in range(len(pieces))))

    def explain(self, progress: Progress, reason: Reason | None) -> None:
        """Count tuples that failed, and say why those failed that did so in Spark: many are not asked one by one."""
        payloads = [p.payload for p in self.packets if p.tag == ERRORS_TAG]
        if not payloads:
            return
        failed = flow_from_packets(payloads, aside.SCHEMA, Bounds())
        failed = failed.take(aside.once(failed))  # Spark runs a box again for each of those that read it
        rows = failed.rows.to_pylist()
        for number, row in enumerate(rows, progress.errors):
            asked = number < REASONS_ALL or number % REASONS_EVERY == 0
            if not row[REASON]:
                row[REASON] = reason(row[BOX], row[EXPRESSION], row[TUPLE]) if reason and asked else UNASKED
        explained = failed.with_rows(pa.Table.from_pylist(rows, aside.SCHEMA))
        self.packets = [p for p in self.packets if p.tag != ERRORS_TAG]
        self.packets.append(Packet(ERRORS_TAG, -1, to_stream(flow_table(explained))))
        progress.errors += len(failed)
        last = rows[-1]
        progress.last_error = f"box '{last[BOX]}', `{last[EXPRESSION]}`: {last[REASON]}"

    def flow(self, tag: int, schema: pa.Schema, bounds: Bounds) -> Flow:
        """The flow that was sent under a tag, in order."""
        if tag in self._rows:
            tables = []
            for batch in self._rows[tag]:
                struct = batch.column(rows_column(tag))
                columns = dict(zip(schema.names, struct.flatten(), strict=True))
                table = pa.table(columns, schema=schema) if columns else batch.select([])
                for name, hidden in HIDDEN.items():
                    table = table.append_column(name, batch.column(hidden))
                tables.append(table)
            if KIND in schema.names:
                buckets = np.concatenate([batch.column(BUCKET).to_numpy() for batch in self._rows[tag]])
                tables = _mended(pa.concat_tables(tables), buckets, schema)
            return flow_of(tables, schema, bounds)
        return flow_from_packets([p.payload for p in self.packets if p.tag == tag], schema, bounds)

    def deltas(self) -> tuple[dict[Key, pa.Buffer], dict[Key, str]]:
        """Those of all boxes and buckets, and the files that some of them lie in."""
        found = {(box_of(p.payload), p.bucket): p for p in self.packets if p.tag == DELTA_TAG}
        files = {key: packet.file for key, packet in found.items() if packet.file is not None}
        return {key: pa.py_buffer(packet.payload) for key, packet in found.items()}, files


def _mended(rows: pa.Table, buckets: Int64s, schema: pa.Schema) -> list[pa.Table]:
    """Rows that correct earlier ones, as they came out of Catalyst, with what is left of their pairs mended.

    The halves of a pair are of one bucket, where nothing stands between them."""
    parts = [rows.filter(pa.array(buckets == bucket)) for bucket in np.unique(buckets)]
    return [flow_table(mended(flow_of([part], schema, Bounds()))) for part in parts]


def _errors(batch: pa.RecordBatch) -> Packet:
    """Rows that failed in Catalyst, as rows of the errors' flow; why they failed is asked when they are committed."""
    found = [json.loads(text) for text in batch.column(FAILED).to_pylist()]
    hidden = [batch.column(HIDDEN[name]) for name in (TIME, CAUSE, SUB)]
    texts = [[one[BOX], one[EXPRESSION], "", one[TUPLE]] for one in found]
    return Packet(ERRORS_TAG, -1, to_stream(aside.table(*hidden, *zip(*texts, strict=True))))
