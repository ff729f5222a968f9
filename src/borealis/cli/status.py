"""`borealis status`: nodes, units, streams, and how they stand; once, or again and again."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from borealis.cli.ending import STOP
from borealis.cli.options import ClusterOptions
from borealis.cli.protection import moment, protection_table, takeover_line, unprotected_lines
from borealis.cli.tables import FittingTable
from borealis.cli.watching import console
from borealis.cli.words import plural, size, span
from borealis.errors import WireError

EVERY_S = 1.0  # nodes report that often
GOOD = ("alive", "ready", "running", "ended")
Facts = dict[str, Any]


def status_command(watch: bool, cluster: ClusterOptions, as_json: bool) -> None:
    """What the coordinator knows; no node is asked."""
    with cluster.client() as client:
        if not watch:
            status = client.status()
            print(json.dumps(status, ensure_ascii=False)) if as_json else console().print(shown(status))
            return
        out = console()
        status = client.status()
        live = Live(console=out, auto_refresh=False, screen=False) if out.is_terminal and not as_json else None
        with STOP.deferred():
            if live is not None:
                live.start()
            try:
                while True:
                    if as_json:
                        print(json.dumps(status, ensure_ascii=False), flush=True)
                    elif live is not None:
                        live.update(fitting(status, out), refresh=True)
                    else:
                        out.print(shown(status))
                    _pause(EVERY_S)
                    try:
                        status = client.status()
                    except WireError as error:
                        status = status | {"troubles": [{"trouble": str(error)}]}
            finally:
                if live is not None:
                    live.stop()


def _pause(seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        STOP.point()
        time.sleep(min(left, 0.1))
    STOP.point()


def shown(status: Facts) -> RenderableType:
    """All of it, for people."""
    nodes, units, streams = (list(status.get(key, ())) for key in ("nodes", "units", "streams"))
    parts: list[RenderableType] = [_head(status, nodes)]
    if nodes:
        parts.append(_nodes(nodes))
    for diagram in status.get("diagrams", ()):
        parts.append(_diagram(diagram))
        of = [unit for unit in units if unit.get("diagram") == diagram.get("diagram")]
        parts.append(_units(of))
        parts += [Text(f"{u['unit']} runs {u['runs']}: {u['hinders']}", style="dim") for u in of if u.get("hinders")]
        mine = [stream for stream in streams if stream.get("diagram") == diagram.get("diagram")]
        if mine:
            parts.append(_streams(mine))
        parts += _protection(of, mine)
    orphans = [unit for unit in units if unit.get("state") == "orphan"]
    if orphans:
        parts += [Text("units that nobody knows", style="bold yellow"), _units(orphans)]
    return Group(*parts, *_notes(status))


def _notes(status: Facts) -> list[Text]:
    """All that is wrong, the worst last."""
    notes = []
    for unit in status.get("units", ()):
        if unit.get("error"):
            notes.append(Text(f"{unit['diagram']}/{unit['unit']}: {unit['error']}", style="red"))
        if unit.get("errors"):
            some = f"{plural(unit['errors'], 'tuple')} aside in {unit['unit']}.errors"
            last = f"; the last: {unit['last_error']}" if unit.get("last_error") else ""
            notes.append(Text(f"{unit['diagram']}/{unit['unit']}: {some}{last}", style="yellow"))
        for one in unit.get("waiting", ()):
            told = f"waits, for {span(1e6 * one['seconds'])} so far: {one['why']}"
            notes.append(Text(f"{unit['diagram']}/{unit['unit']} {told}", style="yellow"))
    notes += [Text(f"trouble: {_trouble(one)}", style="yellow") for one in status.get("troubles", ())]
    return notes + unprotected_lines(status.get("unprotected", ()))


# -- in few rows


def fitting(status: Facts, out: Console) -> RenderableType:
    """As much of it as this window has rows for: all, or streams, protection and takeovers in a line each, or less."""
    rows = out.size.height - 1
    for view in (shown(status), folded(status), folded(status, lists=False)):
        if len(out.render_lines(view, pad=False)) <= rows:
            return view
    lines = [_line(_head(status, list(status.get("nodes", ()))).plain, "bold"), *map(_cut, reversed(_notes(status)))]
    if len(lines) > rows:
        lines[rows - 1 :] = [_line(f"and {len(lines) - rows + 1} more: see 'borealis status'")]
    return Group(*lines)


def folded(status: Facts, lists: bool = True) -> RenderableType:
    """The same in few rows: lists of nodes and units as tables, or only what is not as it should be."""
    nodes, units, streams = (list(status.get(key, ())) for key in ("nodes", "units", "streams"))
    parts: list[RenderableType] = [_head(status, nodes)]
    if nodes:
        parts.append(_nodes(nodes, plain=True) if lists else _in_groups("nodes", nodes, "node"))
    for diagram in status.get("diagrams", ()):
        name = diagram.get("diagram")
        of, mine = ([one for one in many if one.get("diagram") == name] for many in (units, streams))
        parts += [_cut(_diagram(diagram)), _units(of, plain=True) if lists else _in_groups("units", of, "unit")]
        parts += [_line(line, "dim") for line in (_streams_line(mine), *_protection_lines(of, mine)) if line]
    orphans = [unit for unit in units if unit.get("state") == "orphan"]
    parts += [_in_groups("units that nobody knows", orphans, "unit")] if orphans else []
    return Group(*parts, *map(_cut, _notes(status)))


def _in_groups(what: str, many: list[Facts], key: str) -> Text:
    """Names by state: what is as it should be last, for the line may be cut."""
    states: dict[str, list[str]] = {}
    for one in sorted(many, key=lambda one: one.get("state") in GOOD):
        states.setdefault(str(one.get("state") or "-"), []).append(str(one.get(key)))
    text = Text(f"{what}: ")
    for number, (state, names) in enumerate(states.items()):
        text.append("; " if number else "").append_text(_state(state)).append(f" {', '.join(names)}")
    return _cut(text)


def _streams_line(streams: list[Facts]) -> str:
    told = []
    for stream in streams:
        words = [f"{_count(stream.get('rows_per_s'))}/s"] if stream.get("rows_per_s") else []
        _, behind = _slowest(stream) if "next_id" in stream else ("", None)
        words += [f"{behind:,} behind"] if behind else []
        words += [f"{stream['dropped']:,} lost"] if stream.get("dropped") else []
        more = f" ({', '.join(words)})" if words else ""
        told.append(f"{stream.get('arrow', stream.get('stream'))} {_count(stream.get('next_id'))}{more}")
    return f"streams: {', '.join(told)}" if told else ""


def _protection_lines(units: list[Facts], streams: list[Facts]) -> list[str]:
    """How units and inputs are protected, by state; and the last takeover."""
    rows = _protected(units, streams)
    states: dict[str, list[str]] = {}
    for name, facts in rows:
        backup = f" by {facts['backup']}" if facts.get("backup") else ""
        states.setdefault(str(facts.get("state") or "-"), []).append(name + backup)
    lines = ["; ".join(f"{state}: {', '.join(names)}" for state, names in states.items())]
    taken = [(facts["last_takeover"], name) for name, facts in rows if facts.get("last_takeover")]
    if taken:
        last, name = max(taken, key=lambda one: float(one[0].get("at") or 0))
        ms = sum(float(last.get(key) or 0) for key in ("detection_ms", "takeover_ms", "reprocess_ms"))
        others = f", the last of {len(taken)} takeovers" if len(taken) > 1 else ""
        primary = last.get("primary") or "?"
        lines.append(f"{name} took over from {primary} {moment(last.get('at'))} in {span(1000 * ms)}{others}")
    return lines


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _cut(text: Text) -> Text:
    """On one line, however long it is."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


