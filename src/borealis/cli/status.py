"""`borealis status`: nodes, units, streams, and how they stand; `forget-node`: which node is shown no more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from json import dumps
from typing import Annotated

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text
from typer import Argument, Option

from borealis.cli.ending import STOP
from borealis.cli.options import ClusterOptions, Json
from borealis.cli.screen import FittingTable, answer, console, plural, size, span
from borealis.errors import WireError
from borealis.wire import status as views
from borealis.wire.messages import Forked, Takeover

EVERY_S = 1.0  # nodes report that often
GUARDED = ("protected", "watching")
GOOD = ("alive", "ready", "running", "ended")


def status(
    watch: Annotated[bool, Option("--watch", "-w", help="Again every second, until stopped.")] = False,
    *,
    cluster: ClusterOptions,
    json: Json = False,
) -> None:
    out = console()
    live = Live(console=out, auto_refresh=False) if watch and out.is_terminal and not json else None
    with cluster.client() as client:
        now = client.status()
        with STOP.deferred() if watch else nullcontext(), live or nullcontext():
            while True:
                if json:
                    print(dumps(now.model_dump(), ensure_ascii=False), flush=True)
                elif live is not None:
                    live.update(fitting(now, out), refresh=True)
                else:
                    out.print(shown(now))
                if not watch:
                    return
                STOP.sleep(EVERY_S)
                try:
                    now = client.status()
                except WireError as error:
                    now = now.model_copy(update={"troubles": [views.TroubleView(why=str(error))]})


def forget_node(
    node: Annotated[str, Argument(help="The node, which is dead.")], cluster: ClusterOptions, json: Json = False
) -> None:
    with cluster.client() as client:
        client.forget_node(node)
    answer(json, {"node": node}, f"node {node} is forgotten")


def shown(status: views.ClusterStatus, fold: int = 0) -> RenderableType:
    """All of it, for people. Folded once, streams and protection are in a line each; folded twice, nodes and units,
    too: what is not as it should be first.
    """
    parts: list[RenderableType] = [_head(status)]
    if status.nodes:
        parts.append(_nodes(status.nodes, plain=fold > 0) if fold < 2 else _in_groups("nodes", status.nodes))
    for diagram in status.diagrams:
        units = [unit for unit in status.units if unit.diagram == diagram.diagram]
        streams = [stream for stream in status.streams if stream.diagram == diagram.diagram]
        guarded = [(unit.unit, unit.protection) for unit in units if unit.protection is not None]
        guarded += [(f"input {one.arrow}", one.protection) for one in streams if one.protection is not None]
        entries = ", ".join(f"{name} on {node}" for name, node in diagram.entries.items())
        head = Text.assemble((diagram.diagram, "bold"), " ", _state(diagram.state))
        parts.append(head.append(f", inputs {entries}" if entries else "", style="dim"))
        parts.append(_units(units, plain=fold > 0) if fold < 2 else _in_groups("units", units))
        if fold:
            parts += [Text(line, "dim") for line in (_streams_line(streams), *_protection_lines(guarded)) if line]
        else:
            parts += [Text(_why_batches(unit), "dim") for unit in units if unit.hinders]
            parts += [_streams(streams)] if streams else []
            parts += [protection_table(guarded)] if guarded else []
            parts += [Text(takeover_line(name, one.last_takeover), "dim") for name, one in guarded if one.last_takeover]
    orphans = [unit for unit in status.units if unit.state == "orphan"]
    if orphans and fold:
        parts.append(_in_groups("units without a diagram", orphans))
    elif orphans:
        parts += [Text("units without a diagram", style="bold yellow"), _units(orphans)]
    parts += _notes(status)
    return Group(*(_cut(part) if fold and isinstance(part, Text) else part for part in parts))


def _notes(status: views.ClusterStatus) -> list[Text]:
    """All that is wrong, the worst last."""
    notes = []
    for unit in status.units:
        name = f"{unit.diagram}/{unit.unit}"
        if unit.error:
            notes.append(Text(f"{name}: {unit.error}", style="red"))
        if unit.errors:
            some = f"{plural(unit.errors, 'tuple')} aside in {unit.unit}.errors"
            last = f"; the last: {unit.last_error}" if unit.last_error else ""
            notes.append(Text(f"{name}: {some}{last}", style="yellow"))
        for arrow, count in unit.refused.items():
            if count:
                notes.append(Text(f"{name}: {plural(count, 'change')} not made, on {arrow}", style="yellow"))
        for arrow, count in unit.given_up.items():
            notes.append(Text(f"{name} gave up {plural(count, 'tuple')} of {arrow} for newer ones", style="yellow"))
        if unit.fork is not None:
            notes.append(Text(f"{name} {fork_words(unit.fork)}", style="yellow"))
        for one in unit.waiting:
            notes.append(Text(f"{name} waits, for {span(1e6 * one.seconds)} so far: {one.why}", style="yellow"))
    for trouble in status.troubles:
        words = (trouble.diagram, trouble.node, trouble.what, trouble.why)
        notes.append(Text(f"trouble: {': '.join(word for word in words if word)}", style="yellow"))
    return notes + unprotected_lines(status.unprotected)


# -- in few rows


def fitting(status: views.ClusterStatus, out: Console) -> RenderableType:
    """As much of it as this window has rows for: all, or folded, or only what is wrong."""
    rows = out.size.height - 1
    for fold in range(3):
        view = shown(status, fold)
        if len(out.render_lines(view, pad=False)) <= rows:
            return view
    lines = [_cut(Text(_head(status).plain, "bold")), *map(_cut, reversed(_notes(status)))]
    if len(lines) > rows:
        lines[rows - 1 :] = [_cut(Text(f"and {len(lines) - rows + 1} more: see 'borealis status'"))]
    return Group(*lines)


def _in_groups(what: str, many: Sequence[views.NodeView | views.UnitView]) -> Text:
    """Names by state: what is as it should be last, for the line may be cut."""
    states: dict[str, list[str]] = {}
    for one in sorted(many, key=lambda one: one.state in GOOD):
        states.setdefault(one.state, []).append(one.unit if isinstance(one, views.UnitView) else one.node)
    text = Text(f"{what}: ")
    for number, (state, names) in enumerate(states.items()):
        text.append("; " if number else "").append_text(_state(state)).append(f" {', '.join(names)}")
    return text


def _streams_line(streams: list[views.StreamView]) -> str:
    lines = []
    for stream in streams:
        _, behind = _slowest(stream)
        words = [f"{stream.rows_per_s:,.0f}/s"] if stream.rows_per_s else []
        words += [f"{behind:,} behind"] if behind else []
        words += [f"{stream.dropped:,} lost"] if stream.dropped else []
        more = f" ({', '.join(words)})" if words else ""
        lines.append(f"{stream.arrow} {f'{stream.next_id:,}' if stream.measured else '-'}{more}")
    return f"streams: {', '.join(lines)}" if lines else ""


def _protection_lines(rows: Sequence[tuple[str, views.ProtectionView]]) -> list[str]:
    """How units and inputs are protected, by state; and the last takeover."""
    states: dict[str, list[str]] = {}
    for name, guarded in rows:
        states.setdefault(guarded.state, []).append(f"{name} by {guarded.backup}" if guarded.backup else name)
    lines = ["; ".join(f"{state}: {', '.join(names)}" for state, names in states.items())]
    taken = [(guarded.last_takeover, name) for name, guarded in rows if guarded.last_takeover is not None]
    if taken:
        last, name = max(taken, key=lambda one: one[0].at)
        ms = last.detection_ms + last.takeover_ms + last.reprocess_ms
        others = f", the last of {len(taken)} takeovers" if len(taken) > 1 else ""
        lines.append(f"{name} took over from {last.primary or '?'} {moment(last.at)} in {span(1000 * ms)}{others}")
    return lines


def _cut(text: Text) -> Text:
    """On one line, however long it is."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


