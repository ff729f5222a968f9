"""The way to a stream from the processes of a Spark job: its driver's and its executors'."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from borealis.client.client import Client
from borealis.client.cluster_config import CA, TOKEN, Whereabouts, find
from borealis.client.coordinator import Location
from borealis.client.publisher import schema_of
from borealis.client.retrying import RETRIES, Backoff, Retries, is_temporary
from borealis.client.subscriber import Route, located
from borealis.errors import BorealisError, GoneError, InputError, OutputError, StreamError, did_you_mean
from borealis.streams.queue import MovedError
from borealis.streams.status import QueueStatus
from borealis.wire.auth import Security
from borealis.wire.client import Peer
from borealis.wire.messages import SchemaOf

GIVE_UP_S = 60.0  # without an answer; then the job fails, and goes on from its checkpoint when it is started again
ELSEWHERE_S = 10.0  # for a node that answers, but has no such stream: it may be on its way there
PATIENT = replace(RETRIES, give_up_s=GIVE_UP_S)
WAY = ("stream", "path", "coordinator", "address", "token", "ca")  # options of source and sink alike

T = TypeVar("T")
log = logging.getLogger("borealis.spark")


@dataclass(frozen=True)
class Way:
    """Which stream, and whom to ask for it. It is made on the driver, with what is known there, and travels."""

    stream: str
    node: str | None = None  # the address of the node that serves it; None: the coordinator knows
    whereabouts: Whereabouts | None = field(default=None, repr=False)
    security: Security = field(default_factory=Security)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Way:
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

    def route(self) -> Route:
        """How to get there from this process."""
        if self.whereabouts is not None:
            return Client(self.whereabouts)
        return Straight(self.node or "", self.security)


@dataclass(frozen=True)
class Straight:
    """The way to streams whose node is known."""

    node: str
    security: Security

    def locate(self, stream: str) -> Location:
        """At the node."""
        return Location(stream, self.node, entry=True)

    def peer(self, address: str) -> Peer:
        """A new connection."""
        return Peer(address, self.security)


class Patience:
    """The waits between attempts at one thing; `found` after each success."""

    def __init__(self, retries: Retries) -> None:
        self._away = Backoff(retries)
        self._elsewhere = Backoff(replace(retries, give_up_s=min(ELSEWHERE_S, retries.give_up_s)))

    def found(self) -> None:
        """It went well."""
        self._away.found()
        self._elsewhere.found()

    def lost(self, error: BorealisError) -> float:
        """Seconds to wait before the next attempt; raises the error where that would be in vain."""
        if is_temporary(error):
            return self._away.lost(error)
        on_its_way = isinstance(error, StreamError) and not isinstance(error, GoneError)
        if not on_its_way or getattr(error, "status", None) is not None:  # the coordinator would know
            raise error
        return self._elsewhere.lost(error)


class Reach:
    """A stream, wherever it is now: what fails because its node is away, or it has moved, is tried again."""

    def __init__(self, way: Way, retries: Retries = PATIENT, *, entry: bool = False) -> None:
        self.way, self.stream = way, way.stream  # its full name, once it was found
        self._entry = entry  # whether it is to be published to
        self._route = way.route()
        self._retries = retries
        self._peer: Peer | None = None
        self._moved_to = ""
        self._epoch, self._incarnation = "", 0  # the highest seen, of this epoch

    def schema(self) -> pa.Schema:
        """The columns. The first question to a stream: whatever is wrong with the way to it is told at once."""
        return schema_of(self._connected(), self.stream)

    def status(self) -> QueueStatus:
        """How the stream stands, by its primary: one that was deposed is not believed."""
        return self.call(self._status)

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
        patience = self.patience()
        while True:
            try:
                return do(self._connected(), self.stream)
            except BorealisError as error:
                self.lost(error, patience)

    def patience(self) -> Patience:
        """For one thing that may be tried several times."""
        return Patience(self._retries)

    def lost(self, error: BorealisError, patience: Patience) -> None:
        """Get ready to try again after this error; raises it where that would be in vain."""
        wait = patience.lost(error)
        log.info("%s: %s; trying again", self.stream, error)
        self.close()
        if isinstance(error, MovedError) and error.moved_to:
            self._moved_to = error.moved_to
        else:
            time.sleep(wait)

    def close(self) -> None:
        """Hang up; the next call connects again."""
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()

    def _connected(self) -> Peer:
        if self._peer is None:
            address, self._moved_to = self._moved_to, ""
            if not address:
                found = located(self._route, self.stream)
                if self._entry and not found.entry:
                    raise OutputError(f"{found.stream} cannot be written to", hint="only inputs of a diagram can")
                self.stream, address = found.stream, found.address
            self._peer = self._route.peer(address)
        return self._peer


def check_options(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Refuse an option nobody would look at."""
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
