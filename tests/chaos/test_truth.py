"""What the diagrams of the matrix are said to give is what Spark's batch form gives."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from matrix import Deployed
from pyspark.sql import SparkSession
from shapes import ALL_GROUPS, DATABASES, SHAPES, make_database, rows

from borealis import Diagram
from borealis.compile.batch import batch

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("group", ALL_GROUPS)
def test_the_truth_is_that_of_the_batch_form(
    spark: SparkSession, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATABASES, str(tmp_path))
    deployed = Deployed("passive", "precise", group)
    make_database(tmp_path, deployed.name)
    spec = Diagram.from_yaml(deployed.yaml).spec
    counts = {name: 500 - 30 * number for number, name in enumerate(ALL_GROUPS[group].inputs)}
    frames = {
        name: spark.createDataFrame(pa.Table.from_batches([rows(name, 0, count)])) for name, count in counts.items()
    }
    for shape, frame in batch(spec, spark, frames).items():
        table = frame.toArrow().select(SHAPES[shape].columns)
        columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in table.columns]
        found = sorted(zip(*(c.to_pylist() for c in columns), strict=True))
        assert found == sorted(SHAPES[shape].truth(counts)), shape