# -- the parts


def _protected(units: list[Facts], streams: list[Facts]) -> list[tuple[str, Facts]]:
    """The units and inputs of a diagram that are protected, and how."""
    named = [(str(unit.get("unit")), unit.get("protection")) for unit in units]
    named += [(f"input {stream.get('arrow')}", stream.get("protection")) for stream in streams]
    return [(name, facts) for name, facts in named if facts]


def _protection(units: list[Facts], streams: list[Facts]) -> list[RenderableType]:
    """Who stands by for a diagram's units and inputs, and how their last takeovers went."""
    rows = _protected(units, streams)
    told = [takeover_line(name, facts["last_takeover"]) for name, facts in rows if facts.get("last_takeover")]
    return [*([protection_table(rows)] if rows else []), *(Text(line, style="dim") for line in told)]


def _head(status: Facts, nodes: list[Facts]) -> Text:
    coordinator = status.get("coordinator", {})
    where = coordinator.get("address") or coordinator.get("url") or ""
    alive = sum(bool(node.get("alive")) for node in nodes)
    diagrams = plural(len(status.get("diagrams", ())), "diagram")
    return Text.assemble(
        ("coordinator", "bold"), f" {where}: {alive} of {plural(len(nodes), 'node')} alive, {diagrams}"
    )


