"""Addresses: which of them other machines can come by, and which can be a node's."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host; a name other than localhost counts as reachable.

    >>> is_loopback("localhost"), is_loopback("127.0.0.9"), is_loopback("::1"), is_loopback("10.0.0.1")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_flight(address: str) -> bool:
    """Whether a Flight server can be at such an address: `grpc://host:port`, or `grpc+tls://` with certificates."""
    try:
        parts = urlsplit(address)
        return parts.scheme in ("grpc", "grpc+tcp", "grpc+tls") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False
