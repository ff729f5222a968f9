"""The global catalog: what shall run where, in one SQLite file that outlives the coordinator.

1. A file `<catalog>.lock` is held as long as the catalog is open, and says by which coordinator. A second one is
   refused before it has read anything.
2. What shall be is written before any node is ordered; so what a killed coordinator had begun can be seen here:
   a diagram that is `deploying` or `undeploying`, a unit with a node it is `moving_to`.
3. Each change is one transaction, on disk before its caller goes on.
4. What concerns a takeover compares before it sets: a caller that knows only an older incarnation changes nothing.
5. A diagram is one row, its layout as JSON. A file of another version is refused.
6. With storage each change of what shall be is there, too, before its caller goes on; and a start begins with that.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from borealis.coordinator.http_errors import CatalogError, there_already
from borealis.coordinator.layout import Layout, State, UnitAssignment
from borealis.coordinator.owner import Owner
from borealis.disk import Disk, HeldFile
from borealis.errors import ClusterError
from borealis.machine import HERE, Machine
from borealis.storage import Storage
from borealis.wire.messages import Claim
from borealis.wire.status import NodeView

APPLICATION = 0x626F7265  # "bore": marks catalogs among SQLite files
VERSION = 5
STORED = "catalog.json"  # in storage
KEPT = ("diagrams", "past", "owed")  # tables; nodes and routes are found out again
LAYOUT = TypeAdapter(Layout)
Change = Callable[[UnitAssignment], UnitAssignment | None]  # None: as it is
TABLES = """
CREATE TABLE diagrams (name TEXT PRIMARY KEY, layout TEXT NOT NULL) STRICT;
-- the address of each stream that its reader was given last
CREATE TABLE routes (
    diagram TEXT NOT NULL REFERENCES diagrams(name) ON DELETE CASCADE, unit TEXT NOT NULL, arrow TEXT NOT NULL,
    address TEXT NOT NULL, PRIMARY KEY (diagram, unit, arrow)
) STRICT;
CREATE TABLE nodes (name TEXT PRIMARY KEY, view TEXT NOT NULL) STRICT;
-- diagrams that are no more: what still runs of them is dropped
CREATE TABLE past (name TEXT PRIMARY KEY) STRICT;
-- nodes that could not be reached when a diagram ended: they drop it before they get anything new of that name
CREATE TABLE owed (node TEXT NOT NULL, diagram TEXT NOT NULL, PRIMARY KEY (node, diagram)) STRICT;
"""


class Catalog:
    """The catalog in a file. One coordinator at a time; thread-safe within it."""

    def __init__(self, path: Path, machine: Machine = HERE, storage: Storage | None = None) -> None:
        self.path, self.storage = path, storage
        self._kept = b""  # in storage
        self._guard = machine.threads.rlock()
        with _disk(path), contextlib.ExitStack() as opened:
            machine.disk.make_directory(path.parent)
            self._lock = opened.enter_context(contextlib.closing(_hold(machine.disk, path)))
            self._lock.note(f"pid {os.getpid()}\n")
            self._owner = (
                opened.enter_context(contextlib.closing(Owner(storage, path))) if storage is not None else None
            )
            self._db = machine.disk.database(path)
            opened.callback(self._db.close)
            self._open()
            self._bring_back()
            opened.pop_all()

    def _open(self) -> None:
        db = self._db
        if db.in_transaction:  # of a coordinator that was killed
            db.execute("ROLLBACK")
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
            db.executescript(f"BEGIN IMMEDIATE; {TABLES} {marks} COMMIT;")

    def _bring_back(self) -> None:
        """What storage says takes the place of what is here."""
        if self.storage is None:
            return
        disk, path = self.storage.machine.disk, self.storage.root / STORED
        if not disk.exists(path):
            return
        kept = json.loads(disk.read(path))
        if kept["version"] != VERSION:
            hint = f"this Borealis reads version {VERSION}: use the one that wrote it"
            raise ClusterError(f"the catalog in {self.storage} is of version {kept['version']}", hint=hint)
        if kept["tables"] == _kept(self._db):
            return  # also where there is no room to write it again
        with self._writing() as db:
            for table in KEPT:
                db.execute(f"DELETE FROM {table}")
                for row in kept["tables"][table]:
                    db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    def _keep(self, db: sqlite3.Connection) -> None:
        """Have in storage what is about to be."""
        if self.storage is None:
            return
        data = json.dumps({"version": VERSION, "tables": _kept(db)}).encode()
        if data != self._kept:
            if self._owner is not None:
                self._owner.check()
            self.storage.machine.disk.write_whole(self.storage.root / STORED, data)
            self._kept = data

    def held_by(self, holder: str) -> None:
        """Say in the lock which coordinator holds the catalog, for one that is refused."""
        self._lock.note(f"pid {os.getpid()}{', ' if holder else ''}{holder}\n")
        if self._owner is not None:
            self._owner.held_by(holder)

    def close(self) -> None:
        with self._guard:
            self._db.close()
            self._lock.close()
            if self._owner is not None:
                self._owner.close()

    # -- diagrams

    def layouts(self) -> list[Layout]:
        """All diagrams, by name."""
        with self._reading() as db:
            found = db.execute("SELECT layout FROM diagrams ORDER BY name").fetchall()
            return [_layout(text) for (text,) in found]

    def layout(self, name: str) -> Layout | None:
        with self._reading() as db:
            return _read(db, name)

    def add(self, layout: Layout) -> None:
        """A new diagram; refused if there is one of that name."""
        with self._writing() as db:
            if _read(db, layout.name) is not None:
                raise there_already(layout.name)
            _write(db, layout)
            db.execute("DELETE FROM past WHERE name = ?", (layout.name,))

    def set_state(self, name: str, state: State) -> None:
        with self._writing() as db:
            if (layout := _read(db, name)) is not None:
                _write(db, replace(layout, state=state))

    def remove(self, name: str, unreached: Iterable[str] = ()) -> None:
        """The diagram is no more; nodes that could not be reached have yet to drop it."""
        with self._writing() as db:
            db.execute("DELETE FROM diagrams WHERE name = ?", (name,))
            db.execute("INSERT OR IGNORE INTO past VALUES (?)", (name,))
            db.executemany("INSERT OR IGNORE INTO owed VALUES (?, ?)", [(node, name) for node in sorted(unreached)])

    def past(self) -> set[str]:
        """The names of diagrams that were here once and are not now."""
        with self._reading() as db:
            return {name for (name,) in db.execute("SELECT name FROM past").fetchall()}

    def owed(self) -> set[tuple[str, str]]:
        """Nodes, each with a diagram that is no more and that it has yet to drop."""
        with self._reading() as db:
            return set(db.execute("SELECT node, diagram FROM owed").fetchall())

    def settled(self, node: str, diagram: str) -> None:
        """The node has dropped it."""
        with self._writing() as db:
            db.execute("DELETE FROM owed WHERE node = ? AND diagram = ?", (node, diagram))

    # -- units and entry points

    def moving(self, diagram: str, unit: str, node: str | None) -> None:
        """The unit is about to go to a node, or after all is not."""
        self._change(diagram, unit, lambda now: replace(now, moving_to=node))

    def moved(self, diagram: str, unit: str, node: str, incarnation: int) -> bool:
        """The unit has arrived; false if it was taken over meanwhile."""

        def arrive(now: UnitAssignment) -> UnitAssignment | None:
            return now.arrived(node) if now.incarnation == incarnation else None

        return self._change(diagram, unit, arrive)

    def moved_by_hand(self, diagram: str, unit: str, now: float) -> None:
        """A user has moved the unit."""
        self._change(diagram, unit, lambda one: one.moved_by_hand(now))

    def put(self, diagram: str, before: UnitAssignment, then: UnitAssignment) -> bool:
        """Compare and set; false if nodes or incarnation are not as the caller thinks."""
        return self._change(diagram, before.unit, lambda now: then if _core(now) == _core(before) else None)

    def claim(self, asked: Iterable[Claim]) -> list[tuple[bool, UnitAssignment | None]]:
        """Grant what may be granted, all in one transaction: for each claim whether it holds, and what is in force."""
        with self._writing() as db:
            return [_change(db, c.diagram, c.unit, partial(UnitAssignment.after, claim=c)) for c in asked]

    def _change(self, diagram: str, unit: str, change: Change) -> bool:
        with self._writing() as db:
            return _change(db, diagram, unit, change)[0]

    def route(self, diagram: str, unit: str, feeds: Mapping[str, str]) -> None:
        """Note at which addresses a unit reads its arrows."""
        with self._writing() as db:
            routes = [(diagram, unit, arrow, address) for arrow, address in feeds.items()]
            db.executemany("INSERT OR REPLACE INTO routes VALUES (?, ?, ?, ?)", routes)

    def routes(self) -> dict[tuple[str, str, str], str]:
        """For each diagram, unit and arrow it reads the address that the unit was given last."""
        with self._reading() as db:
            return {tuple(key): address for *key, address in db.execute("SELECT * FROM routes").fetchall()}

    # -- nodes

    def nodes(self) -> list[NodeView]:
        """Every node that was ever seen and not forgotten, by name, as one that is awaited."""
        with self._reading() as db:
            found = db.execute("SELECT view FROM nodes ORDER BY name").fetchall()
            return [_node(text) for (text,) in found]

    def saw(self, node: NodeView) -> None:
        """A node has come, or was last seen now."""
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?)", (node.node, node.model_dump_json()))

    def forget(self, name: str) -> None:
        with self._writing() as db:
            db.execute("DELETE FROM nodes WHERE name = ?", (name,))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._guard, _disk(self.path):
            yield self._db

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._guard, _disk(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._keep(self._db)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


@lru_cache(256)
def _layout(text: str) -> Layout:
    """It is read many times a second, and seldom changes."""
    return LAYOUT.validate_json(text)


@lru_cache(256)
def _node(text: str) -> NodeView:
    return NodeView.model_validate_json(text)


def _kept(db: sqlite3.Connection) -> dict[str, list[list[str]]]:
    """What is in storage as well."""
    return {table: [list(row) for row in db.execute(f"SELECT * FROM {table} ORDER BY 1")] for table in KEPT}


def _read(db: sqlite3.Connection, name: str) -> Layout | None:
    found = db.execute("SELECT layout FROM diagrams WHERE name = ?", (name,)).fetchone()
    return None if found is None else _layout(found[0])


def _write(db: sqlite3.Connection, layout: Layout) -> None:
    text = LAYOUT.dump_json(layout).decode()
    change = "INSERT INTO diagrams VALUES (?, ?) ON CONFLICT DO UPDATE SET layout = excluded.layout"
    db.execute(change, (layout.name, text))


def _change(db: sqlite3.Connection, diagram: str, unit: str, change: Change) -> tuple[bool, UnitAssignment | None]:
    """Change one unit or entry point: whether it is there and `change` gives anything, and what is in force then.

    On another node it may have other routes: all of them are given again.
    """
    layout = _read(db, diagram)
    now = None if layout is None else layout.part(unit)
    if layout is None or now is None or (then := change(now)) is None:
        return False, now
    if then != now:
        _write(db, layout.with_part(then))
    if then.node != now.node:
        db.execute("DELETE FROM routes WHERE diagram = ? AND unit = ?", (diagram, unit))
    return True, then


def _core(place: UnitAssignment) -> tuple[tuple[str, ...], str | None, int, int, int]:
    return place.nodes, place.backup, place.incarnation, place.lives, place.given


def _hold(disk: Disk, path: Path) -> HeldFile:
    lock = path.with_name(path.name + ".lock")
    try:
        held = disk.hold(lock)
    except BlockingIOError:
        holder = " ".join(disk.read(lock)[:300].decode(errors="replace").split()) or "unknown"
        raise ClusterError(
            f"catalog {path} is in use by another coordinator ({holder})", hint="stop that one, or give another catalog"
        ) from None
    if held is None:
        raise ClusterError(f"catalog {path} cannot be locked", hint="give a file of this machine")
    return held


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    """What the disk or SQLite says, as a CatalogError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        hint = "is there room, and the right to write?"
        raise CatalogError(f"cannot use catalog {path}: {error}", hint=hint) from None
    except (sqlite3.DatabaseError, ValidationError) as error:
        reason, hint = str(error).splitlines()[0], "restore it from a copy, or give another file"
        raise CatalogError(f"catalog {path} is damaged or no catalog: {reason}", hint=hint) from None
    except OSError as error:
        hint = "check the folder and its rights"
        raise CatalogError(f"cannot use catalog {path}: {error.strerror}", hint=hint) from None
