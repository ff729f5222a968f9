"""Tests of many cases take them in shares, of which `make check` runs the first."""

from __future__ import annotations

from typing import Any

import pytest


def shares(count: int) -> list[Any]:
    """The numbers of all shares, as parameters."""
    return [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, count))]
