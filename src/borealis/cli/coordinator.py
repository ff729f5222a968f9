"""`borealis coordinator`: one coordinator, in the foreground."""

from __future__ import annotations

import os
from pathlib import Path

from borealis.cli.node import Protection
from borealis.emit.whereabouts import TOKEN, home


def coordinator_command(host: str, port: int, catalog: Path | None, protection: Protection) -> None:
    """Run until it is told to stop."""
    security = protection.security(os.environ.get(TOKEN) or None)
    from borealis.coordinator.process import Options, run

    run(Options(catalog or home() / "catalog.sqlite", host, port, security))
