"""What nodes, clients and the coordinator say to one another beside tuples: versioned, and checked on arrival.

Everything is JSON. A reader refuses what it does not know (another version, an unknown field, a value out of range)
with a sentence that says what it got.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from borealis.diagram.protection import Approach, Checkpoint, Protection
from borealis.hosts import is_flight
from borealis.message import Message, MessagePart
from borealis.streams.reader_place import ReaderPlace
from borealis.streams.status import QueueStatus, StreamState
from borealis.streams.tentative import Wants


def _address(text: str) -> str:
    if text and not is_flight(text):
        raise ValueError(f"no address of a node, such as grpc://host:port: {text[:100]!r}")
    return text


NAME = r"[A-Za-z0-9_~-][A-Za-z0-9_.~-]{0,199}"  # of nodes, diagrams, readers; some become folders: no '..'
NAME_RULE = "use letters, digits and _ . ~ -, 200 of them at most, no . first"
Name = Annotated[str, Field(pattern=f"^{NAME}$")]
StreamName = Annotated[str, Field(pattern=f"^{NAME}/{NAME}$")]
Address = Annotated[str, AfterValidator(_address)]  # of a node; empty: of none
Id = Annotated[int, Field(ge=0, lt=2**63)]
Time = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Mark = Annotated[str, Field(max_length=65_536)]  # room for the offsets of thousands of partitions


def is_name(text: str) -> bool:
    """Whether something can be called so.

    >>> is_name("node-1.a"), is_name(".."), is_name("a/b")
    (True, False, False)
    """
    return re.fullmatch(NAME, text) is not None


# -- streams


class Subscribe(Message):
    """A Flight ticket: push me this stream from a tuple id on."""

    stream: StreamName
    start: Id | Literal["oldest", "newest"] = "oldest"
    boundary: Time = -(2**63)  # the subscriber knows of this one already
    epoch: str | None = Field(default=None, max_length=64)  # of the queue that gave the ids it has; None: it has none
    incarnation: int = Field(default=0, ge=0)  # the highest it has seen; a queue of a lower one is deposed
    reader: Name | None = None  # a name under which the queue keeps what is not acknowledged; None: a passing reader
    stop: Id | None = None  # end before this id, for replay of a range
    wants: Wants = "stable"  # or tentative tuples as well
    fork: tuple[str, Id, Time] | None = None  # where it is among tentative ones; None: it has none


class SectionHead(Message):
    """Beside each record batch of a stream: ids and boundaries."""

    first: Id
    standing: Time
    at: list[Id] = []
    bound: list[Time] = []
    lost: Id = 0  # tuples that were dropped before this section because the reader was too slow
    jump: bool = False  # ids were left out before it, in a recovery: there is a gap, or some come again
    fork: str = Field(default="", max_length=64)  # all of it is tentative, of this fork; empty: it is stable
    undo: bool = False  # all that was tentative is void
    done: bool = False  # and all of it is corrected


class Ack(Message):
    """Level 0: received. Level 1: no longer needed, whatever happens. Both mean all tuples before `upto`."""

    stream: StreamName
    reader: Name
    level: Literal[0, 1]
    upto: Id


class Acknowledgements(Message):
    """Those that go together."""

    acks: list[Ack]


class Forget(Message):
    """A reader will not come back: keep nothing for it any more."""

    stream: StreamName
    reader: Name


class Publish(Message):
    """The descriptor of a Flight put: who publishes to which stream."""

    stream: StreamName
    publisher: Name


class BatchHead(Message):
    """Beside each published batch: its number, rising by one; the end of the stream or a heartbeat may come along.

    Several that waited may be sent as one, under the number of the last; `parts` has the rows of each.
    """

    number: Id
    parts: list[Id] = Field(default=[], max_length=4096)  # none: it is one
    heartbeat: Time | None = None  # no tuple before this time follows
    end: bool = False
    mark: Mark | None = None  # where the publisher is in its own source; kept with the number, as safe as the batch

    @property
    def first(self) -> int:
        """The number of the first in it."""
        return self.number - max(0, len(self.parts) - 1)

    def rows_until(self, last: int) -> int:
        """How many of its rows are of batches up to this number.

        >>> head = BatchHead(number=7, parts=[2, 0, 3])
        >>> head.first, [head.rows_until(n) for n in (4, 5, 6)]
        (5, [0, 2, 2])
        """
        return sum(self.parts[: max(0, last - self.first + 1)])


class Receipt(Message):
    """What a publisher is answered: batches up to `number` are taken over (durably where the stream asks for it)."""

    number: int = Field(ge=-1)  # -1: none yet
    next_id: Id = 0
    late: Id = 0  # of this publisher's tuples since it connected
    mark: Mark | None = None  # in the first receipt of a connection: that of the last batch that had one


class StreamFacts(Message):
    """In the schema's metadata of a subscription: which stream this is, and where it begins."""

    stream: StreamName
    epoch: str
    first: Id
    incarnation: int = 0


