"""How a cluster stands, as the coordinator shows it: over REST, to clients and to the command line.

What is not known yet (the figures of a unit whose node is awaited, for one) has its default and is no key of the JSON.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer

from borealis.message import Message, MessagePart
from borealis.streams.status import QueueFacts, StreamState
from borealis.wire.messages import GuardFacts, NodeFacts, Takeover, UnitFacts

DiagramState = Literal["deploying", "running", "undeploying", "failed", "lost", "ended"]
ReplicaCondition = StreamState | Literal["catching up", "away", "failed"]
ProtectionState = Literal["protected", "catching up", "alone", "watching", "taking over", "lost"]


class View(MessagePart):
    """The root of all below. A client does not mind what a newer coordinator says beside."""

    model_config = ConfigDict(extra="ignore")

    @model_serializer(mode="wrap")
    def _known(self, dump: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]  # or OpenAPI shows no fields
        return {key: value for key, value in dump(self).items() if key == "v" or key in self.model_fields_set}


class Reply(Message, View):
    """A whole answer of the coordinator."""


class CoordinatorView(View):
    """The coordinator itself."""

    version: str
    incarnation: str
    address: str
    pid: int
    catalog: str  # the file
    started: float  # seconds since 1970
    looks: int = 0  # at what is and what shall be, so far
    moves: int = 0  # of units, that no user asked for
    exchanges: int = 0  # of backups


class NodeView(NodeFacts, View):
    """A node. One that is `awaited` has not been heard since the coordinator started."""

    alive: bool
    state: Literal["alive", "dead", "awaited"]
    spark: Literal["starting", "ready", "failed", "stopped", "unknown"]
    units: int = 0  # that run on it
    standbys: int = 0  # that it is the backup of
    busy: float = 0.0  # of each second the part that its trains take
    silent_s: float = 0.0  # since its last heartbeat
    seen: float = 0.0  # seconds since 1970, of one that is awaited
    recovery_ms: float | None = None  # until others would have taken over all that it runs; None: nothing is protected
    recovery_shares: dict[str, float] = {}  # what they would be at, in ms, by node


class ProtectionView(GuardFacts, View):
    """How well a unit or an entry point is protected."""

    state: ProtectionState
    backup: str | None  # the node that would take over
    interval_ms: float | None = None  # between checkpoints or trimming messages
    checkpoint: str | None = None  # of a unit that makes checkpoints: when
    bucket_ms: float | None = None  # several streams are read by time, by such buckets; None: as they arrive
    delay_ms: float | None = None  # within which it answers, tentatively if need be; None: when it is right
    replicas: dict[str, ReplicaCondition] = {}  # how copies are, by node, of more than a pair; the primary first
    copies: int | None = None  # that were promised, the primary and all backups, or all that answer
    failed_on: str | None = None  # a node that lives, where it failed, and was handed to its backup
    takeovers: int = 0
    last_takeover: Takeover | None = None


class Measured(View):
    """What a node measures: units, and streams by their queues."""

    boundary: int | None = None  # microseconds since 1970; None before the first and after the last
    ended: bool = False

    @property
    def measured(self) -> bool:
        """Whether the node has reported it; else all figures are zeros."""
        return "ended" in self.model_fields_set


class UnitView(UnitFacts, Measured):
    """A unit that shall run; or one that runs though no diagram has it (`orphan`)."""

    node: str
    state: Literal[
        "starting",
        "running",
        "waiting",
        "tentative",
        "moving",
        "frozen",
        "ended",
        "failed",
        "standby",
        "lost",
        "awaited",
        "orphan",
    ]
    reads: list[str] = []  # streams
    gives: list[str] = []
    moving_to: str | None = None
    protection: ProtectionView | None = None  # None: nothing was promised
    rows_in_per_s: float = 0.0
    rows_out_per_s: float = 0.0
    trains_per_s: float = 0.0
    runs: Literal["in lanes", "in micro-batches"] | None = None


class StreamView(QueueFacts, Measured):
    """A stream that can be subscribed to."""

    diagram: str
    arrow: str
    outputs: list[str]  # names under which clients know it
    columns: str  # as DDL
    entry: bool  # whether it can be published to
    node: str
    alive: bool  # that node
    address: str | None  # of its Flight server
    backup: str | None
    protection: ProtectionView | None = None  # of an entry point
    rows_per_s: float = 0.0


class DiagramView(View):
    """A diagram; one with a unit that failed or is lost says so."""

    diagram: str
    state: DiagramState
    since: float  # seconds since 1970
    units: dict[str, str]  # and their nodes
    entries: dict[str, str]
    backups: dict[str, str | None]  # of units that are protected
    copies: dict[str, list[str]] = {}  # nodes with further copies, of units with more than two
    outputs: dict[str, str]  # a client's name to the arrow it stands for
    cuts: list[str]
    pinned: bool = False  # its units do not move by themselves
    places: dict[str, str]
    buckets: int


class Unprotected(View):
    """What is without the protection it was promised."""

    diagram: str
    what: str
    state: ProtectionState
    since: float
    seconds: float
    why: str


class Instability(View):
    """For how long the next failure would not be survived."""

    since: float | None = None  # in seconds since 1970; None: all is protected that shall be
    seconds: float = 0.0
    what: int = 0  # so many units and inputs are not
    last_at: float = 0.0  # when that began the last time; 0: it never was so
    last_s: float = 0.0  # and how long it lasted


class TroubleView(View):
    """What could not be mended so far."""

    diagram: str = ""
    node: str = ""
    what: str = ""
    why: str


class DiagramList(Reply):
    """All that is deployed."""

    diagrams: list[DiagramView]


class NodeList(Reply):
    """Every node, alive or not."""

    nodes: list[NodeView]


class StreamList(Reply):
    """All streams that can be subscribed to."""

    streams: list[StreamView]


class ClusterStatus(StreamList, DiagramList, NodeList):
    """All that `borealis status` shows."""

    coordinator: CoordinatorView
    units: list[UnitView]
    unprotected: list[Unprotected]
    instability: Instability = Instability()
    troubles: list[TroubleView]


class Health(CoordinatorView, Reply):
    """The coordinator is there."""

    ok: bool


class Deployed(DiagramView, Reply):
    """A diagram that was just deployed, and what to look out for."""

    warnings: list[str]


class DiagramDetails(DiagramView, StreamList):
    """One diagram, with its YAML, its units and its streams."""

    yaml: str
    columns: dict[str, str]  # of each arrow, as DDL
    running: list[UnitView]


class Ordered(Reply):
    """What was ordered is done, or under way."""

    diagram: str = ""
    unit: str = ""  # that was moved
    node: str = ""  # to which it was moved; or that was stopped
    untold: list[str] = []  # nodes that do not know yet that a diagram is undeployed
    stopping: bool = False  # the coordinator
    coordinator: str = ""  # the incarnation that heard a heartbeat
