"""Numbers of bytes as people write them ("512 MB", "2 GiB")."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

from borealis.errors import DiagramError, brief

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
EXAMPLE = "write a number and a unit, such as '512 MB' or '2 GiB'"

_SIZE = re.compile(r"\s*([0-9]{1,15})\s*([A-Za-z]{1,3})\s*")


def parse_size(text: object) -> int:
    """The bytes that a text says.

    >>> parse_size("512 MB"), parse_size("2GiB")
    (512000000, 2147483648)
    """
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2].upper() not in UNITS:
        raise DiagramError(f"{brief(text)} is not a size", hint=EXAMPLE)
    return int(match[1]) * UNITS[match[2].upper()]


def _checked(text: str) -> str:
    parse_size(text)
    return text.strip()


Size = Annotated[str, BeforeValidator(_checked)]  # a field of a model: kept as it was written
