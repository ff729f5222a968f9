"""`borealis coordinator`: one coordinator, in the foreground."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from typer import Option

from borealis.cli.options import Host, SecurityOptions, arguments
from borealis.cli.processes import join
from borealis.client.cluster_config import TOKEN, home


def coordinator(
    host: Host = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Where it listens.")] = 7470,
    catalog: Annotated[Path | None, Option(metavar="FILE", help="What shall run, in SQLite.")] = None,
    *,
    protection: SecurityOptions,
) -> None:
    security = protection.security(os.environ.get(TOKEN) or None)
    catalog = catalog or home() / "catalog.sqlite"
    typed = arguments("coordinator", host=host, port=port, catalog=catalog, **vars(protection))
    join(host, port, "coordinator", typed)
    from borealis.coordinator.process import Options, run
    from borealis.gateway.stream_api import gateway

    run(Options(catalog, host, port, security, parts=[gateway]))
