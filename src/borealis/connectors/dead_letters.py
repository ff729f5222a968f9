"""Where records go that cannot be read: kept with the reason, counted, and never in the way of those that can."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from borealis.clock import WALL
from borealis.connectors.addresses import is_topic
from borealis.connectors.kafka.letter_topic import LetterTopic
from borealis.disk import one_line, write_all
from borealis.errors import InputError, plural

BYTES_MOST = 10**9  # of a file of letters; beyond it letters are only counted
PLACES_KNOWN = 100_000  # of the newest letters in a file: a restart that reads these records again adds none twice
RAW_MOST = 65_536  # bytes of one record that are kept

Letter = dict[str, Any]
LetterTarget = Path | str | Callable[[Letter], object]  # a file, a topic by its address, or a function


class DeadLetters:
    """Takes records that cannot be read, from any thread. A record that a restart reads again is counted once.

    `to` is a file of JSON lines with the keys `source`, `place`, `reason`, `raw` (text; `base64` is true where it is
    not), `at`; or a topic that gets the same, kafka://host:port/topic; or a function that is given each letter as a
    dict; or None, and they are only counted. A place must mean the same record of its source at every start, such as
    `orders.csv, line 17`. Several sources may share a file: each knows and counts its own letters there.

    >>> letters = DeadLetters(None, "orders")
    >>> letters.add("orders.csv, line 17", "1,x", "column 'n' is INT, but the value is 'x'")
    >>> letters.count
    1
    """

    def __init__(self, to: LetterTarget | None, source: str = "", *, bytes_most: int = BYTES_MOST) -> None:
        place = (LetterTopic(to) if is_topic(to) else Path(to)) if isinstance(to, str) else to
        self.to: Path | LetterTopic | Callable[[Letter], object] | None = place
        self.source, self.bytes_most = source, bytes_most
        self.count = 0  # letters of this source, those of earlier starts included
        self.dropped = 0  # of them only counted: the file was full
        self._places: dict[str, None] = {}  # of letters in the file, oldest first
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._size = 0
        self._synced = True
        if isinstance(self.to, Path) and self.to.exists():
            self._recall(self.to)

    @property
    def where(self) -> str:
        """A file or a topic that has them; empty if there is none."""
        return str(self.to.url if isinstance(self.to, LetterTopic) else self.to if isinstance(self.to, Path) else "")

    @property
    def note(self) -> str:
        """What is wrong just now and may pass: brokers that are away; empty if nothing is."""
        return self.to.note if isinstance(self.to, LetterTopic) else ""

    def warnings(self, of: str) -> list[str]:
        """How many records of a source could not be read, and where they are; nothing if all could be."""
        if not self.count:
            return []
        place = f"see {self.where}" if self.where else "give a state directory, or bad=, to keep them"
        return [f"{plural(self.count, 'record')} {of} could not be read: {place}"]

    def add(self, where: str, raw: bytes | str, reason: str) -> None:
        """Keep one record; `where` is its place in the source. In the file's memory at once, on disk with `sync`."""
        with self._lock:
            if where in self._places:
                return
            self.count += 1
            data = raw.encode("utf-8", "surrogateescape") if isinstance(raw, str) else bytes(raw)
            letter: Letter = {"source": self.source, "place": where, "reason": reason} | _raw(data[:RAW_MOST])
            if len(data) > RAW_MOST:
                letter["bytes"] = len(data)  # of which `raw` is the beginning
            letter["at"] = datetime.fromtimestamp(WALL.time(), UTC).isoformat(timespec="milliseconds")
            if isinstance(self.to, Path):
                self._append(self.to, letter)
            elif isinstance(self.to, LetterTopic):
                self.to.send(f"{self.source}: {where}", _encoded(letter))
            elif self.to is not None:
                self.to(letter)

    def sync(self) -> None:
        """Have all letters survive a power cut; to be called before the records behind them are handed on."""
        with self._lock:
            if self._file is not None and not self._synced:
                os.fsync(self._file.fileno())
                self._synced = True
            if isinstance(self.to, LetterTopic):
                self.to.sync()

    def close(self) -> None:
        """Let go of the file; a letter that comes later opens it again."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _append(self, path: Path, letter: Letter) -> None:
        line = _encoded(letter) + b"\n"
        if self._size + len(line) > self.bytes_most:
            self.dropped += 1
            return
        try:
            if self._file is None:
                self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - held until close
            write_all(self._file, line)
        except OSError as error:
            raise InputError(
                f"cannot keep a record that could not be read, in {path}: {one_line(error)}",
                hint="make room on the disk, then start again",
            ) from error
        self._size += len(line)
        self._synced = False
        self._remember(letter["place"])

    def _remember(self, place: str) -> None:
        if len(self._places) == PLACES_KNOWN:
            del self._places[next(iter(self._places))]
        self._places[place] = None

    def _recall(self, path: Path) -> None:
        """Count what earlier starts left of this source; a last line that is not whole is cut off."""
        try:
            whole = 0
            with open(path, "r+b") as file:
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    whole += len(line)
                    with contextlib.suppress(ValueError, KeyError, TypeError):  # not written by us
                        letter = json.loads(line)
                        if letter["source"] == self.source:
                            self._remember(str(letter["place"]))
                            self.count += 1
                file.truncate(whole)
        except OSError as error:
            raise InputError(
                f"cannot read the dead letters in {path}: {one_line(error)}", hint="check the file and its permissions"
            ) from error
        self._size = whole


def _encoded(letter: Letter) -> bytes:
    return json.dumps(letter, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _raw(data: bytes) -> Letter:
    """The bytes as text, where they are; up to three at the end may be half a character that was cut."""
    for cut in range(4 if len(data) == RAW_MOST else 1):
        with contextlib.suppress(UnicodeDecodeError):
            return {"raw": data[: len(data) - cut].decode()}
    return {"raw": base64.b64encode(data).decode(), "base64": True}
