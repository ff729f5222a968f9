"""A database that is away, as the user of a cluster sees it."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from city import City, wait_for

pytestmark = pytest.mark.timeout(200)

BILLS = """\
borealis: 1
name: {name}
inputs:
  calls: {{columns: 'ts TIMESTAMP, who STRING', time: ts}}
boxes:
  billed:
    sql_write:
      from: calls
      statement: INSERT INTO bills (who) VALUES (:who)
      database: sqlite:///{database}
      give_up: {give_up}
outputs:
  billed: billed
"""


def test_a_database_that_is_away_is_in_the_status(city: City) -> None:
    database = city.root / "bills.db"
    places = {"locked": (database, "1 minute"), "missing": (city.root / "no" / "bills.db", "1 second")}
    for name, (place, give_up) in places.items():
        (city.root / f"{name}.yaml").write_text(BILLS.format(name=name, database=place, give_up=give_up))
        city.run("deploy", str(city.root / f"{name}.yaml"))

    def units() -> dict[str, dict[str, Any]]:
        return {u["diagram"]: u for u in city.status()["units"] if u["diagram"] in places}

    def bills() -> list[str]:
        with closing(sqlite3.connect(database)) as reader:
            return [who for (who,) in reader.execute("SELECT who FROM bills ORDER BY rowid")]

    with (
        closing(sqlite3.connect(database, isolation_level=None)) as other,
        city.connect() as client,
    ):
        other.execute("CREATE TABLE bills (who TEXT)")
        other.execute("BEGIN EXCLUSIVE")
        for name in places:
            client.publish(f"{name}/calls", [{"ts": f"2026-01-01T00:00:0{i}Z", "who": "abc"[i]} for i in range(3)])
        wait_for(lambda: any(w["seconds"] > 0 for w in units()["locked"].get("waiting", ())), "the unit waits")
        wait_for(lambda: units()["missing"]["state"] == "failed", "the status says that the unit has given up")
        found = units()
        assert found["locked"]["state"] == "waiting"
        [waiting] = found["locked"]["waiting"]
        told = rf"box 'billed': database sqlite:///{database} cannot be used, tried .*: database is locked"
        assert re.fullmatch(told, waiting["why"])
        assert "could not be used for 1 second, tried" in found["missing"]["error"]
        assert found["missing"]["waiting"] == []
        said = " ".join(city.run("status").split())
        assert re.search(r"locked/u1 waits, for .* so far: box 'billed': database .* is locked", said)
        assert re.search(r"missing/u1: box 'billed': database .* could not be used for 1 second", said)
        other.execute("ROLLBACK")
        wait_for(lambda: len(bills()) == 3, "what waited is written")
    wait_for(lambda: units()["locked"]["state"] == "running", "the status says that all is well")
    assert units()["locked"]["waiting"] == []
    assert bills() == ["a", "b", "c"]
    city.undeploy(*places)
