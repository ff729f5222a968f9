"""The way to a stream from the processes of a Spark job: its driver's and its executors'."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from borealis.client.client import Client
from borealis.client.cluster_config import CA, TOKEN, Whereabouts, find
from borealis.client.publisher import schema_of
from borealis.errors import BorealisError, InputError, OutputError, did_you_mean
from borealis.retrying import RETRIES, Backoff, Retries, is_elsewhere, is_temporary
from borealis.streams.queue import MovedError
from borealis.streams.replicas import Choice, ReplicaState
from borealis.streams.status import QueueStatus
from borealis.wire.auth import Security
from borealis.wire.client import Peer
from borealis.wire.endpoints import Endpoints, Location, Locator, located
from borealis.wire.messages import SchemaOf
from borealis.wire.replicas import Copies, as_choice

ADDRESS = ("stream", "path", "coordinator", "address", "token", "ca")  # options of source and sink alike

T = TypeVar("T")
log = logging.getLogger("borealis.spark")


@dataclass(frozen=True)
class StreamAddress:
    """Which stream, and whom to ask for it. It is made on the driver, with what is known there, and travels."""

    stream: str
    node: str | None = None  # the address of the node that serves it; None: the coordinator knows
    whereabouts: Whereabouts | None = field(default=None, repr=False)
    security: Security = field(default_factory=Security)
    retries: Retries = RETRIES  # then the job fails, and goes on from its checkpoint when it is started again
    elsewhere_s: float = 10.0  # for a node that answers, but has no such stream: it may be on its way there

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamAddress:
        """From a job's options; what is left out comes from where `borealis.connect` takes it."""
        stream = options.get("stream") or options.get("path")
        if not stream:
            raise InputError("no stream is named", hint='write .option("stream", "per_source")')
        token, ca, node = options.get("token"), options.get("ca"), options.get("address")
        if not node:
            return cls(stream, whereabouts=find(options.get("coordinator"), token, ca))
        if stream.count("/") != 1:
            raise InputError(f"'{stream}' is no full name of a stream", hint="a node wants it as diagram/arrow")
        token, ca = token or os.environ.get(TOKEN) or None, ca or os.environ.get(CA) or None
        return cls(stream, node=node, security=Security(token=token, ca=Path(ca) if ca else None))

    def locate(self, stream: str) -> Location:
        return Location(stream, self.node or "", entry=True)

    def peer(self, address: str) -> Peer:
        return Peer(address, self.security)


class StreamBackoff(Backoff):
    """The waits for a node that is away; and those, not as long, for one that answers and has no such stream."""

    def __init__(self, address: StreamAddress) -> None:
        super().__init__(address.retries)
        self._elsewhere = Backoff(
            replace(address.retries, give_up_s=min(address.elsewhere_s, address.retries.give_up_s))
        )

    def found(self) -> None:
        super().found()
        self._elsewhere.found()

    def lost(self, error: BorealisError) -> float:
        return super().lost(error) if is_temporary(error) else self._elsewhere.lost(error)


