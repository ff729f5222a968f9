"""What the coordinator's tests share, and the path to the rest of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from served import Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A coordinator with two nodes and a diagram across them; a file may have another one of its own."""
    made = Served(tmp_path / "catalog.sqlite")
    try:
        made.deploy(place={"packets": "node1", "agg": "node2"})
        yield made
    finally:
        made.close()
