"""Programs run by plain calls, in Spark's place: the same lanes, leases and kernels, in a thread of the simulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from borealis.errors import BorealisError, TrainError
from borealis.sim.kernel import Process
from borealis.spark.depot import Loan
from borealis.spark.lane import TRAIN, run_lane
from borealis.spark.lane_query import LaneQuery
from borealis.spark.lanes import failure_of

SCATTER = 0.5  # of what a train takes, around its median: of the logarithm


class SimLaneQuery(LaneQuery):
    """What Spark starts for a node."""

    def __init__(
        self, process: Process, chance: Random, train_s: float, start_s: float, spark: Any, buckets: int
    ) -> None:
        super().__init__(spark, buckets, process.machine)
        self._process, self._chance, self._train_s, self._start_s = process, chance, train_s, start_s
        self._threads: list[Any] = []
        self._stopped = False
        self._died: BorealisError | None = None

    def start(self) -> None:
        self._process.work(self._start_s)
        lease = self.lanes.lease(0)
        assert lease is not None
        for bucket in range(self.buckets):
            self._threads.append(self._process.start("lane", self._keeper(lease, bucket)))

    def stop(self) -> None:
        self._stopped = True
        self.lanes.close()
        for thread in self._threads:
            thread.join()

    def failure(self) -> BorealisError | None:
        return self._died if self.lanes.failure is None else failure_of(self.lanes.failure)

    def _lend(self, scratch: Path) -> Loan | None:
        return None

    def _keeper(self, lease: int, bucket: int) -> Callable[[], None]:
        def ask(head: dict[str, Any], buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
            order, answer = self.lanes.turn(head, [pa.py_buffer(b) for b in buffers])
            self.lanes.bring_in()  # while the task is at it, elsewhere
            if TRAIN in order:
                order[TRAIN].pop("alone", None)  # all workers of a simulation are one
                self._process.work(self._chance.lognormvariate(0.0, SCATTER) * self._train_s)
            return order, answer

        def keep() -> None:
            try:
                run_lane(ask, lease, bucket)
            except Exception as error:
                if not self._stopped:
                    self._died = TrainError(f"{type(error).__name__}: {error}")

        return keep
