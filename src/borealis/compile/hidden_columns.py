"""Columns that travel along unseen in the batch form: a row's time, and its place among rows of one time."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from borealis.tuples import TIME

POSITION = "__position"  # breaks ties of time in first and last


def hidden(frame: DataFrame, time: Column | None = None, position: Column | None = None) -> DataFrame:
    """With them."""
    zero = F.lit(0).cast("bigint")
    return frame.select(
        "*", (zero if time is None else time).alias(TIME), (zero if position is None else position).alias(POSITION)
    )


def visible(frame: DataFrame) -> DataFrame:
    return frame.drop(TIME, POSITION)
