"""The started queries that a node keeps for units it may have to run: who gets one, and when there are new ones. Pure.

A backup that computes nothing holds an *image* of its unit: state, queues, program. Any query with as many lanes can be
dressed in it, so a node needs few of them: its *pool*. Queries in it try images on (*fit* them) by turns, so that their
processes are warm for what they may have to run, and hold its state.

Laws, for every order of events:
1. A query is given to one unit, once, and not while it tries an image on; nor is another given to that image's unit
   meanwhile: two would run its trains.
2. Who waits for a query is served before the pool is filled, in the order of ranks.
3. No query is started that nobody waits for and no image wants: a pool has at most `size` queries, and no more than
   there are images; without any it has one, if it is to have a `spare` one: what is restored from storage has had no
   image. One that is wanted no more is ended after a while.
4. What cannot be started is tried again later and later; who waits for it hears of it at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

UnitKey = tuple[str, str]  # diagram, unit


@dataclass(frozen=True)
class PoolTimings:
    """How long a pool waits, in seconds."""

    refill_s: float = 2.0  # with filling up after a takeover: that has the cores to itself
    unwanted_s: float = 30.0  # until a query is ended that no image wants
    retry_s: float = 1.0  # after one could not be started; twice as long after each further one
    retry_s_max: float = 60.0
    fit_soon_s: float = 1.0  # between the first fittings of an image, while its state comes; the first two are at once
    fit_s: float = 20.0  # between later ones


SOON = 4  # the first fittings
SPARE_LANES = 1  # as units have it if nobody says otherwise
AT_ONCE = 2


@dataclass(frozen=True)
class Start:
    """Start a query with so many lanes."""

    number: int
    lanes: int


@dataclass(frozen=True)
class Fit:
    """Let a query rehearse an image."""

    number: int
    image: UnitKey


@dataclass(frozen=True)
class End:
    """Stop a query."""

    number: int


Work = Start | Fit | End
Given = list[tuple[UnitKey, int]]  # who gets which query
State = Literal["starting", "ready", "fitting"]


@dataclass
class _Image:
    lanes: int
    due: float
    fittings: int = 0
    on: int = 0  # the query that has tried it on


@dataclass
class _Pooled:
    lanes: int
    state: State = "starting"
    unwanted: float | None = None  # since when


@dataclass(frozen=True)
class _Asked:
    rank: int
    serial: int
    lanes: int


@dataclass
class Pool:
    """One piece of work at a time: `next`, and then what became of it."""

    size: int
    timings: PoolTimings = field(default_factory=PoolTimings)
    given: int = 0  # queries so far
    missed: int = 0  # units whose image was here and that found none
    spare: bool = False  # whether it has a query without any image, too
    _images: dict[UnitKey, _Image] = field(default_factory=dict)
    _queries: dict[int, _Pooled] = field(default_factory=dict)
    _waiting: dict[UnitKey, _Asked] = field(default_factory=dict)
    _fitting: UnitKey | None = None  # the image that is being tried on
    _serial: int = 0
    _failures: int = 0  # in a row
    _calm: float = 0.0  # not filled before

    # -- images

    def add(self, image: UnitKey, lanes: int, now: float) -> None:
        """A backup holds this one."""
        self._images[image] = _Image(lanes, now)

    def drop(self, image: UnitKey) -> None:
        """It is gone, or runs."""
        self._images.pop(image, None)

    def fittings(self, image: UnitKey) -> int | None:
        """How often an image was tried on; None if it is not here."""
        found = self._images.get(image)
        return None if found is None else found.fittings

    @property
    def images(self) -> int:
        return len(self._images)

    @property
    def ready(self) -> int:
        """Queries that could be given away, now or in a moment."""
        return sum(query.state != "starting" for query in self._queries.values())

    # -- who gets one

    def ask(self, who: UnitKey, lanes: int, rank: int, now: float) -> Given:
        """A unit shall run. It is an image no more, and waits for a query if none is ready."""
        self._serial += 1
        self._waiting[who] = _Asked(rank, self._serial, lanes)
        given = self._serve(now)
        if who in self._images:
            self._calm = now + self.timings.refill_s
            self.missed += who in self._waiting and who != self._fitting
        self.drop(who)
        return given

    def cancel(self, who: UnitKey) -> None:
        """It waits no more."""
        self._waiting.pop(who, None)

    def _serve(self, now: float) -> Given:
        """Give what is ready to who waits for it."""
        given: Given = []
        for who in self._in_turn():
            lanes, image = self._waiting[who].lanes, self._images.get(who)
            ready = [n for n in self._with(lanes) if self._queries[n].state == "ready"]
            if who == self._fitting or not ready:
                continue
            number = image.on if image is not None and image.on in ready else ready[0]
            del self._queries[number], self._waiting[who]
            self.given += 1
            given.append((who, number))
        return given

    def _in_turn(self) -> list[UnitKey]:
        """Who waits, the next to be served first."""
        return sorted(self._waiting, key=lambda who: (self._waiting[who].rank, self._waiting[who].serial))

    # -- what to do next

    def next(self, now: float) -> Work | None:
        """The most urgent work there is; None if there is none yet (see `wait_s`)."""
        for who in self._in_turn():
            return self._start(self._waiting[who].lanes)
        wanted = self.wanted()
        if now >= self._calm:
            for lanes, count in wanted.items():
                if count > len(self._with(lanes)):
                    return self._start(lanes)
        for lanes in {query.lanes for query in self._queries.values()}:
            for number in self._with(lanes)[wanted.get(lanes, 0) :]:
                query = self._queries[number]
                query.unwanted = now if query.unwanted is None else query.unwanted
                if now - query.unwanted >= self.timings.unwanted_s:
                    del self._queries[number]
                    return End(number)
            for number in self._with(lanes)[: wanted.get(lanes, 0)]:
                self._queries[number].unwanted = None
        return self._next_fit(now)

    def _next_fit(self, now: float) -> Fit | None:
        due = {key: image for key, image in self._images.items() if image.due <= now and self._with(image.lanes)}
        key = min(due, key=lambda key: due[key].due, default=None)
        if key is None:
            return None
        image, able = due[key], self._with(due[key].lanes)
        load = Counter(one.on for one in self._images.values())
        if image.on not in able:
            image.on = min(able, key=lambda number: load[number])
        self._queries[image.on].state, self._fitting = "fitting", key
        return Fit(image.on, key)

    def _start(self, lanes: int) -> Start:
        self._serial += 1
        self._queries[self._serial] = _Pooled(lanes)
        return Start(self._serial, lanes)

    def _with(self, lanes: int) -> list[int]:
        return [number for number, query in self._queries.items() if query.lanes == lanes]

    def wanted(self) -> dict[int, int]:
        """How many queries the pool should have, by lanes: shared out as the images are."""
        images, found = Counter(image.lanes for image in self._images.values()), Counter[int]()
        for _ in range(min(self.size, len(self._images))):
            open_ = [lanes for lanes in images if found[lanes] < images[lanes]]
            found[min(open_, key=lambda lanes: (found[lanes] / images[lanes], -images[lanes], lanes))] += 1
        if self.spare and self.size and not found:
            found[SPARE_LANES] = 1
        return dict(found)

    def wait_s(self, now: float) -> float | None:
        """When `next` may have something new to say, if nothing happens until then."""
        times = [image.due for image in self._images.values() if self._with(image.lanes)]
        wanted = self.wanted()
        if any(count > len(self._with(lanes)) for lanes, count in wanted.items()):
            times.append(self._calm)
        times += [q.unwanted + self.timings.unwanted_s for q in self._queries.values() if q.unwanted is not None]
        return max(0.0, min(times) - now) if times else None

    # -- what became of it

    def started(self, number: int, now: float) -> Given:
        """It is there."""
        self._failures = 0
        self._queries[number].state = "ready"
        return self._serve(now)

    def not_started(self, number: int, now: float) -> UnitKey | None:
        """It could not be: who has waited for it, and is told why."""
        lanes = self._queries.pop(number).lanes
        pause = min(self.timings.retry_s * 2.0**self._failures, self.timings.retry_s_max)
        self._failures, self._calm = self._failures + 1, now + pause
        who = next((who for who in self._in_turn() if self._waiting[who].lanes == lanes), None)
        if who is not None:
            del self._waiting[who]
        return who

    def fitted(self, number: int, image: UnitKey, now: float) -> Given:
        """The image was tried on."""
        self._fitting = None
        found = self._images.get(image)
        if found is not None:
            found.fittings += 1
            pause = self.timings.fit_soon_s if found.fittings < SOON else self.timings.fit_s
            found.due = now + (0.0 if found.fittings < AT_ONCE else pause)
        self._queries[number].state = "ready"
        return self._serve(now)

    def died(self, number: int, now: float, of: UnitKey | None = None) -> Given:
        """A query is no more. If it died of an image that was tried on, others come first."""
        self._queries.pop(number, None)
        if of is not None:
            self._fitting = None
            if (found := self._images.get(of)) is not None:
                found.due = now + self.timings.fit_s
        return self._serve(now)

    def numbers(self) -> list[int]:
        """Of queries that are ready."""
        return [number for number, query in self._queries.items() if query.state == "ready"]


@dataclass(frozen=True)
class Taken:
    """A unit that is taken over: what it reads and gives, and how many tuples it has read so far."""

    reads: Collection[str] = ()
    gives: Collection[str] = ()
    rows: int = 0


def in_order(units: Mapping[UnitKey, Taken]) -> list[UnitKey]:
    """In which order units get queries: first those that others of them wait for, then those with most to do.

    A unit whose upstream does not run has nothing new to read, and of two that have, the busier has more behind it.

    >>> last, first, busy = ("d", "u3"), ("d", "u1"), ("d", "u2")
    >>> in_order({last: Taken(["b"], [], 9), first: Taken(["a"], ["b"], 9), busy: Taken(["x"], ["y"], 99)})
    [('d', 'u2'), ('d', 'u1'), ('d', 'u3')]
    """
    depths: dict[UnitKey, int] = {}

    def depth(key: UnitKey) -> int:
        if key not in depths:
            above = [k for k, one in units.items() if k[0] == key[0] and set(one.gives) & set(units[key].reads)]
            depths[key] = max((depth(k) + 1 for k in above), default=0)
        return depths[key]

    return sorted(units, key=lambda key: (depth(key), -units[key].rows, key))
