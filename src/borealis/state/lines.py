"""Files of lines that can be checked: a version, then JSON behind its checksum, a line each. They only grow.

A torn last line is cut off when the file is read: whoever wrote it had not been told that it was safe.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from borealis.errors import InputError

ANEW = "restore the state directory from a copy, or delete it to start anew"
CHECKSUM = 9  # characters: eight digits and a space


def line(said: Mapping[str, Any]) -> bytes:
    """A line for such a file."""
    text = json.dumps(said, separators=(",", ":")).encode()
    return b"%08x " % zlib.crc32(text) + text + b"\n"


def lines_of(path: Path, version: bytes) -> Iterator[dict[str, Any]]:
    """What the lines say; behind the last whole one the file is cut."""
    with open(path, "r+b") as file:
        if file.readline() != version:
            raise InputError(f"{path} is no ledger of this version", hint=ANEW)
        whole = file.tell()
        for raw in file:
            said = _parsed(raw)
            if said is None:
                if file.read(1):
                    raise InputError(f"{path} is damaged", hint=ANEW)
                break
            whole += len(raw)
            yield said
        file.truncate(whole)


def _parsed(raw: bytes) -> dict[str, Any] | None:
    if not raw.endswith(b"\n") or raw[:CHECKSUM] != b"%08x " % zlib.crc32(raw[CHECKSUM:-1]):
        return None
    said: dict[str, Any] = json.loads(raw[CHECKSUM:-1])
    return said
