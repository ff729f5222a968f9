"""What `latency_kafka.py` starts: the rows of `bench latency` into a topic, by the clock, in a process of its own.

`latency_kafka_feed.py BROKER TOPIC`; reads a line of JSON for each phase, writes one with what was offered.
"""

# no package: this file is run by its path

from __future__ import annotations

import json
import sys

import latency_feed as feed
from confluent_kafka import Producer

SETTINGS = {"linger.ms": 0, "acks": "1", "log_level": 0, "queue.buffering.max.messages": 1_000_000}


def offered(producer: Producer, topic: str, phase: feed.Phase, start_us: int) -> int:
    """One phase."""
    offer = feed.Offer(phase, start_us)
    for born_us, first, count in feed.ticks(phase, start_us):
        for value in feed.records(born_us, first, count):
            while True:
                try:
                    producer.produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
        offer(born_us, count)
    producer.flush(feed.DRAIN_S)
    return offer.rows


def main() -> None:
    """Until there are no more phases."""
    broker, topic = sys.argv[1:]
    producer = Producer({"bootstrap.servers": broker, **SETTINGS})
    producer.list_topics(topic, timeout=10)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        start_us, given = json.loads(line)
        print(json.dumps(offered(producer, topic, feed.Phase(**given), start_us)), flush=True)


if __name__ == "__main__":
    main()
