"""A started query that is no unit's yet: its tasks keep lanes, and wait until these are dressed as a unit.

Nothing in it depends on the unit but the number of lanes: what leaves level 0 has the same columns for all programs of
one level, the settings are the same, and the header of each train names program, state and inputs. So it can be started
beforehand, and its processes made warm by rehearsals of the units that it may have to run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from borealis.errors import BorealisError, ClusterError
from borealis.machine import HERE, Machine
from borealis.spark.depot import Loan, lend
from borealis.spark.lanes import CORES, Dress, Lanes, failure_of
from borealis.spark.plan import packet_schema
from borealis.spark.source import answer_with_lanes
from borealis.spark.streaming import SOCKET, WHOLE_STAGE, StreamingQuery, frames_from
from borealis.trains.header import Lane
from borealis.trains.results import Arrived
from borealis.trains.unit import UnitRun

LAST_TRAIN_S = 1.0  # for a train that is under way when lanes are closed


class TooFewCoresError(ClusterError):
    """Spark has none left for so many lanes."""


class LaneQuery:
    """Runs the trains of whichever unit it is dressed as, in so many lanes."""

    def __init__(self, spark: SparkSession, buckets: int, machine: Machine = HERE) -> None:
        self.buckets, self.machine = buckets, machine
        self.lanes = Lanes(buckets, machine=machine)
        self._spark = spark
        self._query: StreamingQuery | None = None
        self._home: Path | None = None
        self._loans: dict[Path, Loan] = {}  # what executors elsewhere may read, by directory

    def start(self) -> None:
        """Start it; a TooFewCoresError where its lanes would hold cores that Spark does not have."""
        if (why := CORES.take(self._spark, self, self.buckets)) is not None:
            raise TooFewCoresError(why)
        try:
            home = self._home = self.machine.disk.scratch("lanes")
            loan = self._lend(home)
            here: Lane = {"lane": str(home / SOCKET)}
            where = here if loan is None else loan.open_lanes(self.lanes.turn)
            self._query = StreamingQuery(self._spark, home, answer_with_lanes(self.lanes, where), self.lanes.bring_in)
            frames = frames_from(self._spark, home, packet_schema(), self.buckets, lanes=True)
            # code for a whole stage pays off only where rows pass it
            self._query.start({WHOLE_STAGE: "false"}, lambda: frames.writeStream.format("noop"))
        except BaseException:
            self.stop()
            raise

    def dress(
        self, trains: UnitRun, commit: Callable[[Arrived], None], scratch: Path, *, fitting: bool = False
    ) -> bool:
        """Be this unit from now on; when `fitting`, until it is undressed. Says whether that is possible."""
        loan = self._lend(scratch)
        return self.lanes.dress(Dress(trains, commit, None if loan is None else loan.for_remote, fitting))

    def undress(self, seconds: float) -> bool:
        """Be no unit any more; says whether no train is under way at the end of this time."""
        return self.lanes.undress(seconds)

    def _lend(self, scratch: Path) -> Loan | None:
        """The same for a unit each time: what workers elsewhere hold of its state is known by it."""
        if scratch not in self._loans and (loan := lend(self._spark, scratch)) is not None:
            self._loans[scratch] = loan
        return self._loans.get(scratch)

    def failure(self) -> BorealisError | None:
        """What it died of, if it did."""
        if self.lanes.failure is not None:
            return failure_of(self.lanes.failure)
        return None if self._query is None else self._query.failure()

    def stop(self) -> None:
        """Stop after the current train."""
        self.lanes.close()
        self.lanes.wait_idle(LAST_TRAIN_S)
        CORES.give_back(self)
        query, self._query = self._query, None
        if query is not None:
            query.stop()
        loans, self._loans = self._loans, {}
        for loan in loans.values():
            loan.close()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)


def start_one(spark: SparkSession, buckets: int, machine: Machine = HERE) -> LaneQuery:
    """One that is started; for who keeps none beforehand."""
    query = LaneQuery(spark, buckets, machine)
    query.start()
    return query
