"""One frame for what is written or sent as bytes: a mark with the version, checksums, a JSON head, and blobs.

1. The mark, 4 bytes: what this is, and of which version.
2. The checksums of head and blobs, and their sizes. So a frame whose blobs are damaged can still be known by its head.
3. The head, filled up with spaces, so that the blobs begin where Arrow can read them in place.
4. The blobs, each from a multiple of 8 bytes on; the head has their sizes.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pydantic_core import from_json

_BEGIN = struct.Struct("<4sIIIQ")  # mark, checksum of the head, of the blobs, size of the head, of the blobs
_ALIGN, _ALIGN_BLOB = 64, 8
_NOTHING = bytes(_ALIGN_BLOB)
_JSON = json.JSONEncoder(separators=(",", ":")).encode  # slower than pydantic's, which takes whatever it gets
BEGIN_BYTES = _BEGIN.size


class FrameError(ValueError):
    """These bytes are no frame of this kind and version."""


class DamagedFrameError(FrameError):
    """This was such a frame once. `head` is what it says of itself, if that much of it is whole."""

    def __init__(self, message: str, head: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.head = head


def pack(mark: bytes, head: Mapping[str, Any], blobs: Iterable[bytes | pa.Buffer] = ()) -> bytes:
    views: list[memoryview] = []
    sizes: list[int] = []
    for blob in blobs:
        view = memoryview(blob).cast("B")
        sizes.append(len(view))
        views += (view, memoryview(_NOTHING)[: -len(view) % _ALIGN_BLOB])
    text = _JSON([head, sizes]).encode()
    text += b" " * (-(_BEGIN.size + len(text)) % _ALIGN)
    checksum, size = 0, 0
    for view in views:
        checksum, size = zlib.crc32(view, checksum), size + len(view)
    return b"".join([_BEGIN.pack(mark, zlib.crc32(text), checksum, len(text), size), text, *views])


def rest_bytes(mark: bytes, begin: bytes | bytearray) -> int:
    """How long a frame is behind its first `BEGIN_BYTES`."""
    found, _, _, size, rest = _BEGIN.unpack(begin)
    if found != mark:
        raise FrameError(f"it begins with {found!r}, not {mark!r}")
    return int(size + rest)


def unpack(mark: bytes, data: bytes | memoryview | pa.Buffer) -> tuple[dict[str, Any], list[pa.Buffer]]:
    """The head and the blobs of a frame, which are views of it; all of it is checked.

    >>> unpack(b"TST1", pack(b"TST1", {"n": 1}, [b"abc"]))[0]
    {'n': 1}
    >>> unpack(b"TST2", pack(b"TST1", {"n": 1}))
    Traceback (most recent call last):
    borealis.state.frame.FrameError: it begins with b'TST1', not b'TST2'
    """
    buffer = pa.py_buffer(data)
    head, blobs, end = unpack_from(mark, buffer, 0)
    if end != buffer.size:
        raise DamagedFrameError(f"{buffer.size} bytes instead of {end}", head)
    return head, blobs


def unpack_from(mark: bytes, buffer: pa.Buffer, at: int) -> tuple[dict[str, Any], list[pa.Buffer], int]:
    """The head and the blobs of the frame that begins at an offset, and the offset behind it."""
    view = memoryview(buffer)[at:]
    if len(view) < _BEGIN.size or view[:4] != mark:
        raise FrameError(f"it begins with {bytes(view[:4])!r}, not {mark!r}")
    _, of_head, of_blobs, size, rest = _BEGIN.unpack_from(view)
    body = _BEGIN.size + size
    text = bytes(view[_BEGIN.size : body])
    if len(view) < body or not text or zlib.crc32(text) != of_head:
        raise DamagedFrameError("wrong checksum")
    head, sizes = from_json(text)
    if len(view) < body + rest:
        raise DamagedFrameError(f"{len(view)} bytes instead of {body + rest}", head)
    padded = [size + -size % _ALIGN_BLOB for size in sizes]
    if zlib.crc32(view[body : body + rest]) != of_blobs or sum(padded) != rest or min(sizes, default=0) < 0:
        raise DamagedFrameError("wrong checksum", head)
    blobs, at = [], at + body
    for size, length in zip(sizes, padded, strict=True):
        blobs.append(buffer.slice(at, size))
        at += length
    return head, blobs, at
