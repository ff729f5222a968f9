"""Laws of segments: after any crash a log holds what was synced; after any damage it never tells anything else."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from harness import examples
from hypothesis import given
from hypothesis import strategies as st

from borealis.errors import StateError
from borealis.streams.segments import SegmentLog

OWNER = {"stream": "d/x"}
SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True)
def _no_syncing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The power is cut here by hand."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


class Twin:
    """A log, and all that went into it."""

    def __init__(self, root: Path, rng: Random) -> None:
        self.root, self.rng = root, rng
        self.records: list[tuple[dict[str, Any], list[bytes]]] = []
        self.synced = self.trimmed = 0  # records; ids
        self.size = rng.choice([1, 300, 1000, 1 << 20])
        self.log = self.opened(root)[0]

    def opened(self, root: Path) -> tuple[SegmentLog, list[tuple[dict[str, Any], list[bytes]]]]:
        log = SegmentLog(root, OWNER, segment_bytes=self.size)
        return log, list(log.open())

    def step(self) -> None:
        rng, log = self.rng, self.log
        match rng.choice(["append"] * 6 + ["sync", "trim", "again"]):
            case "append":
                stop = log.next_id + rng.choice([0, 0, 1, 5])
                facts = {rng.choice("abc"): rng.choice([None, *range(9)]) for _ in range(rng.randrange(3))}
                facts["records"] = len(self.records) + 1
                head = {"first": log.next_id, "stop": stop, "facts": facts}
                sizes = rng.choices([0, 10, 200], k=rng.randrange(3))
                blobs = [rng.randbytes(size) + rng.choice([b"", SegmentLog.mark]) for size in sizes]
                log.append(head, blobs, sync=False)
                self.records.append((head, blobs))
                if rng.random() < 0.4:
                    log.sync()
                if log.segments[-1].synced == log.segments[-1].length:
                    self.synced = len(self.records)
            case "sync":
                log.sync()
                self.synced = len(self.records)
            case "trim":
                self.trimmed = max(self.trimmed, rng.randint(0, log.next_id))
                log.trim(self.trimmed)
            case "again":
                log.close()
                self.synced = len(self.records)
                self.log, found = self.opened(self.root)
                assert self.check(self.log, found) == len(self.records)

    def check(self, log: SegmentLog, found: list[tuple[dict[str, Any], list[bytes]]]) -> int:
        """What was found is consecutive and true; returns how many records the log has had up to there."""
        if not found:
            return 0
        begin, rest = found[0][0], found[1:]
        early = int(begin["facts"].get("records", 0))
        upto = early + len(rest)
        assert begin == {"first": self.id_at(early), "stop": self.id_at(early), "facts": self.facts(early)}
        assert rest == self.records[early:upto]
        assert (log.next_id, log.facts) == (self.id_at(upto), self.facts(upto))
        assert begin["first"] <= self.trimmed
        return upto

    def id_at(self, n: int) -> int:
        return int(self.records[n - 1][0]["stop"]) if n else 0

    def facts(self, n: int) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for head, _ in self.records[:n]:
            facts |= head["facts"]
        return {name: fact for name, fact in facts.items() if fact is not None}

    def newest(self) -> tuple[str, int, int]:
        """The newest segment, how much of it is synced, and its length."""
        segment = self.log.segments[-1]
        return segment.path.name, segment.synced, segment.length


def story(seed: int, tmp: str) -> tuple[Twin, Random]:
    rng = Random(seed)
    twin = Twin(Path(tmp) / "log", rng)
    for _ in range(rng.choice([3, 15, 40])):
        twin.step()
    return twin, rng


@examples(40)
@given(SEEDS)
def test_a_crash_loses_nothing_that_was_synced(seed: int) -> None:
    """What was not synced may be there, be cut off anywhere, or have holes."""
    with tempfile.TemporaryDirectory() as tmp:
        twin, rng = story(seed, tmp)
        name, synced, length = twin.newest()
        for n in range(5):
            copy = Path(tmp) / f"copy{n}"
            shutil.copytree(twin.root, copy)
            data = bytearray((copy / name).read_bytes())
            for _ in range(rng.randrange(4)):
                hole = rng.randint(synced, length)
                size = min(rng.choice([1, 20, 300]), length - hole)
                data[hole : hole + size] = rng.choice([bytes(size), rng.randbytes(size)])
            del data[rng.choice([rng.randint(synced, length), length]) :]
            (copy / name).write_bytes(data)
            log, found = twin.opened(copy)
            assert twin.check(log, found) >= twin.synced
            before = len(found)
            log.append({"first": log.next_id, "stop": log.next_id + 1}, [b"more"])
            log.close()
            log, found = twin.opened(copy)  # cut once and for all
            assert not log.torn
            assert found[-1][1] == [b"more"]
            assert len(found) == max(before, 1) + 1
            log.close()
        twin.log.close()


@examples(40)
@given(SEEDS)
def test_damage_is_refused_or_a_torn_tail(seed: int) -> None:
    with tempfile.TemporaryDirectory() as tmp:
        twin, rng = story(seed, tmp)
        twin.log.close()
        names = [s.path.name for s in twin.log.segments]
        for n in range(5):
            copy = Path(tmp) / f"copy{n}"
            shutil.copytree(twin.root, copy)
            path = copy / rng.choice(names)
            data = bytearray(path.read_bytes())
            at = rng.randrange(len(data))
            flipped = rng.random() < 0.5
            if flipped:
                data[at] ^= 1 << rng.randrange(8)
            else:
                del data[at:]
            path.write_bytes(data)
            try:
                log, found = twin.opened(copy)
            except StateError:
                continue
            assert path.name == names[-1]  # only there it can be a torn tail
            assert log.torn or not flipped  # it may have been cut between two records
            assert twin.check(log, found) < len(twin.records)
            log.close()
