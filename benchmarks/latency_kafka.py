"""From topic to topic: Borealis, plain Structured Streaming and Spark's real-time mode, by the same two clients.

One producer, in a process of its own, writes records as they are due; one consumer, here, stamps what it gets before it
looks at it, and reads only what is committed. One broker on loopback, topics of one partition. Each engine is a process
and a JVM of its own; its processor time is that of its processes alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from .kafka_broker import Broker
from .latency_feed import DRAIN_S, FIRST_S, Ages, Phase, found, next_second, now_us
from .latency_jobs import Job
from .measuring import meter

START_S = 30.0  # for the producer
AHEAD_US = 300_000  # for a phase to be told to the producer
POLL_S = 0.02
AT_ONCE = 10_000

Lines = list[dict[str, Any]]


class Results:
    """The consumer of the results: takes them as they come, and reads them afterwards."""

    def __init__(self, broker: str, topic: str) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        settings = {"group.id": f"look-{topic}", "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._consumer = Consumer({"bootstrap.servers": broker, "log_level": 0, **settings})
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self._taken: list[tuple[int, list[Any]]] = []
        self._unseen: list[Any] = []  # of which the births are not known yet
        self.newest = 0

    def take(self) -> None:
        """What there is; waits for a moment if there is nothing, and looks at what came before: windows may come in any
        order, and to look at each as it comes would make the next ones older.
        """
        first = self._consumer.poll(POLL_S)
        if first is None or first.error():
            self.newest = max([self.newest, *(birth(json.loads(one))[0] for one in self._unseen)])
            self._unseen = []
            return
        some = [first, *self._consumer.consume(AT_ONCE, 0)]
        at = now_us()
        some = [one.value() for one in some if not one.error()]
        self._taken.append((at, some))
        self._unseen += some
        self.newest = max(self.newest, birth(json.loads(some[-1]))[0])

    def ages(self) -> Ages:
        """All that came since the last time."""
        ages = Ages()
        for at, some in self._taken:
            born = [birth(json.loads(one)) for one in some]
            ages.take(at, np.array([one for one, _ in born]), np.array([rows for _, rows in born]))
        self._taken = []
        return ages

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


def birth(result: dict[str, Any]) -> tuple[int, int]:
    """When the row was born that let this result be, and how many rows it stands for.

    A window's count comes with its end; a running count, which has the newest row's birth as well, with that row.

    >>> birth({"born": 7, "k": 1})
    (7, 1)
    >>> birth({"window_end": "2026-01-01T00:00:00.100Z", "n": 9})
    (1767225600100000, 9)
    >>> birth({"window_end": "2026-01-01T00:00:00.100Z", "n": 9, "running": 5})
    (5, 1)
    """
    if (running := result.get("running", result.get("born"))) is not None:
        return int(running), 1
    return round(datetime.fromisoformat(result["window_end"]).timestamp() * 1e6), int(result["n"])


def measure(broker: Broker, home: Path, engine: str, query: str, phases: Sequence[Phase], lines: Lines) -> None:
    """An engine at one rate after the other; adds to `lines` as it goes. The first phase only warms up."""
    tag = uuid4().hex[:8]
    come, go = (broker.topic(f"latency-{side}-{tag}") for side in ("come", "go"))
    windowed = query == "windowed" and not engine.endswith("updates")
    with (
        Job("latency_kafka_job.py", engine, query, broker.address, come, go, str(home)) as job,
        Job("latency_kafka_feed.py", broker.address, come) as feed,
        Results(broker.address, go) as results,
    ):
        feed.answer(START_S)
        for number, phase in enumerate(phases):
            start_us, used = next_second(now_us() + AHEAD_US), meter([job.pid])
            feed.tell([start_us, phase.given()])
            end_us, last_us = start_us + phase.whole_us, start_us + phase.last_us(windowed)
            drained = _take(results, last_us, end_us, job)
            cpu_s = used()
            drained = drained or _take(results, last_us, end_us + round(1e6 * (DRAIN_S if number else FIRST_S)), job)
            offered, ages = int(feed.answer(phase.whole_us / 1e6 + DRAIN_S + 1)), results.ages()
            if number == 0:
                if not drained:
                    raise TimeoutError(f"the warm-up's results were not there after {FIRST_S:.0f} s")
                continue
            lines.append(found(phase, start_us, ages, offered, cpu_s, drained))
            if not lines[-1]["kept_up"]:
                break


def _take(results: Results, last_us: int, until_us: int, job: Job) -> bool:
    """Take results until the last one is there, but no longer than that; whether it is."""
    while results.newest < last_us and now_us() < until_us:
        results.take()
        job.check()
    return results.newest >= last_us
