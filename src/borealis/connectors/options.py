"""Options in the addresses of files and topics: one vocabulary for all."""

from __future__ import annotations

from borealis.errors import InputError

FLAGS = {"true": True, "false": False}


def flag(place: str, name: str, value: str) -> bool:
    """An option that is on or off.

    >>> flag("a.csv", "header", "false")
    False
    """
    if value not in FLAGS:
        raise InputError(f"{place}: {name}={value} is neither true nor false", hint=f"write {name}=false")
    return FLAGS[value]
