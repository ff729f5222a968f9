"""Streams by the names that users give: `packets`, `traffic/packets`, or an output's name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from borealis.coordinator.cluster import Cluster
from borealis.coordinator.http_errors import FIRST, AmbiguousError, UnservedError
from borealis.coordinator.layout import Layout, stream_name
from borealis.errors import StreamError, did_you_mean
from borealis.wire.endpoints import Location


@dataclass(frozen=True)
class Found:
    """A stream and the node that serves it."""

    diagram: str
    arrow: str
    node: str
    entry: bool
    backup: str | None = None
    incarnation: int = 0  # of the unit that serves it; 0: it is not protected
    replicated: bool = False  # whether its backup serves it as well
    copies: tuple[str, ...] = ()  # nodes with further copies, which serve it too

    @property
    def stream(self) -> str:
        return stream_name(self.diagram, self.arrow)


def streams(layout: Layout) -> list[Found]:
    """All streams of a diagram that can be subscribed to."""
    inputs = {entry.input for entry in layout.entries}
    return [
        Found(layout.name, arrow, at.node, arrow in inputs, at.backup, incarnation, at.replicated, at.copies)
        for arrow, at in layout.servers().items()
        for incarnation in [at.incarnation if at.protected else 0]
    ]


def find(layouts: Iterable[Layout], name: str) -> Found:
    """The stream of that name. A bare name may be an input's, a box's or an output's; two that fit are refused."""
    layouts = list(layouts)
    if not layouts:
        raise StreamError(f"there is no stream '{name}': no diagram is deployed", hint=FIRST)
    diagram, slash, arrow = name.partition("/")
    bare, chosen = (arrow, [la for la in layouts if la.name == diagram]) if slash else (name, layouts)
    if not chosen:
        known = [layout.name for layout in layouts]
        raise StreamError(
            f"there is no stream '{name}': no diagram '{diagram}' is deployed",
            hint=did_you_mean(diagram, known) or f"there are: {', '.join(known)}",
        )
    found = {one.stream: one for layout in chosen for one in _called(layout, bare)}
    if slash and name in found:  # a full name is an arrow's first
        return found[name]
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        full = {stream_name(one.diagram, bare) for one in found.values()}  # as it was asked for, if they differ then
        names = sorted(full if len(full) == len(found) else found)
        raise AmbiguousError(f"several streams are called '{name}'", hint=f"say which: {' or '.join(names)}")
    raise _none(name, bare, chosen)


def _called(layout: Layout, bare: str) -> list[Found]:
    wanted = {bare, layout.outputs.get(bare, bare)}
    return [found for found in streams(layout) if found.arrow in wanted]


def _none(name: str, bare: str, layouts: list[Layout]) -> StreamError:
    for layout in layouts:
        for unit in layout.units:
            if bare in unit.boxes:
                return StreamError(
                    f"'{layout.name}/{bare}' stays inside unit '{unit.unit}' and cannot be read from outside",
                    hint="make it an output of the diagram, or cut behind it",
                )
    known = sorted({n for layout in layouts for n in (*layout.servers(), *layout.outputs)})
    return StreamError(f"there is no stream '{name}' (there are: {', '.join(known)})", hint=did_you_mean(bare, known))


def locate(cluster: Cluster, name: str) -> Location:
    """Where a stream is served now; if its node is silent, where it will be when the backup has taken over."""
    found = find(cluster.catalog.layouts(), name)
    members = (cluster.members.if_alive(node) for node in (found.node, found.backup, *found.copies))
    alive = [member.status for member in members if member is not None]
    if not alive:
        where = f"node '{found.node}', which {cluster.members.silence(found.node)}"
        raise UnservedError(f"stream '{found.stream}' is on {where}", hint="wait, or start it")
    at, fallback, copies = alive[0], alive[1].address if len(alive) > 1 else None, alive[2:]
    more = (at.node, found.incarnation, found.replicated, tuple(copy.address for copy in copies))
    return Location(found.stream, at.address, found.entry, fallback, *more)
