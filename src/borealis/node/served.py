"""The streams of a node: those it serves, and those that only stand by here."""

from __future__ import annotations

from borealis.errors import StreamError, did_you_mean
from borealis.ha.primary import number_of_reader
from borealis.streams.queue import AwayError, OutputQueue
from borealis.wire.messages import Ack, Done, Forget, Reading


class Served:
    """Output queues by the names of their streams."""

    def __init__(self, node: str) -> None:
        self._node = node
        self.queues: dict[str, OutputQueue] = {}
        self.standby_queues: dict[str, OutputQueue] = {}  # of units and entry points that stand by

    def queue(self, stream: str) -> OutputQueue:
        """The queue of a stream; StreamError if it is not here."""
        queue = self.queues.get(stream) or self.standby_queues.get(stream)
        if queue is None:
            near = did_you_mean(stream, self.queues)
            hint = near or "it may be on its way here: see 'borealis status', and try again"
            raise AwayError(f"node {self._node} serves no stream {stream}", hint=hint)
        return queue

    def put(self, queue: OutputQueue) -> None:
        self.standby_queues.pop(queue.stream, None)
        self.queues[queue.stream] = queue

    def withdraw(self, queue: OutputQueue, moved_to: str | None = None) -> None:
        """Serve a stream no more; its readers are sent elsewhere, if it is known where."""
        for held in (self.queues, self.standby_queues):
            if held.get(queue.stream) is queue:
                del held[queue.stream]
        queue.close(moved_to)

    # -- orders

    def forget(self, order: Forget) -> Done:
        """Keep nothing for a reader any more; units are readers, too, but not to be forgotten."""
        queue = self.queue(order.stream)
        if order.reader.startswith(f"{order.stream.partition('/')[0]}."):
            raise StreamError(f"'{order.reader}' is a unit that reads {order.stream}", hint="undeploy the diagram")
        if order.reader not in (known := queue.status().readers):
            hint = did_you_mean(order.reader, known) or f"it has: {', '.join(known) or 'none'}"
            raise StreamError(f"stream {order.stream} has no reader '{order.reader}'", hint=hint)
        queue.forget(order.reader)
        return Done()

    def keep(self, order: Ack) -> Done:
        """Keep a stream for a reader from a tuple on; it will come."""
        self.queue(order.stream).register(order.reader, order.upto)
        return Done()

    def reading(self, order: Reading) -> Done:
        """Keep nothing for copies of a unit that are no more."""
        queue = self.queue(order.stream)
        for reader in queue.acks():
            number = number_of_reader(reader, order.unit)
            if number is not None and number <= order.given and number not in order.numbers:
                queue.forget(reader)
        return Done()

    def unread(self, order: Forget) -> Done:
        """Keep nothing for one of the two names of a unit any more; harmless if it is not known."""
        self.queue(order.stream).forget(order.reader)
        return Done()
