"""Time as it would be if the machine's cores were ours: for bounds that a starved machine shall not break."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
STOLEN = 8  # the place of it in a line of STAT


class Stopwatch:
    """Seconds since it was made, less those that other guests of the same hardware took from any of our cores."""

    def __init__(self) -> None:
        self._began, self._stolen = time.monotonic(), _stolen()

    @property
    def seconds(self) -> float:
        """So many until now."""
        return time.monotonic() - self._began - (_stolen() - self._stolen)


def _stolen() -> float:
    """Seconds of all cores together, since the machine started; 0 where the system does not tell."""
    if not STAT.exists():
        return 0.0
    return int(STAT.read_text().split("\n", 1)[0].split()[STOLEN]) / os.sysconf("SC_CLK_TCK")
