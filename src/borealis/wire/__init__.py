"""Arrow Flight between processes: messages, server, client, authentication."""

from __future__ import annotations

import os

# gRPC writes a line to stderr for every malformed packet that comes; errors that matter are raised anyway.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
