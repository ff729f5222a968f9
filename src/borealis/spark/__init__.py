"""A cluster's streams as an ordinary source and sink of any PySpark job, in another process.

    import borealis.spark

    borealis.spark.register(spark)
    busy = spark.readStream.format("borealis").option("stream", "per_source").option("reader", "alarms").load()
    alarms = busy.where("n > 100").writeStream.format("borealis").option("stream", "alarms")
    alarms.option("checkpointLocation", "alarms-checkpoint").start()

Exactly once across restarts of the job from its checkpoint; `docs/pyspark.md` has the options. The rest of
this package is all other use of PySpark at run time: sessions, plans, the source of a unit, lanes, workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from borealis.spark.public import register

__all__ = ["register"]


def __getattr__(name: str) -> Any:
    if name != "register":
        raise AttributeError(f"module 'borealis.spark' has no attribute '{name}'")
    from borealis.spark.public import register  # here: Spark's Python workers import this package, and no client

    return register
