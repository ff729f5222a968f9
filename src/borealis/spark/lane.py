"""A lane, seen from the task that keeps it: takes trains from the node and hands back what comes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

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

Ask = Callable[[dict[str, Any], list[Any]], tuple[dict[str, Any], list[pa.Buffer]]]


def keep_lane(where: Lane, lease: int, bucket: int) -> None:
    """Run train after train, until the lease is over."""
    settle()
    if is_remote(where["lane"]):
        check_version(where)
        run_lane(lambda head, buffers: exchange(where["lane"], head, buffers), lease, bucket)
        return
    with closing(WorkerChannel.to(where["lane"])) as node:
        run_lane(node.ask, lease, bucket)


def run_lane(ask: Ask, lease: int, bucket: int) -> None:
    """The same, over whatever way there is to the node."""
    head: dict[str, Any] = {ASK: "turn", LEASE: lease, BUCKET: bucket}
    answer: list[Any] = []
    while True:
        order, buffers = ask(head, answer)
        if OVER in order:
            return
        head, answer = {ASK: "turn", LEASE: lease, BUCKET: bucket, ATTEMPT: order[ATTEMPT]}, []
        if TRAIN in order:
            train: TrainHeader = order[TRAIN]
            rows_together(train["inputs"], buffers)
            packets, answer = packed(run_train(train, bucket), train["results"])
            head |= {NUMBER: order[NUMBER], PACKETS: packets}


@cache
def _writer() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "results")


def packed(packets: Iterable[Packet], results: str | None) -> tuple[list[list[Any]], list[Any]]:
    """Packets as a part of a head, and the buffers behind it; large ones are in files, which are written while what
    comes behind them is computed."""
    index: list[list[Any]] = []
    buffers = []
    for packet, carrying in [(packet, _carrying(packet, results)) for packet in packets]:
        payload, file = carrying()
        index.append([packet.tag, packet.bucket, file])
        if payload is not None:
            buffers.append(payload)
    return index, buffers


def _carrying(packet: Packet, results: str | None) -> Callable[[], tuple[pa.Buffer | None, str | None]]:
    """How it is carried, to be asked once all have begun."""
    if results is None or packet.file is not None or size_of(packet) < FILE_BYTES_LEAST:
        how = carried(packet, results, FILE_BYTES_LEAST)
        return lambda: how
    return _writer().submit(carried, packet, results, FILE_BYTES_LEAST).result


def packets_of(index: list[list[Any]], buffers: list[pa.Buffer], results: str | None) -> list[Packet]:
    """The packets that `packed` packed; files are where the train's header puts them."""
    found, left = [], iter(buffers)
    for tag, bucket, file in index:
        if file is not None and (results is None or Path(file).parent != Path(results)):
            raise WireError(f"a task says that its results are in {file}, which is not where they belong")
        found.append(Packet(tag, bucket, next(left) if file is None else read(file), file))
    return found
