"""The global catalog: what shall run where, in one SQLite file that outlives the coordinator.

1. A file `<catalog>.lock` is held as long as the catalog is open, and says who holds it. A second coordinator is
   refused before it has read anything.
2. What shall be is written before any node is told; so whatever a killed coordinator had begun can be seen here:
   a diagram that is `deploying` or `undeploying`, a unit with a node it is `moving_to`.
3. Each change is one transaction, on disk before its caller goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from borealis.coordinator.layout import EntryPlace, Layout, State, UnitPlace
from borealis.coordinator.refusals import there_already
from borealis.errors import ClusterError

VERSION = 1
APPLICATION = 0x626F7265  # "bore": tells our files from other SQLite files
TABLES = """
CREATE TABLE diagrams (
    name TEXT PRIMARY KEY, yaml TEXT NOT NULL, cuts TEXT NOT NULL, places TEXT NOT NULL, buckets INTEGER NOT NULL,
    columns TEXT NOT NULL, state TEXT NOT NULL, since REAL NOT NULL
) STRICT;
CREATE TABLE units (
    diagram TEXT NOT NULL REFERENCES diagrams(name) ON DELETE CASCADE, unit TEXT NOT NULL, place INTEGER NOT NULL,
    boxes TEXT NOT NULL, reads TEXT NOT NULL, gives TEXT NOT NULL, node TEXT NOT NULL, moving_to TEXT,
    PRIMARY KEY (diagram, unit)
) STRICT;
CREATE TABLE entries (
    diagram TEXT NOT NULL REFERENCES diagrams(name) ON DELETE CASCADE, input TEXT NOT NULL, place INTEGER NOT NULL,
    node TEXT NOT NULL, PRIMARY KEY (diagram, input)
) STRICT;
CREATE TABLE outputs (
    diagram TEXT NOT NULL REFERENCES diagrams(name) ON DELETE CASCADE, output TEXT NOT NULL, arrow TEXT NOT NULL,
    PRIMARY KEY (diagram, output)
) STRICT;
-- the address of each stream as its reader was told last
CREATE TABLE told (
    diagram TEXT NOT NULL REFERENCES diagrams(name) ON DELETE CASCADE, unit TEXT NOT NULL, arrow TEXT NOT NULL,
    address TEXT NOT NULL, PRIMARY KEY (diagram, unit, arrow)
) STRICT;
CREATE TABLE nodes (
    name TEXT PRIMARY KEY, incarnation TEXT NOT NULL, address TEXT NOT NULL, http TEXT NOT NULL, host TEXT NOT NULL,
    pid INTEGER NOT NULL, seen REAL NOT NULL
) STRICT;
-- diagrams that are no more: what still runs of them is dropped
CREATE TABLE past (name TEXT PRIMARY KEY) STRICT;
-- nodes that could not be told that a diagram is no more: they are told before they get anything new of that name
CREATE TABLE owed (node TEXT NOT NULL, diagram TEXT NOT NULL, PRIMARY KEY (node, diagram)) STRICT;
"""


@dataclass(frozen=True)
class KnownNode:
    """A node as it was last seen."""

    name: str
    incarnation: str
    address: str
    http: str
    host: str
    pid: int
    seen: float  # seconds since 1970


class Catalog:
    """The catalog in a file. One coordinator at a time; thread-safe within it."""

    def __init__(self, path: Path, holder: str = "") -> None:
        self.path = path
        self._guard = threading.RLock()
        with _disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _hold(path, holder)
        try:
            with _disk(path):
                self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
                try:
                    self._open()
                except BaseException:
                    self._db.close()
                    raise
        except BaseException:
            self._lock.close()
            raise

    def _open(self) -> None:
        db = self._db
        found = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        owner = db.execute("PRAGMA application_id").fetchone()[0]
        if found and owner != APPLICATION:
            raise ClusterError(f"{self.path} is a database, but no catalog of Borealis", hint="give another file")
        if found and version != VERSION:
            hint = f"this Borealis reads version {VERSION}: use the one that wrote it, or give another file"
            raise ClusterError(f"catalog {self.path} is of version {version}", hint=hint)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        if not found:
            marks = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"
            db.executescript(f"BEGIN; {TABLES} {marks} COMMIT;")

    def held_by(self, holder: str) -> None:
        """Say in the lock who holds the catalog, for whoever is refused."""
        _sign(self._lock, holder)

    def close(self) -> None:
        """Let go of the file."""
        with self._guard:
            self._db.close()
            self._lock.close()

    # -- diagrams

    def layouts(self) -> list[Layout]:
        """All diagrams, by name."""
        with self._reading() as db:
            return [self._layout(row) for row in db.execute("SELECT * FROM diagrams ORDER BY name").fetchall()]

    def layout(self, name: str) -> Layout | None:
        """One diagram, if it is there."""
        with self._reading() as db:
            row = db.execute("SELECT * FROM diagrams WHERE name = ?", (name,)).fetchone()
            return None if row is None else self._layout(row)

    def _layout(self, row: sqlite3.Row) -> Layout:
        key, db = (row["name"],), self._db
        units = db.execute("SELECT * FROM units WHERE diagram = ? ORDER BY place", key).fetchall()
        entries = db.execute("SELECT * FROM entries WHERE diagram = ? ORDER BY place", key).fetchall()
        outputs = db.execute("SELECT * FROM outputs WHERE diagram = ? ORDER BY rowid", key).fetchall()
        return Layout(
            name=row["name"],
            yaml=row["yaml"],
            state=row["state"],
            units=tuple(_unit(u) for u in units),
            entries=tuple(EntryPlace(e["input"], e["node"]) for e in entries),
            outputs={o["output"]: o["arrow"] for o in outputs},
            cuts=tuple(json.loads(row["cuts"])),
            places=json.loads(row["places"]),
            buckets=row["buckets"],
            columns=json.loads(row["columns"]),
            since=row["since"],
        )

    def add(self, layout: Layout) -> None:
        """A new diagram; refused if there is one of that name."""
        name = layout.name
        with self._writing() as db:
            if db.execute("SELECT 1 FROM diagrams WHERE name = ?", (name,)).fetchone():
                raise there_already(name)
            db.execute(
                "INSERT INTO diagrams VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    name,
                    layout.yaml,
                    json.dumps(layout.cuts),
                    json.dumps(dict(layout.places)),
                    layout.buckets,
                    json.dumps(dict(layout.columns)),
                    layout.state,
                    layout.since,
                ),
            )
            for place, u in enumerate(layout.units):
                lists = [json.dumps(part) for part in (u.boxes, u.reads, u.gives)]
                row = (name, u.unit, place, *lists, u.node, u.moving_to)
                db.execute("INSERT INTO units VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            for place, e in enumerate(layout.entries):
                db.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (name, e.input, place, e.node))
            for output, arrow in layout.outputs.items():
                db.execute("INSERT INTO outputs VALUES (?, ?, ?)", (name, output, arrow))
            db.execute("DELETE FROM past WHERE name = ?", (name,))

    def set_state(self, name: str, state: State) -> None:
        """How far the diagram is."""
        with self._writing() as db:
            db.execute("UPDATE diagrams SET state = ? WHERE name = ?", (state, name))

    def remove(self, name: str, untold: Iterable[str] = ()) -> None:
        """The diagram is no more; the nodes `untold` have yet to hear of it."""
        with self._writing() as db:
            db.execute("DELETE FROM diagrams WHERE name = ?", (name,))
            db.execute("INSERT OR IGNORE INTO past VALUES (?)", (name,))
            db.executemany("INSERT OR IGNORE INTO owed VALUES (?, ?)", [(node, name) for node in untold])

    def past(self) -> set[str]:
        """The names of diagrams that were here once and are not now."""
        with self._reading() as db:
            return {row["name"] for row in db.execute("SELECT name FROM past").fetchall()}

    def owed(self) -> set[tuple[str, str]]:
        """Nodes and diagrams that are no more, of which the node has yet to hear."""
        with self._reading() as db:
            return {(row["node"], row["diagram"]) for row in db.execute("SELECT * FROM owed").fetchall()}

    def settled(self, node: str, diagram: str) -> None:
        """The node has heard of it."""
        with self._writing() as db:
            db.execute("DELETE FROM owed WHERE node = ? AND diagram = ?", (node, diagram))

    # -- units under way

    def moving(self, diagram: str, unit: str, node: str | None) -> None:
        """The unit is about to go to a node, or after all is not."""
        with self._writing() as db:
            db.execute("UPDATE units SET moving_to = ? WHERE diagram = ? AND unit = ?", (node, diagram, unit))

    def moved(self, diagram: str, unit: str, node: str) -> None:
        """The unit has arrived."""
        with self._writing() as db:
            row = (node, diagram, unit)
            db.execute("UPDATE units SET node = ?, moving_to = NULL WHERE diagram = ? AND unit = ?", row)

    def tell(self, diagram: str, unit: str, feeds: Mapping[str, str]) -> None:
        """Note which addresses of arrows a unit was told."""
        with self._writing() as db:
            rows = [(diagram, unit, arrow, address) for arrow, address in feeds.items()]
            db.executemany("INSERT OR REPLACE INTO told VALUES (?, ?, ?, ?)", rows)

    def told(self, diagram: str) -> dict[tuple[str, str], str]:
        """For each unit and arrow it reads the address it was told last."""
        with self._reading() as db:
            rows = db.execute("SELECT * FROM told WHERE diagram = ?", (diagram,)).fetchall()
            return {(row["unit"], row["arrow"]): row["address"] for row in rows}

    # -- nodes

    def nodes(self) -> list[KnownNode]:
        """Every node that was ever seen and not forgotten, by name."""
        with self._reading() as db:
            return [KnownNode(*row) for row in db.execute("SELECT * FROM nodes ORDER BY name").fetchall()]

    def saw(self, node: KnownNode) -> None:
        """A node has come, or was last seen now."""
        with self._writing() as db:
            row = (node.name, node.incarnation, node.address, node.http, node.host, node.pid, node.seen)
            db.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def forget(self, name: str) -> None:
        """A node was told to go."""
        with self._writing() as db:
            db.execute("DELETE FROM nodes WHERE name = ?", (name,))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._guard, _disk(self.path):
            self._db.row_factory = sqlite3.Row
            yield self._db

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._guard, _disk(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


def _unit(row: Mapping[str, Any]) -> UnitPlace:
    boxes, reads, gives = (tuple(json.loads(row[part])) for part in ("boxes", "reads", "gives"))
    return UnitPlace(row["unit"], boxes, reads, gives, row["node"], row["moving_to"])


def _hold(path: Path, holder: str) -> IO[str]:
    lock = open(path.with_name(path.name + ".lock"), "a+", encoding="utf-8")  # noqa: SIM115 - held until close
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        who = " ".join(lock.read(300).split()) or "somebody"
        lock.close()
        raise ClusterError(
            f"catalog {path} is in use by another coordinator ({who})", hint="stop that one, or give another catalog"
        ) from None
    _sign(lock, holder)
    return lock


def _sign(lock: IO[str], holder: str) -> None:
    lock.seek(0)
    lock.truncate()
    lock.write(f"pid {os.getpid()}{', ' if holder else ''}{holder}\n")
    lock.flush()


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    """What the disk or SQLite says, in our words."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise ClusterError(
            f"cannot use catalog {path}: {error}", hint="is there room, and the right to write?"
        ) from None
    except sqlite3.DatabaseError as error:
        hint = "restore it from a copy, or give another file"
        raise ClusterError(f"catalog {path} is damaged or no catalog: {error}", hint=hint) from None
    except OSError as error:
        raise ClusterError(
            f"cannot use catalog {path}: {error.strerror}", hint="check the folder and its rights"
        ) from None
