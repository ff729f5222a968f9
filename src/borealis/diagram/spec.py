"""A diagram as frozen data: inputs, boxes, outputs, and what follows from their arrows."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from math import gcd
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, SerializeAsAny, model_validator

from borealis.diagram import notation, protection, sql
from borealis.diagram.boxes import BOXES, Box
from borealis.diagram.boxes.base import Names
from borealis.diagram.boxes.history import CHANGE, CONFLICT, EXPIRED, REASON
from borealis.diagram.boxes.revisions import Given
from borealis.diagram.durations import Duration, parse
from borealis.diagram.frozen import Frozen
from borealis.diagram.names import no_column, require_columns
from borealis.diagram.protection import Protection
from borealis.errors import SHOWN_MOST, DiagramError, InputError, article, brief, did_you_mean

VERSION = 1  # of the YAML form
LATE = ".late"  # the side stream of an input: what came after the boundary had passed it
ERRORS = ".errors"  # the side stream of a unit: tuples that a box of it cannot take
SIDE = "."  # between the name of an input or box and that of one of its side streams
MAKE_ONE = 'or make it: time="timestamp_millis(t)"'
PACE_US = 1_000_000  # distance of boundaries where no box needs a finer one
FACTOR_MAX = 1_000_000  # what of a number has no factor up to here counts as prime


Named = TypeVar("Named", "Input", Box)


class Input(Frozen):
    """A stream that comes from outside, its schema, and how its boundaries are made."""

    noun: ClassVar[str] = "input"

    name: str
    columns: str = Field(description='write them as in "ts TIMESTAMP, src STRING"')
    time: str = Field(description="name the column that holds a tuple's time, or an expression that makes it")
    slack: Duration = "0 seconds"  # how far out of order tuples may come
    idle: Duration | None = None  # silence after which this input no longer holds the boundary back
    every: Duration | None = None  # distance of boundaries; None: as the windows downstream need it
    late: Literal["keep", "fail", "revise"] = "keep"  # `revise`: they correct what was given, within the history
    key: Names = ()  # the columns that name a row, by which it can be deleted or replaced
    history: Duration | None = None  # how far behind the boundary a row can still be corrected
    durable: bool = False  # in a cluster: logged on disk before a publisher is answered
    full: Literal["wait", "drop"] = "wait"  # in a cluster, when its queue is full: publishers wait, or the oldest go

    @model_validator(mode="before")
    @classmethod
    def _find_time(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or fields.get("time") is not None or not isinstance(fields.get("columns"), str):
            return fields
        times = [name for name, kind in sql.columns_of_ddl(fields["columns"]) if _is_timestamp(kind)]
        if len(times) != 1:
            seen = f"are {len(times)} TIMESTAMP columns" if times else "is no TIMESTAMP column"
            hint = (
                f"name one as time: {' or '.join(times)}" if times else f"add one that holds a tuple's time, {MAKE_ONE}"
            )
            raise DiagramError(f"no time column is named, and there {seen}", hint=hint)
        return {**fields, "time": times[0]}

    @model_validator(mode="after")
    def _check(self) -> Input:
        types = dict(sql.columns_of_ddl(self.columns))
        if self.time in types:
            if not _is_timestamp(types[self.time]):
                hint = f"its type must be TIMESTAMP, in UTC, {MAKE_ONE.replace('t)', self.time + ')')}"
                raise DiagramError(f"the time column '{self.time}' is {types[self.time]}", hint=hint)
        elif sum(token.solid for token in sql.tokens(self.time)) < 2:
            raise no_column(self.time, list(types))
        for what, us in (("idle", self.idle_us), ("every", self.every_us), ("history", self.history_us)):
            if us == 0:
                raise DiagramError(f"'{what}' must be more than zero", hint="leave it out, or give some time")
        require_columns(self.key, list(types))
        if self.history is None and (self.key or self.late == "revise"):
            why = "a key" if self.key else "late: revise"
            raise DiagramError(f"{why} without a history", hint="say how far back rows are corrected: history='1 hour'")
        if self.history is not None and not self.key and self.late != "revise":
            hint = "name the key of a row, key='id', or let late tuples correct results, late='revise'"
            raise DiagramError("a history that nothing can correct", hint=hint)
        return self

    @property
    def time_expression(self) -> str | None:
        """What makes a tuple's time, if that is no column."""
        return None if self.time in self.names else self.time

    @property
    def expressions(self) -> list[str]:
        return [] if self.time_expression is None else [self.time]

    @property
    def slack_us(self) -> int:
        """How far the boundary stays behind the newest tuple."""
        return parse(self.slack)

    @property
    def idle_us(self) -> int | None:
        """How long a silence lasts before the boundary advances without tuples."""
        return None if self.idle is None else parse(self.idle)

    @property
    def every_us(self) -> int | None:
        """The distance of boundaries, if the user chose it."""
        return None if self.every is None else parse(self.every)

    @property
    def history_us(self) -> int | None:
        """How far behind the boundary a row can still be corrected; None: not at all."""
        return None if self.history is None else parse(self.history)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in sql.columns_of_ddl(self.columns)]

    @property
    def sides(self) -> list[str]:
        """The arrows beside its own: what is late, what is too old to be corrected, what contradicts what is there."""
        return [self.name + side for side in ((LATE,) if self.history is None else (LATE, EXPIRED, CONFLICT))]

    def side_columns(self, arrow: str) -> list[str]:
        return self.names if arrow == self.name + LATE else [*self.names, CHANGE, REASON]

    def plain(self) -> dict[str, Any]:
        """It as the YAML form has it; what is as always is left out."""
        body: dict[str, Any] = {"columns": self.columns, "time": self.time}
        for field in ("slack", "idle", "every", "late", "key", "history", "durable", "full"):
            value = getattr(self, field)
            if value != type(self).model_fields[field].default:
                body[field] = "true" if value is True else list(value) if isinstance(value, tuple) else value
        return body


