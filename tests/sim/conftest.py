"""What tests of simulated clusters share: what Spark says of their diagrams, asked once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))  # for diagrams and rows by chance

from borealis.sim.programs import Programs


@pytest.fixture(scope="session")
def programs(spark: SparkSession) -> Programs:
    return Programs(spark)
