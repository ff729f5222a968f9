"""What an older Borealis left in storage is read: a cluster that was stopped with 300 rows in it, kept as it was.

Whoever changes what is written there adds what the version before wrote, and keeps this passing:
`borealis up --nodes 1 --storage DIR`, deploy a diagram, send to it, `borealis down`.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from borealis.coordinator.catalog import Catalog
from borealis.diagram.spec import Spec
from borealis.node.stored import Stored, UnitHistory
from borealis.state.delta import unpack
from borealis.storage import Storage, storage_at
from borealis.streams.snapshot import QueueSnapshot
from borealis.wire.messages import Guard, UnitOrder

DATA = Path(__file__).parents[1] / "data"
ROWS = 300


@pytest.fixture(params=["0.1"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    with tarfile.open(DATA / f"storage-of-{request.param}.tar.gz") as kept:
        kept.extractall(tmp_path, filter="data")
    return storage_at(str(tmp_path / "storage"))


def history(storage: Storage, catalog: Catalog, unit: str) -> UnitHistory:
    """As the next primary of a unit finds it."""
    layout = catalog.layouts()[0]
    place = next(one for one in (*layout.units, *layout.entries) if one.unit == unit)
    assert place.protection is not None
    guard = Guard(protection=place.protection, incarnation=place.incarnation + 1)
    epoch = next((storage.root / "units" / layout.name / unit).iterdir()).name
    order = UnitOrder(diagram=layout.name, unit=unit, yaml=layout.yaml, boxes=[], guard=guard, epoch=epoch)
    found = Stored(storage, order).open()
    assert found is not None
    return found


def test_catalog_state_streams_and_places_are_there(storage: Storage, tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "catalog.sqlite", storage=storage)
    (layout,) = catalog.layouts()
    assert (layout.name, [unit.unit for unit in layout.units]) == ("kept", ["u1"])
    assert [box.name for box in Spec.from_yaml(layout.yaml).boxes] == ["per_source"]

    *_, last = history(storage, catalog, "u1")
    assert last.want.step.inputs["packets"].position == ROWS
    parcels = list(history(storage, catalog, "in-packets"))
    given = [QueueSnapshot.from_bytes(one.queues["packets"]) for one in parcels if "packets" in one.queues]
    assert sum(len(section) for one in given for section in one.sections) == ROWS
    assert parcels[-1].want.step.outputs["packets"][0] == ROWS


def test_the_state_is_what_windows_held(storage: Storage, tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "catalog.sqlite", storage=storage)
    deltas = [unpack(data) for one in history(storage, catalog, "u1") for data in one.state.values()]
    assert {table for delta in deltas for table in delta} == {"groups", "panes"}
    panes = [delta["panes"].put for delta in deltas if "panes" in delta]
    assert sum(table.num_rows for table in panes) > 0
