"""All the coordinator holds: the catalog, the members, connections to nodes, and which diagram is being changed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TypeVar

from borealis.coordinator.catalog import Catalog
from borealis.coordinator.http_errors import AbsentError, CatalogError, MissingError, TakenError
from borealis.coordinator.layout import Layout
from borealis.coordinator.membership import Member, Membership
from borealis.coordinator.timings import TIMINGS, ClusterTimings
from borealis.errors import BorealisError, did_you_mean
from borealis.machine import HERE, Machine
from borealis.message import Message
from borealis.threads import Lock
from borealis.wire.client import Peers
from borealis.wire.messages import DiagramName, Done, NodeStatus, Ping, Pong
from borealis.wire.status import NodeView

log = logging.getLogger("borealis.coordinator")
M = TypeVar("M", bound=Message)
SEEN = {"node", "incarnation", "address", "http", "host", "pid"}  # what the catalog keeps of a node


class Cluster:
    """The coordinator's knowledge. Thread-safe."""

    def __init__(
        self, catalog: Catalog, nodes: Peers, timings: ClusterTimings = TIMINGS, machine: Machine = HERE
    ) -> None:
        self.catalog, self.nodes, self.timings, self.machine = catalog, nodes, timings, machine
        self.clock, self.threads = machine.clock, machine.threads
        self.members = Membership(self.clock, timings.dead_after_s)
        self._began = self.clock.now()
        self.news = self.threads.event()  # set when a look at the cluster should not wait
        self._deaf: dict[str, float] = {}  # nodes that did not answer, and when
        self.choosing = self.threads.lock()  # one backup at a time is chosen, with regard to all others
        self._guard = self.threads.lock()
        self._work: dict[str, Lock] = {}  # by diagram
        self._doing: dict[str, str] = {}
        self._noted: dict[str, float] = {}

    # -- nodes

    def heard(self, status: NodeStatus) -> None:
        """Take a heartbeat. A name or address is given away as soon as its holder does not answer a ping; meanwhile
        another process may have got it, that is dead as well, and whose heartbeat was under way for long.
        """
        while True:
            try:
                return self._heard(status)
            except TakenError:
                holder = self.members.holder(status)
                if holder is not None and self._answers(holder):
                    raise
                if holder is not None:
                    with self._guard:
                        self.members.died(holder.name, holder.status.incarnation)

    def _heard(self, status: NodeStatus) -> None:
        now = self.clock.time()
        with self._guard:
            before = self.members.member(status.node)
            new = self.members.heard(status)
            after = self.members.member(status.node)
            if new or (before is not None and after is not None and before.guarded() != after.guarded()):
                self.news.set()
            due = new or now - self._noted.get(status.node, 0.0) >= self.timings.noted_s
            if due:
                self._noted[status.node] = now
        if due:
            facts = status.model_dump(include=SEEN)
            try:
                self.catalog.saw(NodeView(**facts, seen=now, alive=False, state="awaited", spark="unknown"))
            except CatalogError as error:  # when it was last seen is not worth a refusal
                log.warning("%s", error)

    def _answers(self, holder: Member) -> bool:
        try:
            pong = self.nodes.act(holder.status.address, "ping", Ping(), Pong, within=self.timings.ping_s)
        except BorealisError:
            return False
        return pong.incarnation == holder.status.incarnation

    def is_there(self, node: str, process: str) -> bool:
        """Whether this process of a node lives; an AbsentError if it cannot be asked."""
        address = self.address(node)
        if not process or address is None:
            return True
        try:
            pong = self.nodes.act(address, "ping", Ping(), Pong, within=self.timings.claim_s)
        except BorealisError as error:
            raise AbsentError(f"node '{node}' claims something, and does not answer: {error.message}") from None
        return pong.incarnation == process

    def living(self, name: str) -> Member:
        """The node, which must be there and alive."""
        return self.members.living(name, [known.node for known in self.catalog.nodes()])

    def address(self, name: str) -> str | None:
        """Where a node is, or was when it was last seen."""
        member = self.members.member(name)
        if member is not None:
            return member.status.address
        return next((known.address for known in self.catalog.nodes() if known.node == name), None)

    def suspect(self, name: str) -> None:
        """The node did not answer just now, or others say so."""
        self._deaf[name] = self.clock.now()

    def suspected(self, name: str) -> bool:
        """Whether that is so, and it has sent no heartbeat since."""
        silent_s = self.members.silent_for(name)
        return silent_s is not None and self._deaf.get(name, float("-inf")) >= self.clock.now() - silent_s

    def silences(self) -> dict[str, float]:
        """For how many seconds each node that is not alive has been silent; one that never came is given time."""
        unheard = self.clock.now() - self._began - self.timings.unheard_s
        known = {node.node for node in self.catalog.nodes()}
        names = known.union(*(layout.nodes() for layout in self.catalog.layouts()))
        silences = {name: self.members.silent_for(name) for name in sorted(names) if not self.members.lives(name)}
        found = {name: unheard if silence is None else silence for name, silence in silences.items()}
        return {name: silence for name, silence in found.items() if silence > 0}

    def fallen(self) -> set[str]:
        """Nodes that were heard, and are silent now."""
        return {member.name for member in self.members.members() if not self.members.lives(member.name)}

    def order(self, node: str, action: str, message: Message) -> None:
        """Order a living node to do something, and wait until it has."""
        self.ask(node, action, message, Done)

    def try_order(self, node: str, action: str, message: Message) -> bool:
        """The same, of what can wait: a node that cannot be reached now is mended when it is back (see reconcile)."""
        try:
            self.order(node, action, message)
        except BorealisError as error:
            log.warning("node %s could not be ordered: %s %s: %s", node, action, message, error)
            return False
        return True

    def ask(self, node: str, action: str, message: Message, answer: type[M]) -> M:
        within = self.timings.answer_s(action)
        return self.nodes.act(self.living(node).status.address, action, message, answer, within=within)

    def forget(self, name: str) -> None:
        """The node was stopped; it may come back as a new one."""
        with self._guard:
            self.members.forget(name)
        self.catalog.forget(name)

    def settle(self, node: str, *diagrams: str) -> None:
        """Have a node drop diagrams that ended while it was not there, before it gets anything new."""
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
    def at_work(self, diagram: str, doing: str, wait: float | None = None) -> Iterator[None]:
        """Change a diagram, one caller at a time. Refused if another is at it for longer than `wait` seconds."""
        with self._guard:
            if (lock := self._work.get(diagram)) is None:
                lock = self._work[diagram] = self.threads.lock()
        if not lock.acquire(timeout=self.timings.work_s if wait is None else wait):
            raise self._busy(diagram)
        self._doing[diagram] = doing
        try:
            yield
        finally:
            self._doing.pop(diagram, None)
            lock.release()
