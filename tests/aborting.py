"""The end of a Flight server as if its process were killed."""

from __future__ import annotations

import socket
import threading

from borealis.wire.calls import cut_connections
from borealis.wire.server import WireServer


def abort(server: WireServer) -> None:
    """Then no client is connected any more, nor can be, and none hears why."""
    running, server._flight = server._flight, None
    assert running is not None
    port = running.port
    threading.Thread(target=running.shutdown, daemon=True).start()
    while is_open(port):  # a line that is cut before is followed by a ping that is answered
        pass
    cut_connections(port)


def is_open(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0):
            return True
    except OSError:
        return False
