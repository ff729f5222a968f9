"""Programs run by plain calls, in Spark's place: the same lanes, leases and kernels, in a thread of the simulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from borealis.compile.unit import Compiled
from borealis.errors import BorealisError, TrainError
from borealis.sim.kernel import Process
from borealis.spark.lane import TRAIN, run_lane
from borealis.spark.lanes import Lanes, failure_of
from borealis.trains.results import Arrived
from borealis.trains.unit import UnitRun

SCATTER = 0.5  # of what a train takes, around its median: of the logarithm


class SimQuery:
    """What `spark.query.Query` is to a node."""

    def __init__(
        self,
        process: Process,
        chance: Random,
        train_s: float,
        start_s: float,
        _: object,
        compiled: Compiled,
        trains: UnitRun,
        commit: Callable[[pa.Table | Arrived], None],
        __: Path,
    ) -> None:
        if not compiled.one_level:
            raise TrainError("a program of several levels is not simulated", hint="cut the diagram, or use one bucket")
        self.hinders = compiled.hinders
        self._process, self._chance, self._buckets = process, chance, compiled.program.buckets
        self._train_s, self._start_s = train_s, start_s
        self._lanes = Lanes(trains, commit, self._buckets, machine=process.machine)
        self._threads: list[Any] = []
        self._stopped = False
        self._died: BorealisError | None = None

    def start(self) -> None:
        self._process.work(self._start_s)
        lease = self._lanes.lease(0)
        assert lease is not None
        for bucket in range(self._buckets):
            self._threads.append(self._process.start("lane", self._keeper(lease, bucket)))

    def stop(self) -> None:
        self._stopped = True
        self._lanes.close()
        for thread in self._threads:
            thread.join()

    def failure(self) -> BorealisError | None:
        return self._died if self._lanes.failure is None else failure_of(self._lanes.failure)

    def _keeper(self, lease: int, bucket: int) -> Callable[[], None]:
        def ask(head: dict[str, Any], buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
            order, answer = self._lanes.turn(head, [pa.py_buffer(b) for b in buffers])
            if TRAIN in order:
                self._process.work(self._chance.lognormvariate(0.0, SCATTER) * self._train_s)
            return order, answer

        def keep() -> None:
            try:
                run_lane(ask, lease, bucket)
            except Exception as error:
                if not self._stopped:
                    self._died = TrainError(f"{type(error).__name__}: {error}")

        return keep
