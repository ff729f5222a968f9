"""A bound on delay as a user has it: a node is cut off from a stream, answers come in time, and are corrected."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from city import City, json_lines, wait_for

pytestmark = pytest.mark.timeout(400)
MERGED = """\
borealis: 1
name: {name}
inputs:
  a: {{columns: 'ts TIMESTAMP, n BIGINT, text STRING', time: ts}}
  b: {{columns: 'ts TIMESTAMP, n BIGINT, text STRING', time: ts}}
boxes:
  both: {{union: {{from: [a, b]}}}}
  counted: {{aggregate: {{from: both, size: 500 ms, exprs: {{n: count(*), least: min(n)}}}}}}
  shown: {{map: {{from: counted, exprs: {{at: window_end, n: n, least: least}}}}}}
outputs: {{shown: shown}}
"""


@contextmanager
def fed(city: City, name: str, text: str = "") -> Iterator[list[tuple[datetime, int]]]:
    """Rows on both inputs twenty times a second; all that were published, once this is over."""
    over, rows = threading.Event(), list[tuple[datetime, int]]()

    def feed() -> None:
        with city.connect() as client:
            publishers = [client.publisher(f"{name}/{one}") for one in "ab"]
            while not over.is_set():
                for publisher in publishers:
                    rows.append((datetime.now(UTC), len(rows)))
                    publisher.send([{"ts": rows[-1][0], "n": rows[-1][1], "text": text}])
                over.wait(0.05)
            for publisher in publishers:
                publisher.end()
                publisher.close(60.0)

    feeding = threading.Thread(target=feed, daemon=True)
    feeding.start()
    try:
        yield rows
    finally:
        over.set()
        feeding.join(90.0)


def windows(rows: list[tuple[datetime, int]]) -> list[tuple[datetime, int, int]]:
    """What the diagram makes of them: of each window its end, how many rows are in it, the least of their numbers."""
    counts: Counter[int] = Counter()
    least: dict[int, int] = {}
    for at, n in rows:
        half = int(at.timestamp() * 1_000_000) // 500_000
        counts[half] += 1
        least[half] = min(n, least.get(half, n))
    return [(datetime.fromtimestamp((half + 1) / 2, UTC), n, least[half]) for half, n in sorted(counts.items())]


def stable(lines: list[dict[str, Any]]) -> list[tuple[datetime, int, int]]:
    some = [one for one in lines if not one.keys() & {"_undo", "_done"} and one.get("_stable", True)]
    return [(datetime.fromisoformat(one["at"]), one["n"], one["least"]) for one in some]


def tentative(path: Path) -> int:
    return sum(one.get("_stable") is False for one in json_lines(path))


def test_one_of_two_replicas_is_cut_off_then_both(city: City) -> None:
    """Two units in a row. As long as one copy of the first reads all streams, results are right. When none does they
    are tentative, and corrected. `test_chains.py` cuts networks, and kills."""
    file = city.root / "merged.yaml"
    file.write_text(MERGED.format(name="merged"))
    places = ["--place", "both=node1", "--cut", "shown", "--place", "shown=node2"]
    places += [word for one in "ab" for word in ("--place", f"{one}=node3")]
    city.run("deploy", str(file), "--ha", "replicas", "--delay", "1 s", "--backup", "u1=node2", *places)
    out, only = city.root / "merged.jsonl", city.root / "merged-stable.jsonl"
    tail = city.start("tail", "merged/shown", "--from", "oldest", "--json", out=out)
    quiet = city.start("tail", "merged/shown", "--from", "oldest", "--json", "--stable-only", out=only)
    shown, guesses = city.root / "shown.jsonl", city.root / "guesses.jsonl"
    places = ["--to", str(shown), "--tentative-to", str(guesses)]
    files = city.start("tail", "merged/shown", "--from", "oldest", *places, out=city.root / "files.log")
    with fed(city, "merged") as rows:
        wait_for(lambda: len(json_lines(out)) > 3, "some results")
        assert "'borealis heal' ends it" in city.run("cut", "merged/b", "node1")
        copies = lambda: next(u for u in city.status()["units"] if u["unit"] == "u1")["protection"]["replicas"]  # noqa: E731
        wait_for(lambda: copies() == {"node1": "failure", "node2": "stable"}, "the failure of a copy")
        cut = time.time()
        wait_for(lambda: any(at.timestamp() > cut for at, _, _ in stable(json_lines(out))), "rows of the other copy")
        assert "node1: failure" in city.run("status")
        before = tentative(out)  # a machine that is slow may give some before its readers have gone over
        city.run("cut", "merged/b", "node2")
        wait_for(lambda: tentative(out) > before + 5, "tentative rows")
        wait_for(lambda: json_lines(guesses), "tentative rows in a file")
        units = {one["unit"]: one for one in city.status()["units"] if one["diagram"] == "merged"}
        assert units["u1"]["fork"]["missing"] == ["b"]
        assert "is tentative for" in city.run("status")
        assert "reads merged/b again" in city.run("heal", "merged/b", "node1")
        city.run("heal", "merged/b", "node2")
        wait_for(lambda: any(one.get("_undo", 0) > 5 for one in json_lines(out)), "the correction")
    assert tail.wait(120) == 0
    assert quiet.wait(120) == 0
    right = windows(rows)
    assert stable(json_lines(out)) == right
    assert stable(json_lines(only)) == right
    assert tentative(only) == 0
    assert files.wait(120) == 0
    assert stable(json_lines(shown)) == right
    assert guesses.read_text() == "", "nothing is tentative in the end"
    city.undeploy("merged")


def test_where_little_is_kept_the_oldest_is_given_up_and_the_rest_is_right(city: City) -> None:
    """What comes of the other input while one is cut off is more than may be kept: a part of it is lost, is counted,
    and is all that is lost. Readers hear of it."""
    file = city.root / "lossy.yaml"
    file.write_text(MERGED.format(name="lossy"))
    places = ["--place", "both=node1", *(word for one in "ab" for word in ("--place", f"{one}=node3"))]
    keep = ["--keep", "1 MB", "--when-full", "drop-oldest"]
    city.run("deploy", str(file), "--ha", "amnesia", "--delay", "1 s", *keep, *places)
    out, errors = city.root / "lossy.jsonl", city.root / "lossy.log"
    tail = city.start("tail", "lossy/shown", "--from", "oldest", "--json", out=out)
    words = city.start("tail", "lossy/shown", "--from", "oldest", "--stable-only", out=errors)
    unit = lambda: next(one for one in city.status()["units"] if one["diagram"] == "lossy")  # noqa: E731
    with fed(city, "lossy", "x" * 20_000) as rows:
        wait_for(lambda: len(json_lines(out)) > 3, "some results")
        cut = datetime.now(UTC)
        city.run("cut", "lossy/b", "node1")
        wait_for(lambda: unit()["given_up"].get("a", 0) > 20, "tuples that are given up")
        city.run("heal", "lossy/b", "node1")
        healed = datetime.now(UTC)
        wait_for(lambda: any("_done" in one for one in json_lines(out)), "the correction")
        wait_for(lambda: any(at > healed + timedelta(seconds=2) for at, *_ in stable(json_lines(out))), "newer results")
    assert [tail.wait(120), words.wait(120)] == [0, 0]
    right, given = windows(rows), stable(json_lines(out))
    assert [at for at, *_ in given] == [at for at, *_ in right], "each window comes once, and in order"
    lost = {at: n - m for (at, n, _), (_, m, _) in zip(right, given, strict=True) if n != m}
    assert sum(lost.values()) == sum(unit()["given_up"].values()) > 20
    assert unit()["given_up"].keys() == {"a"}
    assert cut - timedelta(seconds=1) < min(lost), "what was right before stays so"
    assert max(lost) < healed + timedelta(seconds=1), "and so is what comes later"
    assert "tuples may be missing" in errors.read_text()
    city.undeploy("lossy")
