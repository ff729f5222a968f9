"""`python -m borealis.coordinator CATALOG [PORT]`: a coordinator on loopback; the command line knows more."""

from __future__ import annotations

import sys
from pathlib import Path

from borealis.coordinator.process import PORT, Options, run
from borealis.errors import BorealisError

if __name__ == "__main__":
    catalog, *port = sys.argv[1:]
    try:
        run(Options(Path(catalog), port=int(port[0]) if port else PORT))
    except BorealisError as error:
        sys.exit(f"error: {error}")
