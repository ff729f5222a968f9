"""What happens in a simulated run: a diagram, its protection, and a schedule of faults; all drawn from one seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from borealis.diagram.cut import cut
from borealis.diagram.durations import parse
from borealis.diagram.protection import BACKUPS_LEAST, CHECKPOINTS, TIMED, Protection
from borealis.diagram.spec import Spec
from borealis.errors import DiagramError
from borealis.sim.diagrams import DIAGRAMS, is_allowed, spec_of, ways_of

KINDS = ("kill", "cut", "pause", "disk", "move")
COORDINATOR = "coordinator"
STORAGE = "storage"
STORED = 0.3  # of the passive standbys that are drawn: they are in storage instead
SPREAD = 0.3  # of all runs: units move by themselves soon after a failure
SPREAD_CALM_S = (0.5, 1.0, 2.0)  # so soon
SPREAD_START_S = (0.08, 0.08, 0.5, 1.5)  # until a query runs, of those runs
EXCHANGE_S = 1.0  # so long before something else happens a backup moves, at most
LEAN = 0.7  # of all runs: a queue's default is to keep more than comes in any of them
AIM_S = 1.0  # within which there is a batch
SUCCESSOR_S = 5.0  # within which a node is to have taken over, and to have a backup
QUIET_S = 1.0  # before the first fault, everything runs
DELAYS = ("0.5 s", "1 s", "2 s")  # within which there is an answer
SILENT_S = (0.3, 4.0)  # for how long an input may be
KEEP_TIME = "3 seconds"  # longer than a publisher pauses by itself: all would be given up by turns
SPARE, APART, TWO_AT_ONCE = 0.7, 0.5, 0.7  # of runs with more than two copies: see `_peopled`
SEVERAL = 0.3  # of the passive standbys that are drawn: they have more than one backup
BUCKETS = ("100 ms", "100 ms", "10 ms", "250 ms")  # a batch is some 80 ms


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at a moment, and is right again later."""

    at: float  # seconds after everything runs
    until: float
    what: str  # see FAULTS
    nodes: tuple[str, ...]
    amount: float = 0.0  # what it means depends on the fault; of a kill: so long after the next batch is published

    def __str__(self) -> str:
        how = f" ({self.amount:.3g})" if self.amount else ""
        return f"{self.at:6.3f} - {self.until:6.3f} s  {self.what} {', '.join(self.nodes)}{how}"


# what can go wrong, by kind, and how often each is drawn
FAULTS: dict[str, dict[str, int]] = {
    "kill": {
        "kill": 6,
        "crash": 2,
        "wipe": 1,
        "kill coordinator": 1,
        "kill twice": 2,
        "kill successor": 2,
        "kill busy": 2,
    },
    "cut": {"cut off": 4, "cut one way": 1, "break connections": 2, "cut pair": 2},
    "pause": {"pause": 3, "blink": 2, "slow": 2, "slow successor": 1},
    "disk": {"full disk": 2, "failing disk": 1, "flipped bit": 1, "power cut": 1},
    "move": {"move": 1},  # nothing goes wrong: a unit moves to that node
}


@dataclass(frozen=True)
class Weather:
    """What is usual in a run: how long things take, and how often threads are held up."""

    preempt: float = 0.02  # how often, where a thread takes a lock or wakes another
    stall_s: float = 0.002  # for how long, at most
    message_s: float = 0.000_8  # under way, on average
    late: float = 0.01  # of the messages that take longer, by up to
    late_s: float = 0.03
    sync_s: float = 0.002  # to make a file survive a power cut
    train_s: float = 0.003  # from the hand-over of a small train to its commit
    start_s: float = 0.08  # until a query runs, with a warm JVM
    batch_s: float = 0.5  # between two batches of an input

    @classmethod
    def drawn(cls, seed: int) -> Weather:
        """Mostly as measured; now and then something is far from that."""
        rng = Random(f"weather {seed}")
        return cls(
            preempt=rng.choice((0.02, 0.02, 0.0, 0.1)),
            stall_s=rng.choice((0.002, 0.002, 0.0, 0.02)),
            message_s=rng.choice((0.000_8, 0.000_8, 0.000_1, 0.005, 0.03)),
            late=rng.choice((0.01, 0.01, 0.1)),
            late_s=rng.choice((0.03, 0.03, 0.3)),
            sync_s=rng.choice((0.002, 0.002, 0.0, 0.03)),
            train_s=rng.choice((0.003, 0.003, 0.001, 0.02, 0.1)),
            batch_s=rng.choice((1.0, 1.0, 0.5, 0.3)),
        )


