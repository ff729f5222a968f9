"""Databases for tests: a real PostgreSQL server where the machine has one, otherwise tests say so and skip; SQLite."""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.postgres_server import Server, binaries

__all__ = ["Embedded", "Server", "server"]


@contextmanager
def server() -> Iterator[Server]:
    """A server that runs, with nothing in it."""
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with tempfile.TemporaryDirectory(prefix="borealis-postgres-") as root:
        made = Server(Path(root))
        made.start()
        try:
            yield made
        finally:
            if (made.data / "postmaster.pid").exists():
                made.stop()


class Embedded:
    """A file of SQLite behind the same methods."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def url(self) -> str:
        """As a box takes it."""
        return f"sqlite:///{self.path}"

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        """Statements one by one, each committed at once; what the last one gives."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            for statement in statements:
                rows = connection.execute(statement).fetchall()
            return rows
