"""The databases that diagrams of the matrix read and write."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from borealis.sim.shapes import NAMES

DATABASES = "BOREALIS_CHAOS_DATABASES"


def make_database(folder: Path, name: str) -> None:
    """What a diagram finds where it reads and writes; harmless if it is there already."""
    with closing(sqlite3.connect(folder / f"{name}.db")) as database:
        database.execute("CREATE TABLE IF NOT EXISTS seen (n BIGINT)")
        database.execute("CREATE TABLE IF NOT EXISTS names (k INT PRIMARY KEY, m BIGINT)")
        database.executemany("INSERT OR REPLACE INTO names VALUES (?, ?)", NAMES.items())
        database.commit()


def database_of(name: str) -> str:
    """Where a diagram writes to; the folder is that of the process that deploys it."""
    return f"sqlite:///{os.environ.get(DATABASES, '')}/{name}.db"
