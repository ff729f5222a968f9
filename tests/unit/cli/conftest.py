"""Fixtures of the tests of commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from town import SCHEMA, STREAM, Counter, Place, Town

from borealis.streams.queue import OutputQueue


@pytest.fixture
def schema() -> pa.Schema:
    """Of the stream; a file of tests may have another."""
    return SCHEMA


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: pa.Schema) -> Iterator[Place]:
    """A node with one stream, and the coordinator that knows it."""
    town, made = Town(), Place()
    queue = made.queues[STREAM] = OutputQueue(STREAM, schema)
    made.entries[STREAM] = Counter(queue)
    town.places[STREAM] = (made, True)
    monkeypatch.setenv("BOREALIS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BOREALIS_COORDINATOR", f"127.0.0.1:{town.port}")
    monkeypatch.delenv("BOREALIS_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    yield made
    made.close()
    with suppress(OSError):
        town.stop()