class Export(Message):
    """A Flight ticket: give me these bytes (state, files), in pieces."""

    export: Name
    body: str = ""  # a message of its own, as JSON


# -- nodes


class Ping(Message):
    """Are you there?"""


class Pong(Message):
    """I am, and this is who I am."""

    node: Name
    incarnation: str
    version: str


class Problem(Message):
    """An error on its way over the wire."""

    kind: str
    message: str
    hint: str = ""
    moved_to: str = ""  # for a stream that is served elsewhere now


class Further(MessagePart):
    """The copies of a unit beside its primary and its backup, and the numbers under which all its copies read."""

    nodes: dict[Name, Address] = {}
    numbers: dict[Name, int] = {}  # of all copies that there are, by node
    given: int = 0  # the highest that any copy ever had; 0: they have none, and read under their incarnations

    def without(self, node: str) -> Further:
        """What is known once a node has no copy any more."""
        nodes, numbers = (
            {name: it for name, it in some.items() if name != node} for some in (self.nodes, self.numbers)
        )
        return self.model_copy(update={"nodes": nodes, "numbers": numbers})


Role = Literal["primary", "backup", "copy"]  # a copy does what a backup does, and never takes over by itself


class Guard(Message):
    """How a unit or an entry point is protected, and which node is on the other side."""

    protection: Protection
    role: Role = "primary"
    partner: Address = ""  # the node on the other side; empty: there is none now
    partner_node: str = ""
    incarnation: int = Field(default=1, ge=1)  # rises with every takeover; a node with a lower one is deposed
    standing: int = 0  # rises with every new backup: claims of an earlier pair count no more
    further: Further = Further()  # of which a copy finds its own number

    @property
    def approach(self) -> Approach:
        return self.protection.approach

    @property
    def guarantee(self) -> str:
        return self.protection.guarantee or ""

    @property
    def precise(self) -> bool:
        return self.protection.guarantee == "precise"

    @property
    def interval_s(self) -> float:
        """Between two messages to the backup."""
        return self.protection.interval_us / 1e6

    @property
    def checkpoint(self) -> Checkpoint | None:
        """When it checkpoints, if it does."""
        return self.protection.checkpoint


ENTRY = "in-"  # before the name of an input: the unit without boxes that is its entry point


def called(diagram: str, unit: str) -> str:
    """A unit or an entry point as people read it.

    >>> called("traffic", "u1"), called("traffic", "in-packets")
    ('unit traffic.u1', 'entry point traffic/packets')
    """
    return f"entry point {diagram}/{unit.removeprefix(ENTRY)}" if unit.startswith(ENTRY) else f"unit {diagram}.{unit}"


class DiagramName(Message):
    """Which diagram."""

    diagram: Name


class UnitName(DiagramName):
    """Which unit or entry point."""

    unit: Name


class UnitOrder(UnitName):
    """Run these boxes of a diagram; without any, be the entry point of an input (see ENTRY)."""

    yaml: str
    boxes: list[str]
    buckets: int = Field(default=1, ge=1, le=1024)
    feeds: dict[str, str] = {}  # stream name to the Flight address that serves it
    readers: dict[str, list[str]] = {}  # for each arrow that leaves the unit, who reads it: units as `diagram.unit`
    take_over: str | None = None  # the address of the node to take the running unit from, with its state
    guard: Guard | None = None  # None: nothing protects it
    fallbacks: dict[str, str] = {}  # stream name to the Flight address of the backup of the node that serves it
    replicated: list[str] = []  # streams that the backup serves as well
    copies: dict[str, list[str]] = {}  # stream name to the Flight addresses of its further copies
    epoch: str | None = Field(default=None, max_length=64)  # of its streams; None: a new one
    reader: Name | None = None  # under which it reads; None: `diagram.unit`


