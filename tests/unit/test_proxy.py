"""The proxy that cluster tests put in front of nodes: what waits behind a cut network comes when it heals."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from borealis.hosts import LOOPBACK, free_ports
from proxy import Proxy


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server((LOOPBACK, 0)) as listening:
        listening.settimeout(10.0)
        yield listening


@pytest.fixture
def proxy(server: socket.socket) -> Iterator[Proxy]:
    with closing(Proxy(*free_ports(1), server.getsockname()[1])) as one:
        yield one


def connected(proxy: Proxy) -> socket.socket:
    return socket.create_connection((LOOPBACK, proxy.port), timeout=10.0)


def test_what_is_sent_while_it_hangs_comes_when_it_is_healed(server: socket.socket, proxy: Proxy) -> None:
    with connected(proxy) as client, server.accept()[0] as there:
        client.sendall(b"one")
        assert there.recv(10) == b"one"
        proxy.hang()
        there.settimeout(0.2)
        with connected(proxy) as other:
            other.sendall(b"three")
            client.sendall(b"two")
            client.shutdown(socket.SHUT_WR)
            with pytest.raises(TimeoutError):
                there.recv(10)
            proxy.heal()
            there.settimeout(10.0)
            assert there.recv(10) == b"two"
            assert there.recv(10) == b""
            with server.accept()[0] as third:
                assert third.recv(10) == b"three"


def test_a_cut_breaks_connections_and_refuses_others(server: socket.socket, proxy: Proxy) -> None:
    with connected(proxy) as client, server.accept()[0]:
        proxy.cut()
        assert client.recv(10) == b""
    with pytest.raises(ConnectionRefusedError):
        connected(proxy)
    proxy.heal()
    with connected(proxy) as client, server.accept()[0] as there:
        there.sendall(b"back")
        assert client.recv(10) == b"back"


def test_where_nobody_listens_a_connection_ends(server: socket.socket, proxy: Proxy) -> None:
    server.close()
    with connected(proxy) as client:
        assert client.recv(10) == b""
