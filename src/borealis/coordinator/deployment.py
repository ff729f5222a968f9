"""Deploying a diagram and taking it back.

1. What can be wrong without a node is found first: YAML, boxes, cuts, places, names.
2. One node checks the types. Nothing is started and nothing is written before that, and what it replaces runs on.
3. The catalog says `deploying`. A coordinator that finds that after a crash takes it back.
4. Backups of entry points are ordered, then entry points, then the same of units; different nodes side by side.
5. The catalog says `running`. If any order failed before that, everything that was ordered is taken back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from borealis.coordinator import placement
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.http_errors import AbsentError, TakenError, there_already
from borealis.coordinator.layout import Layout, UnitAssignment, entry_point
from borealis.coordinator.orders import feeds, unit_order
from borealis.coordinator.recovery import Expected, expected
from borealis.coordinator.spreading import shares_of
from borealis.diagram import passes
from borealis.diagram.cut import Piece, cut, even_cuts
from borealis.diagram.deployment import Deployment
from borealis.diagram.spec import Spec
from borealis.errors import DiagramError, WireError, brief
from borealis.ha import behind
from borealis.kernels.aside import DDL as ERRORS_DDL
from borealis.threads import side_by_side
from borealis.wire.messages import NAME_RULE, Checked, CheckOrder, DiagramName, Role, is_name

ROLES: tuple[Role, ...] = ("backup", "copy", "primary")  # in this order: a primary finds its partners there


def deploy(cluster: Cluster, wish: Deployment) -> Layout:
    """Make it run, all of it or nothing."""
    spec = _checked(wish.yaml)
    if cluster.catalog.storage is not None and wish.ha is None and not spec.protection:
        wish = wish.model_copy(update={"ha": "storage"})
    cluster.refuse_while(spec.name, "deployed")
    if not wish.replace:
        _refuse_if_there(cluster, spec.name)
    cuts = tuple(dict.fromkeys([*wish.cut, *(even_cuts(spec, wish.units) if wish.units > 1 else ())]))
    pieces = cut(spec, cuts, wish.place)
    layout = _placed(cluster, spec, pieces, wish)
    with cluster.at_work(spec.name, "deployed"):
        if not wish.replace:
            _refuse_if_there(cluster, spec.name)
        columns = _types(cluster, wish.yaml) | {p.errors: ERRORS_DDL for p in pieces if p.errors is not None}
        if wish.replace:
            _end(cluster, spec.name)
        layout = replace(layout, cuts=cuts, columns=columns, since=cluster.clock.time())
        cluster.catalog.add(layout)
        _start(cluster, layout)
        cluster.catalog.set_state(layout.name, "running")
    return replace(layout, state="running")


def warnings(layout: Layout) -> list[str]:
    """What a user should know of it although all of it runs."""
    pieces = [Piece(name=u.unit, boxes=u.boxes, reads=u.reads, gives=u.gives) for u in layout.units]
    protected = {unit.unit: unit.protection for unit in layout.units if unit.protection is not None}
    spec = passes.checked(Spec.from_yaml(layout.yaml))
    return [*behind.warnings(spec, pieces, protected), *_inputs_with_fewer_copies(spec, layout)]


def _inputs_with_fewer_copies(spec: Spec, layout: Layout) -> list[str]:
    """An input has two copies, however many a unit has that reads it."""
    durable = {one.name for one in spec.inputs if one.durable}
    found = []
    for entry in layout.entries:
        most = max((len(unit.nodes) for name in entry.gives for unit in layout.readers(name)), default=0)
        if len(entry.nodes) < most and entry.input not in durable:
            found.append(
                f"input '{entry.input}' has {len(entry.nodes)} copies ({', '.join(entry.nodes)}), and what reads it "
                f"has {most}: what it took in last is lost if these nodes die at once; a durable input keeps it"
            )
    return found


def _checked(yaml: str) -> Spec:
    spec = passes.checked(Spec.from_yaml(yaml))
    if not is_name(spec.name):
        hint = f"{NAME_RULE}: the name is part of its streams' names"
        raise DiagramError(f"a diagram called {brief(spec.name)} cannot be deployed", hint=hint)
    return spec


def _refuse_if_there(cluster: Cluster, name: str) -> None:
    """Refuse a name that is taken: in this catalog, or by something that runs and that the catalog knows nothing of."""
    if cluster.catalog.layout(name) is not None:
        raise there_already(name)
    if name in cluster.catalog.past():  # what old heartbeats show of it will be gone
        return
    for node in sorted(_with_parts_of(cluster, name)):
        raise TakenError(
            f"node '{node}' runs a diagram '{name}' that is not in this catalog",
            hint=f"end it first (borealis undeploy {name}), or give this one another name",
        )


def _placed(cluster: Cluster, spec: Spec, pieces: Sequence[Piece], wish: Deployment) -> Layout:
    protected = placement.protections(spec, pieces, wish)
    nodes = loads(cluster, without=spec.name)
    for name in (*wish.place.values(), *wish.backup.values()) if nodes else ():
        cluster.living(name)  # a silent one is refused in other words than one that never was
    nodes_of, inputs_at = placement.place(pieces, [i.name for i in spec.inputs], wish.place, nodes)
    units = placement.with_backups(
        [
            UnitAssignment(
                *(p.name, p.boxes, p.reads, p.gives, nodes_of[p.name]),
                protection=protected[p.name],
                home=p.place,
                backup_home=wish.backup.get(p.name),
            )
            for p in pieces
        ],
        wish.backup,
        nodes,
        shares_of(one.work for one in expectations(cluster, without=spec.name)),
    )
    placement.refuse_lonely(units, len(nodes))
    entries = [entry_point(i.name, inputs_at[i.name], placement.entry_protection(i.name, units)) for i in spec.inputs]
    return Layout(
        name=spec.name,
        yaml=wish.yaml,
        state="deploying",
        units=tuple(units),
        entries=tuple(placement.entry_backup(entry, units, nodes) for entry in entries),
        outputs={o.name: o.source for o in spec.outputs},
        places=dict(wish.place),
        buckets=wish.buckets,
        epoch=cluster.machine.chance.token(32) if any(protected.values()) else "",
        pinned=wish.pin,
    )


def loads(cluster: Cluster, without: str = "") -> list[placement.Load]:
    """What each living node has to do, by the catalog: heartbeats may not show the newest units yet.

    `without` is a diagram that will be gone.
    """
    units = [unit for layout in cluster.catalog.layouts() if layout.name != without for unit in layout.units]
    wanted: dict[str, float] = dict(Counter(unit.node for unit in units))
    for unit in units:
        for node in unit.nodes[1:]:
            wanted[node] = wanted.get(node, 0) + placement.weight(unit.protection)
    return [
        placement.Load(
            m.name, wanted.get(m.name, 0), m.busy(), max(1, m.status.cores), m.status.spark in ("ready", "starting")
        )
        for m in cluster.members.alive()
    ]


def expectations(cluster: Cluster, without: str = "") -> list[Expected]:
    """What deaths would cost all that is protected."""
    layouts = [layout for layout in cluster.catalog.layouts() if layout.name != without]
    return expected(layouts, {member.name: member for member in cluster.members.alive()})


def _types(cluster: Cluster, yaml: str) -> dict[str, str]:
    """The columns of each arrow, as one node's Spark finds them."""
    order = {"ready": 0, "starting": 1}
    able = [m for m in cluster.members.alive() if m.status.spark in order]
    if not able:
        raise AbsentError(
            "no node has a Spark that could check the diagram", hint="see their logs, or start another node"
        )
    checker = min(able, key=lambda m: (order[m.status.spark], m.busy(), m.name))
    return cluster.ask(checker.name, "check", CheckOrder(yaml=yaml), Checked).columns


