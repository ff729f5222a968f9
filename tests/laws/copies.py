"""One copy of a unit in the model of the protocols: reads, computes, commits as `node.unit` and `node.feeds` do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from borealis.entry.admission import Cursor
from borealis.streams.id_gaps import JUMP, above, is_jump
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.streams.section import Place, Section, section
from borealis.trains.commit_point import CommitPoint
from borealis.trains.merge_order import Determinant
from borealis.trains.merging import Replay
from borealis.tuples import FIRST_TIME, LAST_TIME

if TYPE_CHECKING:
    from protocol import World

SCHEMA = pa.schema([("v", pa.string())])
WINDOW = 4  # in the same unit as the tuples' times
EACH, SUMS = "each", "sums"  # the unit's outlets: all tuples as they are, and what was in each window
State = dict[int, tuple[str, ...]]  # what is in each window that is open, by its end
Item = tuple[int, str | None]  # a tuple (time, value), or a boundary (time, None)


def twin_of(reader: str) -> str:
    """The other of the two names under which an actively protected unit and its backup read in this model."""
    return reader.removesuffix(".twin") if reader.endswith(".twin") else f"{reader}.twin"


def append(queue: OutputQueue, items: Sequence[Item]) -> None:
    """Let tuples and boundaries follow in a queue."""
    rows = [(time, value) for time, value in items if value is not None]
    at, bounds, seen = [], [], 0
    for time, value in items:
        seen += value is not None
        if value is None:
            at.append(queue.next_id + seen)
            bounds.append(time)
    values = pa.record_batch([pa.array([value for _, value in rows], pa.string())], schema=SCHEMA)
    times = np.array([time for time, _ in rows], np.int64)
    where, what = np.array(at, np.int64), np.array(bounds, np.int64)
    part = section(queue.next_id, values, times, where, what).above(queue.boundary)
    if len(part) or len(part.bound):
        queue.append(replace(part, standing=queue.boundary))


def items_of(part: Section) -> list[tuple[int, Item]]:
    """Tuples and boundaries in their order, each with the id behind it."""
    values, found = part.rows["v"].to_pylist(), list[tuple[int, Item]]()
    bounds = deque(zip(part.at.tolist(), part.bound.tolist(), strict=True))
    for number in range(part.first, part.stop + 1):
        while bounds and bounds[0][0] == number:
            found.append((number, (int(bounds.popleft()[1]), None)))
        if number < part.stop:
            index = number - part.first
            found.append((number + 1, (int(part.time[index]), values[index])))
    return found


def needed(outputs: Mapping[str, int], inputs: Sequence[str]) -> dict[str, int | None]:
    """As `ha.retention.retention_horizon` has it for such a unit."""
    return dict.fromkeys(inputs, outputs[SUMS] - WINDOW)


@dataclass
class Unit:
    """One copy of the unit: what it has computed, and where it stands."""

    world: World
    reader: str
    cursors: dict[str, Cursor] = field(init=False)
    queues: dict[str, OutputQueue] = field(init=False)
    state: State = field(default_factory=dict)
    train: int = 0
    passed: tuple[Determinant, ...] = ()
    silent: bool = False  # the last train was
    deferred: bool = False
    runs: bool = False
    jumps: bool = False
    following: bool = False
    replays: deque[Replay] = field(default_factory=deque)
    acknowledged: dict[str, int] = field(default_factory=dict)
    watch: Callable[[CommitPoint, State], None] | None = None

    def __post_init__(self) -> None:
        self.cursors = {name: Cursor() for name in self.world.inputs}
        limits, readers = QueueLimits(keep_bytes=0), [r.name for r in self.world.readers]
        self.queues = {n: OutputQueue(n, SCHEMA, limits, readers=readers, epoch="e1") for n in (EACH, SUMS)}

    def step(self) -> CommitPoint:
        places = {name: (queue.next_id, queue.boundary) for name, queue in self.queues.items()}
        return CommitPoint(self.train, 0, dict(self.cursors), places, self.passed, self.world.now, self.silent)

    def start(self) -> None:
        """The feeds subscribe: StreamFeed.sections, _from_queue."""
        self.runs = True
        for name, queue in self.world.upstream.items():
            at = self.cursors[name].position
            self.acknowledged[name] = min(self.acknowledged.get(name, 0), at) if self.deferred else at
            queue.register(self.reader, at)
            queue.ack(self.reader, 1, self.acknowledged[name])

    def acknowledge(self, name: str, position: int) -> None:
        self.acknowledged[name] = max(position, self.acknowledged.get(name, 0))
        self.world.acks.append((name, self.reader, self.acknowledged[name]))

    def resume(self, begin: CommitPoint, replays: Sequence[Replay] = (), *, jump: bool = False) -> None:
        self.jumps = jump
        self.cursors, self.train = dict(begin.inputs), begin.train
        self.replays.extend(replays)
        self.following = False

    def load(self, step: CommitPoint, state: State) -> None:
        self.state, self.cursors, self.train = dict(state), dict(step.inputs), step.train

    def run_train(self, rng: Random) -> bool:
        """Make a train of what is there, and commit it."""
        at = {name: c.position for name, c in self.cursors.items()}
        if self.replays or self.following:
            taken, silent = self._by_script(rng)
            free = False
        else:
            taken, silent, free = self._by_arrival(rng), False, True
        if taken:
            name, behind, (_, value) = taken[0]
            self._commit(taken, silent=silent, free=free, hops=is_jump(at[name], behind - (value is not None)))
        return bool(taken)

    def _by_arrival(self, rng: Random) -> list[tuple[str, int, Item]]:
        places = {name: (c.position, c.boundary) for name, c in self.cursors.items()}
        taken: list[tuple[str, int, Item]] = []
        for _ in range(rng.randint(1, 4)):
            name = rng.choice(self.world.inputs)
            found = self._there(name, places[name], begins=not taken)[: rng.randint(1, 4)]
            taken += [(name, *event) for event in found]
            places[name] = behind(places[name], found)
        return taken

    def _by_script(self, rng: Random) -> tuple[list[tuple[str, int, Item]], bool]:
        """A train does not go beyond a replay, and may have to stop before its end."""
        taken: list[tuple[str, int, Item]] = []
        silent, room = False, rng.randint(1, 6)
        places = {name: (c.position, c.boundary) for name, c in self.cursors.items()}
        while self.replays and not taken:
            replay, left = self.replays[0], deque(self.replays[0].order)
            silent = replay.silent
            while left:
                name, *to = left[0]
                there = self._there(name, places[name], begins=not taken)
                found = [e for e in there if behind(places[name], [e]) <= tuple(to)][:room]
                taken += [(name, *event) for event in found]
                room -= len(found)
                places[name] = behind(places[name], found)
                if places[name] < tuple(to):
                    break
                left.popleft()
            self.replays.popleft()
            if left:
                self.replays.appendleft(Replay(tuple(left), replay.silent))
                break
        return taken, silent

    def _there(self, name: str, place: Place, *, begins: bool) -> list[tuple[int, Item]]:
        """What follows; nothing behind a jump, unless a train begins there."""
        queue = self.world.upstream[name]
        if self.world.approach == "amnesia":  # a gap
            place = (max(place[0], queue.first_id), place[1])
        part = queue.read(*place, 0)  # raises a GoneError where something is missing
        return [] if part is None or (is_jump(place[0], part.first) and not begins) else items_of(part)

    def _commit(self, taken: list[tuple[str, int, Item]], *, silent: bool, free: bool, hops: bool) -> None:
        """UnitRun._commit: queues, then whoever watches, then the acknowledgements that nobody defers."""
        if self.jumps and free:
            self.jumps = False
            for queue in self.queues.values():
                queue.jump_to(beyond(queue, queue.next_id))
        elif hops and not silent:
            self.world.pass_on(self.queues.values())
        self.passed = _passed(taken, {name: (c.position, c.boundary) for name, c in self.cursors.items()})
        before, outputs = dict(self.state), self._compute(taken)
        for name, queue in self.queues.items():
            if not silent:
                append(queue, outputs[name])
        self.train, self.silent = self.train + 1, silent
        changed = {
            end: self.state.get(end, ()) for end in before | self.state if before.get(end) != self.state.get(end)
        }
        if self.watch is not None:
            self.watch(self.step(), changed)
        for name, cursor in self.cursors.items():
            if not self.deferred:
                self.acknowledge(name, cursor.position)

    def _compute(self, taken: list[tuple[str, int, Item]]) -> dict[str, list[Item]]:
        """What the unit is: a pure function of the order of its input."""
        found: dict[str, list[Item]] = {EACH: [], SUMS: []}
        for name, behind, (time, value) in taken:
            cursor = self.cursors[name]
            if value is not None:
                self.cursors[name] = replace(cursor, position=behind, newest=max(cursor.newest, time))
                found[EACH].append((time, value))
                end = (time // WINDOW + 1) * WINDOW
                self.state[end] = (*self.state.get(end, ()), value)
                continue
            self.cursors[name] = replace(cursor, position=behind, boundary=time, ended=time == LAST_TIME)
            least = min(c.boundary for c in self.cursors.values())
            for end in sorted(end for end in self.state if end <= least):
                found[SUMS].append((end - 1, f"{end}:" + " ".join(self.state.pop(end))))
            for items in found.values():
                items.append((least, None))
        return {name: _rising(items) for name, items in found.items()}


def beyond(queue: OutputQueue, last: int) -> int:
    """Where ids go on after a takeover: not where they went on after an earlier one that this copy may not know of."""
    return above(max(last, (queue.incarnation - 1) * JUMP - 1))


def behind(place: Place, events: Sequence[tuple[int, Item]]) -> Place:
    for behind, (time, value) in events:
        place = (behind, place[1] if value is not None else time)
    return place


def _passed(taken: list[tuple[str, int, Item]], places: dict[str, Place]) -> tuple[Determinant, ...]:
    """input_manager._passed: the places where the merge went from one input to another."""
    found: list[Determinant] = []
    for name, *event in taken:
        places[name] = behind(places[name], [tuple(event)])  # type: ignore[list-item]
        if found and found[-1][0] == name:
            found.pop()
        found.append((name, *places[name]))
    return tuple(found)


def _rising(items: Sequence[Item]) -> list[Item]:
    """Without the boundaries that say nothing new."""
    found, highest = list[Item](), FIRST_TIME
    for time, value in items:
        if value is None and time <= highest:
            continue
        highest = time if value is None else highest
        found.append((time, value))
    return found
