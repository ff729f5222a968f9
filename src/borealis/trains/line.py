"""A line of trains: what is cut from a unit's intakes, one train behind the other. The trunk is one, a fork another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from borealis.entry.admission import Cursor
from borealis.state.delta import to_stream
from borealis.trains.header import PAYLOADS, TrainInputs
from borealis.trains.intake import Intake
from borealis.trains.merge_order import bounds, determinants, numbered, with_cause
from borealis.trains.merging import Merged
from borealis.trains.relay import Relayed
from borealis.trains.train import Train
from borealis.tuples import TIME

INLINE_BYTES_MOST = 256 << 10  # of an input's rows in a train that stay in memory; more go by way of a file


@dataclass(frozen=True)
class Cut:
    """A train that was cut, with what workers must know of it."""

    train: Train
    header: TrainInputs


class Line:
    """Which trains were made of some intakes, handed out, and committed. Not thread-safe."""

    def __init__(self, intakes: Mapping[str, Intake], depot: Path, next_cause: int = 0, trains: int = 0) -> None:
        self.intakes, self.depot = intakes, depot
        self._trains: dict[int, Train] = {}
        self._headers: dict[int, TrainInputs] = {}
        self.begin(next_cause, trains)

    def begin(self, next_cause: int, trains: int) -> None:
        """Go on behind a train, wherever the intakes stand."""
        self.next_cause = next_cause
        self.made = self.handed = self.released = trains  # the number of the newest train that was
        self.finished = all(i.done for i in self.intakes.values())  # every input had ended with the newest train

    def cursors(self) -> dict[str, Cursor]:
        """Where every input stands after the newest train."""
        return {name: intake.cut for name, intake in self.intakes.items()}

    def cut(self, merged: Merged) -> Cut:
        """The next train, of what was taken from the intakes."""
        pieces = merged.pieces
        number = self.made + 1
        standing = {name: intake.cut.boundary for name, intake in self.intakes.items()}
        for piece in reversed(pieces):
            standing[piece.name] = piece.rows.start.boundary
        causes = numbered(pieces, merged.order, self.next_cause)
        header: TrainInputs = {"train": number, "inputs": {}}
        rows = 0
        for name, intake in self.intakes.items():
            mine = [(p, c) for p, c in zip(pieces, causes, strict=True) if p.name == name]
            stands = [b for p, c in mine for b in bounds(p, c)]
            timed = intake.entry.time_column == TIME
            size = sum(p.rows.nbytes for p, _ in mine)
            table = with_cause(mine, late=False, timed=timed)
            late = with_cause(mine, late=True, timed=timed)
            header["inputs"][name] = {
                "time": intake.entry.time_column,
                "standing": standing[name],
                "cause": [c for c, _ in stands],
                "bound": [b for _, b in stands],
                "rows": self._payload(f"{number}.{name}.rows.arrow", table, size),
                "late": self._payload(f"{number}.{name}.late.arrow", late, size),
            }
            rows += sum(len(p.rows) for p, _ in mine)
        leaps = any(isinstance(p.rows, Relayed) and p.rows.leaps for p in pieces)
        jumps = any(isinstance(p.rows, Relayed) and p.rows.jumps for p in pieces)  # its first event stands behind it
        train = Train(
            number,
            self.cursors(),
            self.next_cause + sum(map(len, causes)),
            rows,
            all(i.done for i in self.intakes.values()),
            determinants(pieces),
            merged.silent,
            merged.free,
            leaps,
            jumps,
        )
        return Cut(train, header)

    def add(self, cut: Cut) -> None:
        """This is the newest train."""
        train = cut.train
        self._headers[train.number], self._trains[train.number] = cut.header, train
        self.made, self.next_cause, self.finished = train.number, train.next_cause, train.final

    def hand_out(self, number: int) -> int:
        self.handed = max(self.handed, number)
        return number

    def train(self, number: int) -> Train:
        """A train that was made and not yet released."""
        return self._trains[number]

    def header(self, number: int, *, files: bool = False) -> TrainInputs:
        """What workers must know of a train; rows of an input are a buffer or, where they are many, a file's path.

        With `files`, all rows are in files: for workers that get the header as JSON.
        """
        header = self._headers[number]
        for name, one in header["inputs"].items():
            for which in PAYLOADS:
                if files and isinstance(rows := one[which], pa.Buffer):
                    path = self.depot / f"{number}.{name}.{which}.arrow"
                    path.write_bytes(memoryview(rows))
                    one[which] = str(path)
        return header

    def release(self, number: int) -> tuple[Train, list[str]]:
        """The train is committed: forget it; with the files that it had."""
        header, self.released = self._headers.pop(number), number
        files = [one[which] for one in header["inputs"].values() for which in PAYLOADS]
        return self._trains.pop(number), [path for path in files if isinstance(path, str)]

    @property
    def waiting(self) -> int:
        """How many rows have arrived and are in no committed train."""
        return sum(i.rows for i in self.intakes.values()) + sum(t.rows for t in self._trains.values())

    def _payload(self, name: str, table: pa.Table | None, size: int) -> pa.Buffer | str | None:
        if table is None:
            return None
        if size <= INLINE_BYTES_MOST:
            return to_stream(table)
        path = self.depot / name
        table = table.combine_chunks()  # here others wait for nothing; a worker takes it as it lies, and may hold it
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        return str(path)
