"""What those who run a train must know of it: a JSON object, as Spark's processes and executors elsewhere get it.

Rows are where they are cheapest: in the message itself, in a file on this machine, or with a node that lends files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NotRequired, TypeAlias, TypedDict

import pyarrow as pa

Payload: TypeAlias = pa.Buffer | str | int | None  # rows, or a location of them, or which buffer of a message has them
Which = Literal["rows", "late"]
PAYLOADS: tuple[Which, ...] = ("rows", "late")  # of each input
Standing = tuple[str, int, int]  # a state: the root of its log, the train it is behind, how often the log began
Manifest = dict[str, list[list[int]]]  # `box.bucket` to the stretches of its state's log


class TrainInput(TypedDict):
    """What a train has of one input."""

    time: str  # the column with the tuples' times
    standing: int  # the boundary before the train
    cause: list[int]  # of each boundary in it
    bound: list[int]  # those boundaries
    rows: Payload
    late: Payload


class TrainInputs(TypedDict):
    """A train as it was cut from its inputs."""

    train: int
    inputs: dict[str, TrainInput]
    rehearsal: NotRequired[bool]  # a train of nothing, that keeps workers warm


class TrainHeader(TrainInputs):
    """A train with everything that it takes to run it."""

    program: str  # a location, as are `state` and `troubles`
    state: str
    manifest: Manifest | None  # None: for those who hold the state already
    results: str | None  # where large results go; None: through Spark
    diagram: str
    writer_id: str
    troubles: str
    version: NotRequired[str]  # of the node, for executors elsewhere
    authority: NotRequired[str]  # whose certificates of the node to trust
    fork: NotRequired[int]  # the number of the train, if it is one of a fork: nothing outside may come of it
    forks: NotRequired[list[str]]  # the state logs of those there are now: workers forget what they hold of others
    alone: NotRequired[bool]  # from now on its workers run no other unit: they forget what they hold of others


class Lane(TypedDict):
    """What a task must know to keep a lane."""

    lane: str
    version: NotRequired[str]
    authority: NotRequired[str]


def rows_apart(inputs: dict[str, TrainInput], *, files: bool = False) -> tuple[dict[str, TrainInput], list[pa.Buffer]]:
    """The inputs without their rows, which are numbered instead; and the rows. With `files`, those in files as well."""
    bare: dict[str, TrainInput] = {}
    buffers: list[pa.Buffer] = []
    for name, one in inputs.items():
        bare[name] = one = one.copy()
        for which in PAYLOADS:
            rows = one[which]
            if files and isinstance(rows, str):
                rows = pa.py_buffer(Path(rows).read_bytes())
            if isinstance(rows, pa.Buffer):
                buffers.append(rows)
                one[which] = len(buffers) - 1
    return bare, buffers


def rows_together(inputs: dict[str, TrainInput], buffers: Sequence[pa.Buffer]) -> None:
    for one in inputs.values():
        for which in PAYLOADS:
            if isinstance(number := one[which], int):
                one[which] = buffers[number]
