"""Watching other nodes: pings them, and calls listeners once when one is dead. A thread for each node that is watched.

Beside the pings there is a line to each node on which nothing is said. The system cuts it the moment the other process
is gone, so that the next ping need not wait until it is due. Only pings tell whether a node is dead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from borealis.errors import BorealisError, WireError
from borealis.ha.detector import Detector, Health, Pace
from borealis.wire.client import Peers
from borealis.wire.transport import QuietLine
from borealis.wire.waiting import PeerTimings

HURRY = 10  # so much faster come the pings behind one that was refused

log = logging.getLogger("borealis.node")
OnDeath = Callable[[str, Detector], None]


@dataclass(frozen=True)
class WatchTimings:
    """What the pace of its pings does not say of a watch, in seconds."""

    again_s: float = 1.0  # between lines to a node that lives and hangs up
    answer_s: float = 0.3  # for an answer, at least: a fast pace must not make a slow machine a dead one


TIMINGS = WatchTimings()


class Watch:
    """The nodes that are watched, and the listeners for their deaths. Thread-safe."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._watched: dict[str, _Watched] = {}
        self._lock = peers.machine.threads.lock()

    def add(self, address: str, pace: Pace, listener: OnDeath) -> None:
        """Watch a node, if it is not watched yet; `listener` is called at its death, on a thread of its own."""
        with self._lock:
            known = self._watched.get(address)
            if known is None or known.over:
                known = self._watched[address] = _Watched(address, self._peers, pace)
                known.start()
            known.hasten(pace)
            known.listeners[listener] = None

    def remove(self, address: str, listener: OnDeath) -> None:
        """Call this listener no more; a node without listeners is watched no more."""
        with self._lock:
            known = self._watched.get(address)
            if known is not None:
                known.listeners.pop(listener, None)
                if not known.listeners:
                    known.stop()
                    del self._watched[address]

    def close(self) -> None:
        with self._lock:
            for watched in self._watched.values():
                watched.stop()
            self._watched.clear()


class _HangUp:
    """Waits, and ends waiting when a node's process is gone: there is an open line to it on which nothing is said."""

    def __init__(self, address: str, peers: Peers, within: float) -> None:
        self._address, self._within = address, within
        self._network, self._clock = peers.network, peers.machine.clock
        self._line: QuietLine | None = None
        self._again = 0.0  # when another line may be opened

    def listen(self) -> None:
        """Have a line, if the node can be reached."""
        if self._line is None and self._clock.now() >= self._again:
            self._again = self._clock.now() + TIMINGS.again_s
            with suppress(OSError):
                self._line = self._network.line(self._address, self._within)

    def wait(self, seconds: float) -> bool:
        """For so long, or until the line is cut; whether it was."""
        if self._line is None:
            self._clock.sleep(max(0.0, seconds))
            return False
        cut = self._line.wait(seconds)
        if cut:
            self.close()
        return cut

    def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()


class _Watched:
    def __init__(self, address: str, peers: Peers, pace: Pace) -> None:
        self.address, self._pace = address, pace
        self._network, self._clock, self._threads = peers.network, peers.machine.clock, peers.machine.threads
        self.listeners: dict[OnDeath, None] = {}  # in the order in which they came
        self.over = False
        self.detector = Detector(pace, self._clock.now())
        self._incarnation: str | None = None
        self._refuses = False  # its machine answered, and no process listens there
        self._stopped = self._threads.event()
        self._within = max(pace.every_s * pace.misses, TIMINGS.answer_s)
        self._peer = peers.connect(address, PeerTimings(connect_s=self._within, answer_s=self._within))
        self._line = _HangUp(address, peers, pace.every_s)

    def start(self) -> None:
        self._threads.start("watch", self._ping_forever)

    def stop(self) -> None:
        """After the look that is under way, or the wait for the next."""
        self._stopped.set()

    def hasten(self, pace: Pace) -> None:
        """The hastiest of all listeners sets the pace."""
        if pace.every_s * pace.misses < self._pace.every_s * self._pace.misses:
            self._pace = self.detector.pace = pace

    def _ping_forever(self) -> None:
        hung_up = False  # since it was last seen alive: a process that ends may be in the midst of it
        while not self._stopped.is_set():
            due = self._clock.now() + self._pace.every_s
            health = self._look()
            hung_up = hung_up and health != "alive"
            if self._refuses or hung_up:  # its machine says that it is gone: to make sure takes no time
                due = min(due, self._clock.now() + self._pace.every_s / HURRY)
            if health == "dead":
                self.over = True
                log.warning("node at %s is held to be dead", self.address)
                for listener in list(self.listeners):  # none waits for what another does about it
                    self._threads.start("on-death", partial(listener, self.address, self.detector))
                break
            if health == "alive":
                self._line.listen()
            hung_up = self._line.wait(due - self._clock.now()) or hung_up
        self._peer.close()
        self._line.close()

    def _look(self) -> Health:
        begun, self._refuses = self._clock.now(), False
        try:
            pong = self._peer.ping()
        except WireError:
            now = self._clock.now()
            waited = max(min(now - begun, self._within), self._pace.every_s)
            if self._listens():
                return self.detector.silent(now, waited)
            return self.detector.refused(now, certain=self._refuses)
        except BorealisError as error:  # it answers, whatever it says
            log.info("node at %s answers a ping with: %s", self.address, error)
            return self.detector.answered(begun)
        if self._incarnation not in (None, pong.incarnation):  # the process that was there is gone; this is another
            for _ in range(self._pace.misses):
                self.detector.refused(self._clock.now(), certain=True)
            return self.detector.health()
        self._incarnation = pong.incarnation
        return self.detector.answered(begun)

    def _listens(self) -> bool:
        """Whether the machine still takes connections for it: then it is there, and slow."""
        try:
            self._network.line(self.address, self._pace.every_s).close()
            return True
        except ConnectionRefusedError:
            self._refuses = True
            return False
        except OSError:
            return False