# -- the parts


def _head(status: views.ClusterStatus) -> Text:
    nodes = f"{sum(node.alive for node in status.nodes)} of {plural(len(status.nodes), 'node')} alive"
    rest = f" {status.coordinator.address}: {nodes}, {plural(len(status.diagrams), 'diagram')}"
    return Text.assemble(("coordinator", "bold"), rest, (instability_words(status.instability), "dim"))


def instability_words(seen: views.Instability) -> str:
    """Whether the next failure would be survived, or since when not.

    >>> instability_words(views.Instability(since=1.0, seconds=2.5, what=3))
    ', unstable for 2.5 s (3 not protected)'
    >>> instability_words(views.Instability(last_at=1.0, last_s=2.84)).partition(" at ")[0]
    ', stable; unstable the last time for 2.8 s,'
    >>> instability_words(views.Instability())
    ''
    """
    if seen.since is not None:
        return f", unstable for {seen.seconds:.1f} s ({seen.what:,} not protected)"
    if not seen.last_at:
        return ""
    return f", stable; unstable the last time for {seen.last_s:.1f} s, at {moment(seen.last_at)}"


def _nodes(nodes: list[views.NodeView], plain: bool = False) -> FittingTable:
    guarded = any(node.recovery_ms is not None for node in nodes)
    more = ("recovery",) if guarded else ()
    left, right = ("node", "state", "Spark", "master", "address"), ("cores", "units", "busy", *more, "pool", "pid")
    spare = ("master", "address", "pid", "pool", "cores", "busy", *more, "units", "Spark")
    table = FittingTable(left, right, spare, plain=plain)
    for node in nodes:
        recovery = "-" if node.recovery_ms is None else f"~ {span(1000 * node.recovery_ms)}"
        pool = f"{node.pool.ready} for {node.pool.images}" if node.pool.images or node.pool.ready else "-"
        figures = str(node.cores), str(node.units), f"{100 * node.busy:.0f} %", *([recovery] if guarded else ()), pool
        table.add_row(
            node.node,
            _state(node.state),
            _state("warming up" if node.spark == "ready" and not node.warm else node.spark),
            node.master or "-",
            node.address or "-",
            *(figures if node.state != "awaited" else "-" * len(figures)),
            str(node.pid),
        )
    return table


