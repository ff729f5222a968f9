"""`python coordinator_process.py CATALOG PORT`: a coordinator with its gateway, on loopback."""

from __future__ import annotations

import sys
from pathlib import Path

from borealis.coordinator.process import Options, run
from borealis.errors import BorealisError
from borealis.gateway.stream_api import gateway

if __name__ == "__main__":
    catalog, port = sys.argv[1:]
    try:
        run(Options(Path(catalog), port=int(port), parts=[gateway]))
    except BorealisError as error:
        sys.exit(f"error: {error}")
