"""A durable run from topic to topic, as a program that may be killed; see test_kafka_kill.py.

`kafka_job.py BROKER COME GO STATE BLOW COUNT`: kills itself with the COUNT-th transaction: `before` it, `within` it
(its records are written, the end is not), or `behind` it, when the broker has it and nobody here knows; `never` lets it
end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from borealis import Diagram, kafka, run, window
from borealis.connectors.kafka import to_topic as sinks
from borealis.connectors.kafka.writer import TopicWriter
from borealis.connectors.placed import Position
from borealis.trains.intake import Admission
from programs import kill_session

COLUMNS = "ts TIMESTAMP, src STRING, bytes INT"


def diagram() -> Diagram:
    """Sums, and each packet as it came: the one tells of what was lost or repeated, the other of what it was."""
    d = Diagram("killed")
    packets = d.input("packets", COLUMNS, slack="1 hour")
    packets.map(ts="ts", src="src", bytes="bytes").output("all")
    packets.aggregate(by="src", over=window("10 seconds"), n="count(*)").output("sums")
    return d


def die() -> None:
    """As a power cut would have it."""
    kill_session(os.getsid(0))


def strike(blow: str, count: int) -> None:
    """Make the writer die with one of its transactions."""
    done = 0
    transaction = TopicWriter._transaction

    def struck(
        self: TopicWriter, values: Sequence[bytes], keys: Sequence[bytes | None] | None, position: Position
    ) -> None:
        nonlocal done
        done += 1
        if done == count and blow == "before":
            die()
        if done == count and blow == "within":
            self._producer.begin_transaction()
            self._produce(values, keys)
            self._producer.flush(30)
            die()
        transaction(self, values, keys, position)
        if done == count and blow == "behind":
            die()

    TopicWriter._transaction = struck  # type: ignore[method-assign]


def main() -> None:
    """Run until the end of what the topic held at the first start, or until struck."""
    broker, come, go, state, blow, count = sys.argv[1:]
    sinks.ROWS_AT_ONCE = 150  # many transactions, however fast trains are
    strike(blow, int(count))
    run(
        diagram(),
        {"packets": kafka.source(come, broker, until="now")},
        {"all": kafka.sink(go, broker), "sums": f"{state}.sums.jsonl"},
        state=state,
        admission=Admission(rows_most=150),
    )
    print("ended")


if __name__ == "__main__":
    main()