# -- starting


def _start(cluster: Cluster, layout: Layout) -> None:
    begun: set[str] = set()  # nodes that have, or may have, parts of it
    try:
        _each_node(cluster, layout, cluster.settle)
        for places in (layout.entries, layout.units):
            for role in ROLES:
                _each_node(cluster, layout, partial(_start_places, cluster, layout, role, places, begun))
    except BaseException:
        cluster.catalog.remove(layout.name, _take_back(cluster, layout.name, begun))
        raise


def _each_node(cluster: Cluster, layout: Layout, work: Callable[[str], None]) -> None:
    """The same for all nodes of the layout, at once; the error of the first that had one."""
    errors = side_by_side(cluster.threads, [partial(work, node) for node in sorted(layout.nodes())])
    if errors:
        raise errors[0]


def _start_places(
    cluster: Cluster, layout: Layout, role: Role, places: Sequence[UnitAssignment], begun: set[str], node: str
) -> None:
    """What a node has to start of these. One that refuses has begun nothing; one that falls silent may have."""
    for one in places:
        if node in nodes_of(one, role):
            try:
                order_place(cluster, layout, one, role, node)
            except WireError:
                begun.add(node)
                raise
            begun.add(node)


def nodes_of(one: UnitAssignment, role: Role) -> tuple[str, ...]:
    """Those that play a part for a unit or an entry point."""
    if role == "copy":
        return one.copies
    node = one.node if role == "primary" else one.backup
    return () if node is None else (node,)


