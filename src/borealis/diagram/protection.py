"""Protection: what a unit's boxes have against the death of their node, and what their readers are promised then.

    protection: {ha: passive}                            # for all units
    protection:                                          # or by box, and `all` for the rest
      all: {ha: passive}
      per_source: {ha: upstream-backup, guarantee: no-loss, interval: 50 ms}

The words are those of `borealis deploy` and of `Client.deploy`.

Whether an approach can keep what is asked of it depends on the boxes: `ha/guarantees.py` knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, Unpack, get_args

from pydantic import Field, model_validator

from borealis.diagram import notation
from borealis.diagram.durations import Duration, parse, show
from borealis.diagram.frozen import Frozen
from borealis.diagram.sizes import Size, parse_size
from borealis.errors import DiagramError, brief, did_you_mean

if TYPE_CHECKING:
    from borealis.diagram.spec import Spec

Approach = Literal["amnesia", "passive", "active", "upstream-backup", "replicas", "storage"]
Choice = Literal["none", Approach]
Guarantee = Literal["gap", "no-loss", "precise"]
Merge = Literal["arrival", "time"]
DuringFailure = Literal["process", "delay"]
DuringStabilization = Literal["process", "delay", "suspend"]
DelayOf = Literal["unit", "path"]
Reconcile = Literal["local", "partner"]
WhenFull = Literal["wait", "drop-oldest"]
Checkpoint = Literal["interval", "sweeping", "min-max"]
APPROACHES: tuple[str, ...] = get_args(Choice)
GUARANTEES: tuple[str, ...] = get_args(Guarantee)
MERGES: tuple[str, ...] = get_args(Merge)
CHECKPOINTS: tuple[str, ...] = get_args(Checkpoint)

EXTENT, EXTENT_LEAST = 2.0, 0.5
BASE_WORK, BASE_PERIOD = "20 ms", "100 ms"

ALL = "all"  # the name under which those units are protected of which no box is named
PARALLEL = ("active", "replicas")  # the other copy runs beside the primary
CHECKPOINTED = ("passive", "storage")  # what changed is sent now and then: to the other copy, or to storage
TIMED = ("passive",)  # and may choose when
OF_A_BOUND = (
    "delay",
    "delay_of",
    "during_failure",
    "during_stabilization",
    "reconcile",
    "keep",
    "keep_time",
    "when_full",
)
KEEP_LEAST, KEEP_MOST = 1_000_000, 4_000_000_000  # bytes; upstream keeps no more
REPLICAS_LEAST = 2
BACKUPS_LEAST, BACKUPS_MOST = 1, 3
BUCKET = "100 ms"  # of time, in which several streams are read
# between messages to the backup
INTERVALS = {
    "passive": "500 ms",
    "active": "100 ms",
    "upstream-backup": "100 ms",
    "replicas": "100 ms",
    "storage": "200 ms",
}


class ProtectOptions(TypedDict, total=False):
    """What may be said of a protection, in a diagram and when it is deployed; see `Protection`. None: not said."""

    ha: Choice | None
    guarantee: Guarantee | None
    interval: str | None
    checkpoint: Checkpoint | None
    replay: int | None
    extent: float | None
    base_work: str | None
    base_period: str | None
    ping: str | None
    misses: int | None
    patience: str | None
    without_backup: Literal["refuse", "degrade"] | None
    merge: Merge | None
    bucket: str | None
    delay: str | None
    delay_of: DelayOf | None
    during_failure: DuringFailure | None
    during_stabilization: DuringStabilization | None
    reconcile: Reconcile | None
    keep: str | None
    keep_time: str | None
    when_full: WhenFull | None
    replicas: int | None
    backups: int | None


class Protection(Frozen):
    """How the unit of a box is protected (or, under the name `all`, every unit of which no box is named)."""

    noun: ClassVar[str] = "protection"

    name: str = ALL
    ha: Choice = Field(description=f"approaches are {', '.join(APPROACHES)}")
    guarantee: Guarantee | None = Field(default=None, description=f"guarantees are {', '.join(GUARANTEES)}")
    interval: Duration | None = None  # between two checkpoints (passive), or two messages about what can be let go
    checkpoint: Checkpoint | None = None  # when: by the clock, as readers let go, in idle moments
    # in CEC: U, Q, CI and CP
    replay: int | None = Field(
        default=None, description="give a number of rows, such as replay: 100000"
    )  # to read again
    extent: float | None = Field(default=None, description="give a number, such as extent: 2")  # of a log, in bases
    base_work: Duration | None = None  # of each period, what a base that is being written takes of it
    base_period: Duration | None = None
    ping: Duration = "100 milliseconds"
    misses: int = Field(default=3, description="give a whole number, such as misses: 3")  # pings until it is dead
    patience: Duration = "5 seconds"  # a node that accepts connections and does not answer is so long slow, not dead
    without_backup: Literal["refuse", "degrade"] = "refuse"  # when no node is left for a backup
    merge: Merge = "arrival"  # how several streams become one: as they arrive, or in an order that all copies know
    bucket: Duration | None = None  # of time: what is read by time waits until all streams have left it
    delay: Duration | None = None  # an answer comes within it, tentative if need be; None: when it is right
    delay_of: DelayOf = "unit"  # each has this bound; or all on a path from inputs to outputs together
    during_failure: DuringFailure = "process"  # tuples that come while something is missing: at once, or in time
    during_stabilization: DuringStabilization = "process"  # and while the right answers are made: or not before those
    reconcile: Reconcile = "local"  # beside the fork; or one replica after the other, while the other answers
    keep: Size | None = None  # of each input, for the right answers, most of it on disk
    keep_time: Duration | None = None  # and for so long; None: as long as it fits
    when_full: WhenFull = "wait"  # when no more can be kept, all does; or the oldest is given up, and that is a gap
    replicas: int | None = Field(default=None, description="give a whole number, such as replicas: 3")  # that answer
    backups: int | None = Field(default=None, description="give a whole number, such as backups: 2")  # None: one

    def __init__(self, **fields: Any) -> None:
        super().__init__(**({"name": ALL} | fields))  # errors tell the name

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, fields: Any) -> Any:
        """What is left out follows from the approach."""
        if not isinstance(fields, dict):
            return fields
        approach = fields.get("ha")
        for noun, value, known in (
            ("approach", approach, APPROACHES),
            ("guarantee", fields.get("guarantee"), GUARANTEES),
            ("checkpoint", fields.get("checkpoint"), CHECKPOINTS),
        ):
            if isinstance(value, str) and value not in known:
                hint = did_you_mean(value, known) or f"there are {', '.join(known)}"
                raise DiagramError(f"no {noun} '{value}'", hint=hint)
        given = {k: v for k, v in fields.items() if v is not None}
        defaults: dict[str, Any] = {}
        if approach not in (None, "none"):
            defaults["guarantee"] = "gap" if approach == "amnesia" else "precise"
        if approach in INTERVALS:
            defaults["interval"] = INTERVALS[approach]
        if approach == "storage":
            defaults |= {"extent": EXTENT, "base_work": BASE_WORK, "base_period": BASE_PERIOD}
        if approach in TIMED:
            defaults["checkpoint"] = "interval"
        if given.get("delay") is not None or approach == "replicas":
            defaults["merge"] = "time"
        if approach == "replicas":
            defaults["replicas"] = REPLICAS_LEAST
        if (defaults | given).get("merge") == "time":
            defaults["bucket"] = BUCKET
        return defaults | given

    @model_validator(mode="after")
    def _check(self) -> Protection:
        if self.interval is not None and self.ha not in INTERVALS:
            raise DiagramError(f"an interval makes no sense with '{self.ha}'", hint="it sends nothing to its backup")
        stored = {"extent": self.extent, "base_work": self.base_work, "base_period": self.base_period}
        for noun, value in stored.items():
            if value is not None and self.ha != "storage":
                raise DiagramError(f"'{noun}' makes no sense with '{self.ha}'", hint="say ha: storage, or leave it out")
        if self.replay is not None and self.ha not in CHECKPOINTED:
            reason = f"'replay' makes no sense with '{self.ha}', which makes no checkpoints"
            raise DiagramError(reason, hint="say ha: passive or storage, or leave it out")
        if self.replay is not None and self.replay < 1:
            raise DiagramError(f"'replay' of {self.replay} rows", hint="one row is the least that can be read again")
        if self.extent is not None and self.extent < EXTENT_LEAST:
            reason = f"an extent of {self.extent:g} bases"
            raise DiagramError(reason, hint=f"{EXTENT_LEAST:g} is the least: a base would follow on the other")
        if self.checkpoint is not None and self.ha not in TIMED:
            reason = f"'checkpoint: {self.checkpoint}' makes no sense with '{self.ha}', which makes none"
            raise DiagramError(reason, hint=f"say ha: {TIMED[0]}, or leave it out")
        if self.merge == "time" and self.ha == "none":
            raise DiagramError("'merge: time' without an approach", hint="choose one: a unit without a copy needs none")
        if self.ha == "replicas" and self.merge != "time":
            raise DiagramError(
                "'replicas' read by time", hint="leave 'merge' out: copies that answer must give the same"
            )
        if self.replicas is not None and self.ha != "replicas":
            raise DiagramError(f"replicas make no sense with '{self.ha}'", hint="say ha: replicas, or leave them out")
        if self.replicas is not None and self.replicas < REPLICAS_LEAST:
            raise DiagramError(f"{self.replicas} replicas", hint="two are the least: one that takes the other's place")
        if self.backups is not None and self.ha not in TIMED:
            other = {"replicas": "say replicas: 3", "storage": "it needs none: any node goes on with what is there"}
            hint = other.get(self.ha, f"say ha: {TIMED[0]}, or leave it out")
            raise DiagramError(f"a number of backups makes no sense with '{self.ha}'", hint=hint)
        if self.backups is not None and not BACKUPS_LEAST <= self.backups <= BACKUPS_MOST:
            reason = "with none nothing takes over" if self.backups < BACKUPS_LEAST else "each is sent all that changes"
            hint = f"give it {BACKUPS_LEAST} to {BACKUPS_MOST}: {reason}"
            raise DiagramError(f"{self.backups} backups", hint=hint)
        if self.reconcile == "partner" and (self.ha != "replicas" or self.delay is None):
            raise DiagramError("'reconcile: partner' needs a partner", hint="say ha: replicas, and a delay")
        if self.bucket is not None and self.merge != "time":
            raise DiagramError(f"a bucket makes no sense with 'merge: {self.merge}'", hint="say merge: time as well")
        if self.delay is not None and self.merge != "time":
            raise DiagramError("'delay' needs 'merge: time'", hint="what is missing can only be told by time")
        if self.delay is None and self.delay_of == "path":
            raise DiagramError("'delay_of: path' without a bound", hint="say delay, such as 3 s")
        if self.delay is None and (self.during_failure, self.during_stabilization) != ("process", "process"):
            raise DiagramError("what to do during a failure is said without a bound", hint="say delay, such as 3 s")
        if self.delay is None and self.keep is not None:
            raise DiagramError("how much to keep is said without a bound", hint="say delay, such as 3 s")
        if self.keep is not None and parse_size(self.keep) < KEEP_LEAST:
            raise DiagramError(f"'keep' of {self.keep} is too little", hint="give it a megabyte at least: '1 MB'")
        if self.keep is not None and parse_size(self.keep) > KEEP_MOST:
            raise DiagramError(f"'keep' of {self.keep} is too much", hint="upstream keeps '4 GB' of a stream at most")
        if self.delay is None and (self.keep_time is not None or self.when_full != "wait"):
            raise DiagramError("how long to keep is said without a bound", hint="say delay, such as 3 s")
        if self.keep_time is not None and self.delay is not None and parse(self.keep_time) < parse(self.delay):
            raise DiagramError(
                f"'keep_time' of {self.keep_time} is less than the delay, {self.delay}", hint="wait longer"
            )
        if self.when_full == "drop-oldest" and self.ha != "amnesia":
            reason = f"'when_full: drop-oldest' with '{self.ha}', whose backup goes on from before what was given up"
            raise DiagramError(reason, hint="say ha: amnesia, which promises no more than a gap, or leave it out")
        if self.delay is not None and self.bucket is not None and parse(self.delay) < 2 * parse(self.bucket):
            raise DiagramError(f"a delay of {self.delay} with buckets of {self.bucket}", hint="give it two at least")
        for field in ("interval", "ping", "patience", "bucket", "delay", "base_work", "base_period"):
            if getattr(self, field) is not None and parse(getattr(self, field)) == 0:
                raise DiagramError(f"'{field}' must be more than zero", hint="give some time, such as '100 ms'")
        if self.misses < 1:
            raise DiagramError(f"{self.misses} misses", hint="one missed ping is the least that tells anything")
        return self

    @property
    def approach(self) -> Approach:
        """Of one that is promised something."""
        if self.ha == "none":
            raise ValueError("nothing protects it")
        return self.ha

    @property
    def further(self) -> int:
        """How many copies it has beside the primary and the backup."""
        if self.ha in TIMED:
            return (self.backups or BACKUPS_LEAST) - BACKUPS_LEAST
        return (self.replicas or REPLICAS_LEAST) - REPLICAS_LEAST

    @property
    def interval_us(self) -> int:
        """The interval that applies: between checkpoints, or between messages about what can be let go."""
        return parse(self.interval or INTERVALS["active"])

    @property
    def base_us(self) -> tuple[int, int]:
        """How long a base may be written at a time, and in which period."""
        return parse(self.base_work or BASE_WORK), parse(self.base_period or BASE_PERIOD)

    @property
    def ping_us(self) -> int:
        return parse(self.ping)

    @property
    def patience_us(self) -> int:
        """How long a node may be silent while it still accepts connections."""
        return parse(self.patience)

    @property
    def bucket_us(self) -> int | None:
        """If streams are read by time."""
        return None if self.bucket is None else parse(self.bucket)

    @property
    def delay_us(self) -> int | None:
        """Within which an answer comes, if that is promised."""
        return None if self.delay is None else parse(self.delay)

    def with_share(self, units: int) -> Protection:
        """The same with a bound of its own, where it has one with so many units on a path."""
        if self.delay_us is None or units == 1:
            return self.model_copy(update={"delay_of": "unit"})
        share = show(self.delay_us // units // 1000 * 1000)
        if self.bucket_us is not None and parse(share) < 2 * self.bucket_us:
            reason = f"a delay of {self.delay} for a path of {units} units is {share} for each"
            raise self.wrong(reason, f"that is to be two buckets ({self.bucket}) at least")
        return self.model_copy(update={"delay": share, "delay_of": "unit"})

    @property
    def keep_time_us(self) -> int | None:
        """For how long something is kept at most, if that is said."""
        return None if self.keep_time is None else parse(self.keep_time)

    @property
    def keep_bytes(self) -> int | None:
        """Of each input, while there is a fork, if that is said."""
        return None if self.keep is None else parse_size(self.keep)

    def plain(self) -> dict[str, Any]:
        """It as the YAML form has it; what follows from the approach is left out."""
        implied = self.delay is not None or self.ha == "replicas"
        said: dict[str, Any] = {"merge": self.merge} if self.merge != "arrival" and not implied else {}
        said |= {"delay": self.delay} if self.delay is not None else {}
        usual = Protection(ha=self.ha, **said)
        body: dict[str, Any] = {"ha": self.ha} | said
        for field in type(self).model_fields:
            if field not in ("name", "ha") and getattr(self, field) != getattr(usual, field):
                body[field] = str(getattr(self, field))
        return body

    def like(self, other: Protection) -> bool:
        """Whether both say the same, under whatever names."""
        return self.model_copy(update={"name": other.name}) == other


def protection_of(spec: Spec, boxes: Collection[str]) -> Protection | None:
    """That of a unit made of these boxes: what those say that are named, which must be one thing; else that of `all`.

    None: nothing protects it, and nothing is promised.
    """
    named = [p for p in spec.protection if p.name != ALL and p.name in boxes]
    for other in named[1:]:
        if not other.like(named[0]):
            raise DiagramError(
                f"boxes '{named[0].name}' and '{other.name}' of one unit are protected in different ways",
                hint=f"say the same of both, or begin a new unit between them: --cut {other.name}",
            )
    return _if_any(named[0] if named else next((p for p in spec.protection if p.name == ALL), None))


def chosen(found: Protection | None, **options: Unpack[ProtectOptions]) -> Protection | None:
    """What the diagram says, with what the user says at deployment over it.

    With another approach, only what does not depend on the approach is kept.
    """
    given = {k: v for k, v in options.items() if v is not None}
    if found is None:
        return _if_any(Protection(**given)) if given else None
    before = {k: getattr(found, k) for k in type(found).model_fields}
    if given.get("ha", found.ha) != found.ha:
        before |= dict.fromkeys(("guarantee", "interval", "checkpoint", "replay", "extent", "base_work", "base_period"))
    if given.get("ha") == "replicas" and found.merge == "arrival":
        before |= {"merge": None}
    if given.get("ha", found.ha) != "replicas":
        before |= {"reconcile": None, "replicas": None}
    if given.get("ha", found.ha) not in TIMED:
        before |= {"backups": None}
    if given.get("ha", found.ha) != "amnesia":
        before |= {"when_full": None}
    if given.get("ha") == "none" or given.get("merge") == "arrival":
        before |= dict.fromkeys(("merge", "bucket", *OF_A_BOUND))
    return _if_any(Protection(**(before | given)))


def _if_any(found: Protection | None) -> Protection | None:
    return None if found is None or (found.ha == "none" and found.guarantee is None) else found


def check_names(
    protections: Iterable[Protection], boxes: Collection[str], inputs: Collection[str], outputs: Mapping[str, str]
) -> None:
    """Refuse protection of what is no box."""
    for one in protections:
        if one.name == ALL or one.name in boxes:
            continue
        if one.name in inputs:
            hint = "an input is protected with the units that read it: name boxes, or 'all'"
            raise one.wrong("that is an input", hint)
        if one.name in outputs:
            raise one.wrong("that is an output", f"name the box it comes from: {outputs[one.name]}")
        raise one.wrong("no such box", did_you_mean(one.name, [*boxes, ALL]) or "name boxes, or 'all' for the rest")


def read(body: Any) -> tuple[Protection, ...]:
    """From the YAML form: one mapping with an approach, or one for each name."""
    if not isinstance(body, dict):
        raise DiagramError(f"'protection' must say an approach, not {brief(body)}", hint="write {ha: passive}")
    if isinstance(body.get("ha"), str):
        body = {ALL: body}
    found = []
    for name, fields in body.items():
        if not isinstance(fields, dict):
            known = [field for field in Protection.model_fields if field != "name"]
            hint = did_you_mean(name, known) if name not in known else "say its approach: {ha: passive}"
            raise DiagramError(
                f"protection '{name}' must say an approach, not {brief(fields)}",
                hint=hint or "write {ha: passive}",
            )
        if "name" in fields:
            raise DiagramError(f"protection '{name}': unknown key 'name'", hint="the name is the key it stands under")
        found.append(Protection(name=name, **fields))
    return tuple(found)


def written(protections: tuple[Protection, ...]) -> dict[str, Any]:
    """The YAML form: short where it is for all."""
    if [p.name for p in protections] == [ALL]:
        return protections[0].plain()
    return notation.Block({p.name: p.plain() for p in protections})
