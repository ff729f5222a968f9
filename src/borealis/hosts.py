"""Addresses: which of them other machines can come by, which can be a node's, and ports that stay free."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
from pathlib import Path
from urllib.parse import urlsplit

from borealis.errors import MachineError

LOOPBACK = "127.0.0.1"
PORTS_FROM = 15_000  # above what servers use by custom
PORTS_TRIED = 1000  # before we say that there are none
PORTS_UNTIL = 32_768  # where Linux begins, if it does not say so, with the ports it gives to connections


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


def free_ports(count: int) -> list[int]:
    """Ports of loopback that are free, for servers that start later.

    Not of those that the system gives to connections: one of these could be taken before the server has started, or
    while it is down, even by a client that knocks at it.

    >>> len(set(free_ports(3)))
    3
    """
    with contextlib.ExitStack() as held:  # all at once: none is given twice
        return [held.enter_context(_free_port()).getsockname()[1] for _ in range(count)]


def _free_port() -> socket.socket:
    until = _ports_until()
    for _ in range(PORTS_TRIED):
        one = socket.socket()
        try:
            one.bind((LOOPBACK, PORTS_FROM + secrets.randbelow(until - PORTS_FROM)))
            return one
        except OSError:
            one.close()
    raise MachineError(f"no port of {LOOPBACK} is free between {PORTS_FROM} and {until}", hint="name one yourself")


def _ports_until() -> int:
    try:
        given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):  # another system
        return PORTS_UNTIL
    return given if given > PORTS_FROM + PORTS_TRIED else PORTS_UNTIL
