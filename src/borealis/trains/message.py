"""What passes between a unit's node and those who run its trains: a frame of `state`. Nothing in it is executed.

>>> head, buffers = decode(encode({"say": "hello"}, [b"abc", b""]))
>>> head, [b.to_pybytes() for b in buffers]
({'say': 'hello'}, [b'abc', b''])
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from borealis.errors import WireError
from borealis.state import frame

MARK = b"BOL2"
MESSAGE_BYTES_MOST = 8 << 30

Head = dict[str, Any]


def encode(head: Head, buffers: Sequence[Any] = ()) -> bytes:
    return frame.pack(MARK, head, buffers)


def decode(message: Any) -> tuple[Head, list[pa.Buffer]]:
    """A message's head and its buffers, which are views into it."""
    try:
        return frame.unpack(MARK, message)
    except frame.FrameError as error:
        raise WireError(f"this is no message of version 2: {error}") from error


class WorkerChannel:
    """Messages over a socket, one after the other."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._begin = bytearray(frame.BEGIN_BYTES)

    @staticmethod
    def to(path: str) -> WorkerChannel:
        """A channel to the node that listens at a path of this machine."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        return WorkerChannel(connection)

    def send(self, head: Head, buffers: Sequence[Any] = ()) -> None:
        self._socket.sendall(encode(head, buffers))

    def receive(self) -> tuple[Head, list[pa.Buffer]] | None:
        """The next message; None if the other side is gone."""
        if not self._fill(memoryview(self._begin)):
            return None
        try:
            length = frame.rest_bytes(MARK, self._begin)
        except frame.FrameError as error:
            raise WireError(f"this is no message of version 2: {error}") from error
        if length > MESSAGE_BYTES_MOST:
            raise WireError(f"a message of {length:,} bytes")
        whole = pa.allocate_buffer(frame.BEGIN_BYTES + length)
        view = memoryview(whole).cast("B")
        view[: frame.BEGIN_BYTES] = self._begin
        return decode(whole) if self._fill(view[frame.BEGIN_BYTES :]) else None

    def ask(self, head: Head, buffers: Sequence[Any] = ()) -> tuple[Head, list[pa.Buffer]]:
        self.send(head, buffers)
        answer = self.receive()
        if answer is None:
            raise WireError("the node that feeds this query is gone")
        return answer

    def close(self) -> None:
        self._socket.close()

    def _fill(self, view: memoryview) -> bool:
        while len(view):
            got = self._socket.recv_into(view)
            if not got:
                return False
            view = view[got:]
        return True