class Protect(UnitName):
    """What a copy of a unit is from now on, and which nodes have the others.

    A primary gets another backup or further copies, or none. A further copy becomes the backup; or the primary, of this
    incarnation, where both are lost.
    """

    role: Role = "primary"
    partner: Address = ""
    partner_node: str = ""
    incarnation: int = Field(ge=1)
    standing: int = 0
    further: Further = Further()


class Reading(Message):
    """Of the copies of a unit numbered up to `given` only these read a stream on: nothing is kept for the others.

    Numbers are given once, so that an order which was under way for long does no harm to a copy that came since.
    """

    stream: StreamName
    unit: Name  # as `diagram.unit`
    numbers: list[int]
    given: int


ParcelVerdict = Literal["take", "known", "whole", "deposed", "damaged", "busy", "full", "failed"]


class GuardAnswer(Message):
    """What a backup says to a parcel of its primary."""

    verdict: ParcelVerdict
    why: str = ""  # it takes nothing, where its disk is full or it failed to load the whole
    waits: bool = False  # a replica: it answers tentatively, and leaves it to the primary to be corrected first
    acks: dict[str, dict[str, ReaderPlace]] = {}  # of a replica's readers, by output
    number: int = 0
    incarnation: int = Field(default=1, ge=1)


class Claim(UnitName):
    """What a node wants to be true of a unit; the coordinator says whether it may.

    `take over`: I was its backup and run it from now on, as this incarnation. `alone`: my backup is gone, I go on.
    `without`: that further copy is gone, I wait for it no more.
    """

    what: Literal["take over", "alone", "without"]
    node: Name
    incarnation: int = Field(ge=1)
    standing: int = 0  # of the pair that it speaks of
    process: str = ""  # of the node, which must be there when the claim is granted; empty: any
    copy_node: Name | None = None  # which has the further copy that it speaks of
    copy_number: int = 0  # of that


class Claimed(Message):
    """Whether a claim holds; if not, which incarnation is in force, and where."""

    granted: bool
    incarnation: int = Field(ge=1)
    address: str = ""


class Moved(UnitName):
    """A frozen unit goes on at another node from now on."""

    address: Address


class CheckOrder(Message):
    """Are the types of this diagram right?"""

    yaml: str


class Checked(Message):
    """They are; the columns of each arrow as DDL."""

    columns: dict[str, str]


class SchemaOf(Message):
    """Which columns has this stream?"""

    stream: StreamName


class SchemaIs(Message):
    """These: an Arrow schema as an IPC message, in base64."""

    arrow: str


class Done(Message):
    """What is answered to an order where nothing more is to be said."""


class CutOff(Message):
    """For tests: units of this node read a stream no more, as if the way to it was cut; or do again."""

    stream: StreamName
    cut: bool


class Reroute(Message):
    """A stream is now served elsewhere."""

    stream: StreamName
    address: Address
    incarnation: int = 0  # of the unit that writes it there; one that is known to be lower is ignored


class Takeover(MessagePart):
    """How a backup took over, in milliseconds."""

    at: float  # seconds since 1970, when the primary was held to be dead
    incarnation: int
    primary: str = ""  # the node that was
    detection_ms: float = 0.0  # from its last answer
    takeover_ms: float = 0.0  # until the streams were open here
    reprocess_ms: float = 0.0  # until all that had been read before was read again
    trains: int = 0  # that were run again
    jumped: bool = False  # ids were left out: a gap, or tuples that come again


class GuardFacts(MessagePart):
    """How well something is protected, as its node counts and clients see it."""

    approach: str
    guarantee: str
    incarnation: int = 1
    since: float = 0.0  # of its state, in seconds since 1970
    why: str = ""  # it is alone
    stale_ms: float = 0.0  # how far the backup is behind
    recovery_ms: float = 0.0  # how long a takeover would take now, about
    messages: int = 0  # to or from the other side
    bytes: int = 0  # of those
    discarded: int = 0  # checkpoints that failed their checksum or did not fit