@dataclass(frozen=True)
class Options:
    """What a run is drawn from; None or empty: anything."""

    diagram: str | None = None  # the name of one that is built in, or the text of a file
    approach: str | None = None
    guarantee: str | None = None
    kinds: Sequence[str] = KINDS  # of faults, or names of single ones
    seconds: float = 15.0  # from the first batch to the last
    nodes: int = 3
    merge: str | None = None
    delay: str | None = None  # a time, or `none`
    replicas: int | None = None
    checkpoint: str | None = None
    backups: int | None = None
    spread: bool | None = None  # units move by themselves soon after a failure


@dataclass(frozen=True)
class Plan:
    """One run."""

    seed: int
    diagram: str  # its name, or the text of its file
    cuts: tuple[str, ...]
    approach: str
    guarantee: str
    durable: bool
    nodes: tuple[str, ...]
    seconds: float
    faults: tuple[Fault, ...]
    # queues keep nothing that no reader waits for, and little in memory; clients are readers that they know by name
    lean: bool = False
    bucket: str | None = None  # several streams are read by time, by such buckets; None: as they arrive
    delay: tuple[str, ...] | None = None  # an answer comes in time: within what, what is done meanwhile, and where
    when_full: str | None = None  # with a delay: what is done with what is kept for longer than that; None: it is kept
    replicas: int | None = None  # copies that answer; None: the usual two, or none does
    place: tuple[tuple[str, str], ...] = ()  # inputs that are put on a node
    checkpoint: str | None = None  # when a passive standby is sent what changed; None: as usual, or it is not
    calm_s: float | None = None  # so soon after a failure units move by themselves; None: as usual, which is late
    start_s: float | None = None  # until a query runs; None: as usual
    backups: int | None = None  # of a passive standby, where there is more than one

    @property
    def protection(self) -> Protection:
        merge = "time" if self.bucket is not None or self.approach == "replicas" else "arrival"
        words = ("delay", "during_failure", "during_stabilization", "reconcile")
        delay: Any = dict(zip(words, self.delay or (), strict=False))
        if self.when_full is not None:
            delay |= {"keep_time": KEEP_TIME, "when_full": self.when_full}
        how: Any = {"merge": merge, "bucket": self.bucket, "replicas": self.replicas} | delay
        how |= {"checkpoint": self.checkpoint, "backups": self.backups}
        return Protection(ha=self.approach, guarantee=self.guarantee, **how)

    @property
    def spec(self) -> Spec:
        """The diagram as it is deployed."""
        return spec_of(self.diagram, self.durable)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def healed_at(self) -> float:
        """When the last fault is over; it may have waited for a batch."""
        return max((fault.until + AIM_S for fault in self.faults), default=0.0)

    def only(self, numbers: Sequence[int]) -> Plan:
        """The same with fewer faults."""
        return replace(self, faults=tuple(f for i, f in enumerate(self.faults) if i in numbers))

    def __str__(self) -> str:
        how = (
            f"{self.approach}, {self.guarantee}"
            + (f", {self.checkpoint}" if self.checkpoint not in (None, "interval") else "")
            + (f", {self.replicas} copies" if self.replicas else "")
            + (f", {self.backups} backups" if self.backups else "")
            + (f", by time ({self.bucket})" if self.bucket else "")
            + (f", within {' '.join(self.delay)}" if self.delay else "")
            + (f", {self.when_full} when that is over" if self.when_full else "")
            + (", durable" if self.durable else "")
            + (", lean" if self.lean else "")
            + (f", spread again after {self.calm_s:g} s" if self.calm_s is not None else "")
        )
        where = f"cut at {', '.join(self.cuts)}" if self.cuts else "one unit"
        return f"seed {self.seed}: {self.name} ({where}), {how}, {len(self.nodes)} nodes, {len(self.faults)} faults"


def drawn_faults(rng: Random, options: Options, nodes: Sequence[str]) -> tuple[Fault, ...]:
    """A schedule of faults in the first half of a run, in the order of their moments."""
    names = {what: weight for kind in options.kinds for what, weight in FAULTS.get(kind, {kind: 1}).items()}
    if not names:
        return ()
    whats, weights = list(names), list(names.values())
    last = QUIET_S + options.seconds * 0.4
    found: list[Fault] = []
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        what = rng.choices(whats, weights)[0]
        at = rng.uniform(QUIET_S, last)
        found += _fault(rng, what, round(at, 3), nodes)
    return tuple(sorted(found, key=lambda fault: fault.at))


