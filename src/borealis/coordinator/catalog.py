"""The global catalog: what shall run where, in one SQLite file that outlives the coordinator.

1. A file `<catalog>.lock` is held as long as the catalog is open, and says who holds it. A second coordinator is
   refused before it has read anything.
2. What shall be is written before any node is told; so whatever a killed coordinator had begun can be seen here:
   a diagram that is `deploying` or `undeploying`, a unit with a node it is `moving_to`.
3. Each change is one transaction, on disk before its caller goes on.
4. What concerns a takeover compares before it sets: whoever knows only an older incarnation changes nothing.
5. A diagram is one row, its layout as JSON. A file of another version is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter, ValidationError

from borealis.coordinator import claims
from borealis.coordinator.http_errors import CatalogError, there_already
from borealis.coordinator.layout import Layout, State, UnitAssignment
from borealis.errors import ClusterError
from borealis.wire.messages import Claim

APPLICATION = 0x626F7265  # "bore": tells our files from other SQLite files
VERSION = 4
LAYOUT = TypeAdapter(Layout)
TABLES = """
CREATE TABLE diagrams (name TEXT PRIMARY KEY, layout TEXT NOT NULL) STRICT;
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
        with _disk(path), contextlib.ExitStack() as opened:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = opened.enter_context(_hold(path, holder))
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            opened.callback(self._db.close)
            self._open()
            opened.pop_all()

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
            db.executescript(f"BEGIN IMMEDIATE; {TABLES} {marks} COMMIT;")

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
            found = db.execute("SELECT layout FROM diagrams ORDER BY name").fetchall()
            return [LAYOUT.validate_json(text) for (text,) in found]

    def layout(self, name: str) -> Layout | None:
        """One diagram, if it is there."""
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
        """How far the diagram is."""
        with self._writing() as db:
            if (layout := _read(db, name)) is not None:
                _write(db, replace(layout, state=state))

    def remove(self, name: str, untold: Iterable[str] = ()) -> None:
        """The diagram is no more; the nodes `untold` have yet to hear of it."""
        with self._writing() as db:
            db.execute("DELETE FROM diagrams WHERE name = ?", (name,))
            db.execute("INSERT OR IGNORE INTO past VALUES (?)", (name,))
            db.executemany("INSERT OR IGNORE INTO owed VALUES (?, ?)", [(node, name) for node in untold])

    def past(self) -> set[str]:
        """The names of diagrams that were here once and are not now."""
        with self._reading() as db:
            return {name for (name,) in db.execute("SELECT name FROM past").fetchall()}

    def owed(self) -> set[tuple[str, str]]:
        """Nodes and diagrams that are no more, of which the node has yet to hear."""
        with self._reading() as db:
            return set(db.execute("SELECT node, diagram FROM owed").fetchall())

    def settled(self, node: str, diagram: str) -> None:
        """The node has heard of it."""
        with self._writing() as db:
            db.execute("DELETE FROM owed WHERE node = ? AND diagram = ?", (node, diagram))

    # -- units under way

    def moving(self, diagram: str, unit: str, node: str | None) -> None:
        """The unit is about to go to a node, or after all is not."""
        self._change(diagram, unit, lambda now: replace(now, moving_to=node))

    def moved(self, diagram: str, unit: str, node: str, incarnation: int = 1) -> bool:
        """The unit has arrived; false if it was taken over meanwhile."""

        def arrive(now: UnitAssignment) -> UnitAssignment | None:
            return replace(now, node=node, moving_to=None) if now.incarnation == incarnation else None

        return self._change(diagram, unit, arrive)

    def tell(self, diagram: str, unit: str, feeds: Mapping[str, str]) -> None:
        """Note which addresses of arrows a unit was told."""
        with self._writing() as db:
            told = [(diagram, unit, arrow, address) for arrow, address in feeds.items()]
            db.executemany("INSERT OR REPLACE INTO told VALUES (?, ?, ?, ?)", told)

    def told(self, diagram: str) -> dict[tuple[str, str], str]:
        """For each unit and arrow it reads the address it was told last."""
        with self._reading() as db:
            told = db.execute("SELECT unit, arrow, address FROM told WHERE diagram = ?", (diagram,)).fetchall()
            return {(unit, arrow): address for unit, arrow, address in told}

    # -- protection

    def claim(self, asked: Iterable[Claim]) -> list[tuple[bool, UnitAssignment | None]]:
        """Grant what may be granted, all in one transaction: for each claim whether it holds, and what is in force."""
        with self._writing() as db:
            return [self._claim(db, one) for one in asked]

    def _claim(self, db: sqlite3.Connection, claim: Claim) -> tuple[bool, UnitAssignment | None]:
        layout = _read(db, claim.diagram)
        place = None if layout is None else layout.part(claim.unit)
        if layout is None or place is None:
            return False, None
        then = claims.after(place, claim)
        if then is not None and then != place:
            _put(db, layout, place, then)
        return then is not None, then or place

    def believe(self, diagram: str, place: UnitAssignment, node: str, incarnation: int) -> None:
        """A node tells that it took over while nobody was here to be asked."""
        self._replace(diagram, place, claims.taken_over(place, node, incarnation))

    def begin_anew(self, diagram: str, place: UnitAssignment, node: str) -> UnitAssignment | None:
        """Both copies are lost: the next life begins on this node. None if it is no longer so."""
        then = claims.begun_anew(place, node)
        return then if self._replace(diagram, place, then) else None

    def back_up(self, diagram: str, place: UnitAssignment, node: str | None) -> UnitAssignment | None:
        """Which node stands by from now on. None if the place has changed meanwhile."""
        then = claims.alone(place) if node is None else replace(place, backup=node, was=None)
        return then if self._replace(diagram, place, then) else None

    def _replace(self, diagram: str, place: UnitAssignment, then: UnitAssignment) -> bool:
        """Compare and set: only if node, backup and incarnation are as the caller thinks."""
        return self._change(diagram, place.unit, lambda now: then if _core(now) == _core(place) else None)

    def _change(self, diagram: str, unit: str, change: Callable[[UnitAssignment], UnitAssignment | None]) -> bool:
        """Change one unit or entry point, in one transaction; false if it is not there, or `change` gives nothing."""
        with self._writing() as db:
            layout = _read(db, diagram)
            now = None if layout is None else layout.part(unit)
            if layout is None or now is None or (then := change(now)) is None:
                return False
            _put(db, layout, now, then)
            return True

    # -- nodes

    def nodes(self) -> list[KnownNode]:
        """Every node that was ever seen and not forgotten, by name."""
        with self._reading() as db:
            return [KnownNode(*row) for row in db.execute("SELECT * FROM nodes ORDER BY name").fetchall()]

    def saw(self, node: KnownNode) -> None:
        """A node has come, or was last seen now."""
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?)", astuple(node))

    def forget(self, name: str) -> None:
        """A node was told to go."""
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
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


