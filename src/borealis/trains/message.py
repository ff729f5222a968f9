"""What passes between a unit's node and those who run its trains: a small JSON head, and buffers behind it.

As bytes: the lengths of head and whole, the head (which lists the buffers' sizes), the buffers, each aligned as Arrow
likes it. Nothing in a message is ever executed.

>>> head, buffers = decode(encode({"say": "hello"}, [b"abc", b""])[_PREFIX.size :])
>>> head, [b.to_pybytes() for b in buffers]
({'say': 'hello'}, [b'abc', b''])
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from borealis.errors import WireError

_PREFIX = struct.Struct("<IQ")  # a mark, the length of what follows
_HEAD = struct.Struct("<I")
_MARK = 0x314C4F42  # "BOL1"
_ALIGN = 64
_NOTHING = bytes(_ALIGN)
MESSAGE_BYTES_MOST = 8 << 30

Head = dict[str, Any]


def encode(head: Head, buffers: Sequence[Any] = ()) -> bytes:
    """A message with its prefix."""
    views = [memoryview(b).cast("B") for b in buffers]
    text = json.dumps([[len(v) for v in views], head], separators=(",", ":")).encode()
    parts: list[Any] = [_HEAD.pack(len(text)), text]
    at = _HEAD.size + len(text)
    for view in views:
        pad = -at % _ALIGN
        parts += (_NOTHING[:pad], view)
        at += pad + len(view)
    return b"".join([_PREFIX.pack(_MARK, at), *parts])


def decode(body: Any) -> tuple[Head, list[pa.Buffer]]:
    """A message without its prefix; its buffers are views into it."""
    whole = pa.py_buffer(body)
    try:
        (length,) = _HEAD.unpack_from(whole)
        sizes, head = json.loads(memoryview(whole)[_HEAD.size : _HEAD.size + length].tobytes())
        found, at = [], _HEAD.size + length
        for size in sizes:
            at += -at % _ALIGN
            found.append(whole.slice(at, size))
            at += size
    except (ValueError, TypeError, struct.error, pa.ArrowException) as error:
        raise WireError(f"this is no message of version 1: {error}") from error
    if at != whole.size or not isinstance(head, dict):
        raise WireError(f"a message of {whole.size} bytes says that it has {at}")
    return head, found


def without_prefix(message: Any) -> pa.Buffer:
    """What follows a message's prefix, if all of it is there."""
    whole = pa.py_buffer(message)
    if whole.size < _PREFIX.size or _PREFIX.unpack_from(whole) != (_MARK, whole.size - _PREFIX.size):
        raise WireError("this is no message of version 1")
    return whole.slice(_PREFIX.size)


class Line:
    """Messages over a socket, one after the other."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._prefix = bytearray(_PREFIX.size)

    @staticmethod
    def to(path: str) -> Line:
        """A line to whoever listens at a path of this machine."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        return Line(connection)

    def send(self, head: Head, buffers: Sequence[Any] = ()) -> None:
        """Send a message."""
        self._socket.sendall(encode(head, buffers))

    def receive(self) -> tuple[Head, list[pa.Buffer]] | None:
        """The next message; None if the other side is gone."""
        if not self._fill(memoryview(self._prefix)):
            return None
        mark, length = _PREFIX.unpack(self._prefix)
        if mark != _MARK or length > MESSAGE_BYTES_MOST:
            raise WireError("this is no message of version 1")
        body = pa.allocate_buffer(length)
        return decode(body) if self._fill(memoryview(body).cast("B")) else None

    def ask(self, head: Head, buffers: Sequence[Any] = ()) -> tuple[Head, list[pa.Buffer]]:
        """Send a message and wait for its answer."""
        self.send(head, buffers)
        answer = self.receive()
        if answer is None:
            raise WireError("the node that feeds this query is gone")
        return answer

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _fill(self, view: memoryview) -> bool:
        while len(view):
            got = self._socket.recv_into(view)
            if not got:
                return False
            view = view[got:]
        return True