def _two_at_once(rng: Random, at: float, nodes: Sequence[str]) -> Fault:
    until = round(at + rng.uniform(0.05, rng.choice((1.0, 3.0, 20.0))), 3)
    return Fault(at, until, "kill", tuple(rng.sample(list(nodes), 2)), _aim(rng))


def _aim(rng: Random) -> float:
    """Most kills come while something is under way."""
    return round(rng.choice((0.004, 0.01, 0.04)) * rng.random(), 4) if rng.random() < 0.7 else 0.0


def _fault(rng: Random, what: str, at: float, nodes: Sequence[str]) -> list[Fault]:
    def lasts(least: float, most: float) -> float:
        return round(at + rng.uniform(least, most), 3)

    node = rng.choice(list(nodes))
    match what:
        case "kill" | "crash" | "wipe":
            return [Fault(at, lasts(0.05, 3.0), what, (node,), _aim(rng))]
        case "kill busy":  # in the middle of what it was given for a while
            slowed = Fault(at, round(at + 1.5, 3), "slow", (node,), float(rng.choice((10, 50))))
            then = round(at + rng.uniform(0.2, 1.0), 3)
            return [slowed, Fault(then, round(then + rng.uniform(0.05, 1.0), 3), "kill", (node,), _aim(rng))]
        case "kill successor":  # a node that took over, at the moment when it has a backup again
            first = Fault(at, lasts(0.05, 0.5), "kill", (node,), _aim(rng))
            return [first, Fault(at, round(at + SUCCESSOR_S, 3), what, (), round(rng.uniform(0.0, 0.1), 3))]
        case "slow successor":  # the same, and it is long in doing again what the dead one did
            others = [Fault(at, round(at + 4.0, 3), "slow", (name,), 50.0) for name in nodes if name != node]
            return [*others, *_fault(rng, "kill successor", at, [node])]
        case "kill twice":  # the node that takes over dies as well, or the one that has just come back
            then = round(at + rng.choice((0.01, 0.1, 0.4, 1.0)) * rng.uniform(0.5, 1.5), 3)
            other = rng.choice(list(nodes))
            return [Fault(at, lasts(0.05, 0.5), "kill", (node,)), Fault(then, then + 1.0, "kill", (other,))]
        case "kill coordinator":
            return [Fault(at, lasts(0.1, 2.0), "kill", (COORDINATOR,))]
        case "cut off" | "cut one way":
            count = rng.randint(1, max(1, len(nodes) - 1))
            return [Fault(at, lasts(0.1, 4.0), what, tuple(sorted(rng.sample(list(nodes), count))))]
        case "cut pair":
            return [Fault(at, lasts(0.1, 4.0), what, tuple(rng.sample([*nodes, COORDINATOR], 2)))]
        case "break connections":
            return [Fault(at, at, what, (), round(rng.uniform(0.1, 1.0), 2))]
        case "pause":
            return [Fault(at, lasts(0.5, 6.0), what, (node,))]
        case "blink":
            return [Fault(at, lasts(0.02, 0.5), "pause", (node,))]
        case "slow":
            return [Fault(at, lasts(0.5, 4.0), what, (node,), float(rng.choice((3, 10, 50))))]
        case "full disk":
            full = (rng.choice([*nodes, COORDINATOR]),)
            return [Fault(at, lasts(0.3, 3.0), what, full, float(rng.choice((0, rng.randint(1, 3000)))))]
        case "move":
            return [Fault(at, at, what, (node,))]
        case "failing disk":
            return [Fault(at, at, what, (node,), float(rng.randint(1, 3)))]
        case "power cut":
            return [Fault(at, lasts(0.1, 2.0), what, (*nodes, COORDINATOR), _aim(rng))]
        case "flipped bit":  # found when the node comes back
            return [Fault(at, lasts(0.1, 1.0), what, (node,))]
    raise ValueError(what)


