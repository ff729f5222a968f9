"""Watching other nodes: pings them, and calls listeners once when one is dead. A thread for each node that is watched.

Beside the pings there is a line to each node on which nothing is said. The system cuts it the moment the other process
is gone, so that the next ping need not wait until it is due. Only pings tell whether a node is dead.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from borealis.errors import BorealisError, WireError
from borealis.ha.detector import Detector, Health, Pace
from borealis.wire.auth import Security
from borealis.wire.client import Peer
from borealis.wire.waiting import PeerTimings

AGAIN_S = 1.0  # between lines to a node that lives and hangs up
HURRY = 10  # so much faster come the pings behind one that was refused

log = logging.getLogger("borealis.node")
OnDeath = Callable[[str, Detector], None]


class Watch:
    """The nodes that are watched, and the listeners for their deaths. Thread-safe."""

    def __init__(self, security: Security | None) -> None:
        self._security = security
        self._watched: dict[str, _Watched] = {}
        self._lock = threading.Lock()

    def add(self, address: str, pace: Pace, listener: OnDeath) -> None:
        """Watch a node, if it is not watched yet; `listener` is called at its death, on a thread of its own."""
        with self._lock:
            known = self._watched.get(address)
            if known is None or known.over:
                known = self._watched[address] = _Watched(address, self._security, pace)
                known.start()
            known.hasten(pace)
            known.listeners.add(listener)

    def remove(self, address: str, listener: OnDeath) -> None:
        """Call this listener no more; a node without listeners is watched no more."""
        with self._lock:
            known = self._watched.get(address)
            if known is not None:
                known.listeners.discard(listener)
                if not known.listeners:
                    known.stop()
                    del self._watched[address]

    def close(self) -> None:
        with self._lock:
            for watched in self._watched.values():
                watched.stop()
            self._watched.clear()


def _connected(address: str, within: float) -> socket.socket:
    place = urlsplit(address)
    return socket.create_connection((place.hostname or "", place.port or 0), within)


class _HangUp:
    """Waits, and ends waiting when a node's process is gone: there is an open line to it on which nothing is said."""

    def __init__(self, address: str, within: float) -> None:
        self._address, self._within = address, within
        self._line: socket.socket | None = None
        self._again = 0.0  # when another line may be opened

    def listen(self) -> None:
        """Have a line, if the node can be reached."""
        if self._line is None and time.monotonic() >= self._again:
            self._again = time.monotonic() + AGAIN_S
            with suppress(OSError):
                self._line = _connected(self._address, self._within)
                self._line.setblocking(False)

    def wait(self, seconds: float) -> None:
        """For so long, or until the line is cut."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            waiting = select.poll()
            if self._line is not None:
                waiting.register(self._line, select.POLLIN)
            if waiting.poll(left * 1000) and not self._is_open():
                return

    def close(self) -> None:
        if self._line is not None:
            self._line.close()

    def _is_open(self) -> bool:
        """Whether what came on the line is a greeting, not its end."""
        assert self._line is not None
        with suppress(OSError):
            if self._line.recv(4096):
                return True
        self._line.close()
        self._line = None
        return False


class _Watched:
    def __init__(self, address: str, security: Security | None, pace: Pace) -> None:
        self.address, self._pace = address, pace
        self.listeners: set[OnDeath] = set()
        self.over = False
        self.detector = Detector(pace, time.monotonic())
        self._incarnation: str | None = None
        self._refuses = False  # its machine answered, and no process listens there
        self._stopped = threading.Event()
        self._within = max(pace.every_s * pace.misses, 0.3)
        self._peer = Peer(address, security, PeerTimings(connect_s=self._within, answer_s=self._within))
        self._line = _HangUp(address, pace.every_s)

    def start(self) -> None:
        threading.Thread(target=self._ping_forever, name="watch", daemon=True).start()

    def stop(self) -> None:
        """After the look that is under way, or the wait for the next."""
        self._stopped.set()

    def hasten(self, pace: Pace) -> None:
        """The hastiest of all listeners sets the pace."""
        if pace.every_s * pace.misses < self._pace.every_s * self._pace.misses:
            self._pace = self.detector.pace = pace

    def _ping_forever(self) -> None:
        while not self._stopped.is_set():
            due = time.monotonic() + self._pace.every_s
            health = self._look()
            if self._refuses:  # its machine says that it is gone: to make sure takes no time
                due = min(due, time.monotonic() + self._pace.every_s / HURRY)
            if health == "dead":
                self.over = True
                log.warning("node at %s is held to be dead", self.address)
                for listener in list(self.listeners):  # none waits for what another does about it
                    args = (self.address, self.detector)
                    threading.Thread(target=listener, args=args, name="on-death", daemon=True).start()
                break
            if health == "alive":
                self._line.listen()
            self._line.wait(due - time.monotonic())
        self._peer.close()
        self._line.close()

    def _look(self) -> Health:
        begun, self._refuses = time.monotonic(), False
        try:
            pong = self._peer.ping()
        except WireError:
            now = time.monotonic()
            waited = max(min(now - begun, self._within), self._pace.every_s)
            return self.detector.silent(now, waited) if self._listens() else self.detector.refused(now)
        except BorealisError as error:  # it answers, whatever it says
            log.info("node at %s answers a ping with: %s", self.address, error)
            return self.detector.answered(time.monotonic())
        if self._incarnation not in (None, pong.incarnation):  # the process that was there is gone; this is another
            for _ in range(self._pace.misses):
                self.detector.refused(time.monotonic())
            return self.detector.health()
        self._incarnation = pong.incarnation
        return self.detector.answered(time.monotonic())

    def _listens(self) -> bool:
        """Whether the machine still takes connections for it: then it is there, and slow."""
        try:
            with _connected(self.address, self._pace.every_s):
                return True
        except ConnectionRefusedError:
            self._refuses = True
            return False
        except OSError:
            return False