def _units(units: list[views.UnitView], plain: bool = False) -> FittingTable:
    right = ("in", "in/s", "out/s", "trains", "train", "lag", "state size", "boundary", "runs")
    spare = ("runs", "train", "trains", "boundary", "out/s", "state size", "in", "in/s", "lag")
    table = FittingTable(("unit", "node", "state"), right, spare, plain=plain)
    for unit in units:
        counts = (unit.rows_in, unit.rows_in_per_s, unit.rows_out_per_s, unit.trains)
        figures = [
            *(f"{count:,.0f}" for count in counts),
            span(1000 * unit.train_ms) if unit.train_ms else "-",
            f"{unit.lag_rows:,} rows",
            size(unit.state_bytes),
            _boundary(unit),
            str(unit.runs),
        ]
        where = f"{unit.node} > {unit.moving_to}" if unit.moving_to else unit.node
        table.add_row(unit.unit, where, _state(unit.state), *(figures if unit.measured else "-" * len(figures)))
    return table


def _why_batches(unit: views.UnitView) -> str:
    own = "; its backup keeps a started query of its own" if unit.protection and unit.protection.backup else ""
    return f"{unit.unit} runs {unit.runs}: {unit.hinders}{own}"


def _streams(streams: list[views.StreamView]) -> FittingTable:
    right = ("tuples", "per s", "held", "bytes", "slowest reader", "behind", "lost", "boundary")
    spare = ["bytes", "boundary", "held", "slowest reader", "per s", "behind"]
    spare.insert(len(spare) if any(stream.dropped for stream in streams) else 0, "lost")
    table = FittingTable(("stream", "node"), right, spare)
    for stream in streams:
        name = Text(stream.arrow)
        outputs = [output for output in stream.outputs if output != stream.arrow]
        if outputs or stream.entry:
            name.append(f" ({'input' if stream.entry else ', '.join(outputs)})", style="dim")
        reader, behind = _slowest(stream)
        figures = (
            *(f"{count:,.0f}" for count in (stream.next_id, stream.rows_per_s, stream.held_rows)),
            size(stream.held_bytes),
            reader,
            "-" if behind is None else f"{behind:,}",
            Text(f"{stream.dropped:,}", style="red" if stream.dropped else ""),
            _boundary(stream),
        )
        table.add_row(name, stream.node, *(figures if stream.measured else "-" * len(right)))
    return table


def _slowest(stream: views.StreamView) -> tuple[str, int | None]:
    """The reader that keeps most of the queue, and by how many tuples it is behind."""
    readers = stream.readers
    if not readers:
        return "-", None
    name = min(readers, key=lambda reader: (readers[reader], reader))
    shown_as = "a passing one" if name.startswith("~") else name
    others = f" (of {len(readers)})" if len(readers) > 1 else ""
    return shown_as + others, stream.next_id - readers[name]


def _state(word: str) -> Text:
    bad = word in ("dead", "failed", "lost", "orphan")
    return Text(word, style="green" if word in GOOD else "red" if bad else "yellow")


