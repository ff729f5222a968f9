"""The command line: `borealis run`, `explain`, `check`, `bench`, `demo`, and `up` to `down` for clusters."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """The entry point; every way it can end is an exit code and at most one line of complaint."""
    from borealis.cli.ending import leave, run_app

    leave(run_app(sys.argv[1:]))
