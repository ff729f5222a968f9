"""The global catalog: what shall run where, in one SQLite file that outlives the coordinator.

1. A file `<catalog>.lock` is held as long as the catalog is open, and says who holds it. A second coordinator is
   refused before it has read anything.
2. What shall be is written before any node is told; so whatever a killed coordinator had begun can be seen here:
   a diagram that is `deploying` or `undeploying`, a unit with a node it is `moving_to`.
3. Each change is one transaction, on disk before its caller goes on.
4. What concerns a takeover compares before it sets: whoever knows only an older incarnation changes nothing.
5. A file of an older version is taken on to this one when it is opened, in one transaction.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TypeVar

from borealis.coordinator import claims, rows
from borealis.coordinator.http_errors import CatalogError, there_already
from borealis.coordinator.layout import EntryPlace, Layout, Place, State, UnitPlace
from borealis.coordinator.rows import VERSION
from borealis.errors import ClusterError
from borealis.wire.messages import Claim

APPLICATION = 0x626F7265  # "bore": tells our files from other SQLite files
P = TypeVar("P", bound=UnitPlace | EntryPlace)


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
        if found and not 1 <= version <= VERSION:
            hint = f"this Borealis reads versions up to {VERSION}: use the one that wrote it, or give another file"
            raise ClusterError(f"catalog {self.path} is of version {version}", hint=hint)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        steps = "".join(rows.STEPS[version if found else 0 :])
        if steps:
            marks = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"
            db.executescript(f"BEGIN IMMEDIATE; {steps} {marks} COMMIT;")

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
        return rows.layout_of(row, units, entries, outputs)

    def add(self, layout: Layout) -> None:
        """A new diagram; refused if there is one of that name."""
        name = layout.name
        with self._writing() as db:
            if db.execute("SELECT 1 FROM diagrams WHERE name = ?", (name,)).fetchone():
                raise there_already(name)
            rows.insert(db, "diagrams", rows.diagram_row(layout))
            for number, unit in enumerate(layout.units):
                rows.insert(db, "units", rows.unit_row(name, number, unit))
            for number, entry in enumerate(layout.entries):
                rows.insert(db, "entries", rows.entry_row(name, number, entry))
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

    def moved(self, diagram: str, unit: str, node: str, incarnation: int = 1) -> bool:
        """The unit has arrived; false if it was taken over meanwhile."""
        with self._writing() as db:
            row = (node, diagram, unit, incarnation)
            change = "UPDATE units SET node = ?, moving_to = NULL WHERE diagram = ? AND unit = ? AND incarnation = ?"
            return db.execute(change, row).rowcount == 1

    def tell(self, diagram: str, unit: str, feeds: Mapping[str, str]) -> None:
        """Note which addresses of arrows a unit was told."""
        with self._writing() as db:
            told = [(diagram, unit, arrow, address) for arrow, address in feeds.items()]
            db.executemany("INSERT OR REPLACE INTO told VALUES (?, ?, ?, ?)", told)

    def told(self, diagram: str) -> dict[tuple[str, str], str]:
        """For each unit and arrow it reads the address it was told last."""
        with self._reading() as db:
            told = db.execute("SELECT * FROM told WHERE diagram = ?", (diagram,)).fetchall()
            return {(row["unit"], row["arrow"]): row["address"] for row in told}

    # -- protection

    def claim(self, asked: Iterable[Claim]) -> list[tuple[bool, Place | None]]:
        """Grant what may be granted, all in one transaction: for each claim whether it holds, and what is in force."""
        with self._writing() as db:
            return [self._claim(db, one) for one in asked]

    def _claim(self, db: sqlite3.Connection, claim: Claim) -> tuple[bool, Place | None]:
        place = self._place(db, claim.diagram, claim.unit, claim.input)
        then = None if place is None else claims.after(place, claim)
        if then is not None and then != place:
            self._put(db, claim.diagram, then)
        return then is not None, then or place

    def believe(self, diagram: str, place: P, node: str, incarnation: int) -> None:
        """A node tells that it took over while nobody was here to be asked."""
        self._change(diagram, place, claims.taken_over(place, node, incarnation))

    def begin_anew(self, diagram: str, place: P, node: str) -> P | None:
        """Both copies are lost: the next life begins on this node. None if it is no longer so."""
        then = claims.begun_anew(place, node)
        return then if self._change(diagram, place, then) else None

    def back_up(self, diagram: str, place: P, node: str | None) -> P | None:
        """Which node stands by from now on. None if the place has changed meanwhile."""
        then = claims.alone(place) if node is None else replace(place, backup=node, was=None)
        return then if self._change(diagram, place, then) else None

    def _change(self, diagram: str, place: Place, then: Place) -> bool:
        """Compare and set: only if node, backup and incarnation are as the caller thinks."""
        unit, entry = (place.unit, "") if isinstance(place, UnitPlace) else ("", place.input)
        with self._writing() as db:
            now = self._place(db, diagram, unit, entry)
            same = now is not None and _core(now) == _core(place)
            if same:
                self._put(db, diagram, then)
            return same

    def _place(self, db: sqlite3.Connection, diagram: str, unit: str, entry: str) -> Place | None:
        db.row_factory = sqlite3.Row
        if unit:
            row = db.execute("SELECT * FROM units WHERE diagram = ? AND unit = ?", (diagram, unit)).fetchone()
            return None if row is None else rows.unit_of(row)
        row = db.execute("SELECT * FROM entries WHERE diagram = ? AND input = ?", (diagram, entry)).fetchone()
        return None if row is None else rows.entry_of(row)

    def _put(self, db: sqlite3.Connection, diagram: str, then: Place) -> None:
        """Another process may have been told other addresses than the last one was: it is told anew."""
        before = self._place(db, diagram, *((then.unit, "") if isinstance(then, UnitPlace) else ("", then.input)))
        rows.update(db, diagram, then)
        if isinstance(then, UnitPlace) and before is not None and before.node != then.node:
            db.execute("DELETE FROM told WHERE diagram = ? AND unit = ?", (diagram, then.unit))

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


def _core(place: Place) -> tuple[str, str | None, int, int]:
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
    except sqlite3.DatabaseError as error:
        hint = "restore it from a copy, or give another file"
        raise CatalogError(f"catalog {path} is damaged or no catalog: {error}", hint=hint) from None
    except OSError as error:
        raise CatalogError(
            f"cannot use catalog {path}: {error.strerror}", hint="check the folder and its rights"
        ) from None