def _read(db: sqlite3.Connection, name: str) -> Layout | None:
    found = db.execute("SELECT layout FROM diagrams WHERE name = ?", (name,)).fetchone()
    return None if found is None else LAYOUT.validate_json(found[0])


def _write(db: sqlite3.Connection, layout: Layout) -> None:
    text = LAYOUT.dump_json(layout).decode()
    change = "INSERT INTO diagrams VALUES (?, ?) ON CONFLICT DO UPDATE SET layout = excluded.layout"
    db.execute(change, (layout.name, text))


def _put(db: sqlite3.Connection, layout: Layout, before: UnitAssignment, then: UnitAssignment) -> None:
    """Write a place as it is now. On another node it may have been told other addresses: it is told all of them."""
    _write(db, layout.with_part(then))
    if before.node != then.node:
        db.execute("DELETE FROM told WHERE diagram = ? AND unit = ?", (layout.name, then.unit))


def _core(place: UnitAssignment) -> tuple[str, str | None, int, int]:
    return place.node, place.backup, place.incarnation, place.lives


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
        raise CatalogError(
            f"cannot use catalog {path}: {error}", hint="is there room, and the right to write?"
        ) from None
    except (sqlite3.DatabaseError, ValidationError) as error:
        said, hint = str(error).splitlines()[0], "restore it from a copy, or give another file"
        raise CatalogError(f"catalog {path} is damaged or no catalog: {said}", hint=hint) from None
    except OSError as error:
        raise CatalogError(
            f"cannot use catalog {path}: {error.strerror}", hint="check the folder and its rights"
        ) from None
