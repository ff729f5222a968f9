"""A real cluster of this machine: a coordinator and three nodes as processes, by the commands a user types."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from city import City


@pytest.fixture(scope="session")
def city(tmp_path_factory: pytest.TempPathFactory) -> Iterator[City]:
    """Three nodes for all tests, each of which deploys under names of its own and brings back whom it kills."""
    one = City(tmp_path_factory.mktemp("city"))
    one.up(3, fronted=["node3"])
    try:
        yield one
    finally:
        one.down()
