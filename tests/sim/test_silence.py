"""For how long a reader hears nothing when a node dies, in simulated time: what an arrangement costs, not a machine.

Three streams meet in a unit that reads them by time, in two copies that both answer; rows flow all the time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from simulated import RETRIES, SOON_S, Simulated

from borealis.client.publisher import Publisher, Publishing
from borealis.client.subscriber import ReadOptions, Subscription
from borealis.sim.network import address_of
from borealis.sim.programs import Programs

pytestmark = pytest.mark.spark
INPUTS = ("a", "b", "c")
DIAGRAM = """\
borealis: 1
name: meeting
inputs:
  a: {columns: 'ts TIMESTAMP, n BIGINT', time: ts}
  b: {columns: 'ts TIMESTAMP, n BIGINT', time: ts}
  c: {columns: 'ts TIMESTAMP, n BIGINT', time: ts}
boxes:
  all: {union: {from: [a, b, c]}}
outputs:
  out: all
"""
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
TICK_S = 0.04  # between batches
ROWS = 2  # of each
BEFORE_S, AFTER_S = 0.5, 4.0  # around a death; a new backup is there by then
USUAL_S = 0.1  # two ticks; trains and messages take a hundredth
SWITCH_S = 0.12  # from a copy that says nothing to the other: what is usual is in it
SILENCE_S = 0.25  # three pings that are refused, an answer of the coordinator, and what is usual


class Meeting:
    """The inputs are on node3 and their backups on node2, as is the copy of the unit that node1 runs."""

    def __init__(self, programs: Programs, ha: str = "replicas") -> None:
        self.town = town = Simulated(programs, 4)
        place = {"all": "node1"} | dict.fromkeys(INPUTS, "node3")
        town.deploy(DIAGRAM, ha=ha, merge="time", bucket="10 ms", place=place, backup={"u1": "node2"})
        assert [town.unit(f"in-{one}").backup for one in INPUTS] == ["node2"] * 3
        self.came: list[float] = []
        self._stopped = False
        town._client.start("feed", self._feed)
        town._client.start("read", self._read)
        town.live(1.0 + BEFORE_S)

    def _feed(self) -> None:
        machine, town = self.town._client.machine, self.town
        publishers = [
            Publisher(town._line, f"meeting/{one}", Publishing(name=one, retries=RETRIES), machine=machine)
            for one in INPUTS
        ]
        number, clock = 0, machine.clock
        while not self._stopped:
            due = clock.now() + TICK_S
            times = int(clock.time() * 1e6) + np.arange(ROWS)
            rows = [pa.array(times).cast(SCHEMA.field("ts").type), pa.array(np.arange(number, number + ROWS))]
            for publisher in publishers:
                publisher.send_batch(pa.record_batch(rows, SCHEMA).cast(publisher.schema))
            number += ROWS
            clock.sleep(max(0.0, due - clock.now()))

    def _read(self) -> None:
        options = ReadOptions(start="oldest", retries=RETRIES, first_s=SOON_S)
        self.subscription = Subscription(self.town._line, "meeting/out", options, machine=self.town._client.machine)
        for section in self.subscription.sections():
            if len(section):
                self.came.append(self.town.kernel.now)
            if self._stopped:
                return

    def silence(self, seconds: float) -> float:
        """The longest in so many seconds that pass now."""
        begin = self.town.kernel.now
        self.town.live(seconds)
        at = [begin, *(one for one in self.came if one >= begin), self.town.kernel.now]
        return float(np.diff(at).max())

    @property
    def read_at(self) -> str:
        """The node that the reader reads from; empty while it goes from one to another."""
        address = self.subscription.address
        return next((host.name for host in self.town.cluster.nodes.values() if address_of(host.name) == address), "")

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped = True
        self.town.live(1.0)
        self.town.__exit__(*error)  # type: ignore[arg-type]


@pytest.fixture
def meeting(programs: Programs) -> Iterator[Meeting]:
    with Meeting(programs) as made:
        assert made.silence(BEFORE_S) < USUAL_S
        yield made


@pytest.mark.parametrize("node", ["node1", "node2", "node3"])
def test_the_death_of_any_node_is_a_short_silence(meeting: Meeting, node: str) -> None:
    """Of a copy, of the other with the backups of the inputs, of the inputs themselves; and no other one follows."""
    meeting.town.kill(node)
    assert meeting.silence(AFTER_S) < SILENCE_S
    meeting.town.settle()


def test_a_new_backup_that_takes_long_to_take_everything_silences_nobody(meeting: Meeting) -> None:
    """It must have all that inputs hold before it can take over, but they need not wait for it meanwhile."""
    town = meeting.town
    town.kill("node2")
    inputs = [f"in-{one}" for one in INPUTS]
    heirs = lambda: [node for one in inputs for node, state in town.where(one).items() if state == "standby"]  # noqa: E731
    town.until(lambda: bool(heirs()), each_s=0.001)  # of the first of them, as yet empty
    heir = heirs()[0]
    process = town.host(heir).process
    assert process is not None
    process.pause()
    assert meeting.silence(1.5) < USUAL_S
    process.resume()
    assert meeting.silence(1.5) < SILENCE_S
    town.settle()


def test_a_copy_that_freezes_is_left_at_once(meeting: Meeting) -> None:
    """As one that was killed seems to: until its memory is given back, its connections stand. And it is not missed."""
    town, read = meeting.town, meeting.read_at
    process = town.host(read).process
    assert process is not None
    process.pause()
    assert meeting.silence(0.6) < SWITCH_S
    assert meeting.read_at not in ("", read)
    process.resume()
    assert meeting.silence(1.5) < SILENCE_S
    assert meeting.read_at not in ("", read)
    town.settle()


def test_a_copy_that_is_cut_off_from_a_stream_is_left_at_once(meeting: Meeting) -> None:
    town, read = meeting.town, meeting.read_at
    town.cluster.wires.cut((read,), ("node3",))
    assert meeting.silence(1.0) < SWITCH_S
    assert meeting.read_at not in ("", read)
    town.cluster.wires.heal()
    assert meeting.silence(1.5) < SILENCE_S
    town.settle()


def test_nobody_moves_without_a_failure(meeting: Meeting) -> None:
    before = meeting.subscription.reconnects
    assert meeting.silence(10.0) < USUAL_S
    assert meeting.subscription.reconnects == before
