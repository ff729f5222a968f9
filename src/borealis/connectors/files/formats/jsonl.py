"""JSON lines: one object a line; a key that is absent from a line is null there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from borealis.connectors.files.formats import ReadSpec
from borealis.connectors.files.suffixes import open_bytes
from borealis.connectors.records import Decoded, JsonRecords, Lines, decode, parse_object
from borealis.values.fit import RowOrigin, match_columns
from borealis.values.python import absent

BLOCK_BYTES = 4 * 2**20
LINES_SEARCHED = 1000  # for the names of the columns
BOM = b"\xef\xbb\xbf"


def read(path: Path, how: ReadSpec) -> Iterator[int | Decoded]:
    """Blocks of whole lines; those before the position are counted, not parsed."""
    row = 0
    reader = None if how.first else JsonRecords(how.schema)
    with open_bytes(path) as file:
        for block in _blocks(file):
            lines = Lines(block)
            if not lines:
                continue
            if reader is None:
                reader = JsonRecords(how.schema, _keys(lines, how, str(path)), bytes_most=math.inf)
            row += len(lines)
            yield len(lines) if row <= how.skip else decode(lines, reader, how.schema, how.time, how.first)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    """The bytes in blocks of whole lines."""
    rest = file.read(len(BOM))
    rest = b"" if rest == BOM else rest
    while data := file.read(BLOCK_BYTES):
        end = data.rfind(b"\n") + 1
        if end:
            yield rest + data[:end]
            rest = data[end:]
        else:
            rest += data
    if rest:
        yield rest


def _keys(lines: list[bytes], how: ReadSpec, source: str) -> list[str]:
    """Under which keys the declared columns stand in a file that begins with these lines."""
    seen: dict[str, None] = {}
    for index, line in enumerate(lines[:LINES_SEARCHED]):
        seen |= dict.fromkeys(parse_object(line, RowOrigin(source).row(index)))
    names = list(seen)
    names += absent(how.schema.names, names, source, [] if how.notes is None else how.notes)
    return [names[index] for index in match_columns(how.schema.names, names, source)]
