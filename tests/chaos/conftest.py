"""Shared by the chaos tests."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from programs import load

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]  # the matrix, and benchmarks


@pytest.fixture(scope="session")
def workload() -> ModuleType:
    """The module `workload.py`, which also runs as a program."""
    return load(Path(__file__).with_name("workload.py"))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is such a thing: these tests sync thousands of times."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="borealis-test-", dir=shm) as made:
        yield Path(made)