def order_place(
    cluster: Cluster, layout: Layout, one: UnitAssignment, role: Role = "primary", node: str | None = None
) -> None:
    """Make a node run a unit, be an entry point, or stand by for one; all nodes of that role if none is named."""
    for at in nodes_of(one, role) if node is None else (node,):
        cluster.order(at, "start", unit_order(layout, one, cluster.address, role=role, node=at))
    if role == "primary":
        cluster.catalog.route(layout.name, one.unit, feeds(layout, one, cluster.address))


def _take_back(cluster: Cluster, diagram: str, nodes: Iterable[str]) -> set[str]:
    """Have the nodes drop a diagram; those that could not be reached."""
    unreached: set[str] = set()

    def drop(node: str) -> None:
        if not cluster.try_order(node, "undeploy", DiagramName(diagram=diagram)):
            unreached.add(node)

    side_by_side(cluster.threads, [partial(drop, node) for node in sorted(nodes)])
    return unreached


# -- the end


def undeploy(cluster: Cluster, name: str) -> set[str]:
    """Stop it everywhere and forget it. Nodes that are not there drop it when they come back; these are returned."""
    with cluster.at_work(name, "undeployed"):
        unreached = _end(cluster, name)
        if unreached is None:
            cluster.layout(name)  # says that there is none
        return unreached or set()


def _end(cluster: Cluster, name: str) -> set[str] | None:
    """Stop what runs under a name, in the catalog or not; the nodes that have yet to drop it, None: nothing ran."""
    if cluster.catalog.layout(name) is not None:
        cluster.catalog.set_state(name, "undeploying")
        return finish(cluster, name)
    strays = _with_parts_of(cluster, name)
    if not strays or name in cluster.catalog.past():  # in the latter case old heartbeats show it
        return None
    return _take_back(cluster, name, strays)


def finish(cluster: Cluster, name: str) -> set[str]:
    """The rest of an undeployment that has begun; the nodes that have yet to drop it."""
    layout = cluster.layout(name)
    unreached = _take_back(cluster, name, layout.nodes() | _with_parts_of(cluster, name))
    cluster.catalog.remove(name, unreached)
    return unreached


def _with_parts_of(cluster: Cluster, name: str) -> set[str]:
    return {m.name for m in cluster.members.alive() if name in m.diagrams()}


def take_up(cluster: Cluster) -> None:
    """After a restart of the coordinator: no client waits for what was being deployed, and it is taken back."""
    for layout in cluster.catalog.layouts():
        if layout.state == "deploying":
            cluster.catalog.set_state(layout.name, "undeploying")
