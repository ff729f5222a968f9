"""What `latency_kafka.py` starts: a query from topic to topic, until it is interrupted.

`latency_kafka_job.py ENGINE QUERY BROKER FROM TO HOME`. If the engine refuses the query, prints why and ends.
"""

# no package: this file is run by its path

import json
import sys
from collections.abc import Callable
from typing import Any

TRIGGER = "5 minutes"  # a batch of the real-time mode: longer than a job
REFUSED = "STREAMING_REAL_TIME_MODE"


def borealis(transactions: bool) -> Callable[..., None]:
    """As a user has it: a durable run, its results in transactions or not."""

    def job(query: str, broker: str, come: str, go: str, home: str) -> None:
        from latency_queries import diagram

        from borealis import kafka, run

        sink = kafka.sink(go, broker, transactions=transactions)
        run(diagram(query), {"rows": kafka.source(come, broker)}, {"out": sink}, state=home)

    return job


def copy(query: str, broker: str, come: str, go: str, home: str) -> None:
    """What Kafka's clients take in a Python process that does nothing else: records as they come, each decoded once."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker, "group.id": "copy", "enable.auto.commit": False})
    consumer.assign([TopicPartition(come, 0, OFFSET_BEGINNING)])
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 0})
    while True:
        first = consumer.poll(0.1)
        some = [] if first is None else [first, *consumer.consume(10_000, 0)]
        for record in some:
            if not record.error():
                producer.produce(go, json.dumps(json.loads(record.value())))
                producer.poll(0)
        producer.flush()


def spark(engine: str, mode: str) -> Callable[..., None]:
    """With Spark's own connector, in micro-batches without a pause or in its real-time mode."""

    def job(query: str, broker: str, come: str, go: str, home: str) -> None:
        from latency_queries import native_session, of_records, spark_query

        source = native_session(engine).readStream.format("kafka").option("kafka.bootstrap.servers", broker)
        records = source.option("subscribe", come).option("startingOffsets", "earliest").load()
        results = spark_query(query, of_records(records), running=mode == "update")
        out = results.selectExpr("to_json(struct(*)) AS value").writeStream.format("kafka").outputMode(mode)
        out = out.option("kafka.bootstrap.servers", broker).option("topic", go)
        out = out.option("checkpointLocation", f"{home}/checkpoint")
        running = (out if engine == "micro-batch" else out.trigger(realTime=TRIGGER)).start()
        try:
            running.awaitTermination()
        finally:
            running.stop()

    return job


ENGINES: dict[str, Callable[..., Any]] = {
    "borealis": borealis(transactions=True),
    "borealis, at least once": borealis(transactions=False),
    "copying, no engine": copy,
    "micro-batch": spark("micro-batch", "append"),
    "real-time": spark("real-time", "append"),
    "real-time, updates": spark("real-time", "update"),
}


def main() -> None:
    """Ends when it is interrupted, or when the engine fails."""
    engine, query, *places = sys.argv[1:]
    if engine == "real-time" and query == "stateless":
        engine = "real-time, updates"  # without state there is no difference, and this is the mode it has
    try:
        ENGINES[engine](query, *places)
    except KeyboardInterrupt:
        return
    except Exception as error:
        if REFUSED not in str(error):
            raise
        print(json.dumps({"not_possible": str(error).strip().splitlines()[0]}), flush=True)


if __name__ == "__main__":
    main()
