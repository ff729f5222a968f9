"""Warming a node up: the first trains of a new JVM and its Python workers take seconds, so let them be no user's."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from typing import Any

from borealis.diagram.durations import window
from borealis.diagram.model import Diagram
from borealis.errors import BorealisError
from borealis.local.run import run
from borealis.trains.intake import Admission

log = logging.getLogger("borealis.node")
TRAINS = 3


def warm_up(spark: Any, stopping: Callable[[], bool] = lambda: False) -> None:
    """Run a small diagram of our own: what it loads and compiles, any unit needs. A node that stops logs nothing."""
    d = Diagram("warm_up")
    some = d.input("some", "ts TIMESTAMP, k INT, s STRING").filter("k >= 0").map(k="k + 1", s="s")
    some.aggregate(by="s", over=window("2 seconds", "1 second"), n="count(*)", k="sum(k)").output("out")
    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    rows = [{"ts": start + dt.timedelta(seconds=i), "k": i, "s": str(i % 2)} for i in range(TRAINS)]
    try:
        run(d, {"some": rows}, admission=Admission(rows_most=1), spark=spark)
    except Exception as error:  # also what PySpark says of a JVM that is gone
        if stopping():
            return
        if not isinstance(error, BorealisError):
            raise
        log.warning("warming up failed (%s): the first trains will be slow", error)