class Output(Frozen):
    """A stream that goes to clients, under a name of its own."""

    noun: ClassVar[str] = "output"

    name: str
    source: str
    full: Literal["wait", "drop"] = "wait"  # in a cluster, when its queue is full: the unit waits, or the oldest go
    revisions: Given = "all"  # `final`: each result once, when it can no longer change; `drop`: as it first came
    important: str | None = None  # an expression over the row: only changes of which it is true are given

    @model_validator(mode="after")
    def _check(self) -> Output:
        if self.important is not None and self.revisions != "all":
            hint = f"leave 'important' out: with revisions {self.revisions} no changes are given"
            raise DiagramError(f"'important' and revisions: {self.revisions}", hint=hint)
        if self.important is not None and sql.is_empty(self.important):
            raise DiagramError(
                "'important' is empty", hint="say what is true of rows whose changes matter: price > 100"
            )
        return self

    @property
    def limited(self) -> bool:
        """Whether its readers want less than all changes."""
        return self.revisions != "all" or self.important is not None

    @property
    def expressions(self) -> list[str]:
        return [] if self.important is None else [self.important]

    def body(self) -> dict[str, Any]:
        """All that is said of it; what is as always is left out."""
        said = {name: getattr(self, name) for name in ("full", "revisions", "important")}
        return {"from": self.source} | {k: v for k, v in said.items() if v != type(self).model_fields[k].default}

    def plain(self) -> Any:
        """It as the YAML form has it."""
        body = self.body()
        return body if len(body) > 1 else self.source