def _boundary(of: views.Measured) -> str:
    if of.ended or of.boundary is None:
        return "ended" if of.ended else "-"
    try:
        return datetime.fromtimestamp(of.boundary / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{of.boundary:,} µs"


# -- protection: who stands by for whom, how takeovers went, and loudly what is without


def promise(protection: views.ProtectionView | None) -> tuple[str, str]:
    """The nodes of the backup and of further copies, and what is promised.

    >>> how = {"approach": "passive", "guarantee": "precise", "state": "protected", "backup": "node2"}
    >>> promise(views.ProtectionView(**how, copies=3, replicas=dict.fromkeys(("node1", "node2", "node3"), "stable")))
    ('node2, node3', 'passive, precise, 2 backups')
    """
    if protection is None:
        return "-", "-"
    more = f", {protection.checkpoint}" if protection.checkpoint not in (None, "interval") else ""
    more += ", by time" if protection.bucket_ms else ""
    more += f", within {span(1000 * protection.delay_ms)}" if protection.delay_ms else ""
    several = (protection.copies or 0) > 2
    count = f"{protection.copies} " if several and protection.approach == "replicas" else ""
    more += f", {(protection.copies or 0) - 1} backups" if several and not count else ""
    others = [protection.backup or "-"]
    others += [node for node in list(protection.replicas)[1:] if node != protection.backup]
    return ", ".join(others), f"{count}{protection.approach}, {protection.guarantee}{more}"


def fork_words(fork: Forked) -> str:
    """What is tentative, since when, and why.

    >>> fork_words(Forked(state="failure", missing=["c"], seconds=5.2, tuples=1200, kept=300))
    'is tentative for 5.2 s, without c: 1,200 tuples so far, 300 rows kept for the right ones'
    >>> fork_words(Forked(state="stabilization", seconds=9.0, tuples=4, kept=90, stable_in_s=0.4))
    'is tentative for 9.0 s, and corrects that: 4 tuples so far, 90 rows to read, for about 0.4 s'
    >>> full = Forked(state="failure", seconds=60, kept=9_000, memory_bytes=40_000_000, disk_bytes=480_000_000)
    >>> fork_words(full.model_copy(update={"full": ["a"]})).partition("so far, ")[2]
    '9,000 rows kept for the right ones, 40.0 MB in memory and 480.0 MB on disk: no more of a, which waits'
    """
    given = f"{plural(fork.tuples, 'tuple')} so far"
    where = f", {size(fork.memory_bytes)} in memory and {size(fork.disk_bytes)} on disk" if fork.disk_bytes else ""
    where += f": no more of {', '.join(fork.full)}, which waits" if fork.full else ""
    where += f" ({fork.disk_trouble})" if fork.disk_trouble else ""
    since, rows = f"is tentative for {fork.seconds:.1f} s", f"{fork.kept:,} rows"
    if fork.state == "stabilization":
        left = f", for about {fork.stable_in_s:.1f} s" if fork.stable_in_s is not None else ""
        return f"{since}, and corrects that: {given}, {rows} to read{where}{left}"
    missing = f", without {', '.join(fork.missing)}" if fork.missing else ""
    missing += f", as is {', '.join(fork.tentative)}" if fork.tentative else ""
    return f"{since}{missing}: {given}, {rows} kept for the right ones{where}"


def protection_table(rows: Iterable[tuple[str, views.ProtectionView]]) -> FittingTable:
    """One line for each unit or input that is protected."""
    left, right = ("protection", "how", "backup", "state"), ("incarnation", "behind", "recovery")
    table = FittingTable(left, right, ("incarnation", "behind", "recovery", "how"))
    for name, view in rows:
        backup, how = promise(view)
        alone, good = view.state == "alone", view.state in GUARDED
        words = f"alone since {moment(view.since)}" if alone else view.state
        words += f": {view.why}" if view.why and not good else ""
        words += f", handed over by {view.failed_on}, where it failed" if view.failed_on else ""
        if len(view.replicas) < (view.copies or 0) and good:
            words += f", {len(view.replicas)} of {view.copies} copies"
        words += "".join(f", {node}: {copy}" for node, copy in view.replicas.items() if copy != "stable")
        state = Text(words, style="green" if good else "yellow" if view.state == "catching up" else "bold red")
        behind, recovery = span(1000 * view.stale_ms), f"~ {span(1000 * view.recovery_ms)}"
        figures = (str(view.incarnation), "-" if alone else behind, "-" if alone else recovery)
        table.add_row(name, how, backup, state, *figures)
    return table


def takeover_line(name: str, took: Takeover) -> str:
    """The story of a takeover.

    >>> took = Takeover(at=0, incarnation=2, primary="node2", detection_ms=240, takeover_ms=31, jumped=True)
    >>> takeover_line("u2", took)
    'u2 took over from node2 -: detection 240 ms, takeover 31 ms, reprocessing 0 ms; there is a gap in its ids'
    """
    parts = {"detection": took.detection_ms, "takeover": took.takeover_ms, "reprocessing": took.reprocess_ms}
    phases = ", ".join(f"{word} {span(1000 * ms)}" for word, ms in parts.items())
    gap = "; there is a gap in its ids" if took.jumped else ""
    return f"{name} took over from {took.primary or '?'} {moment(took.at)}: {phases}{gap}"


def unprotected_lines(exposed: Iterable[views.Unprotected]) -> list[Text]:
    found = []
    for one in exposed:
        seconds = round(one.seconds)
        length = f"{seconds} s" if seconds < 60 else span(1e6 * seconds)
        line = f"UNPROTECTED: {one.what} of {one.diagram} for {length}: {one.why or one.state}"
        found.append(Text(line, style="bold white on red"))
    return found


def moment(seconds: float) -> str:
    """A time of the day, as clocks here show it."""
    if not seconds:
        return "-"
    try:
        return datetime.fromtimestamp(seconds).strftime("%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "-"