def drawn_plan(seed: int, options: Options) -> Plan:
    """The run of a seed: the same on every machine."""
    rng = Random(f"plan {seed}")
    nodes = tuple(f"node{n + 1}" for n in range(options.nodes))
    asked = "passive" if options.approach == "storage" else options.approach  # what the one can do, the other can
    names = [options.diagram] if options.diagram is not None else list(DIAGRAMS)
    ways = [
        (name, cuts, approach, guarantee)
        for name in names
        for cuts, approach, guarantee in ways_of(name)
        if approach != "none" and asked in (None, approach) and options.guarantee in (None, guarantee)
        if options.checkpoint is None or approach in TIMED
    ]
    if options.approach == "replicas":  # they are an active standby that answers as well
        ways = [way for way in _replicable(names) if options.guarantee in (None, way[3])]
    if not ways:
        which = "no diagram" if options.diagram is None else f"diagram '{spec_of(options.diagram).name}' cannot"
        words = (options.approach, options.guarantee, options.checkpoint)
        how = ", ".join(word for word in words if word) or "any approach"
        can = "can be" if options.diagram is None else "be"
        raise DiagramError(f"{which} {can} protected with {how}", hint="`borealis explain --ha` says why")
    # each approach and guarantee alike, and for it each diagram, however many ways there are to cut it
    kind = rng.choice(list(dict.fromkeys(way[2:] for way in ways)))
    drawn = rng.choice(list(dict.fromkeys(way[0] for way in ways if way[2:] == kind)))
    name, cuts, approach, guarantee = rng.choice([way for way in ways if (way[0], *way[2:]) == (drawn, *kind)])
    durable = rng.random() < 0.5
    faults = drawn_faults(rng, options, nodes)
    lean = rng.random() < LEAN
    merge = options.merge
    if approach == "replicas" or _is_replicated(Random(f"replicas {seed}"), (name, cuts, approach, guarantee), options):
        approach, merge = "replicas", "time"
    stored = options.approach == "storage" or Random(f"stored {seed}").random() < STORED
    if approach == "passive" and options.approach != "passive" and stored:
        approach = "storage"
    if approach == "storage":
        faults = _stored(Random(f"storage {seed}"), faults, nodes)
    bucket = _bucket(Random(f"bucket {seed}"), spec_of(name), cuts, merge, ha=approach, guarantee=guarantee)
    plan = Plan(seed, name, cuts, approach, guarantee, durable, nodes, options.seconds, faults, lean, bucket)
    if approach in TIMED:
        drawn_when = Random(f"checkpoint {seed}").choice(CHECKPOINTS)
        plan = replace(plan, checkpoint=options.checkpoint or drawn_when)
    plan = _spreading(Random(f"spread {seed}"), _bounded(Random(f"delay {seed}"), plan, options), options)
    if approach == "replicas":
        return _multiplied(Random(f"copies {seed}"), plan, options)
    return _with_backups(Random(f"backups {seed}"), plan, options) if approach in TIMED else plan


def _stored(rng: Random, faults: Sequence[Fault], nodes: Sequence[str]) -> tuple[Fault, ...]:
    """The faults where units are in storage: that may be full, or fail, as any disk; and everything dies at once."""
    found = list[Fault]()
    for one in faults:
        if one.what in ("full disk", "failing disk") and rng.random() < 0.7:
            found.append(replace(one, nodes=(STORAGE,)))
        elif one.what in ("kill", "crash") and rng.random() < 0.3:
            found.append(replace(one, what="power cut", nodes=(*nodes, COORDINATOR)))
        else:
            found.append(one)
    return tuple(found)


def _replicable(names: Sequence[str]) -> list[tuple[str, tuple[str, ...], str, str]]:
    """All ways to run diagrams in replicas."""
    ways = [(name, *way) for name in names for way in ways_of(name)]
    return [
        (name, cuts, "replicas", guarantee)
        for name, cuts, approach, guarantee in ways
        if (approach, guarantee) == ("active", "precise") and is_allowed(spec_of(name), cuts, ha="replicas")
    ]


def _is_replicated(rng: Random, way: tuple[str, tuple[str, ...], str, str], options: Options) -> bool:
    """Whether an active standby that was drawn answers as well."""
    name, cuts, approach, guarantee = way
    if (approach, guarantee) != ("active", "precise") or options.approach is not None or options.merge == "arrival":
        return False
    return rng.random() < 0.5 and is_allowed(spec_of(name), cuts, ha="replicas")


