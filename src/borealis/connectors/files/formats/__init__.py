"""One file format a file: how its records are cut from it, in order and in bounded memory.

Each is read in blocks: an `int` stands for so many rows passed by unread (never more than `skip` in all; the caller
drops the rest), else it is what came of the next records.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from borealis.connectors.records import CsvOptions
from borealis.errors import InputError
from borealis.kernels.time_of import TimeOf


class EmptyFileError(InputError):
    """A file in which not even the names of columns stand."""


@dataclass(frozen=True)
class ReadSpec:
    schema: pa.Schema
    skip: int = 0
    rows_most: int = 65_536  # of a batch that is in the file as such
    time: TimeOf | None = None  # records without one are bad, if it is given
    options: CsvOptions | None = None
    # None: every bad record is reported. Else only the first; and names of columns in JSON count in any case, as they
    # stand in the first lines, and what a user should know of them is added.
    notes: list[str] | None = None

    @property
    def first(self) -> bool:
        """Whether the first bad record is the end."""
        return self.notes is not None
