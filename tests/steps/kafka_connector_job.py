"""A run over Spark's own Kafka connector, as a program: its session needs other jars than the tests' session has.

`kafka_connector_job.py BROKER TOPIC OUT STATE JARS`
"""

from __future__ import annotations

import sys
import threading

from borealis import Diagram, run, window
from borealis.spark.session import session


def main() -> None:
    """Count packets until all that the topic holds are counted."""
    broker, topic, out, state, jars = sys.argv[1:]
    spark = session(master="local[2]", settings={"spark.jars": jars})
    records = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", topic)
    columns = "ts TIMESTAMP, src STRING, bytes INT"
    packets = (
        records.option("startingOffsets", "earliest")
        .load()
        .selectExpr(f"from_json(CAST(value AS STRING), '{columns}') AS r")
        .where("r.ts IS NOT NULL")
        .select("r.*")
    )
    d = Diagram("connector")
    come = d.input("packets", columns, slack="1 hour")  # a micro-batch has the rows of one partition after the other
    come.aggregate(by="src", over=window("10 seconds"), n="count(*)").output("per_source")

    def end() -> None:
        """A topic never ends: stop the query that reads it when it has nothing more to read."""
        while not (mine := [q for q in spark.streams.active if q.name == "borealis input packets"]):
            threading.Event().wait(0.1)
        mine[0].processAllAvailable()
        mine[0].stop()

    threading.Thread(target=end, daemon=True).start()
    run(d, {"packets": packets}, {"per_source": out}, state=state, spark=spark)


if __name__ == "__main__":
    main()
