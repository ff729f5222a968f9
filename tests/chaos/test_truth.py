"""What the diagrams of the matrix are said to give is what Spark's batch form gives."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from databases import DATABASES, make_database
from matrix import Deployed
from pyspark.sql import SparkSession

from borealis import Diagram
from borealis.compile.batch import batch
from borealis.sim.history import plain
from borealis.sim.shapes import ALL_GROUPS, SHAPES, rows

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
        truth, columns = SHAPES[shape].truth(counts), SHAPES[shape].columns
        if SHAPES[shape].kinds:  # the batch form gives what stands in the end: nothing but insertions
            truth, columns = [row[:-1] for row in truth], columns[:-1]
        assert sorted(plain(frame.toArrow(), columns)) == sorted(truth), shape
