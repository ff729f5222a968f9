"""A cluster's streams as an ordinary source and sink of any PySpark job, in another process.

    import borealis.spark

    borealis.spark.register(spark)
    busy = spark.readStream.format("borealis").option("stream", "per_source").option("reader", "alarms").load()
    alarms = busy.where("n > 100").writeStream.format("borealis").option("stream", "alarms")
    alarms.option("checkpointLocation", "alarms-checkpoint").start()

Exactly once across restarts of the job from its checkpoint; `docs/pyspark.md` has the options.
"""

from borealis.plan.public import register

__all__ = ["register"]