def _bounded(rng: Random, plan: Plan, options: Options) -> Plan:
    """The plan with a bound on delay, if its units read several streams by time; then inputs are silent for a while."""
    delay = options.delay or rng.choice(("none", *DELAYS))
    if plan.bucket is None or delay == "none" or parse(delay) < 2 * parse(plan.bucket):
        return plan
    policies: tuple[str, ...] = rng.choice(("process", "delay")), rng.choice(("process", "delay", "suspend"))
    if plan.approach == "replicas":
        policies = (*policies, Random(f"reconcile {plan.seed}").choice(("local", "partner")))
    when_full = (
        Random(f"keep {plan.seed}").choice((None, "wait", "drop-oldest")) if plan.approach == "amnesia" else None
    )
    bounded = replace(plan, delay=(delay, *policies), when_full=when_full)
    how = {name: value for name, value in bounded.protection.plain().items() if name != "name"}
    if not is_allowed(plan.spec, plan.cuts, **how):
        return plan
    last, silences = QUIET_S + options.seconds * 0.4, []
    for _ in range(rng.choice((0, 1, 1, 2)) if options.kinds else 0):
        at = round(rng.uniform(QUIET_S, last), 3)
        name = rng.choice([one.name for one in plan.spec.inputs])
        silences.append(Fault(at, round(at + rng.uniform(*SILENT_S), 3), "silence", (name,)))
    return replace(bounded, faults=tuple(sorted([*plan.faults, *silences], key=lambda fault: fault.at)))


def _spreading(rng: Random, plan: Plan, options: Options) -> Plan:
    """The plan with units that move by themselves soon, and queries that may take their time to start."""
    calm_s, start_s = rng.choice(SPREAD_CALM_S), rng.choice(SPREAD_START_S)
    if not (rng.random() < SPREAD if options.spread is None else options.spread):
        return plan
    faults = list(plan.faults)
    for other in plan.faults if plan.approach in TIMED and "move" in options.kinds else ():
        if rng.random() < 0.5:
            at = round(max(QUIET_S, other.at - EXCHANGE_S * rng.random()), 3)
            faults.append(Fault(at, at, "exchange", (), round(rng.random(), 3)))
    faults.sort(key=lambda fault: fault.at)
    return replace(plan, calm_s=calm_s, start_s=start_s, faults=tuple(faults))


def _multiplied(rng: Random, plan: Plan, options: Options) -> Plan:
    """The plan with more than two copies, of which two may die at once; and mostly a node for each and one more."""
    copies = options.replicas or rng.choice((2, 3))
    if copies == 2:
        return plan
    return replace(_peopled(rng, plan, options, copies), replicas=copies)


def _with_backups(rng: Random, plan: Plan, options: Options) -> Plan:
    """The plan with more than one backup for each, of which one may die along with its primary."""
    several, backups = rng.random() < SEVERAL, rng.choice((2, 2, 2, 3))
    backups = options.backups or (backups if several else BACKUPS_LEAST)
    if backups == BACKUPS_LEAST:
        return plan
    return replace(_peopled(rng, plan, options, backups + 1), backups=backups)


def _peopled(rng: Random, plan: Plan, options: Options, copies: int) -> Plan:
    """The plan with nodes for so many copies, and mostly one more; two may die at once."""
    most = max(copies, options.nodes)
    count = most + (rng.random() < SPARE) if options.nodes == len(plan.nodes) else most
    nodes = tuple(f"node{n + 1}" for n in range(count))
    place = tuple((one.name, nodes[-1]) for one in plan.spec.inputs) if rng.random() < APART else ()
    faults = list(plan.faults)
    if "kill" in options.kinds and rng.random() < TWO_AT_ONCE:
        at = round(rng.uniform(QUIET_S, QUIET_S + options.seconds * 0.4), 3)
        faults.append(_two_at_once(rng, at, nodes[: len(nodes) - bool(place)]))
    faults.sort(key=lambda fault: fault.at)
    return replace(plan, nodes=nodes, place=place, faults=tuple(faults))


def _bucket(rng: Random, spec: Spec, cuts: Sequence[str], merge: str | None, **how: str) -> str | None:
    """By which buckets units read several streams, if any does, and is to read them by time."""
    if (merge or rng.choice(("arrival", "time"))) == "arrival":
        return None
    several = any(len(piece.reads) > 1 for piece in cut(spec, cuts))
    return rng.choice(BUCKETS) if several and is_allowed(spec, cuts, merge="time", **how) else None
