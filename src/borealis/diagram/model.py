"""The diagram as a user draws it: start with `Diagram`, follow a `Stream` from box to box, end in outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import Any, Literal, Unpack

from borealis.diagram import drawing, passes
from borealis.diagram.boxes import BOXES, Box
from borealis.diagram.boxes.history import CONFLICT, EXPIRED
from borealis.diagram.boxes.revisions import Given
from borealis.diagram.boxes.sql_write import BAD
from borealis.diagram.branches import Branches
from borealis.diagram.durations import CountWindow, Window, show, window
from borealis.diagram.names import no_column
from borealis.diagram.protection import ALL, Protection, ProtectOptions
from borealis.diagram.spec import LATE, SIDE, Input, Output, Spec, origin
from borealis.diagram.statements import DATABASE, GIVE_UP
from borealis.errors import DiagramError

Time = str | timedelta  # a length of time
Columns = str | Sequence[str]

__all__ = ["Branches", "Diagram", "Input", "Output", "Spec", "Stream"]


class Diagram:
    """Draws a `spec`, which is replaced by a larger one with every addition; nothing runs here.

    >>> d = Diagram("traffic")
    >>> packets = d.input("packets", "ts TIMESTAMP, src STRING, bytes INT", slack="2 seconds")
    >>> packets.filter("bytes > 100").aggregate(by="src", over=window("10 seconds"), n="count(*)").output("busy")
    >>> d.spec.columns("aggregate_1")
    ['src', 'window_start', 'window_end', 'n']
    """

    def __init__(self, name: str, *, errors: Literal["aside", "fail"] | None = None) -> None:
        """`errors` says what becomes of a tuple that a box cannot take, such as one with a zero to divide by.

        It goes to the stream `<unit>.errors`, with the reason, and the rest goes on (`aside`, as always when it is
        deployed); or it stops its unit (`fail`, as always in a local run).
        """
        self.spec = Spec(name=name, errors=errors)

    @property
    def name(self) -> str:
        return self.spec.name

    def __repr__(self) -> str:
        return drawing.text_of(self.spec)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """For notebooks: those that know Mermaid draw it, others show the text."""
        return {"text/vnd.mermaid": self.to_mermaid(), "text/html": self._repr_html_(), "text/plain": repr(self)}

    def to_mermaid(self) -> str:
        """The drawing in Mermaid's notation, which Markdown on GitHub and JupyterLab show as boxes and arrows.

        >>> d = Diagram("all")
        >>> d.input("packets", "ts TIMESTAMP, n INT").filter("n > 1").output("big")
        >>> print(d.to_mermaid())
        flowchart LR
          at_packets(["packets"])
          at_filter_1["filter_1 (predicate n &gt; 1)"]
          to_big(["big"])
          at_packets --> at_filter_1
          at_filter_1 --> to_big
        <BLANKLINE>
        """
        return drawing.mermaid_of(self.spec)

    def input(
        self,
        name: str,
        columns: str,
        *,
        time: str | None = None,
        slack: Time = "0 seconds",
        idle: Time | None = None,
        every: Time | None = None,
        late: Literal["keep", "fail", "revise"] = "keep",
        key: Columns = (),
        history: Time | None = None,
        durable: bool = False,
        full: Literal["wait", "drop"] = "wait",
    ) -> Stream:
        """A stream from outside; `time` may be left out where only one column is a TIMESTAMP.

        It names a column, or is an expression over the row that makes the time of numbers or text, such as
        `timestamp_millis(t)` or `to_timestamp(t, 'dd/MM/yyyy HH:mm')`.

        With a `key` and a `history`, rows can be deleted and replaced afterwards: a column `_kind` says what each does
        (`+I`, which is also what no kind means, `-D` or `+U`), and results are corrected, as far back as the history
        reaches. With `late="revise"`, so they are for rows that come late.

        >>> d = Diagram("ticker")
        >>> quotes = d.input("quotes", "ts TIMESTAMP, id INT, price DOUBLE", key="id", history="1 hour")
        >>> quotes.filter("price > 100").output("dear")

        In a cluster, a `durable` input is logged on disk before its publisher is answered, and `full` says what happens
        when its queue is full: publishers wait, or the oldest tuples are dropped and counted.
        """
        times: dict[str, Any] = {"time": time, "slack": slack, "idle": idle, "every": every}
        revised: dict[str, Any] = {"late": late, "key": key, "history": history}
        one = Input(name=name, columns=columns, **times, **revised, durable=durable, full=full)
        self._grow(inputs=(*self.spec.inputs, one))
        return Stream(self, name)

    def stream(self, source: str) -> Stream:
        """The stream from an input or box that is there already; for a diagram that was loaded."""
        self.spec.columns(source)
        return Stream(self, source)

    def add(self, box: Box) -> Stream:
        """Add a box that was made by hand, and return what comes out of it."""
        self._grow(boxes=(*self.spec.boxes, box))
        return Stream(self, box.name)

    def protect(self, box: str = ALL, **how: Unpack[ProtectOptions]) -> None:
        """Protect, in a cluster, the unit of a box, or all units of which no box is named; see `Protection`.

        >>> d = Diagram("traffic")
        >>> d.input("packets", "ts TIMESTAMP").filter("true", name="every").output("all_of_them")
        >>> d.protect(ha="passive", guarantee="precise")
        >>> d.protect("every", ha="upstream-backup", interval="50 ms")
        """
        before = tuple(p for p in self.spec.protection if p.name != box)
        self._grow(protection=(*before, Protection(name=box, **how)))

    def validate(self) -> Spec:
        """What will run, if the diagram is sound and complete; otherwise a DiagramError that says what is not."""
        return passes.checked(self.spec)

    def to_yaml(self) -> str:
        """The YAML form; `from_yaml` gives an equal diagram back."""
        return self.spec.to_yaml()

    @classmethod
    def from_yaml(cls, text: str) -> Diagram:
        """The diagram in a YAML text. It must be sound, but need not be complete: `validate` asks for that."""
        spec = Spec.from_yaml(text)
        passes.checked(spec, passes.SOUND)
        diagram = cls(spec.name)
        diagram.spec = spec
        return diagram

    def save(self, path: str | Path) -> None:
        try:
            Path(path).write_text(self.to_yaml(), encoding="utf-8", newline="\n")
        except OSError as e:
            raise DiagramError(
                f"cannot write '{path}': {e.strerror or e}", hint="check the folder and its rights"
            ) from None

    @classmethod
    def load(cls, path: str | Path) -> Diagram:
        try:
            text = Path(path).read_bytes().decode("utf-8-sig")
        except OSError as e:
            raise DiagramError(f"cannot read '{path}': {e.strerror or e}", hint="check the path") from None
        except UnicodeDecodeError:
            raise DiagramError(f"cannot read '{path}': not UTF-8 text", hint="is it a diagram?") from None
        try:
            return cls.from_yaml(text)
        except DiagramError as e:
            raise DiagramError(f"{path}: {e.message}", hint=e.hint) from None

    def _grow(self, **parts: Any) -> None:
        spec = Spec(**({field: getattr(self.spec, field) for field in Spec.model_fields} | parts))
        passes.checked(spec, passes.SOUND)
        self.spec = spec

    def _free_name(self, kind: str) -> str:
        taken = set(self.spec.arrows())
        number = 1 + sum(box.kind == kind for box in self.spec.boxes)
        while f"{kind}_{number}" in taken:
            number += 1
        return f"{kind}_{number}"


@dataclass(frozen=True)
class Stream:
    """What flows along an arrow of a diagram; each method adds a box and returns what comes out of it.

    `name` names the box in every method; a column called so has to come in a dict.

    >>> ticks = Diagram("ticks").input("ticks", "ts TIMESTAMP, n INT")
    >>> ticks.filter("n > 0", name="some").map(m="n", name="slim").columns
    ['m']
    """

    diagram: Diagram
    source: str

    @property
    def columns(self) -> list[str]:
        return self.diagram.spec.columns(self.source)

    def filter(self, predicate: str, *, name: str | None = None) -> Stream:
        """The tuples for which the predicate is true."""
        return self._then("filter", name, predicate=predicate)

    def route(
        self,
        branches: Mapping[str, str] | None = None,
        /,
        *,
        otherwise: str | None = None,
        name: str | None = None,
        **predicates: str,
    ) -> Branches:
        """One stream for each predicate: a tuple goes to the first that is true, else to the branch `otherwise` names.

        >>> events = Diagram("alarms").input("events", "ts TIMESTAMP, sev INT")
        >>> urgent, rest = events.route(urgent="sev > 7", otherwise="rest")
        >>> urgent.source, rest.columns
        ('route_1.urgent', ['ts', 'sev'])
        """
        box = self._then(
            "route", self._named(name), branches=dict(branches or {}) | predicates, otherwise=otherwise
        ).source
        drawn = self.diagram.spec.box(box)
        return Branches({port.removeprefix(SIDE): Stream(self.diagram, box + port) for port in drawn.ports})

    def drop(
        self,
        rate: float | None = None,
        *,
        seed: int = 0,
        key: Columns = (),
        where: str | None = None,
        utility: str | None = None,
        below: float | None = None,
        name: str | None = None,
    ) -> Stream:
        """Without a share of the tuples (or of the keys), those where a condition is true, or those worth too little.

        What is given together must all hold. The choice by rate is a function of the tuple: equal ones share one fate.

        >>> events = Diagram("alarms").input("events", "ts TIMESTAMP, src STRING, sev INT")
        >>> thinned = events.drop(0.3, seed=7).drop(0.5, key="src").drop(0.9, where="sev < 3")
        >>> thinned.drop(utility="sev / 10", below=0.4).columns
        ['ts', 'src', 'sev']
        """
        worth = {"where": where, "utility": utility, "below": below}
        return self._then("drop", name, rate=rate, seed=seed, key=key, **worth)

    def map(self, exprs: Mapping[str, str] | None = None, /, *, name: str | None = None, **columns: str) -> Stream:
        """New columns, each an expression; columns it does not name are gone. See `with_columns` to keep them.

        `name` is the box's; a column called `name` has to come in the dict.
        """
        return self._then("map", self._named(name), exprs=dict(exprs or {}) | columns)

    def with_columns(
        self, exprs: Mapping[str, str] | None = None, /, *, name: str | None = None, **columns: str
    ) -> Stream:
        """The same columns and more, each an expression; one that is there already gets a new value in its place.

        >>> ticks = Diagram("ticks").input("ticks", "ts TIMESTAMP, symbol STRING, price DOUBLE")
        >>> ticks.with_columns(symbol="upper(symbol)", cents="price * 100").columns
        ['ts', 'symbol', 'price', 'cents']
        """
        return self._then("map", self._named(name), exprs=_same(self.columns) | dict(exprs or {}) | columns)

    def select(self, *columns: str, name: str | None = None, **more: str) -> Stream:
        """These columns, in this order, and more, each an expression.

        >>> ticks = Diagram("ticks").input("ticks", "ts TIMESTAMP, symbol STRING, price DOUBLE")
        >>> ticks.select("price", "ts", cents="price * 100").columns
        ['price', 'ts', 'cents']
        """
        return self._then("map", self._named(name), exprs=_same(map(self._column, columns)) | more)

    def drop_columns(self, *columns: str, name: str | None = None) -> Stream:
        """All columns but these.

        >>> ticks = Diagram("ticks").input("ticks", "ts TIMESTAMP, symbol STRING, price DOUBLE")
        >>> ticks.drop_columns("price").columns
        ['ts', 'symbol']
        """
        gone = set(map(self._column, columns))
        return self._then("map", name, exprs=_same(c for c in self.columns if c not in gone))

    def union(self, *others: Stream, name: str | None = None) -> Stream:
        """This stream and others of the same columns, as they arrive."""
        return self._then("union", name, *others)

    def aggregate(
        self,
        by: Columns = (),
        over: Window | CountWindow | Time | None = None,
        exprs: Mapping[str, str] | None = None,
        *,
        history_at: str | None = None,
        name: str | None = None,
        **columns: str,
    ) -> Stream:
        """One tuple per group and window; an aggregate called like a parameter has to come in the dict `exprs`.

        `history_at` names the input that gives rows again when one goes, so that they need not be kept here, too.

        >>> trades = Diagram("trades").input("trades", "ts TIMESTAMP, k STRING, v DOUBLE")
        >>> trades.aggregate(by="k", over=window("1 minute", timeout="10 seconds"), n="count(*)").columns
        ['k', 'window_start', 'window_end', 'timed_out', 'n']
        >>> from borealis.diagram.durations import count_window
        >>> trades.aggregate(by="k", over=count_window(100, 10), mean="avg(v)").columns
        ['k', 'window_start', 'window_end', 'mean']
        """
        if over is None:
            hint = 'say over=window("10 seconds", "1 second"), or over=count_window(100, 10)'
            raise DiagramError("an aggregate without a window", hint=hint)
        if not isinstance(over, Window | CountWindow):
            over = window(over)
        fields: dict[str, Any] = {"by": by, "history_at": history_at, "exprs": dict(exprs or {}) | columns}
        fields["timeout"] = None if over.timeout_us is None else show(over.timeout_us)
        if isinstance(over, CountWindow):
            fields |= {"count": over.size, "every": over.slide}
        else:
            fields |= {"size": show(over.size_us), "slide": show(over.slide_us)}
        return self._then("aggregate", self._named(name), **fields)

    def join(self, other: Stream, *, on: str, within: Time | None = None, name: str | None = None) -> Stream:
        """Pairs of a tuple from here (`left.`) and one from there (`right.`), less than `within` apart."""
        if within is None:
            raise DiagramError("a join without a window", hint='say within="10 seconds"')
        return self._then("join", name, other, on=on, within=within)

    def resample(
        self,
        other: Stream,
        value: str | None = None,
        how: Literal["previous", "nearest", "linear"] | None = None,
        *,
        window: Time | None = None,
        by: Columns = (),
        exprs: Mapping[str, str] | None = None,
        name: str | None = None,
        **columns: str,
    ) -> Stream:
        """These tuples, each with a value of the other stream at its time: interpolated, or an aggregate of all nearby.

        Nearby is less than `window` away, with the same `by` columns. Results come `window` later than their tuples,
        and have that later time; only for `how="previous"` they need not wait.

        >>> d = Diagram("prices")
        >>> orders = d.input("orders", "ts TIMESTAMP, symbol STRING, amount INT")
        >>> ticks = d.input("ticks", "ts TIMESTAMP, symbol STRING, price DOUBLE")
        >>> orders.resample(ticks, "price", "linear", window="10 seconds", by="symbol").columns
        ['ts', 'symbol', 'amount', 'price']
        >>> orders.resample(ticks, window="1 minute", by="symbol", mean="avg(price)").columns
        ['ts', 'symbol', 'amount', 'mean']
        """
        if window is None:
            raise DiagramError("a resample without a window", hint='say window="10 seconds"')
        what: dict[str, Any] = {"value": value, "how": how, "exprs": (dict(exprs or {}) | columns) or None}
        return self._then("resample", self._named(name), other, window=window, by=by, **what)

    def bsort(self, value: str, *, buffer: int, by: Columns = (), name: str | None = None) -> Stream:
        """The same tuples, sorted as far as a buffer of `buffer` tuples can: what comes much too late stays too late.

        A tuple's time is raised to that of the one that pushed it out of the buffer; its columns stay as they are.

        >>> ticks = Diagram("ticks").input("ticks", "ts TIMESTAMP, symbol STRING, price DOUBLE")
        >>> ticks.bsort("price", buffer=100, by="symbol").columns
        ['ts', 'symbol', 'price']
        """
        return self._then("bsort", name, value=value, buffer=buffer, by=by)

    def sql_read(
        self,
        statement: str,
        *,
        gives: str,
        database: str = DATABASE,
        missing: Literal["drop", "null"] = "drop",
        stable: bool = False,
        give_up: str = GIVE_UP,
        name: str | None = None,
    ) -> Stream:
        """Each tuple with the rows that a database answers it; without an answer it is dropped, or gets nulls.

        Say `stable` only if the same question always has the same answer: a backup asks again.

        >>> calls = Diagram("calls").input("calls", "ts TIMESTAMP, customer INT")
        >>> named = calls.sql_read("SELECT name FROM customers WHERE id = :customer", gives="name STRING")
        >>> named.columns, named.bad.columns
        (['ts', 'customer', 'name'], ['ts', 'customer', 'reason'])
        """
        fields = {"database": database, "missing": missing, "stable": stable, "give_up": give_up}
        return self._then("sql_read", name, statement=statement, gives=gives, **fields)

    def sql_write(
        self,
        statement: str | None = None,
        *,
        table: str | None = None,
        key: Columns | None = None,
        database: str = DATABASE,
        give_up: str = GIVE_UP,
        name: str | None = None,
    ) -> Stream:
        """The same tuples, for each of which a database is changed, exactly once; `.bad` are those it refused.

        In place of a statement, a `table` is kept: the newest tuple of each `key`, and none that was taken back.

        >>> calls = Diagram("calls").input("calls", "ts TIMESTAMP, customer INT")
        >>> kept = calls.sql_write("INSERT INTO calls (at, who) VALUES (:ts, :customer)", database="warehouse")
        >>> kept.columns, kept.bad.columns
        (['ts', 'customer'], ['ts', 'customer', 'reason'])
        """
        fields = {"table": table, "key": key, "database": database, "give_up": give_up}
        return self._then("sql_write", name, statement=statement, **fields)

    @property
    def bad(self) -> Stream:
        """What a database refused, with the reason; only a SQL-read or SQL-write has such a stream."""
        arrow = self.source + BAD
        if arrow not in self.diagram.spec.arrows():
            raise DiagramError(f"'{self.source}' has no .bad", hint="take it from what sql_read or sql_write returns")
        return Stream(self.diagram, arrow)

    @property
    def late(self) -> Stream:
        """The tuples of an input that came after the boundary had passed them."""
        if self.source not in {i.name for i in self.diagram.spec.inputs}:
            raise DiagramError(f"'{self.source}' has no late tuples", hint="only an input has: take .late from it")
        return Stream(self.diagram, self.source + LATE)

    @property
    def expired(self) -> Stream:
        """The changes of an input that were older than its history, with the reason."""
        return self._side(EXPIRED)

    @property
    def conflict(self) -> Stream:
        """The changes of an input that did not fit what was there, with the reason."""
        return self._side(CONFLICT)

    def _side(self, side: str) -> Stream:
        if self.source + side not in self.diagram.spec.arrows():
            raise DiagramError(f"'{self.source}' has no {side}", hint="only an input with a history has: take it there")
        return Stream(self.diagram, self.source + side)

    def protect(self, **how: Unpack[ProtectOptions]) -> Stream:
        """Protect the unit of the box that this stream comes from; the same stream again."""
        self.diagram.protect(origin(self.source), **how)
        return self

    def output(
        self,
        name: str,
        *,
        full: Literal["wait", "drop"] = "wait",
        revisions: Given = "all",
        important: str | None = None,
    ) -> None:
        """Give this stream to clients under a name. In a cluster, a slow client makes it wait, or loses tuples.

        Where it is corrected, `revisions="final"` gives each result once, when it can no longer change, and "drop" as
        it first came. With `important`, only changes are given of which that is true, of the row that goes or comes.

        >>> quotes = Diagram("ticker").input("quotes", "ts TIMESTAMP, price DOUBLE", late="revise", history="1 hour")
        >>> highest = quotes.aggregate(over=window("5 minutes"), highest="max(price)")
        >>> highest.output("bills", revisions="final")
        >>> highest.output("alarms", important="highest > 100")
        """
        output = Output(name=name, source=self.source, full=full, revisions=revisions, important=important)
        self.diagram._grow(outputs=(*self.diagram.spec.outputs, output))

    def _then(self, kind: str, name: str | None, *others: Stream, **fields: Any) -> Stream:
        for other in others:
            if other.diagram is not self.diagram:
                hint = "draw both in one Diagram"
                raise DiagramError(f"'{other.source}' belongs to another diagram, '{other.diagram.name}'", hint=hint)
        name = self.diagram._free_name(kind) if name is None else name
        return self.diagram.add(BOXES[kind](name=name, sources=(self.source, *(o.source for o in others)), **fields))

    def _named(self, name: str | None) -> str | None:
        """The name of a box among whose keywords are columns; refuses what was meant as a column."""
        if name is not None and (not name.isidentifier() or name in self.columns):
            hint = "a column called name comes in a dict: {'name': '...'}"
            raise DiagramError(f"name={name!r} is the name of the box", hint=hint)
        return name

    def _column(self, name: str) -> str:
        if name not in self.columns:
            raise no_column(name, self.columns)
        return name


def _same(columns: Iterable[str]) -> dict[str, str]:
    return {column: f"`{column}`" for column in columns}
