"""Chains of replicated units while an input hangs, is cut off, or dies, and nodes are killed in every state: what is
stable comes as if nothing had failed, what was tentative is void in the end, and new results flow.

One case, unless `BOREALIS_CHAOS=full`: then chains of one to four units, and in each state of a copy the death of the
node that the client reads from, of that of the other copy, and of the first unit's. Each case is a chain of its own:
behind a failure, inputs may be elsewhere, also where they hang together. `BOREALIS_CHAOS_SEED=n` makes the same choices
again.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from chains import START_US, Chain, Feed
from city import City, wait_for

from borealis.client.client import Client
from borealis.errors import BorealisError
from borealis.sim.history import check
from borealis.sim.invariants import inconsistent
from borealis.streams.status import QueueStatus, StreamState
from borealis.wire.messages import SchemaOf
from borealis.wire.status import ClusterStatus
from reader import Reader

FULL = os.environ.get("BOREALIS_CHAOS") == "full"
SEED = int(os.environ.get("BOREALIS_CHAOS_SEED", "20240501"))
STATES: tuple[StreamState, ...] = ("stable", "failure", "stabilization")
VICTIMS = ("read", "other", "first")
TRIES = 4  # to kill a copy that corrects itself; at the last, it need not be seen to
WITHOUT_DEATH = [(blow, "") for blow in ("hang", "cut", "entry", "outlasted")]
CASES = (
    [(length, *one) for length in range(1, 5) for one in (*WITHOUT_DEATH, *product(STATES, VICTIMS[: 1 + length]))]
    if FULL
    else [(2, "failure", "read")]
)

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def town(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[City]:
    """The nodes of all tests; or, for all of it, one more."""
    if not FULL:
        yield request.getfixturevalue("city")
        return
    one = City(tmp_path_factory.mktemp("town"))
    one.up(4, fronted=["node4"])
    try:
        yield one
    finally:
        one.down()


class Trial:
    """A chain, fed and read, that is struck."""

    def __init__(self, city: City, client: Client, chain: Chain, home: Path) -> None:
        self.city, self.client, self.chain = city, client, chain
        self.proxy = city.proxies[chain.behind]
        self.dead: list[str] = []
        self.chance = random.Random(f"{SEED} {home.name}")
        self.histories = [chain.history("tentative"), chain.history("stable")]
        file = home / f"{chain.name}.yaml"
        file.write_text(chain.yaml)
        client.deploy(file, **chain.places)
        self.protected()
        stream = f"{chain.name}/out"
        self.readers = [Reader(client, stream, one, tentative=one is self.histories[0]) for one in self.histories]
        self.feed = Feed(client, chain, self.histories)
        self.flows(START_US)

    def note(self, what: str) -> None:
        for history in self.histories:
            history.events.append({"at": time.time(), "what": what})

    # -- what is waited for

    def flows(self, moment: int) -> None:
        wait_for(lambda: all(one.newest > moment for one in self.readers), "stable results that are newer")

    def guesses(self) -> None:
        """More tentative tuples than there were."""
        before = self.readers[0].tentative
        wait_for(lambda: self.readers[0].tentative > before, "tentative results")

    def protected(self) -> None:
        wait_for(lambda: not self._exposed(), "all to be protected")

    def _exposed(self) -> list[str]:
        status = self.status()
        parts = [one for one in (*status.units, *status.streams) if one.diagram == self.chain.name and one.protection]
        return [one.protection.why for one in parts if one.protection.state not in ("protected", "watching")]

    # -- what is there

    def status(self) -> ClusterStatus:
        return self.client.status()

    def becomes(self, node: str, box: str, *states: StreamState) -> StreamState:
        """In which of these states a node's copy of a unit is, by its own word, as soon as it is in one of them."""
        ask = SchemaOf(stream=f"{self.chain.name}/{box}")
        with self.client.peer(self._address(node)) as peer:
            found = lambda: (state := peer.say("stream", ask, QueueStatus).state) in states and state  # noqa: E731
            state: StreamState = wait_for(found, f"{node}'s copy of {box} to be {' or '.join(states)}", every_s=0.0)
        return state

    def _address(self, node: str) -> str:
        return next(one.address for one in self.status().nodes if one.node == node)

    def _input(self) -> str:
        """The node of the input that is behind the proxy at first."""
        streams = self.status().streams
        return next(one.node for one in streams if one.diagram == self.chain.name and one.arrow == "b")

    def victim(self, which: str) -> tuple[str, str]:
        """A node, and the box whose copy there is meant."""
        box = self.chain.boxes[0 if which == "first" else -1]
        unit = next(one for one in self.status().units if one.diagram == self.chain.name and box in one.boxes)
        assert unit.protection is not None
        copies = [unit.node, str(unit.protection.backup)]
        if which == "first":
            return unit.node, box
        reads = lambda: next((node for node in copies if self._address(node) == self.readers[0].address), None)  # noqa: E731
        read: str = wait_for(reads, "a reader that goes from one copy to another to be there")
        return (read if which == "read" else next(node for node in copies if node != read)), box

    # -- what fails

    def strike(self, blow: str, which: str) -> None:
        """One failure, and its end."""
        self.note(f"{blow} {which}")
        getattr(self, f"_{blow}")(which)
        self.proxy.heal()
        self.note("healed")
        for history in self.histories:
            history.moment = self.feed.moment
        self.flows(self.feed.moment)
        self._bring_back()
        self.protected()
        self.flows(self.feed.moment)

    def _bring_back(self) -> None:
        self.proxy.heal()
        while self.dead:
            self.city.bring_back(self.dead.pop())

    def _hang(self, _: str = "") -> None:
        assert self._input() == self.chain.behind, "the input is not behind the proxy any more"
        self.proxy.hang()
        self.guesses()

    def _stable(self, which: str) -> None:
        node, box = self.victim(which)
        self.becomes(node, box, "stable")
        self._kill(node)

    def _failure(self, which: str) -> None:
        self._hang()
        node, box = self.victim(which)
        self.becomes(node, box, "failure")
        time.sleep(self.chance.uniform(0.0, 2.0))
        self._kill(node)
        self.guesses()  # of the other copy

    def _stabilization(self, which: str) -> None:
        for failure_s in range(2, 2 + TRIES):
            self._hang()
            time.sleep(failure_s)
            node, box = self.victim(which)
            self.proxy.heal()
            if failure_s == 1 + TRIES:  # it may take less than a look: then at about that moment
                time.sleep(self.chance.uniform(0.0, 0.15))
            elif self.becomes(node, box, "stabilization", "stable") == "stable":
                self.flows(self.feed.moment)
                continue
            self.note("seen to correct itself" if failure_s <= TRIES else "not seen")
            self._kill(node)
            return

    def _cut(self, _: str) -> None:
        self.proxy.cut()
        wait_for(lambda: self._input() != self.chain.behind, "the input to be taken over")

    def _outlasted(self, _: str) -> None:
        self._hang()
        wait_for(lambda: self._input() != self.chain.behind, "the input to be taken over")

    def _entry(self, _: str) -> None:
        self._kill(self.chain.behind)
        wait_for(lambda: self._input() != self.chain.behind, "the input to be taken over")

    def _kill(self, node: str) -> None:
        self.dead.append(node)
        self.city.kill(node)
        if node in self.city.proxies:  # its machine refuses connections now
            self.city.proxies[node].cut()
        self.note(f"killed {node}")

    # -- the end

    def finish(self) -> list[str]:
        """All that is wrong."""
        self.feed.finish()
        for reader in self.readers:
            reader.ended.wait(60.0)
        given = inconsistent(self.readers[0].given, ended=self.histories[0].ended)
        if self.readers[1].tentative:
            given.append("a reader got tentative tuples that it had not asked for")
        return [fault for history in self.histories for fault in check(history)] + given

    def close(self, home: Path) -> None:
        self._bring_back()
        self.feed.abandon()
        for reader in self.readers:
            reader.stop()
        for history in self.histories:
            history.write(home / f"{history.case}.jsonl")
        with suppress(BorealisError):
            self.client.undeploy(self.chain.name)


@pytest.mark.parametrize(("length", "blow", "which"), CASES, ids=["-".join(map(str, one)) for one in CASES])
def test_what_is_stable_comes_as_if_nothing_had_failed(
    town: City, tmp_path: Path, length: int, blow: str, which: str
) -> None:
    *nodes, behind = sorted(one["node"] for one in town.status()["nodes"])
    with town.connect() as client:
        trial = Trial(town, client, Chain(length, nodes, behind), tmp_path)
        try:
            trial.strike(blow, which)
            faults = trial.finish()
        finally:
            trial.close(tmp_path)
    assert not faults, f"seed {SEED}, {tmp_path}\n" + "\n".join(faults)
