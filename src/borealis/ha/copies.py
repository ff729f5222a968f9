"""The further copies of a unit, seen from its primary: one machine of an active standby for each. Pure.

Laws, for every order of events, beside those of `ha.primary`:
1. An input is acknowledged only up to where each copy that does not read for itself yet could begin.
2. A copy that is gone, or slow, holds up neither outputs nor the backup.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from borealis.ha.primary import Effects, Primary
from borealis.trains.commit_point import CommitPoint


@dataclass
class FurtherCopies:
    """The machine of each further copy, by its node, and what may be acknowledged with regard to all."""

    make: Callable[[CommitPoint], Primary]
    machines: dict[str, Primary] = field(default_factory=dict)
    _allowed: dict[str, Mapping[str, int]] = field(default_factory=dict)  # by node: of each input, what it has passed
    _wanted: dict[str, int] = field(default_factory=dict)  # what was to be acknowledged, but for the copies

    def are(self, nodes: Collection[str], step: CommitPoint) -> Effects:
        """These are the nodes that have one from now on; the unit stands at `step`."""
        for node in self.machines.keys() - set(nodes):
            del self.machines[node], self._allowed[node]
        for node in sorted(set(nodes) - self.machines.keys()):
            machine = self.machines[node] = self.make(step)
            machine.join()
            self._allowed[node] = step.positions()
        return self.least({})

    def committed(self, step: CommitPoint) -> None:
        for node, machine in self.machines.items():
            self._allow(node, machine.committed(step))

    def acknowledged(self, node: str, number: int) -> Effects:
        """A copy has a message."""
        if (machine := self.machines.get(node)) is not None:
            self._allow(node, machine.acknowledged(number))
        return self.least({})

    def _allow(self, node: str, effects: Effects) -> None:
        if effects.ack:
            self._allowed[node] = effects.ack

    def least(self, ack: Mapping[str, int]) -> Effects:
        """What may be acknowledged where, but for the copies, this might be; also of what had to wait for them."""
        self._wanted |= ack
        return Effects({name: self._least(name, upto) for name, upto in self._wanted.items()})

    def _least(self, name: str, upto: int) -> int:
        return min([upto, *(allowed.get(name, upto) for allowed in self._allowed.values())])