class Spec(Frozen):
    """A diagram. Making one checks each piece; `passes.checked` checks that the pieces fit."""

    name: str
    inputs: tuple[Input, ...] = ()
    boxes: tuple[SerializeAsAny[Box], ...] = ()
    outputs: tuple[Output, ...] = ()
    protection: tuple[Protection, ...] = ()  # by box, and `all` for the rest
    errors: Literal["aside", "fail"] | None = None  # None: aside where it is deployed, fail where it runs here

    @model_validator(mode="after")
    def _check_protection(self) -> Spec:
        outputs = {o.name: origin(o.source) for o in self.outputs}
        protection.check_names(self.protection, [b.name for b in self.boxes], [i.name for i in self.inputs], outputs)
        return self

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Spec:
        """A copy; what was found out of this one is not known of it."""
        made = super().model_copy(update=update, deep=deep)
        for known in ("_columns", "_topological", "_fingerprint"):
            made.__dict__.pop(known, None)
        return made

    def box(self, name: str) -> Box:
        return _named("box", name, self.boxes)

    def input(self, name: str) -> Input:
        return _named("input", name, self.inputs)

    def check_inputs(self, given: Iterable[str], how: str) -> None:
        """Raise an InputError unless just the inputs are given; `how` tells to give `{name}`."""
        known = [i.name for i in self.inputs]
        for name in given:
            if name not in known:
                hint = did_you_mean(name, known) or f"it has: {', '.join(known)}"
                raise InputError(f"diagram '{self.name}' has no input '{name}'", hint=hint)
        for name in known:
            if name not in given:
                raise InputError(f"nothing is given for input '{name}'", hint=how.format(name=name))

    def arrows(self) -> list[str]:
        """Everything an arrow can come from: inputs, their late tuples, boxes and their ports."""
        return [a for i in self.inputs for a in (i.name, *i.sides)] + [a for box in self.boxes for a in box.arrows]

    def no_arrow(self, source: str) -> DiagramError:
        near = did_you_mean(source, self.arrows())
        known = ", ".join([*(i.name for i in self.inputs), *(a for b in self.boxes for a in b.arrows)]) or "nothing"
        return DiagramError(
            f"no input or box '{source}' (has: {known})", hint=near or "draw the arrow from one of these"
        )

    def require_arrow(self, reader: Frozen, source: str, known: Collection[str]) -> None:
        if source not in known:
            e = self.no_arrow(source)
            raise reader.wrong(e.message, e.hint)

    def topological(self) -> list[Box]:
        """The boxes, each after those it reads from; otherwise in the order in which they were added."""
        return list(self._topological)

    @cached_property
    def _topological(self) -> list[Box]:
        boxes = {box.name: box for box in self.boxes}
        order = TopologicalSorter[str](dict.fromkeys(boxes, ()))
        for box in self.boxes:
            order.add(box.name, *({origin(source) for source in box.sources} & boxes.keys()))
        try:
            return [boxes[name] for name in order.static_order()]
        except CycleError as e:
            hint = "a box cannot read what comes from itself: cut one of these arrows"
            raise DiagramError(f"a cycle: {' -> '.join(e.args[1])}", hint=hint) from None

    def downstream(self, arrows: Iterable[str]) -> list[Box]:
        """The boxes that tuples on these arrows can reach, upstream first."""
        reached, found = set(arrows), []
        for box in self.topological():
            if reached.intersection(box.sources):
                reached.update(box.arrows)
                found.append(box)
        return found

    @cached_property
    def _columns(self) -> dict[str, list[str]]:
        found = {i.name: i.names for i in self.inputs}
        found |= {side: i.side_columns(side) for i in self.inputs for side in i.sides}
        for box in self.topological():
            box.check_arity()
            for source in box.sources:
                self.require_arrow(box, source, found)
            found |= box.arrow_columns([found[source] for source in box.sources])
        return found

    def columns(self, source: str) -> list[str]:
        if source not in self._columns:
            raise self.no_arrow(source)
        return list(self._columns[source])

    def paces(self) -> dict[str, int]:
        """For each input the distance of its boundaries in microseconds: as fine as its windows need, no finer."""
        return {i.name: i.every_us or self._pace(i.name) for i in self.inputs}

    def _pace(self, name: str) -> int:
        downstream = self.downstream((name, *self.input(name).sides))
        grid = gcd(*(box.grid_us for box in downstream))
        reach = min((box.reach_us for box in downstream if box.reach_us), default=0)
        if grid and 0 < reach < grid:
            return max(divisor for divisor in _divisors(grid) if divisor <= reach)
        return grid or reach or PACE_US

    def to_yaml(self) -> str:
        """The YAML form; equal diagrams give equal texts."""
        body = notation.Block(
            borealis=VERSION,
            name=self.name,
            inputs=notation.Block({i.name: i.plain() for i in self.inputs}),
            boxes=notation.Block({box.name: box.plain() for box in self.boxes}),
            outputs=notation.Block({o.name: o.plain() for o in self.outputs}),
        )
        if self.protection:
            body["protection"] = protection.written(self.protection)
        if self.errors is not None:
            body["errors"] = self.errors
        return notation.dump(body)

    @classmethod
    def from_yaml(cls, text: str) -> Spec:
        """The diagram in a YAML text, its pieces checked one by one; a text is read once, as all of it is frozen."""
        return _of_yaml(text)

    def fingerprint(self) -> str:
        """What tells this diagram from any other: the SHA-256 of its YAML form."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return hashlib.sha256(self.to_yaml().encode()).hexdigest()


@lru_cache(32)
def _of_yaml(text: str) -> Spec:
    data = notation.load(text)
    if not isinstance(data, dict) or "borealis" not in data:
        raise DiagramError("not a diagram", hint="its first line is 'borealis: 1'")
    if data["borealis"] != str(VERSION):
        seen = data["borealis"] if isinstance(data["borealis"], str) else brief(data["borealis"])
        raise DiagramError(f"a diagram of version {seen[:SHOWN_MOST]}", hint=f"this Borealis reads version {VERSION}")
    keys = ("borealis", "name", "inputs", "boxes", "outputs", "protection", "errors")
    _known("diagram", data, keys)
    name = data.get("name")
    if not isinstance(name, str) or not name:
        raise DiagramError("the diagram has no name", hint="add a line such as 'name: traffic'")
    return Spec(
        name=name,
        inputs=tuple(_read_input(n, body) for n, body in _section(data, "inputs")),
        boxes=tuple(_read_box(n, body) for n, body in _section(data, "boxes")),
        outputs=tuple(_read_output(n, body) for n, body in _section(data, "outputs")),
        protection=protection.read(data["protection"]) if data.get("protection") else (),
        errors=data.get("errors"),
    )


def origin(arrow: str) -> str:
    """The input or box that an arrow comes from.

    >>> origin("packets.late"), origin("packets")
    ('packets', 'packets')
    """
    return arrow.partition(SIDE)[0]


def _is_timestamp(kind: str) -> bool:
    return kind.split()[0].upper() in ("TIMESTAMP", "TIMESTAMP_LTZ")


def _named(what: str, name: str, things: Iterable[Named]) -> Named:
    known = {thing.name: thing for thing in things}
    if name not in known:
        raise DiagramError(f"no {what} '{name}' (has: {', '.join(known) or 'none'})", hint=did_you_mean(name, known))
    return known[name]


def _divisors(n: int) -> list[int]:
    """The divisors of a number; of one with two large prime factors only some, which is enough here."""
    found = [1]
    factor = 2
    while n > 1:
        if factor > FACTOR_MAX or factor * factor > n:
            factor = n
        power, powers = 1, [1]
        while n % factor == 0:
            n //= factor
            power *= factor
            powers.append(power)
        found = [a * b for a in found for b in powers]
        factor += 1
    return found


def _known(where: str, body: Mapping[str, Any], keys: Iterable[str]) -> None:
    for key in body:
        if key not in keys:
            hint = did_you_mean(key, keys) or f"keys are {', '.join(keys)}"
            raise DiagramError(f"{where}: unknown key '{key}'", hint=hint)


def _section(data: Mapping[str, Any], key: str) -> Iterable[tuple[str, Any]]:
    body = data.get(key) or {}
    if not isinstance(body, dict):
        raise DiagramError(
            f"'{key}' must hold one entry per name, not {brief(body)}", hint=f"write '{key}:' and indent them"
        )
    return body.items()


def _read_input(name: str, body: Any) -> Input:
    if not isinstance(body, dict):
        raise DiagramError(
            f"input '{name}' must have columns, not {brief(body)}", hint='write {columns: "ts TIMESTAMP"}'
        )
    _known(f"input '{name}'", body, [field for field in Input.model_fields if field != "name"])
    empty = ("", "null", "~")  # every scalar is text here, also the one that says there is none
    may = ("time", "idle", "every", "history")
    return Input(name=name, **{k: v for k, v in body.items() if k not in may or v not in empty})


def _read_output(name: str, body: Any) -> Output:
    if not isinstance(body, dict):
        return Output(name=name, source=body)
    _known(f"output '{name}'", body, ("from", "full", "revisions", "important"))
    if "from" not in body:
        raise DiagramError(f"output '{name}': 'from' is missing", hint="say where its tuples come from")
    return Output(name=name, **{"source" if k == "from" else k: v for k, v in body.items()})


def _read_box(name: str, body: Any) -> Box:
    if not isinstance(body, dict) or len(body) != 1:
        hint = f"write one of {', '.join(BOXES)}, and its parameters under it"
        raise DiagramError(f"box '{name}' must have one kind", hint=hint)
    [(kind, parameters)] = body.items()
    if kind not in BOXES:
        raise DiagramError(
            f"box '{name}': no kind of box '{kind}'", hint=did_you_mean(kind, BOXES) or f"kinds are {', '.join(BOXES)}"
        )
    if not isinstance(parameters, dict):
        raise DiagramError(f"box '{name}': {article(kind)} needs parameters", hint="write them as {from: ..., ...}")
    return BOXES[kind].from_plain(name, parameters)
