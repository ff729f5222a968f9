"""What the commands for a running cluster begin with: which one, and the right to speak to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from borealis.client.client import Client, connect
from borealis.client.cluster_config import read_token
from borealis.errors import BorealisError


@dataclass(frozen=True)
class Reach:
    """How the command line names a cluster."""

    coordinator: str | None = None
    token_file: Path | None = None
    ca: Path | None = None

    def client(self) -> Client:
        """A client of that cluster; nothing is sent yet."""
        return connect(self.coordinator, read_token(self.token_file) if self.token_file else None, ca=self.ca)


def pairs(option: str, given: Sequence[str], example: str) -> dict[str, str]:
    """`NAME=VALUE` options as a dict."""
    found: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise BorealisError(f"{option} '{pair}' is not NAME=VALUE", hint=f"write {option} {example}")
        if found.get(name, value) != value:
            raise BorealisError(f"{option} {name} is given twice", hint="keep one of them")
        found[name] = value
    return found
