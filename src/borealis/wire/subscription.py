"""A stream as it comes in from a node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from borealis.errors import WireError
from borealis.streams.section import Section, from_batch, wire_schema
from borealis.streams.tentative import fork_place
from borealis.tuples import FIRST_TIME, LAST_TIME, TIME
from borealis.wire.feed import FACTS
from borealis.wire.messages import SectionHead, StreamFacts, Subscribe
from borealis.wire.transport import Chunk
from borealis.wire.waiting import Pushed


class WireSubscription:
    """A stream as it comes in: iterate for its sections, in order. One thread iterates; any may cancel.

    It ends where the stream ends, where the request says, or by `cancel`; anything else that ends it raises.
    """

    def __init__(self, pushed: Pushed, wanted: Subscribe) -> None:
        self._pushed, self.address, self._stop = pushed, pushed.address, wanted.stop
        schema = pushed.schema
        facts = StreamFacts.decode((schema.metadata or {}).get(FACTS, b""))
        self.schema = pa.schema(list(schema)[:-1])
        if not schema.remove_metadata().equals(wire_schema(self.schema)):
            raise WireError(f"{self.address} serves {wanted.stream} without '{TIME}'")
        self.stream, self.epoch, self.next_id = facts.stream, facts.epoch, facts.first
        self.incarnation = facts.incarnation  # of the unit that writes it; 0: nothing protects it
        self.boundary = wanted.boundary  # with `next_id`: where to take the stream up again
        self.at = wanted.fork  # and among tentative tuples
        self.lost = 0  # tuples that were dropped because this reader was too slow
        self.jumps = 0  # how often ids were left out, in a recovery

    def __iter__(self) -> Iterator[Section]:
        return (section for section in self.beats() if section is not None)

    def beats(self) -> Iterator[Section | None]:
        """Sections, and None about once a second while nothing comes, for readers that also look at something else."""
        while (chunk := self._pushed.read()) is not None:
            section, head = self._section(chunk)
            told = head.lost or head.jump or section.undo or section.done
            news = len(section) or told or section.final > self._known(section)
            self.at = fork_place(self.at, section)
            if section.stable:
                self.next_id, self.boundary = section.stop, section.final
                self.lost += head.lost
                self.jumps += head.jump
            yield section if news else None
        whole = self.boundary == LAST_TIME or (self._stop is not None and self.next_id >= self._stop)
        if not whole and not self._pushed.cancelled:
            raise WireError(f"{self.address} ended stream {self.stream} before its end")

    def cancel(self) -> None:
        """End it, from any thread."""
        self._pushed.cancel()

    def __enter__(self) -> WireSubscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cancel()

    def _section(self, chunk: Chunk) -> tuple[Section, SectionHead]:
        """A pushed batch as a section, if it is one and follows the last."""
        batch = chunk.data
        if batch is None or chunk.app_metadata is None:
            raise WireError(f"{self.address} sent a batch of {self.stream} without its head")
        head = SectionHead.decode(chunk.app_metadata)
        bounds = np.array(head.at, np.int64), np.array(head.bound, np.int64), head.standing
        try:
            batch.validate()
            if any(column.null_count for column in batch.columns[len(self.schema) :]):
                raise ValueError("tuples without a time")
            rows = from_batch(batch, self.schema, head.first, bounds)
            section = replace(rows, fork=head.fork, undo=head.undo, done=head.done)
            section.check()
        except (pa.ArrowException, ValueError) as error:
            raise WireError(f"{self.address} sent a broken batch of {self.stream}: {error}") from None
        known, due = self._known(section), (self.at[1] if head.fork and self._in(head.fork) else self.next_id)  # type: ignore[index]
        follows = head.first > due + head.lost if head.jump else head.first == due + head.lost
        if head.fork and not self._in(head.fork):  # it begins wherever the fork did, or is by now
            follows = True
        if not follows or head.standing < known:
            raise WireError(
                f"{self.address} sent tuples {head.first} to {section.stop} of {self.stream} ({head.lost} lost, "
                f"boundary {head.standing}) after tuple {due}, boundary {known}",
                hint="subscribe again from there",
            )
        return section, head

    def _in(self, fork: str) -> bool:
        return self.at is not None and self.at[0] == fork

    def _known(self, section: Section) -> int:
        """The boundary in force before a section."""
        if section.stable:
            return self.boundary
        return self.at[2] if self.at is not None and self._in(section.fork) else FIRST_TIME
