"""The further copies of a unit, seen from its primary: one machine of its approach for each, beside the first backup's.
Pure.

Copies that answer (`replicas`) run in parallel, and gate nothing but what is acknowledged until they read. Copies of
checkpoints (`backups`) are sent their own deltas, and gate what the first backup gates.

Laws, for every order of events, beside those of `ha.primary`:
1. An input is acknowledged only up to where each copy could go on that does not read for itself.
2. Where output is held, readers have only what each copy has that could go on; what is held for one is not released
   because another begins to hold, has more, or is given up.
3. A copy that is given up holds up nothing any more. One that is new holds up no output before it has nearly all.
4. A copy that another primary has fed holds up all until it has heard of this one: it may have less than this one has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from borealis.ha.primary import Effects, Primary
from borealis.streams.section import Place
from borealis.trains.commit_point import CommitPoint

FIRST = ""  # the first backup, among the nodes


@dataclass
class FurtherCopies:
    """The machine of each further copy, by its node; what may be acknowledged, and seen, with regard to all."""

    make: Callable[[CommitPoint], Primary]
    machines: dict[str, Primary] = field(default_factory=dict)
    _allowed: dict[str, Mapping[str, int]] = field(default_factory=dict)  # by node: of each input, what it has passed
    _wanted: dict[str, int] = field(default_factory=dict)  # what was to be acknowledged, but for the copies
    _limits: dict[str, Mapping[str, Place]] = field(default_factory=dict)  # by node that holds: up to where it has all
    _held: bool = False  # output is, for any of them
    _told: Mapping[str, Place] = field(default_factory=dict)  # up to where it was released last

    @property
    def limits(self) -> Mapping[str, Place] | None:
        """Up to where readers may have each output; None: all of it."""
        return self._told if self._held else None

    def are(
        self, nodes: Collection[str], step: CommitPoint, seen: Mapping[str, Place] | None = None, *, fresh: bool = True
    ) -> Effects:
        """These are the nodes that have one from now on; the unit stands at `step`.

        New ones are empty where they are `fresh`. Otherwise another primary has fed them, and where they are is not
        known: readers have what is before `seen`, at least.
        """
        for node in self.machines.keys() - set(nodes):
            del self.machines[node], self._allowed[node]
            self._limits.pop(node, None)
        for node in sorted(set(nodes) - self.machines.keys()):
            machine = self.machines[node] = self.make(step)
            self._allowed[node] = step.positions() if fresh else dict.fromkeys(step.positions(), 0)
            self._note(node, machine.join(fresh=fresh), step.outputs if fresh or seen is None else seen)
        return self._all(Effects())

    def committed(self, step: CommitPoint) -> None:
        for node, machine in self.machines.items():
            self._allow(node, machine.committed(step))

    def acknowledged(self, node: str, number: int) -> Effects:
        """A copy has a message. To be called between trains."""
        if (machine := self.machines.get(node)) is not None:
            effects = machine.acknowledged(number)
            self._allow(node, effects)
            self._note(node, effects, machine.last.outputs)
        return self._all(Effects())

    def first(self, effects: Effects, now: Mapping[str, Place]) -> Effects:
        """What is to be done where the machine of the first backup says so; outputs end here `now`."""
        self._note(FIRST, effects, now)
        return self._all(effects)

    def promote(self, node: str) -> tuple[Primary, Effects]:
        """A copy is the first backup from now on, with what it has; what was under way to it is sent again."""
        machine = self.machines.pop(node)
        machine.failed()
        self._wanted = dict(self._allowed.pop(node))
        self._limits.pop(FIRST, None)
        if (limit := self._limits.pop(node, None)) is not None:
            self._limits[FIRST] = limit
        return machine, self._all(Effects())

    # -- inputs

    def _allow(self, node: str, effects: Effects) -> None:
        if effects.ack:
            self._allowed[node] = effects.ack

    def least(self, ack: Mapping[str, int]) -> Effects:
        """What may be acknowledged where, but for the copies, this might be; also of what had to wait for them."""
        self._wanted |= ack
        return Effects({name: self._least(name, upto) for name, upto in self._wanted.items()})

    def _least(self, name: str, upto: int) -> int:
        return min([upto, *(allowed.get(name, upto) for allowed in self._allowed.values())])

    # -- outputs

    def _note(self, node: str, effects: Effects, now: Mapping[str, Place]) -> None:
        if effects.open:
            self._limits.pop(node, None)
        if effects.hold:
            self._limits[node] = now
        if effects.release is not None and node in self._limits:
            self._limits[node] = effects.release

    def _all(self, effects: Effects) -> Effects:
        """The same with regard to all: held from now on, up to a place, or not any more."""
        held, told = self._held, self._told
        self._held, self._told = bool(self._limits), self._least_places()
        found = Effects(self.least(effects.ack).ack)
        if not self._held:
            return replace(found, open=effects.open or held)
        news = not held or effects.release is not None or self._told != told
        return replace(found, hold=not held, release=self._told if news else None)

    def _least_places(self) -> dict[str, Place]:
        found: dict[str, Place] = {}
        for limit in self._limits.values():
            for name, place in limit.items():
                found[name] = min(place, found.get(name, place))
        return found
