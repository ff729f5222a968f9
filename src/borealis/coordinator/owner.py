"""Which cluster a storage belongs to: one at a time.

A directory is locked. In an object store nothing can be: a note there says whose it is. Who begins is refused as long
as the coordinator that the note names answers; otherwise it leaves a note of its own. A coordinator that could not be
reached and lives finds that before its next change, and changes nothing any more; its units find that others have begun
after them (see `node.stored`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from borealis.errors import ClusterError
from borealis.machine import HERE
from borealis.storage import Storage

NOTE = "catalog.json.lock"
ANSWER_S = 2.0
HINT = "stop that one's coordinator, or give another storage"


class Owner:
    """That a coordinator has a storage for itself."""

    def __init__(self, storage: Storage, catalog: Path) -> None:
        disk = storage.machine.disk
        self._storage, self._catalog, self._path = storage, str(catalog), storage.root / NOTE
        self._mine = b""
        disk.make_directory(storage.root)
        try:
            self._lock = disk.hold(self._path)
        except BlockingIOError:
            raise ClusterError(f"storage {storage} is in use by another cluster", hint=HINT) from None
        if self._lock is None:
            note = self._found()
            if answers(note):
                raise ClusterError(f"storage {storage} is in use by the cluster at {note['address']}", hint=HINT)
            self.held_by("")

    def _found(self) -> dict[str, Any]:
        """What the note says; nothing if there is none that can be read."""
        try:
            note = json.loads(self._storage.machine.disk.read(self._path))
        except (FileNotFoundError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}

    def held_by(self, address: str) -> None:
        """Say where the coordinator is."""
        if self._lock is not None:
            return
        if self._mine:
            self.check()
        token = HERE.chance.token()
        facts = {"token": token, "pid": os.getpid(), "catalog": self._catalog, "address": address}
        self._mine = json.dumps(facts).encode()
        self._storage.machine.disk.write_whole(self._path, self._mine)

    def check(self) -> None:
        """Refuse if another cluster has begun since."""
        if self._lock is None and (note := self._found()) != json.loads(self._mine):
            other = note.get("address") or "an unknown address"
            hint = "give each cluster a storage of its own; what was kept goes on there"
            raise ClusterError(f"storage {self._storage} belongs to the cluster at {other} now", hint=hint)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
        elif self._mine and self._found() == json.loads(self._mine):
            self._storage.machine.disk.remove(self._path)


def answers(note: dict[str, Any]) -> bool:
    """Whether the coordinator that left a note is there."""
    import httpx  # here: a coordinator starts without it

    if not note.get("address"):
        return False
    try:
        health = httpx.get(f"{note['address']}/v1/health", timeout=ANSWER_S, verify=False, trust_env=False).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return False
    known = isinstance(health, dict) and (health.get("pid"), health.get("catalog"))
    return known == (note.get("pid"), note.get("catalog"))