class StreamClient:
    """A stream, wherever it is now: what fails because its node is away, or it has moved, is tried again."""

    def __init__(self, address: StreamAddress, *, entry: bool = False) -> None:
        self.address, self.stream = address, address.stream  # its full name, once it was found
        self._entry = entry  # whether it is to be published to
        self.locator: Locator = Client(address.whereabouts) if address.whereabouts is not None else address
        self._found: Location | None = None
        self._peer: Peer | None = None
        self._epoch, self._incarnation = "", 0  # the highest seen, of this epoch
        self._choice = Choice()
        self._copies = Copies(lambda: self._found, self._find_again, self._copy)
        self.endpoints = Endpoints(self._locate, recall=self._recall)

    def schema(self) -> pa.Schema:
        """The columns. The first question to a stream: what is wrong with its address is an error at once."""
        return schema_of(self.peer(self.endpoints.next() or ""), self.stream)

    def status(self) -> QueueStatus:
        """How the stream stands, by its primary: one that was deposed is not believed."""
        return self.call(self._status)

    def best_status(self, at: int) -> QueueStatus:
        """The same by the best copy of the stream, for a reader at this id; further questions go there, too."""
        now, found = self.status(), self.location
        if found is None or not found.replicated or now.state == "stable":
            self._choice.stay()
            return now
        states: dict[str, ReplicaState] = {found.address: now.state}
        has, copies = partial(_has, at=at, now=now), self._copies.others(found.address)
        states |= {other: as_choice(copy, has) for other, copy in copies.items()}
        if (best := self._choice.best(found.address, states)) == found.address:
            return now
        log.info("%s is read at %s now: at %s there is %s", self.stream, best, found.address, now.state)
        self.endpoints.prefer(best)
        return self.status()

    def _copy(self, address: str, within: float) -> QueueStatus:
        with closing(self.locator.peer(address)) as peer:
            return peer.say("stream", SchemaOf(stream=self.stream), QueueStatus, within=within)

    @property
    def location(self) -> Location | None:
        """Where it is read: the copy that was asked last, if it was found at a coordinator."""
        return self._recall() or self._found

    def begin_at(self, location: Location) -> None:
        """Ask this copy first: another process of the job has seen there what is to be read."""
        self.stream, self._found = location.stream, location
        self.endpoints.prefer(location.address)

    def knows(self, epoch: str, incarnation: int) -> None:
        """This job has read from so high an incarnation of the stream's unit."""
        self._incarnation = max(self._incarnation, incarnation) if epoch == self._epoch else incarnation
        self._epoch = epoch

    def _status(self, peer: Peer, stream: str) -> QueueStatus:
        now = peer.act("stream", SchemaOf(stream=stream), QueueStatus)
        if now.epoch == self._epoch and 0 < now.incarnation < self._incarnation:
            raise MovedError(
                f"stream {stream} is served by incarnation {self._incarnation} of its unit, not by {now.incarnation}"
            )
        self.knows(now.epoch, now.incarnation)
        return now

    def call(self, do: Callable[[Peer, str], T]) -> T:
        """Do something with the node that serves the stream; it may be done again."""
        return self.endpoints.call(lambda at: do(self.peer(at), self.stream), self.passes, StreamBackoff(self.address))

    def passes(self, error: BorealisError) -> bool:
        """Hang up after this error; whether the same may succeed later, or elsewhere."""
        log.info("%s: %s", self.stream, error)
        self.close()
        return is_temporary(error) or is_elsewhere(error)

    def peer(self, address: str) -> Peer:
        if self._peer is None or self._peer.address != address:
            self.close()
            self._peer = self.locator.peer(address)
        return self._peer

    def close(self) -> None:
        """Hang up; the next call connects again."""
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()

    def _locate(self) -> Location:
        found = located(self.locator, self.stream)
        if self._entry and not found.entry:
            raise OutputError(f"{found.stream} cannot be written to", hint="only inputs of a diagram can")
        self._found, self.stream = found, found.stream
        return found

    def _find_again(self) -> None:
        self._found = self.locator.locate(self.stream)

    def _recall(self) -> Location | None:
        """Where it was found, while that connection stands."""
        if self._found is None or self._peer is None:
            return None
        return replace(self._found, address=self._peer.address)


def _has(copy: QueueStatus, at: int, now: QueueStatus) -> bool:
    """Whether a copy has all that a reader at this id may ask for, as the one that is read has."""
    return copy.epoch == now.epoch and copy.first_id <= at and copy.next_id >= now.next_id


def check_options(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Refuse an option that nothing here reads."""
    folded = {name.casefold(): name for name in known}
    for name in options:
        if name.casefold() not in folded:
            near = did_you_mean(name.casefold(), folded)
            listing = f"there are: {', '.join(known)}"
            raise InputError(f"no option '{name}' of format 'borealis'", hint=near or listing)


def whole_number(options: Mapping[str, str], name: str, least: int) -> int | None:
    """An option that is a number, if it is given."""
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise InputError(f"option {name} cannot be {text!r}", hint=f"give a whole number, {least} at least")
    return int(text)
