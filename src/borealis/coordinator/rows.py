"""The catalog's tables, and how a layout is written in them. Versions are steps: a file of an older one is taken on."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from borealis.coordinator.layout import EntryPlace, Layout, Place, Shield, UnitPlace

STEPS: tuple[str, ...] = (
    """
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
""",
    """
-- protection: who stands by, and which takeover is in force
ALTER TABLE diagrams ADD COLUMN epoch TEXT NOT NULL DEFAULT '';
ALTER TABLE units ADD COLUMN protection TEXT;
ALTER TABLE units ADD COLUMN backup TEXT;
ALTER TABLE units ADD COLUMN was TEXT;
ALTER TABLE units ADD COLUMN incarnation INTEGER NOT NULL DEFAULT 1;
ALTER TABLE units ADD COLUMN lives INTEGER NOT NULL DEFAULT 1;
ALTER TABLE entries ADD COLUMN approach TEXT;
ALTER TABLE entries ADD COLUMN backup TEXT;
ALTER TABLE entries ADD COLUMN was TEXT;
ALTER TABLE entries ADD COLUMN incarnation INTEGER NOT NULL DEFAULT 1;
ALTER TABLE entries ADD COLUMN lives INTEGER NOT NULL DEFAULT 1;
""",
)
VERSION = len(STEPS)
Row = Any  # sqlite3.Row, or a dict: both are asked by name


def layout_of(row: Row, units: list[Any], entries: list[Any], outputs: list[Any]) -> Layout:
    """A diagram from its rows."""
    return Layout(
        name=row["name"],
        yaml=row["yaml"],
        state=row["state"],
        units=tuple(unit_of(u) for u in units),
        entries=tuple(entry_of(e) for e in entries),
        outputs={o["output"]: o["arrow"] for o in outputs},
        cuts=tuple(json.loads(row["cuts"])),
        places=json.loads(row["places"]),
        buckets=row["buckets"],
        columns=json.loads(row["columns"]),
        since=row["since"],
        epoch=row["epoch"],
    )


def unit_of(row: Row) -> UnitPlace:
    """A unit from its row."""
    boxes, reads, gives = (tuple(json.loads(row[part])) for part in ("boxes", "reads", "gives"))
    return UnitPlace(
        row["unit"],
        boxes,
        reads,
        gives,
        row["node"],
        row["moving_to"],
        None if row["protection"] is None else Shield(**json.loads(row["protection"])),
        row["backup"],
        row["was"],
        row["incarnation"],
        row["lives"],
    )


def entry_of(row: Row) -> EntryPlace:
    """An entry point from its row."""
    fields = ("input", "node", "approach", "backup", "was", "incarnation", "lives")
    return EntryPlace(*(row[part] for part in fields))


def diagram_row(layout: Layout) -> dict[str, Any]:
    """A diagram as a row, without its parts."""
    return {
        "name": layout.name,
        "yaml": layout.yaml,
        "cuts": json.dumps(layout.cuts),
        "places": json.dumps(dict(layout.places)),
        "buckets": layout.buckets,
        "columns": json.dumps(dict(layout.columns)),
        "state": layout.state,
        "since": layout.since,
        "epoch": layout.epoch,
    }


def unit_row(diagram: str, place: int, unit: UnitPlace) -> dict[str, Any]:
    """A unit as a row."""
    lists = {part: json.dumps(getattr(unit, part)) for part in ("boxes", "reads", "gives")}
    promised = None if unit.protection is None else json.dumps(asdict(unit.protection))
    return {"diagram": diagram, "unit": unit.unit, "place": place, **lists, "protection": promised} | changing(unit)


def entry_row(diagram: str, place: int, entry: EntryPlace) -> dict[str, Any]:
    """An entry point as a row."""
    fixed = {"diagram": diagram, "input": entry.input, "place": place, "approach": entry.approach}
    return fixed | changing(entry)


def changing(place: Place) -> dict[str, Any]:
    """What takeovers and moves change."""
    both = {part: getattr(place, part) for part in ("node", "backup", "was", "incarnation", "lives")}
    if isinstance(place, UnitPlace):
        return both | {"moving_to": place.moving_to}
    return both


def insert(db: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    """One row, by the names of its columns."""
    marks = ", ".join(f":{name}" for name in row)
    db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", dict(row))


def update(db: sqlite3.Connection, diagram: str, place: Place) -> None:
    """Write a place as it is now."""
    table, column, name = (
        ("units", "unit", place.unit) if isinstance(place, UnitPlace) else ("entries", "input", place.input)
    )
    row = changing(place)
    sets = ", ".join(f"{part} = :{part}" for part in row)
    db.execute(
        f"UPDATE {table} SET {sets} WHERE diagram = :diagram AND {column} = :name",
        row | {"diagram": diagram, "name": name},
    )
