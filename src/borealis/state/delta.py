"""What a train changes in the tables of a stateful box, and how such changes add up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from borealis.tuples import Int64s


@dataclass(frozen=True)
class Change:
    """What happened to one table. Meaning: first drop the rows whose key is in `cut`, then those whose floor column
    is below `floor`, then put the rows of `put` in place of any with the same key.
    """

    put: pa.Table
    cut: pa.Table | None = None  # key columns only
    floor: int | None = None


Delta = dict[str, Change]  # by table name; a table that did not change is absent


@dataclass(frozen=True)
class TableSpec:
    """A state table: its primary key (int64 columns), and the int64 column that `floor` speaks of, if any."""

    name: str
    key: tuple[str, ...]
    floor: str | None = None
