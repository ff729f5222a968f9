"""An entry point and its peer, on either side: sends every step to the peer, or takes them and one day its place."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import TYPE_CHECKING

from borealis.entry.point import Entry
from borealis.errors import BorealisError, ClusterError, FullError, StateError, WireError
from borealis.ha.detector import Detector
from borealis.node.primary import pace_of, successor_of
from borealis.streams.queue import MovedError
from borealis.wire.messages import Claim, EntryOrder, Guard, GuardAnswer, GuardStatus, Takeover

if TYPE_CHECKING:
    from borealis.node.guards import Guards

SEND_S = 5.0  # for one record; a node that is slow for longer is looked at by the watch
RETRY_S = 0.02
TICK_S = 0.2

log = logging.getLogger("borealis.node")


class MirrorMessage:
    """A record on its way to a peer: whose it is, then the record itself."""

    def __init__(self, diagram: str, entry: str, incarnation: int, data: bytes) -> None:
        self.diagram, self.entry, self.incarnation, self.data = diagram, entry, incarnation, data

    def encode(self) -> bytes:
        head = {"diagram": self.diagram, "input": self.entry, "incarnation": self.incarnation}
        return json.dumps(head).encode() + b"\n" + self.data

    @classmethod
    def decode(cls, body: bytes) -> MirrorMessage:
        """From the wire; a WireError if it is none."""
        head, _, data = body.partition(b"\n")
        try:
            facts = json.loads(head)
            return cls(str(facts["diagram"]), str(facts["input"]), int(facts["incarnation"]), data)
        except (ValueError, KeyError, TypeError) as error:
            raise WireError(f"a bad record of an entry point: {error}") from None


class EntryGuard:
    """Protects one entry point, or stands by for it. Thread-safe."""

    def __init__(self, entry: Entry, order: EntryOrder, host: Guards) -> None:
        assert order.guard is not None
        self.entry, self.order, self._host = entry, order, host
        self.guard: Guard = order.guard
        self.takeovers: list[Takeover] = []
        self._mirrors = self.guard.approach != "amnesia"
        self._alone = True
        self._stopped = False
        self._since, self._why = time.time(), "no peer yet"
        self._lock = threading.Lock()  # who the partner is
        self._wake = threading.Event()

    @property
    def stream(self) -> str:
        return self.entry.queue.stream

    @property
    def is_backup(self) -> bool:
        return self.guard.role == "backup"

    @property
    def ready(self) -> bool:
        """Whether it could take over."""
        return self.is_backup and (not self._mirrors or self.entry.loaded)

    # -- coming and going

    def start(self) -> None:
        """Begin: with a peer that has everything when this returns, or is tried again."""
        if self.guard.partner:
            self._host.watch.add(self.guard.partner, pace_of(self.guard), self._partner_died)
        if not self.is_backup:
            if self.guard.partner:
                self._begin()
            threading.Thread(target=self._retry_forever, name="entry-guard", daemon=True).start()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        if self.guard.partner:
            self._host.watch.remove(self.guard.partner, self._partner_died)

    def protect(self, address: str, node: str) -> None:
        """There is another peer, or none (an empty address)."""
        with self._lock:
            before = self.guard.partner
            if address == before and bool(address) != self._alone:
                return
            if before:
                self._host.watch.remove(before, self._partner_died)
            self.guard = self.guard.model_copy(update={"partner": address, "partner_node": node})
            self._go_alone("its peer was taken away")
            if address:
                self._host.watch.add(address, pace_of(self.guard), self._partner_died)
        self._wake.set()

    def _begin(self) -> None:
        """Give everything to the peer."""
        self._alone = False
        try:
            if self._mirrors:
                self.entry.set_mirror(self._send)
            self._since = time.time()
        except BorealisError as error:
            self._alone = True
            if self._why != error.message:  # it is tried again and again
                log.info("the peer of %s did not take it: %s", self.stream, error)
            self._why = error.message

    def _retry_forever(self) -> None:
        while not self._stopped:
            self._wake.wait(TICK_S)
            self._wake.clear()
            if self._stopped or not self._alone:
                continue
            if self.guard.partner:
                self._begin()
            elif self._mirrors:
                self.entry.set_mirror(None)

    def _go_alone(self, why: str) -> None:
        self._alone = True
        self._since, self._why = time.time(), why

    # -- as primary

    def _send(self, data: bytes) -> None:
        """Called by the entry point, which waits: until the peer has it, or is dead, or we are deposed."""
        while not self._alone and not self._stopped:
            partner, incarnation = self.guard.partner, self.guard.incarnation
            message = MirrorMessage(self.order.diagram, self.order.input, incarnation, data)
            try:
                answer = self._host.peers.at(partner).say("mirror", message, GuardAnswer, within=SEND_S)
            except (WireError, ClusterError):
                time.sleep(RETRY_S)  # the watch says when it is enough
                continue
            if answer.said == "deposed":
                self._host.step_down_entry(self, partner)
                raise MovedError(f"stream {self.stream} is served elsewhere now", moved_to=partner)
            if answer.said == "full":
                why = f"the backup of {self.stream} takes nothing, and so nothing is taken here: {answer.why}"
                raise FullError(why, hint="make room there; what was not acknowledged was not taken")
            if answer.said in ("whole", "damaged"):
                raise StateError(f"the peer of {self.stream} needs the whole")
            return

    def _partner_died(self, address: str, dead: Detector) -> None:
        if self.is_backup:
            self._host.died(address, dead)
            return
        if address != self.guard.partner or self._stopped:
            return
        claim = Claim(
            what="alone",
            diagram=self.order.diagram,
            input=self.order.input,
            node=self._host.name,
            incarnation=self.guard.incarnation,
        )
        if (successor := successor_of(claim, self._host.claim)) is not None:
            self._host.step_down_entry(self, successor.address)
            return
        with self._lock:
            node = self.guard.partner_node or address
            self.guard = self.guard.model_copy(update={"partner": "", "partner_node": ""})
            self._go_alone(f"{node} does not answer")
        log.warning("entry point %s is UNPROTECTED: %s does not answer", self.stream, node)

    # -- as backup

    def apply(self, message: MirrorMessage) -> GuardAnswer:
        """Take a record of the primary."""
        incarnation = self.guard.incarnation
        if not self.is_backup or message.incarnation < incarnation:
            return GuardAnswer(said="deposed", incarnation=incarnation)
        try:
            self.entry.apply(message.data)
        except MovedError:
            return GuardAnswer(said="deposed", incarnation=incarnation)
        except FullError as error:
            return GuardAnswer(said="full", why=error.message, incarnation=incarnation)
        except StateError as error:
            log.info("a record for %s was refused: %s", self.stream, error)
            return GuardAnswer(said="whole", incarnation=incarnation)
        return GuardAnswer(said="take", incarnation=incarnation)

    def take_over(self, dead: Detector | None) -> None:
        """Serve the stream in the place of the primary."""
        begun = time.time()
        incarnation = self.guard.incarnation + 1
        primary = self.guard.partner_node
        self.entry.open_up(incarnation, jump=not self._mirrors)
        self.guard = self.guard.model_copy(
            update={"role": "primary", "partner": "", "partner_node": "", "incarnation": incarnation}
        )
        self._go_alone(f"{primary} does not answer")
        took = Takeover(
            at=begun,
            incarnation=incarnation,
            primary=primary,
            detection_ms=round(dead.detection_s() * 1000, 3) if dead is not None else 0.0,
            takeover_ms=round((time.time() - begun) * 1000, 3),
            jumped=not self._mirrors,
        )
        self.takeovers.append(took)
        threading.Thread(target=self._retry_forever, name="entry-guard", daemon=True).start()

    # -- how it stands

    def status(self) -> GuardStatus:
        guard, stale = self.guard, self.entry.stale
        state = "watching" if self.ready else "catching up"
        if not self.is_backup:
            state = "protected" if not self._alone else "catching up" if guard.partner else "alone"
        return GuardStatus(
            approach=guard.approach,
            guarantee=guard.guarantee,
            role=guard.role,
            incarnation=guard.incarnation,
            partner=guard.partner_node,
            state=state,  # type: ignore[arg-type]
            since=self._since,
            why=self._why if self._alone and not self.is_backup else "",
            recovery_ms=round(guard.ping_ms * (guard.misses - 0.5) + 10, 1),
            messages=stale.records,
            bytes=stale.bytes,
            discarded=stale.discarded,
            takeovers=self.takeovers,
        )
