"""`python -m borealis.gateway CATALOG [PORT]`: a coordinator with its gateway, on loopback."""

from __future__ import annotations

import sys
from pathlib import Path

from borealis.coordinator.process import PORT, Options, run
from borealis.errors import BorealisError
from borealis.gateway.stream_api import gateway

if __name__ == "__main__":
    catalog, *port = sys.argv[1:]
    try:
        run(Options(Path(catalog), port=int(port[0]) if port else PORT, parts=[gateway]))
    except BorealisError as error:
        sys.exit(f"error: {error}")
