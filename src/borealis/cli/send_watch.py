"""`borealis send` from a watched directory: follows it for ever, and is exactly once with a state directory.

1. A file is noted in the ledger in the state directory before a row of it is sent (see sources/watch.py).
2. Each batch carries a mark: the position behind it. The entry point keeps it, as safe as the batch itself.
3. A restart under the same name is told the last mark, and goes on at that position, in the midst of a file or not.

Without a state directory each start sends all files that are there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pyarrow as pa

from borealis.cli.send_topic import time_of
from borealis.client.publisher import Publisher, pieces
from borealis.connectors.files.watch import WatchSource, watch_text
from borealis.connectors.sources import WATCH
from borealis.errors import InputError
from borealis.state.directory_lock import DirectoryKind, DirectoryLock
from borealis.state.disk import make_directory

ROWS_MOST = 16_384  # of a batch
LOOK_EVERY_S = 0.2  # whether someone wants us to stop, while no file comes
VERSION = 1
KIND = DirectoryKind("state", "send.json", "sender", "*.files")


def watcher_name(files: str, given: str | None, state: Path | None) -> str | None:
    """The name under which a directory is followed; without a state directory there cannot be one."""
    if state is None:
        if given is not None:
            raise InputError(
                f"--publisher {given} needs to know which files were sent before", hint="add --state DIR, and keep it"
            )
        return None
    return given or f"watch.{watch_text(files.removeprefix(WATCH)).directory.absolute().name}"


class DirectoryFollower:
    """Follows a directory for a publisher. `batches` gives what to send, each with its mark."""

    def __init__(self, files: str, out: Publisher, time: str | None, state: Path | None) -> None:
        self.source: WatchSource = watch_text(files.removeprefix(WATCH))
        self._out = out
        self._claim: DirectoryLock | None = None
        self._position = 0 if state is None else _position(out.mark, out.name)
        self.resumes = self._position > 0
        column = time_of(out.schema, out.stream, time)
        if state is not None:
            make_directory(state)
            belongs = {"version": VERSION, "stream": out.stream, "publisher": out.name}
            self._claim = DirectoryLock(state, KIND, belongs)
        self.source.begin(out.stream.replace("/", "."), column, state)

    def batches(self, heard: Callable[[], None]) -> Iterator[tuple[pa.RecordBatch, str]]:
        """What to send; `heard` is called now and then, also while nothing comes."""
        at = self._position
        try:
            for batch in _drawn(self.source, self._out.schema, at, heard):
                for part in pieces(batch):
                    at += part.num_rows
                    yield part, json.dumps({"watch": str(self.source.directory), "position": at})
        finally:
            self.source.stop()
            if self._claim is not None:
                self._claim.close()


def _position(mark: str | None, publisher: str) -> int:
    """Where an earlier sender of this name was."""
    if mark is None:
        return 0
    try:
        said: dict[str, Any] = json.loads(mark)
        return int(said["watch"] and said["position"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"the mark of publisher '{publisher}' is of something else than a directory",
            hint="give another --publisher",
        ) from error


def _drawn(source: WatchSource, schema: pa.Schema, skip: int, heard: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """The rows of the source, read ahead by a thread: waiting for a file must not keep anyone from stopping us."""
    batches = (batch for batch in source.batches(schema, skip, ROWS_MOST))
    with ThreadPoolExecutor(1, "borealis-watch") as reader:
        try:
            ahead = reader.submit(next, batches, None)
            while True:
                heard()
                if not wait([ahead], LOOK_EVERY_S).done:
                    continue
                if (batch := ahead.result()) is None:
                    return
                ahead = reader.submit(next, batches, None)
                yield batch
        finally:
            source.stop()
            reader.submit(batches.close)  # it lets go of the ledger
