"""Simulated runs share one Spark session, and what it has said of diagrams."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from borealis.sim.programs import Programs


@pytest.fixture(scope="session")
def programs(spark: SparkSession) -> Programs:
    return Programs(spark)