class GuardStatus(GuardFacts, Message):
    """How well a unit or an entry point is protected now."""

    role: Role
    standing: int = 0  # of the pair
    further: list[str] = []  # nodes with further copies, as the primary knows them
    numbers: dict[str, int] = {}  # of those, as it knows them; or that of a further copy, by its node
    partner: str = ""  # the name of the node on the other side
    state: Literal["protected", "catching up", "alone", "watching"] = "alone"
    takeovers: list[Takeover] = []  # here, the newest last


class LogStatus(Message):
    """How the log of a durable entry point stands, or of the one that stands by for it."""

    stream: str
    path: str
    held_bytes: int
    free_bytes: int  # on its disk
    error: str = ""  # why it takes nothing
    full: bool = False  # because the disk is: it goes on by itself when there is room
    since: float = 0.0  # of that, in seconds since 1970


class Waiting(MessagePart):
    """What keeps a unit waiting that may pass by itself, such as a database that is away."""

    why: str
    seconds: float  # it has lasted


class Forked(MessagePart):
    """A unit that gives tentative tuples: what it reads is not all there, or is tentative itself."""

    state: Literal["failure", "stabilization"]  # something is missing; it is there, and the right answers are made
    missing: list[str] = []  # streams that have not come so far
    tentative: list[str] = []  # streams that are themselves
    seconds: float  # since then
    tuples: int = 0  # it has given so many, tentatively
    kept: int = 0  # rows that are pending, for the right answers
    memory_bytes: int = 0  # of these
    disk_bytes: int = 0  # and on the disk of the node
    full: list[str] = []  # streams of which no more can be kept: nothing is answered in time
    disk_trouble: str = ""  # why the disk takes no more
    stable_in_s: float | None = None  # until those are made, about, if nothing is missing


class UnitFacts(MessagePart):
    """Of a unit, as its node counts and clients see it."""

    diagram: str
    unit: str
    boxes: list[str] = []
    trains: int = 0
    rows_in: int = 0
    rows_out: int = 0
    train_ms: float = 0.0  # median of the last trains
    busy_s: float = 0.0  # that all its trains took here
    state_bytes: int = 0
    inputs: dict[str, int] = {}  # stream to the id up to which trains are committed
    lag_rows: int = 0  # in no committed train yet
    jumps: int = 0  # how often its inputs left ids out: tuples before that are missing, or came again behind it
    error: str = ""
    errors: int = 0  # tuples that a box could not take, set aside
    last_error: str = ""  # where and why the last of them failed
    refused: dict[str, int] = {}  # changes of inputs that could not be made, by the arrow they are on
    given_up: dict[str, int] = {}  # tuples of inputs that no more could be kept of, for newer ones
    waiting: list[Waiting] = []
    fork: Forked | None = None
    hinders: str = ""  # what keeps it from lanes


UnitState = Literal["starting", "running", "frozen", "ended", "failed", "standby"]


class UnitStatus(UnitFacts, Message):
    """How one unit, or an entry point, stands on its node."""

    state: UnitState
    boundary: int = -(2**63)  # the least of its outputs
    in_lanes: bool = True  # else in micro-batches
    condition: StreamState = "stable"  # of what it gives
    guard: GuardStatus | None = None


class PoolStatus(MessagePart):
    """The started queries that a node keeps for units it may have to run."""

    size: int = 0  # as many as there shall be
    ready: int = 0
    given: int = 0  # to units, so far
    missed: int = 0  # takeovers that found none ready, and waited
    images: int = 0  # of units whose backup this node is, that have no query of their own
    trouble: str = ""  # why one could not be started


class NodeFacts(MessagePart):
    """Of a node, as it says itself and clients see it."""

    node: Name
    incarnation: str
    address: Address  # of its Flight server, as grpc://host:port or grpc+tls://host:port
    http: str  # of its metrics, as http://host:port
    pid: int
    host: str
    version: str = ""
    master: str = ""
    warm: bool = False  # its first trains, which take seconds, are behind it
    cores: int = 0
    started: float = 0.0  # seconds since 1970
    pool: PoolStatus = PoolStatus()


class NodeStatus(NodeFacts, Message):
    """All a node can say of itself; also its heartbeat to the coordinator."""

    spark: Literal["starting", "ready", "failed", "stopped"]
    units: list[UnitStatus] = []
    queues: list[QueueStatus] = []
    entries: list[UnitStatus] = []
    logs: list[LogStatus] = []
