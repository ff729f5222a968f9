"""A round: cases that share a failure are deployed and fed; it comes, is mended, and all is read to the end."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.recovery_cluster import Cluster
from clients import Feed, Reader
from history import History
from matrix import VICTIM, Case
from shapes import CUTS, SHAPES

from borealis.cli import processes
from borealis.emit.whereabouts import read_record
from borealis.errors import BorealisError

FIRST_S = 60.0  # for first results
AGAIN_S = 60.0  # for results behind the failure
MENDED_S = 90.0  # for a node to start again and all to be protected
END_S = 60.0
PAUSE_S = 3.0  # the diagrams' patience is one second
LOOK_S = 0.05

Facts = dict[str, Any]


class Round:
    """Several cases, one failure."""

    def __init__(self, cluster: Cluster, cases: Sequence[Case], home: Path, seed: int) -> None:
        self.cluster, self.cases, self.home = cluster, cases, home
        self.victim = cases[0].victim
        self.chance = random.Random(f"{seed} {cases[0].name}")
        self.histories = [History(c.name, c.shape, c.approach, c.guarantee) for c in cases]
        self._readers: list[Reader] = []
        self._feed: Feed | None = None
        self._before: dict[tuple[str, str], int] = {}  # incarnations

    def run(self) -> list[History]:
        """All of it. What goes wrong on the way is in the histories."""
        try:
            self._play()
        except Exception as error:
            self._all({"what": "stopped", "why": repr(error)})
            for history in self.histories:
                history.trouble.append(f"the round stopped: {error!r}")
            self._post_mortem()
        finally:
            self._clear()
        for history in self.histories:
            history.write(self.home / f"{history.case}.jsonl")
        return self.histories

    def _play(self) -> None:
        for case in self.cases:
            self._deploy(case)
        self._wait_protected()
        client = self.cluster.client
        self._readers = [Reader(client, c, h) for c, h in zip(self.cases, self.histories, strict=True)]
        self._feed = Feed(client, self.cases, self.histories)
        self._wait(lambda: all(r.newest for r in self._readers), "first results", FIRST_S)
        self._before = self._incarnations()
        self._look()
        time.sleep(self.chance.uniform(0.5, 2.0))
        for history in self.histories:
            history.published_then = self._feed.count
        getattr(self, f"_{self.victim}", self._kill)()
        moment = self._feed.moment
        self._wait(lambda: all(r.newest > moment for r in self._readers), "results behind the failure", AGAIN_S)
        self._mend()
        self._look()
        self._judge()
        self._finish()

    def _deploy(self, case: Case) -> None:
        path = self.home / f"{case.name}.yaml"
        path.write_text(case.yaml)
        self.cluster.client.deploy(path, cut=CUTS, place=case.places, backup=case.backups)

    # -- what fails

    def _kill(self) -> None:
        self._strike(VICTIM)

    def _coordinator(self) -> None:
        self._strike("coordinator")
        time.sleep(self.chance.uniform(0.3, 1.5))
        self._start("coordinator")

    def _rejoin(self) -> None:
        """The primary dies, comes back as the backup, and dies again before it is one."""
        self._strike(VICTIM)
        self._start(VICTIM)
        self._wait(self._rejoining, "the node to become a backup again", MENDED_S)
        time.sleep(self.chance.uniform(0, 0.3))
        self._strike(VICTIM)

    def _rejoining(self) -> bool:
        return any(u["protection"]["backup"] == VICTIM for u in self._units())

    def _pause(self) -> None:
        """Longer than anybody's patience; the deposed primary wakes up behind it."""
        for number, rest_s in ((signal.SIGSTOP, PAUSE_S), (signal.SIGCONT, 0.0)):
            for pid in processes.left_behind(self._part(VICTIM)):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            self._all({"what": number.name, "node": VICTIM})
            time.sleep(rest_s)

    def _strike(self, part: str) -> None:
        self.cluster.kill(part)
        self._all({"what": "killed", "node": part})

    def _start(self, part: str) -> None:
        log = Path(self._part(part).log)
        shutil.copy(log, self.home / f"{self.cases[0].name}-{part}-{time.time():.0f}.log")
        self.cluster.start(part)
        self._all({"what": "started", "node": part})

    def _part(self, name: str) -> processes.Part:
        record = read_record()
        assert record is not None
        return next(part for part in record.parts if part.name == name)

    # -- behind it

    def _mend(self) -> None:
        if not processes.alive(self._part(VICTIM)):
            self._start(VICTIM)
        self._wait(lambda: all(n["spark"] == "ready" for n in self._status()["nodes"]), "all nodes", MENDED_S)
        self._wait_protected()

    def _judge(self) -> None:
        """Whether units were taken over that should have been; which of them may have jumped."""
        after = self._incarnations()
        nodes = {(u["diagram"], u["unit"]): u["node"] for u in self._units()}
        for case, history in zip(self.cases, self.histories, strict=True):
            risen = {unit for (name, unit), n in after.items() if name == case.name and n > self._before[name, unit]}
            history.struck = SHAPES[case.shape].arbitrary and "u2" in risen
            history.events.append({"at": time.time(), "what": "taken over", "units": sorted(risen)})
            if case.struck and (case.struck not in risen or nodes[case.name, case.struck] == VICTIM):
                history.trouble.append(f"{case.struck} was not taken over from {VICTIM}")

    def _finish(self) -> None:
        assert self._feed is not None
        self._feed.finish()
        until = time.monotonic() + END_S
        for reader in self._readers:
            if not reader.ended.wait(max(0.0, until - time.monotonic())):
                reader.history.trouble.append(f"the output did not end within {END_S:.0f} s")
        if not all(reader.ended.is_set() for reader in self._readers):
            self._post_mortem()

    def _clear(self) -> None:
        if self._feed is not None:
            self._feed.abandon()
        for reader in self._readers:
            reader.stop()
        with suppress(BorealisError, TimeoutError):
            self.cluster.mend()
        for case in self.cases:
            with suppress(BorealisError):
                self.cluster.client.undeploy(case.name)

    # -- looking

    def _status(self) -> Facts:
        return self.cluster.status()

    def _units(self) -> list[Facts]:
        mine = {case.name for case in self.cases}
        return [unit for unit in self._status()["units"] if unit["diagram"] in mine]

    def _incarnations(self) -> dict[tuple[str, str], int]:
        return {(u["diagram"], u["unit"]): u["protection"]["incarnation"] for u in self._units()}

    def _wait_protected(self) -> None:
        for case in self.cases:
            self.cluster.wait_protected(case.name, MENDED_S)

    def _wait(self, what: Callable[[], bool], told: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not what():
            if time.monotonic() > until:
                behind = [r.history.case for r in self._readers if self._feed and r.newest < self._feed.moment - 10**6]
                raise TimeoutError(f"waited {seconds:.0f} s in vain for {told}; a second behind or more: {behind}")
            time.sleep(LOOK_S)

    def _look(self) -> None:
        for unit in self._units():
            facts = {"unit": unit["unit"], "node": unit["node"], **unit["protection"]}
            history = next(h for h in self.histories if h.case == unit["diagram"])
            history.events.append({"at": time.time(), "what": "status", **facts})

    def _all(self, event: Facts) -> None:
        for history in self.histories:
            history.events.append({"at": time.time(), **event})

    def _post_mortem(self) -> None:
        """The status and the logs, beside the histories."""
        with suppress(BorealisError):
            (self.home / f"{self.cases[0].name}-status.json").write_text(
                json.dumps(self.cluster.client.status(), indent=1)
            )
        record = read_record()
        for part in record.parts if record is not None else ():
            with suppress(OSError):
                shutil.copy(part.log, self.home / f"{self.cases[0].name}-{part.name}.log")
