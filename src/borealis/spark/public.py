"""`format("borealis")`: what any PySpark job registers to read and write a cluster's streams."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from borealis.client.cluster_config import CA, COORDINATOR, HOME, TOKEN
from borealis.errors import OutputError
from borealis.spark.interpreter import names_another, worker_python
from borealis.spark.public_reader import HeldReader, StreamReader, StreamReadOptions
from borealis.spark.public_writer import StreamWriter, WriteOptions
from borealis.spark.session import is_local
from borealis.spark.stream_client import StreamClient

FORMAT = "borealis"


def register(spark: SparkSession) -> None:
    """Make `format("borealis")` known to a session. The Python of its workers must have this package.

    That is what PYSPARK_PYTHON names; if it names none and all runs on this machine, the Python of this process. Where
    the cluster is (BOREALIS_COORDINATOR and its kin) is taken from the environment as it is now.
    """
    context = spark.sparkContext
    for name in (HOME, COORDINATOR, TOKEN, CA):
        if name in os.environ:  # Spark plans in processes that know only what the JVM knew when it started
            context.environment[name] = os.environ[name]
    before = context.pythonExec  # unless the user named one, the path's first python3: it may not have this package
    if is_local(context.master) and not names_another():
        context.pythonExec = worker_python()
    try:
        spark.dataSource.register(BorealisSource)
    finally:
        context.pythonExec = before  # what else the session runs is not ours


class BorealisSource(DataSource):
    """A stream, to be read or written to."""

    options: Mapping[str, str]

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        reading = StreamReadOptions.of(self.options)
        with closing(StreamClient(reading.address)) as client:
            schema = client.schema()
        return from_arrow_schema(reading.view.schema(schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        return HeldReader(StreamReadOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return StreamReader(StreamReadOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refused: without a checkpoint no node could tell a job's second try from new rows."""
        raise OutputError(
            "a stream cannot be written to with df.write", hint="use df.writeStream, or borealis.connect().publish(...)"
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        if overwrite:
            raise OutputError(
                "a stream cannot be overwritten with every micro-batch", hint='use outputMode("append") or "update"'
            )
        return StreamWriter(WriteOptions.of(self.options))
