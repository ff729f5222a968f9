"""All the coordinator holds: the catalog, who is there, the way to the nodes, and who is at work on which diagram."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TypeVar

from borealis.clock import Clock, WallClock
from borealis.coordinator.catalog import Catalog, KnownNode
from borealis.coordinator.http_errors import CatalogError, MissingError, TakenError
from borealis.coordinator.layout import Layout
from borealis.coordinator.membership import DEAD_AFTER_SECONDS, Member, Membership
from borealis.errors import BorealisError, did_you_mean
from borealis.message import Message
from borealis.wire.client import Peers
from borealis.wire.messages import DiagramName, Done, NodeStatus, Ping, Pong

log = logging.getLogger("borealis.coordinator")
M = TypeVar("M", bound=Message)
ORDER_SECONDS = 30.0
ANSWER_SECONDS = {"ping": 2.0, "status": 5.0, "check": 150.0, "start": 170.0}  # Spark may be starting
NOTED_SECONDS = 10.0  # so often the catalog is told when a node was last seen
UNHEARD_SECONDS = 5.0  # nodes have so long to be heard after the coordinator began
WAIT_SECONDS = 60.0  # for someone else's work on the same diagram


class Cluster:
    """The coordinator's knowledge. Thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        nodes: Peers,
        clock: Clock | None = None,
        dead_after: float = DEAD_AFTER_SECONDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.catalog, self.nodes, self.now = catalog, nodes, now
        self.members = Membership(clock, dead_after)
        self._clock = clock or WallClock()
        self._began = self._clock.now()
        self._guard = threading.Lock()
        self._work: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._doing: dict[str, str] = {}
        self._noted: dict[str, float] = {}

    # -- nodes

    def heard(self, status: NodeStatus) -> None:
        """Take a heartbeat. A name or address is given away as soon as its holder does not answer a ping."""
        try:
            self._heard(status)
        except TakenError:
            holder = self.members.holder(status)
            if holder is None or self._answers(holder):
                raise
            with self._guard:
                self.members.died(holder.name, holder.status.incarnation)
            self._heard(status)

    def _heard(self, status: NodeStatus) -> None:
        now = self.now()
        with self._guard:
            new = self.members.heard(status)
            due = new or now - self._noted.get(status.node, 0.0) >= NOTED_SECONDS
            if due:
                self._noted[status.node] = now
        if due:
            known = (status.node, status.incarnation, status.address, status.http, status.host, status.pid, now)
            try:
                self.catalog.saw(KnownNode(*known))
            except CatalogError as error:  # when it was last seen is not worth a refusal
                log.warning("%s", error)

    def _answers(self, holder: Member) -> bool:
        try:
            pong = self.nodes.act(holder.status.address, "ping", Ping(), Pong, within=ANSWER_SECONDS["ping"])
        except BorealisError:
            return False
        return pong.incarnation == holder.status.incarnation

    def living(self, name: str) -> Member:
        """The node, which must be there and alive."""
        return self.members.living(name, [known.name for known in self.catalog.nodes()])

    def address(self, name: str) -> str | None:
        """Where a node is, or was when it was last seen."""
        member = self.members.member(name)
        if member is not None:
            return member.status.address
        return next((known.address for known in self.catalog.nodes() if known.name == name), None)

    def silences(self) -> dict[str, float]:
        """For how many seconds each node that is not alive has been silent; one never heard is given time to come."""
        unheard = self._clock.now() - self._began - UNHEARD_SECONDS
        found = {}
        names = {known.name for known in self.catalog.nodes()} | {
            n for la in self.catalog.layouts() for n in la.nodes()
        }
        for name in names:
            silence = self.members.silent_for(name)
            silence = unheard if silence is None else silence
            if silence > 0 and not self.members.lives(name):
                found[name] = silence
        return found

    def order(self, node: str, action: str, message: Message) -> None:
        """Tell a living node to do something, and wait until it has."""
        self.ask(node, action, message, Done)

    def try_order(self, node: str, action: str, message: Message) -> bool:
        """The same, of what can wait: a node that cannot be told now comes to it when it is back (see reconcile)."""
        try:
            self.order(node, action, message)
        except BorealisError as error:
            log.warning("node %s could not be told: %s %s: %s", node, action, message, error)
            return False
        return True

    def ask(self, node: str, action: str, message: Message, answer: type[M]) -> M:
        """Ask a living node for something."""
        within = ANSWER_SECONDS.get(action, ORDER_SECONDS)
        return self.nodes.act(self.living(node).status.address, action, message, answer, within=within)

    def forget(self, name: str) -> None:
        """The node was told to go; it may come back as a new one."""
        with self._guard:
            self.members.forget(name)
        self.catalog.forget(name)

    def settle(self, node: str, *diagrams: str) -> None:
        """Tell a node which diagrams ended while it was not there, before it gets anything new."""
        for diagram in diagrams or sorted(diagram for owed, diagram in self.catalog.owed() if owed == node):
            self.order(node, "undeploy", DiagramName(diagram=diagram))
            self.catalog.settled(node, diagram)

    # -- diagrams

    def layout(self, name: str) -> Layout:
        """A diagram that must be there."""
        layout = self.catalog.layout(name)
        if layout is None:
            known = [other.name for other in self.catalog.layouts()]
            listing = f"there are {', '.join(known)}" if known else "none is deployed"
            raise MissingError(f"there is no diagram '{name}' ({listing})", hint=did_you_mean(name, known))
        return layout

    def refuse_while(self, diagram: str, doing: str) -> None:
        """Refuse at once what would wait for the very same thing."""
        if self._doing.get(diagram) == doing:
            raise self._busy(diagram)

    def _busy(self, diagram: str) -> TakenError:
        doing = self._doing.get(diagram, "changed")
        return TakenError(f"diagram '{diagram}' is being {doing} at this moment", hint="wait for that, then try again")

    @contextlib.contextmanager
    def at_work(self, diagram: str, doing: str, wait: float = WAIT_SECONDS) -> Iterator[None]:
        """Nobody else changes the diagram meanwhile. Refused if someone does for longer than `wait` seconds."""
        with self._guard:
            lock = self._work[diagram]
        if not lock.acquire(timeout=wait):
            raise self._busy(diagram)
        self._doing[diagram] = doing
        try:
            yield
        finally:
            self._doing.pop(diagram, None)
            lock.release()
