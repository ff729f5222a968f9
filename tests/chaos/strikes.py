"""A round: diagrams are deployed and fed; failures come one after another and are mended; all is read to the end."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from benchmarks.recovery_cluster import Cluster
from clients import Feed
from matrix import Deployed, Strike

from borealis.cli import processes
from borealis.client.cluster_config import ClusterProcess, read_record
from borealis.errors import BorealisError
from borealis.sim.history import History
from borealis.sim.shapes import ALL_GROUPS, SHAPES
from borealis.wire.status import ClusterStatus, ProtectionView, StreamView, UnitView
from reader import Reader

FIRST_S = 60.0  # for first results
AGAIN_S = 60.0  # for results behind the failure
MENDED_S = 90.0  # for a node to start again and all to be protected
END_S = 60.0
COORDINATOR_S = 60.0  # to start again, on a busy machine
PAUSE_S = 5.0  # the diagrams' patience is three seconds
REJOIN_S = 2.0
GIVEN_UP = "in epoch"  # a unit's words when what it reads began anew
LOOK_S = 0.25
SAFE = ("protected", "watching")  # states of a protection that is whole
UNITS = {"upstream": "u1", "last": "u3", "rejoin": "u2", "pause": "u2"}  # whose primary is hit

Facts = dict[str, Any]
Incarnations = dict[tuple[str, str], tuple[str, int]]  # of each unit its node and incarnation


class Round:
    """Several failures of the same deployments."""

    def __init__(self, cluster: Cluster, strikes: Sequence[Strike], home: Path, seed: int, *, rests: bool) -> None:
        self.cluster, self.home = cluster, home
        self.rests = rests  # nothing is published while nodes start again: they get the whole machine
        self.blows = [strike.blow for strike in strikes]
        self.diagrams = strikes[0].diagrams
        self.name = self.diagrams[0].name
        self.chance = random.Random(f"{seed} {self.name}")
        self.histories = {one.name: _histories(one) for one in self.diagrams}
        self._readers: list[Reader] = []
        self._feed: Feed | None = None
        self._unjudged: tuple[str, str, Incarnations] | None = (
            None  # the last blow, the node it hit, what was before it
        )

    def run(self) -> list[History]:
        """All of it. What goes wrong on the way is in the histories."""
        try:
            self._play()
        except Exception as error:
            for history in self._every():
                history.trouble.append(f"the round stopped: {error!r}")
            self._post_mortem()
        finally:
            self._clear()
        for history in self._every():
            history.write(self.home / f"{history.case}.jsonl")
        return self._every()

    def _every(self) -> list[History]:
        return [history for some in self.histories.values() for history in some]

    def _play(self) -> None:
        self._deploy()
        client = self.cluster.client
        self._readers = [
            Reader(client, f"{name}/{history.output}", history)
            for name, some in self.histories.items()
            for history in some
        ]
        self._feed = Feed(client, self.diagrams, self.histories)
        self._wait(lambda: all(r.newest for r in self._readers), "first results", FIRST_S)
        for blow in self.blows:
            self._mend()
            for node in self._nodes(blow) if blow != "rejoin" else ():
                self._strike(blow, node)
            while blow == "rejoin" and (left := self._nodes(blow)):  # where it hits is seen only when it has
                self._strike(blow, left[0])
        self._finish()

    def _deploy(self) -> None:
        self.cluster.mend()  # what died last in the round before
        for one in self.diagrams:
            path = self.home / f"{one.name}.yaml"
            path.write_text(one.yaml)
            self.cluster.client.deploy(path, place=one.places, backup=one.backups, pin=True)
            self._protected()  # one after the other: twelve units that start at once do not get a worker in time

    # -- what fails

    def _nodes(self, blow: str) -> list[str]:
        """What has to be hit, one after the other: as a rule both diagrams have what is meant on the same node."""
        if blow == "coordinator":
            return [blow]
        if blow == "entry":
            mine = [s for s in self._status().streams if s.diagram in self.histories and s.arrow == "left"]
            return sorted({stream.node for stream in mine})
        units = [unit for unit in self._units() if not self.histories[unit.diagram][0].both_died]
        nodes = {unit.node for unit in units if unit.unit == UNITS[blow]}
        if blow == "upstream":
            nodes |= {_kept(unit).backup for unit in units if unit.unit == "u2"}
        return sorted(nodes)

    def _strike(self, blow: str, node: str) -> None:
        assert self._feed is not None
        self._mend()
        self._unjudged = blow, node, self._incarnations()
        self._look()
        time.sleep(self.chance.uniform(0.5, 2.0))
        for history in self._every():
            history.moment = self._feed.moment
        getattr(self, f"_{blow}", self._kill)(node)
        moment = self._feed.moment
        self._wait(lambda: all(r.newest > moment for r in self._going_on()), f"results behind '{blow}'", AGAIN_S)

    def _going_on(self) -> list[Reader]:
        """Readers of all that was not given up. A diagram may only be where both copies of a unit died, and says so."""
        for unit in self._units() if "rejoin" in self.blows else ():
            if unit.state == "failed" and GIVEN_UP in unit.error:
                for history in self.histories[unit.diagram]:
                    history.given_up = unit.error
        return [reader for reader in self._readers if not reader.history.given_up]

    def _kill(self, node: str) -> None:
        self.cluster.kill(node)
        self._note({"what": "killed", "node": node})

    def _coordinator(self, _: str) -> None:
        self._kill("coordinator")
        time.sleep(self.chance.uniform(0.3, 1.5))
        self._start("coordinator")

    def _rejoin(self, node: str) -> None:
        """The primary dies; another stands by soon, and at about that time whoever took over dies as well.

        Where the new backup did not have all of it yet, both copies are lost. That must be told. Nothing else is lost:
        whatever else is on the second node is safe by then.
        """
        before = {key: n for key, (at, n) in self._incarnations().items() if at == node and key[1] == "u2"}
        self._kill(node)
        taken = lambda: {k: at for k, (at, n) in self._incarnations().items() if k in before and n > before[k]}  # noqa: E731
        self._wait(lambda: len(taken()) == len(before), "its units to be taken over", AGAIN_S)
        self._start(node)
        actor = min(taken().values())
        with self._rest():
            self._wait(lambda: self._may_lose(actor), f"all else on {actor} to be protected", MENDED_S)
        time.sleep(self.chance.uniform(0, REJOIN_S))
        for (name, _), at in taken().items():
            for history in self.histories[name] if at == actor else ():
                history.both_died = True
        self._kill(actor)

    def _may_lose(self, node: str) -> bool:
        """Whether all that is on a node, but for second units, has a backup, and those are about to have one."""
        here = [part for part in self._guarded() if part.node == node]
        second = [isinstance(part, UnitView) and part.unit == "u2" for part in here]
        states = zip(second, map(_kept, here), strict=True)
        return all(bool(kept.backup) if is_second else kept.state in SAFE for is_second, kept in states)

    def _pause(self, node: str) -> None:
        """Longer than anybody's patience; the deposed primary wakes up behind it."""
        for number, rest_s in ((signal.SIGSTOP, PAUSE_S), (signal.SIGCONT, 0.0)):
            for pid in processes.left_behind(_part(node)):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            self._note({"what": number.name, "node": node})
            time.sleep(rest_s)

    def _start(self, name: str) -> None:
        shutil.copy(_part(name).log, self.home / f"{self.name}-{name}-{time.time():.0f}.log")
        self.cluster.start(name)
        self._note({"what": "started", "node": name})

    # -- behind it

    def _mend(self) -> None:
        """Before the next blow. The last one is not mended: the rest is read from what is left."""
        with self._rest():
            self._restart()
            self._wait(lambda: all(node.spark == "ready" for node in self._status().nodes), "all nodes", MENDED_S)
            self._protected()
        self._judge()

    def _rest(self) -> AbstractContextManager[None]:
        return self._feed.rest() if self.rests and self._feed is not None else nullcontext()

    def _restart(self) -> None:
        record = read_record()
        for part in record.parts if record is not None else ():
            if not processes.alive(part):
                self._start(part.name)

    def _judge(self) -> None:
        """Whether units were taken over that should have been; which of them may have jumped."""
        if self._unjudged is None:
            return
        (blow, node, before), self._unjudged = self._unjudged, None
        hit = {key for key, (at, _) in before.items() if at == node and key[1] == UNITS.get(blow)}
        risen = {key for key, (_, incarnation) in self._incarnations().items() if incarnation > before[key][1]}
        self._note({"what": "taken over", "blow": blow, "units": sorted(map("/".join, risen))})
        for name, some in self.histories.items():
            left = [unit for diagram, unit in hit - risen if diagram == name]
            for history in some:
                history.struck |= history.shape.arbitrary and (name, "u2") in risen
                history.trouble += [f"{unit} was not taken over from {node} ({blow})" for unit in left]

    def _finish(self) -> None:
        assert self._feed is not None
        self._look()
        self._feed.finish()
        until = time.monotonic() + END_S
        for reader in self._going_on():
            reader.ended.wait(max(0.0, until - time.monotonic()))
        if not all(reader.ended.is_set() for reader in self._going_on()):
            self._post_mortem()
        self._judge()

    def _clear(self) -> None:
        if self._feed is not None:
            self._feed.abandon()
        for reader in self._readers:
            reader.stop()
        for one in self.diagrams:
            with suppress(BorealisError):
                self.cluster.client.undeploy(one.name)

    # -- looking

    def _status(self) -> ClusterStatus:
        until = time.monotonic() + COORDINATOR_S
        while time.monotonic() < until:
            with suppress(BorealisError):
                return self.cluster.status()
        return self.cluster.status()

    def _units(self) -> list[UnitView]:
        return [unit for unit in self._status().units if unit.diagram in self.histories]

    def _incarnations(self) -> Incarnations:
        return {(u.diagram, u.unit): (u.node, _kept(u).incarnation) for u in self._units()}

    def _protected(self) -> None:
        self._wait(lambda: not self._exposed(), "all to be protected", MENDED_S)

    def _exposed(self) -> list[str]:
        """Units and inputs that are not protected now."""
        return [kept.why for kept in map(_kept, self._guarded()) if kept.state not in SAFE]

    def _guarded(self) -> list[UnitView | StreamView]:
        """Units and inputs that are promised protection, of all diagrams that were not given up."""
        self._going_on()  # looks whether any was
        going_on = {name for name, some in self.histories.items() if not any(history.given_up for history in some)}
        status = self._status()
        parts = [part for part in (*status.units, *status.streams) if part.diagram in going_on]
        return [part for part in parts if part.protection is not None]

    def _wait(self, what: Callable[[], bool], told: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not what():
            if time.monotonic() > until:
                late = {r.history.case: r.newest - self._feed.moment for r in self._readers if self._feed}
                raise TimeoutError(f"waited {seconds:.0f} s in vain for {told}; microseconds ahead of the feed: {late}")
            time.sleep(LOOK_S)

    def _look(self) -> None:
        for unit in self._units():
            facts = {"unit": unit.unit, "node": unit.node, **_kept(unit).model_dump()}
            for history in self.histories[unit.diagram]:
                history.events.append({"at": time.time(), "what": "status", **facts})

    def _note(self, event: Facts) -> None:
        for history in self._every():
            history.events.append({"at": time.time(), **event})

    def _post_mortem(self) -> None:
        """The status and the logs, beside the histories."""
        with suppress(BorealisError):
            told = self.cluster.client.status().model_dump_json(indent=1)
            (self.home / f"{self.name}-status.json").write_text(told)
        record = read_record()
        for part in record.parts if record is not None else ():
            with suppress(OSError):
                shutil.copy(part.log, self.home / f"{self.name}-{part.name}.log")


def _kept(part: UnitView | StreamView) -> ProtectionView:
    assert part.protection is not None
    return part.protection


def _histories(one: Deployed) -> list[History]:
    outputs = ALL_GROUPS[one.group].outputs
    return [History(f"{one.name}_{output}", output, SHAPES[output], one.approach, one.guarantee) for output in outputs]


def _part(name: str) -> ClusterProcess:
    record = read_record()
    assert record is not None
    return next(part for part in record.parts if part.name == name)
