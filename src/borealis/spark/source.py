"""The Spark source of a unit: each micro-batch is the train that the input manager hands out next, or a lease of lanes.

The stream reader lives in a process of its own and asks the node over a Unix socket; an idle unit waits there, so that
it costs nothing and wakes at once.
"""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from borealis.spark.lane import ASK, keep_lane
from borealis.spark.lanes import Lanes
from borealis.spark.worker import read_train
from borealis.trains.header import Lane, TrainHeader
from borealis.trains.message import WorkerChannel

if TYPE_CHECKING:
    from borealis.trains.unit import UnitRun

FORMAT = "borealis_train"
POLL_S = 0.1  # how long a question for the next train may wait; Spark asks again


class NodeReader(DataSourceStreamReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.socket, self.buckets, self.schema = options["socket"], int(options["buckets"]), schema
        self._node: WorkerChannel | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_node": None}

    def _ask(self, what: str, **arguments: int) -> Any:
        if self._node is None:
            self._node = WorkerChannel.to(self.socket)
        return self._node.ask({ASK: what, **arguments})[0]["answer"]


class LaneReader(NodeReader):
    """An offset is the number of the last lease."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"lease": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        number = self._ask("lease", after=start["lease"])
        return start if number is None else {"lease": number}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        where = self._ask("where")
        return [InputPartition((where, end["lease"], bucket)) for bucket in range(self.buckets)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        keep_lane(*partition.value)
        return iter(())


class TrainReader(NodeReader):
    """An offset is the number of the last train, and of the last rehearsal if there was one.

    A rehearsal is a train of nothing: it keeps JVM and workers of a unit warm that has nothing to do yet.
    """

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"train": self._ask("committed")}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        number = self._ask("next", after=start["train"])
        if number is not None and number < 0:
            return {"train": start["train"], "rehearsal": -number}
        return start if number is None else {"train": number}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        number = end["train"] if end["train"] != start["train"] else None  # nothing to do: workers get ready meanwhile
        if (rehearsal := end.get("rehearsal", 0)) > start.get("rehearsal", 0):
            number = -rehearsal
        train = None if number is None else self._ask("plan", number=number)
        return [InputPartition((train, bucket)) for bucket in range(self.buckets)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        train, bucket = partition.value
        if train is None:
            return iter(())
        return read_train(train, bucket, to_arrow_schema(self.schema, timezone="UTC"))


class TrainSource(DataSource):
    """`readStream.format("borealis_train")`: for units only, a user reads streams with other means."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return LaneReader(self.options, schema) if self.options.get("lanes") else TrainReader(self.options, schema)


Message = tuple[dict[str, Any], list[Any]]
Answer = Callable[[dict[str, Any], list[Any]], Message]


def answer_with_trains(trains: UnitRun, outward: Callable[[TrainHeader], TrainHeader] | None = None) -> Answer:
    """For a `TrainReader`. `outward` makes a train's header fit for executors elsewhere."""

    def answer(head: dict[str, Any], _: list[Any]) -> Message:
        told: Any = None
        match head[ASK]:
            case "committed":
                told = trains.committed()
            case "next":
                told = trains.next_train(head["after"], POLL_S)
            case "plan":
                train = trains.plan(head["number"])
                told = train if outward is None else outward(train)
        return {"answer": told}, []

    return answer


def answer_with_lanes(lanes: Lanes, where: Lane) -> Answer:
    """For a `LaneReader`, and for its tasks, which find their lanes by `where`."""

    def answer(head: dict[str, Any], buffers: list[Any]) -> Message:
        match head[ASK]:
            case "turn":
                return lanes.turn(head, buffers)
            case "lease":
                return {"answer": lanes.lease(head["after"])}, []
        return {"answer": where}, []

    return answer


class TrainServer:
    """Answers the questions of one query's source."""

    def __init__(self, path: Path, answer: Answer, behind: Callable[[], None] | None = None) -> None:
        """`behind` is called after each answer."""
        self.asked = asked = threading.Event()  # the query's Python process is there

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                asked.set()
                line = WorkerChannel(self.request)
                with contextlib.suppress(ConnectionError):  # Spark ends the reader when its query stops
                    while (question := line.receive()) is not None:
                        try:
                            line.send(*answer(*question))
                        finally:
                            if behind is not None:
                                behind()

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

        path.unlink(missing_ok=True)  # of a query of this unit that died
        self._server = Server(str(path), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="train-server", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