def _nodes(nodes: list[Facts], plain: bool = False) -> FittingTable:
    left, right = ("node", "state", "Spark", "master", "address"), ("cores", "units", "busy", "pid")
    table = FittingTable(left, right, ("master", "address", "pid", "cores", "busy", "units", "Spark"), plain=plain)
    for node in nodes:
        busy = node.get("busy")
        table.add_row(
            str(node.get("node")),
            _state(node.get("state")),
            _state("warming up" if node.get("spark") == "ready" and not node.get("warm") else node.get("spark")),
            str(node.get("master", "-")),
            str(node.get("address", "-")),
            _count(node.get("cores")),
            _count(node.get("units")),
            "-" if busy is None else f"{100 * float(busy):.0f} %",
            str(node.get("pid", "-")),
        )
    return table


def _diagram(diagram: Facts) -> Text:
    entries = ", ".join(f"{name} on {node}" for name, node in diagram.get("entries", {}).items())
    text = Text.assemble((str(diagram.get("diagram")), "bold"), " ", _state(diagram.get("state")))
    return text.append(f", inputs {entries}" if entries else "", style="dim")


def _units(units: list[Facts], plain: bool = False) -> FittingTable:
    left, right = (
        ("unit", "node", "state"),
        ("in", "in/s", "out/s", "trains", "train", "lag", "state size", "boundary", "runs"),
    )
    spare = ("runs", "train", "trains", "boundary", "out/s", "state size", "in", "in/s", "lag")
    table = FittingTable(left, right, spare, plain=plain)
    for unit in units:
        moving = f"{unit['node']} > {unit['moving_to']}" if unit.get("moving_to") else str(unit.get("node"))
        train = unit.get("train_ms")
        table.add_row(
            str(unit.get("unit")),
            moving,
            _state(unit.get("state")),
            _count(unit.get("rows_in")),
            _count(unit.get("rows_in_per_s")),
            _count(unit.get("rows_out_per_s")),
            _count(unit.get("trains")),
            "-" if not train else span(1000 * float(train)),
            "-" if unit.get("lag_rows") is None else f"{unit['lag_rows']:,} rows",
            "-" if unit.get("state_bytes") is None else size(int(unit["state_bytes"])),
            _boundary(unit),
            str(unit.get("runs", "-")),
        )
    return table


def _streams(streams: list[Facts]) -> FittingTable:
    left, right = (
        ("stream", "node"),
        ("tuples", "per s", "held", "bytes", "slowest reader", "behind", "lost", "boundary"),
    )
    lost = any(stream.get("dropped") for stream in streams)
    spare = ["bytes", "boundary", "held", "slowest reader", "per s", "behind"]
    spare.insert(len(spare) if lost else 0, "lost")
    table = FittingTable(left, right, spare)
    for stream in streams:
        name = Text(str(stream.get("arrow", stream.get("stream"))))
        outputs = [o for o in stream.get("outputs", ()) if o != stream.get("arrow")]
        if outputs or stream.get("entry"):
            name.append(f" ({'input' if stream.get('entry') else ', '.join(outputs)})", style="dim")
        if "next_id" not in stream:
            table.add_row(name, str(stream.get("node")), *["-"] * len(right))
            continue
        reader, behind = _slowest(stream)
        table.add_row(
            name,
            str(stream.get("node")),
            _count(stream["next_id"]),
            _count(stream.get("rows_per_s")),
            _count(stream.get("held_rows")),
            size(int(stream.get("held_bytes") or 0)),
            reader,
            _count(behind),
            Text(_count(stream.get("dropped")), style="red" if stream.get("dropped") else ""),
            _boundary(stream),
        )
    return table


def _slowest(stream: Facts) -> tuple[str, int | None]:
    """The reader that keeps most of the queue, and by how many tuples it is behind."""
    readers: dict[str, int] = stream.get("readers") or {}
    if not readers:
        return "-", None
    name = min(readers, key=lambda reader: (readers[reader], reader))
    shown_as = "a passing one" if name.startswith("~") else name
    others = f" (of {len(readers)})" if len(readers) > 1 else ""
    return shown_as + others, int(stream["next_id"]) - readers[name]


def _state(state: Any) -> Text:
    word = str(state or "-")
    bad = word in ("dead", "failed", "lost", "orphan")
    return Text(word, style="green" if word in GOOD else "red" if bad else "yellow")


def _count(value: Any) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _boundary(facts: Facts) -> str:
    if facts.get("ended"):
        return "ended"
    us = facts.get("boundary")
    if us is None:
        return "-"
    try:
        return (datetime.fromtimestamp(us / 1e6, UTC)).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{us:,} µs"


def _trouble(one: Any) -> str:
    return ": ".join(str(value) for value in one.values()) if isinstance(one, dict) else str(one)
