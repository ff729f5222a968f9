"""Fixtures of the client library's tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from town import Town


@pytest.fixture
def town() -> Iterator[Town]:
    made = Town()
    yield made
    with suppress(OSError):
        made.stop()
