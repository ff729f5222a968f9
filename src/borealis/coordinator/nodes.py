"""What the coordinator asks of nodes, and how it asks them over the wire."""

from __future__ import annotations

import threading
from typing import Protocol, TypeVar

from borealis.errors import WireError
from borealis.message import Message
from borealis.wire.auth import Security
from borealis.wire.client import Peer

M = TypeVar("M", bound=Message)
ORDER_SECONDS = 30.0
PATIENCE_SECONDS = {"ping": 2.0, "status": 5.0, "check": 150.0, "entry": 150.0, "start": 170.0}  # Spark may be starting


class Nodes(Protocol):
    """All nodes, by the addresses of their Flight servers. Any call may raise a WireError, or what the node says."""

    def act(self, address: str, action: str, message: Message, answer: type[M]) -> M: ...

    def peer(self, address: str) -> Peer:
        """The connection that is shared."""
        ...

    def connect(self, address: str) -> Peer:
        """A connection of one's own."""
        ...

    def close(self) -> None: ...


class WireNodes:
    """Real nodes. One connection to each address, made when first needed and made anew after it broke."""

    def __init__(self, security: Security | None = None) -> None:
        self._security = security
        self._peers: dict[str, Peer] = {}
        self._guard = threading.Lock()

    def act(self, address: str, action: str, message: Message, answer: type[M]) -> M:
        peer = self.peer(address)
        try:
            return peer.act(action, message, answer, within=PATIENCE_SECONDS.get(action, ORDER_SECONDS))
        except WireError:
            with self._guard:
                if self._peers.get(address) is peer:
                    del self._peers[address]
            raise

    def connect(self, address: str) -> Peer:
        return Peer(address, self._security)

    def close(self) -> None:
        with self._guard:
            peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            peer.close()

    def peer(self, address: str) -> Peer:
        with self._guard:
            if address not in self._peers:
                self._peers[address] = Peer(address, self._security)
            return self._peers[address]
