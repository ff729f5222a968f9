"""`borealis coordinator`: one coordinator, in the foreground."""

from __future__ import annotations

import os
from pathlib import Path

from borealis.cli import processes
from borealis.cli.node import Protection, join
from borealis.cli.starting import COORDINATOR
from borealis.client.cluster_config import TOKEN, home


def coordinator_command(host: str, port: int, catalog: Path | None, protection: Protection) -> None:
    """Run until it is told to stop."""
    security = protection.security(os.environ.get(TOKEN) or None)
    catalog = catalog or home() / "catalog.sqlite"
    where = ["--host", host, "--port", str(port), "--catalog", str(catalog.absolute())]
    join(host, port, processes.this_one(COORDINATOR, ["coordinator", *where, *protection.arguments()]))
    from borealis.coordinator.process import Options, run
    from borealis.gateway.stream_api import gateway

    run(Options(catalog, host, port, security, parts=[gateway]))
