"""A subscription, as the server of a node serves it from an output queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from borealis.errors import StreamError
from borealis.machine import HERE, Machine
from borealis.streams.queue import MovedError, StandbyError
from borealis.streams.section import NOTHING, Section, boundary_only, wire_schema
from borealis.streams.tentative import fork_place
from borealis.wire.calls import Answering, Calls, StreamHost
from borealis.wire.messages import SectionHead, StreamFacts, Subscribe
from borealis.wire.problems import ReplacedError

FACTS = b"borealis"  # key of StreamFacts in a subscription's schema
SECTION_BYTES_MOST = 1 << 20  # of one push: small sections are joined up to it, large ones cut


@dataclass(frozen=True)
class FeedTimings:
    """What a subscription waits for, in seconds."""

    heartbeat_s: float = 1.0  # an idle subscriber hears something so often
    hold_s: float = 1.0  # so long a subscriber waits at a backup for it to take over
    tick_s: float = 0.25  # so soon a subscription notices that its reader is gone, or the server closing


class ServedFeed:
    """One subscription: what the queue has for it, batch after batch, as the network asks for them.

    The reader is registered when this is made and taken back when it is closed, even if no batch was asked for. At a
    backup it is made when the backup takes over, or refused after a while: the reader hears nothing until then.
    """

    def __init__(
        self,
        host: StreamHost,
        calls: Calls,
        turns: dict[tuple[str, str], object],
        timings: FeedTimings,
        is_cancelled: Callable[[], bool],
        wanted: Subscribe,
        machine: Machine = HERE,
    ) -> None:
        self._open = False
        self._clock = machine.clock
        self._host, self._calls, self._turns, self._timings = host, calls, turns, timings
        self._is_cancelled, self._wanted = is_cancelled, wanted
        queue = self._queue = host.queue(wanted.stream)
        self._check_incarnation()
        if wanted.epoch is not None and wanted.epoch != queue.epoch:
            if queue.standby:
                raise self._on_standby()
            raise queue.of_another_life(wanted.epoch)
        if wanted.reader is not None and wanted.reader.startswith("~"):
            raise StreamError(f"'{wanted.reader}' cannot name a reader", hint="names with ~ are for those without one")
        self._passing = wanted.reader is None
        self._reader = wanted.reader or f"~{machine.chance.token(16)}"
        start = queue.newest() if wanted.start == "newest" else None if wanted.start == "oldest" else wanted.start
        self._next = queue.register(self._reader, start)
        self._boundary, self._at = wanted.boundary, wanted.fork
        self._quiet_ticks = 0
        self._done = False
        self._key = (wanted.stream, self._reader)
        self._turn = turns[self._key] = object()  # an earlier subscription of this name ends
        self._held_since: float | None = None
        self._open = True
        calls.enter()
        try:
            while queue.standby and not self._is_over():
                queue.wait_for_release(self._timings.tick_s)
            self._check_incarnation()
        except BaseException:
            self.close()
            raise
        facts = StreamFacts(stream=wanted.stream, epoch=queue.epoch, first=self._next, incarnation=queue.incarnation)
        self.schema = wire_schema(queue.schema).with_metadata({FACTS: facts.encode()})

    def __iter__(self) -> ServedFeed:
        return self

    def __next__(self) -> tuple[pa.RecordBatch, bytes]:
        with Answering(f"a subscription to {self._wanted.stream}"):
            if self._passing:
                self._queue.ack(self._reader, 1, self._next)  # gRPC has taken what was pushed before
            while not self._is_over():
                place = (self._next, self._boundary, self._at)
                section = self._queue.read_any(*place, self._wanted.wants, self._timings.tick_s, SECTION_BYTES_MOST)
                if section is None:
                    self._quiet_ticks += 1
                    if self._quiet_ticks * self._timings.tick_s >= self._timings.heartbeat_s:
                        return self._push(boundary_only(self._next, self._queue.schema, NOTHING, self._boundary))
                    continue
                return self._push(self._before_stop(section))
            raise StopIteration

    def _before_stop(self, section: Section) -> Section:
        stop = self._wanted.stop if section.stable else None
        if stop is not None and stop < section.first:  # ids jumped over it
            return section.bare()
        return section if stop is None else section.until(stop)

    def _check_incarnation(self) -> None:
        """Serve no reader that knows a later incarnation: this one was deposed, and may not have heard of it."""
        queue, known = self._queue, self._wanted.incarnation
        if self._wanted.epoch != queue.epoch:  # what it knows is of another life of the stream
            return
        if not 0 < queue.incarnation < known or queue.standby:
            return
        self._host.deposed(queue.stream, known)
        raise MovedError(
            f"stream {queue.stream} is served by incarnation {known} of its unit, not by {queue.incarnation} here",
            hint="ask the coordinator who serves it now",
        )

    def _check_held(self) -> None:
        """Keep no reader waiting for long at a backup."""
        if not self._queue.standby:
            self._held_since = None
            return
        now = self._clock.now()
        self._held_since = now if self._held_since is None else self._held_since
        if now - self._held_since >= self._timings.hold_s:
            raise self._on_standby()

    def _on_standby(self) -> StandbyError:
        hint = "its primary serves it: ask the coordinator who that is"
        return StandbyError(f"stream {self._wanted.stream} is on standby here", hint=hint)

    def _is_over(self) -> bool:
        self._calls.check()
        self._check_held()
        if self._turns.get(self._key) is not self._turn:
            raise ReplacedError(f"another subscription to {self._wanted.stream} took over reader '{self._reader}'")
        stop = self._wanted.stop
        return self._done or (stop is not None and self._next >= stop) or self._is_cancelled()

    def _push(self, section: Section) -> tuple[pa.RecordBatch, bytes]:
        self._quiet_ticks = 0
        if section.stable:
            skipped = section.first - self._next
            lost = self._queue.lost_between(self._next, section.first) if skipped else 0
            self._next, self._boundary, self._done = section.stop, section.final, section.ended
        else:
            same = self._at is not None and self._at[0] == section.fork
            skipped = lost = section.first - self._at[1] if self._at is not None and same else 0
        self._at = fork_place(self._at, section)
        head = SectionHead(
            first=section.first,
            standing=section.standing,
            at=section.at.tolist(),
            bound=section.bound.tolist(),
            lost=lost,
            jump=lost < skipped,
            fork=section.fork,
            undo=section.undo,
            done=section.done,
        )
        return section.batch(self.schema), head.encode()

    def close(self) -> None:
        """Take the reader back. Once is enough."""
        if not self._open:
            return
        self._open = False
        if self._turns.get(self._key) is self._turn:
            del self._turns[self._key]
        if self._passing:
            self._queue.forget(self._reader)
        self._calls.leave()

    def __del__(self) -> None:
        self.close()
