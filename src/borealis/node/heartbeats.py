"""Heartbeats of a node: the coordinator hears every second what is on it, and at once who is unprotected."""

from __future__ import annotations

import logging
from typing import Protocol

from borealis.errors import BorealisError, UnreachableError
from borealis.node.node import Node

HEARTBEAT_S = 1.0

log = logging.getLogger("borealis.node")


class Listener(Protocol):
    """A coordinator, as a node reports to it."""

    def heartbeat(self, status: bytes) -> None:
        """Raises an UnreachableError where it does not answer, another BorealisError where it refuses the node."""


class Heartbeats:
    """Sends the coordinator what is on this node, every second and when there is news; without one, nothing."""

    def __init__(self, node: Node, coordinator: Listener | None, every_s: float = HEARTBEAT_S) -> None:
        self._node, self._coordinator, self._every_s = node, coordinator, every_s
        self._now = node.news
        self._stopped = False
        self._connected = True

    def first(self) -> None:
        """Join the cluster; raises if this node is refused. A coordinator that is not there yet is waited for."""
        if self._coordinator is not None:
            self._beat(self._coordinator)
            self._node.machine.threads.start("heartbeat", self._beat_forever)

    def wake(self) -> None:
        """Send one now: something has changed."""
        self._now.set()

    def stop(self) -> None:
        self._stopped = True
        self._now.set()

    def _beat(self, coordinator: Listener) -> None:
        try:
            coordinator.heartbeat(self._node.status().encode())
            if not self._connected:
                log.warning("the coordinator is back")
            self._connected = True
        except UnreachableError as error:
            if self._connected:
                log.warning("%s; what runs goes on", error)
            self._connected = False

    def _beat_forever(self) -> None:
        assert self._coordinator is not None
        while True:
            self._now.wait(self._every_s)
            self._now.clear()
            if self._stopped:
                return
            try:
                self._beat(self._coordinator)
            except BorealisError as error:
                log.error("the coordinator refuses this node: %s", error)
                self._node.stop_asked.set()
                return
            except Exception:
                log.exception("a heartbeat failed")
                self._node.machine.clock.sleep(self._every_s)
