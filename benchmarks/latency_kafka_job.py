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


def borealis(query: str, broker: str, come: str, go: str, home: str) -> None:
    """As a user has it: a durable run, its results in transactions."""
    from latency_queries import diagram

    from borealis import kafka, kafka_sink, run

    run(diagram(query), {"rows": kafka(come, broker)}, {"out": kafka_sink(go, broker)}, state=home)


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
    "borealis": borealis,
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
