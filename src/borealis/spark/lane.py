"""A lane, seen from the task that keeps it: takes trains from the node and hands back what comes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from borealis.errors import WireError
from borealis.kernels.program import Packet
from borealis.spark.worker import carried, run_train, settle, size_of
from borealis.trains.header import Lane, TrainHeader, rows_together
from borealis.trains.location import check_version, exchange, is_remote, read
from borealis.trains.message import WorkerChannel

FILE_BYTES_LEAST = 1 << 20  # from here on a payload goes by way of a file, where node and task share files

# what stands in the heads of messages
ASK, LEASE, BUCKET, ATTEMPT = "ask", "lease", "bucket", "attempt"
NUMBER, TRAIN, PACKETS, OVER, WAIT = "number", "train", "packets", "over", "wait"
AHEAD, MORE = "ahead", "more"  # give me the next train before I say what came of this one; I am at the next one already

Carried: TypeAlias = tuple[pa.Buffer | None, str | None]  # a payload, or the file that it is in
Ask = Callable[[dict[str, Any], list[Any]], tuple[dict[str, Any], list[pa.Buffer]]]


def keep_lane(where: Lane, lease: int, bucket: int) -> None:
    """Run train after train, until the lease is over."""
    settle()
    if is_remote(where["lane"]):
        check_version(where)
        run_lane(lambda head, buffers: exchange(where["lane"], head, buffers), lease, bucket)
        return
    with closing(WorkerChannel.to(where["lane"])) as node:
        run_lane(node.ask, lease, bucket, ahead=True)


def run_lane(ask: Ask, lease: int, bucket: int, *, ahead: bool = False) -> None:
    """The same, over whatever way there is to the node. With `ahead` it begins the next train while what came of the
    last is still being written."""
    head: dict[str, Any] = {ASK: "turn", LEASE: lease, BUCKET: bucket}
    answer: list[Any] = []
    while True:
        order, buffers = ask(head, answer)
        if OVER in order:
            return
        me = {ASK: "turn", LEASE: lease, BUCKET: bucket, ATTEMPT: order[ATTEMPT]}
        head, answer = me, []
        telling: Future[None] | None = None  # what came of the train before
        while TRAIN in order:
            train: TrainHeader = order[TRAIN]
            said = me | {NUMBER: order[NUMBER]}
            rows_together(train["inputs"], buffers)
            try:
                results = TrainResults(run_train(train, bucket), train["results"])
            finally:  # also where this one fails: what came of the last is whole
                if telling is not None:
                    telling.result()
                    telling = None
            order = {}
            if ahead and results.are_on_their_way:
                order, buffers = ask(said | {AHEAD: True}, [])
            if TRAIN in order:
                telling = _writer().submit(_tell, ask, said | {MORE: True}, results)
            else:
                packets, answer = results.packed()
                head = said | {PACKETS: packets}


def _tell(ask: Ask, head: dict[str, Any], results: TrainResults) -> None:
    packets, answer = results.packed()
    ask(head | {PACKETS: packets}, answer)


@cache
def _writer() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "results")


class TrainResults:
    """What comes of a train. Large packets go to files, which are written while what comes behind them is computed."""

    def __init__(self, packets: Iterable[Packet], results: str | None) -> None:
        """Computes all of it."""
        self._packets = [(packet, _begun(packet, results)) for packet in packets]

    @property
    def are_on_their_way(self) -> bool:
        """Whether some of it is not written yet."""
        return any(isinstance(how, Future) and not how.done() for _, how in self._packets)

    def packed(self) -> tuple[list[list[Any]], list[Any]]:
        """The packets as a part of a head, and the buffers behind it; waits for files."""
        index: list[list[Any]] = []
        buffers = []
        for packet, how in self._packets:
            payload, file = how.result() if isinstance(how, Future) else how
            index.append([packet.tag, packet.bucket, file])
            if payload is not None:
                buffers.append(payload)
        return index, buffers


def _begun(packet: Packet, results: str | None) -> Carried | Future[Carried]:
    if results is None or packet.file is not None or size_of(packet) < FILE_BYTES_LEAST:
        return carried(packet, results, FILE_BYTES_LEAST)
    return _writer().submit(carried, packet, results, FILE_BYTES_LEAST)


def packets_of(index: list[list[Any]], buffers: list[pa.Buffer], results: str | None) -> list[Packet]:
    """The packets that `packed` packed; files are where the train's header puts them."""
    found, left = [], iter(buffers)
    for tag, bucket, file in index:
        if file is not None and (results is None or Path(file).parent != Path(results)):
            raise WireError(f"a task says that its results are in {file}, which is not where they belong")
        found.append(Packet(tag, bucket, next(left) if file is None else read(file), file))
    return found
