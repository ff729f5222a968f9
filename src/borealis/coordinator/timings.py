"""How long the coordinator waits for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClusterTimings:
    """All in seconds."""

    dead_after_s: float = 3.0  # without a heartbeat
    gone_s: float = 15.0  # a node that is only paused comes back with what it has
    unheard_s: float = 5.0  # after its start, in which the coordinator holds no silent node for dead
    noted_s: float = 10.0  # between two notes in the catalog that a node was seen
    work_s: float = 60.0  # for other work on the same diagram
    look_s: float = 1.0  # between two looks at what is and what shall be
    look_least_s: float = 0.1  # the same, where there is news
    calm_s: float = 20.0  # in which no node came or went and nothing was taken over, before units move by themselves
    pause_s: float = 5.0  # between two such moves: so long it takes to measure what the last one changed
    restless_s: float = 600.0  # in which a unit stays where its user has moved it
    retry_first_s: float = 2.0  # until what could not be mended is tried again, then each time twice as long
    retry_most_s: float = 30.0
    claim_s: float = 0.3  # for a node that claims something to say that it is there
    ping_s: float = 2.0  # for the answers of nodes
    status_s: float = 5.0
    check_s: float = 150.0  # Spark may be starting
    start_s: float = 170.0
    order_s: float = 30.0  # any other

    def answer_s(self, action: str) -> float:
        """For the answer to an order."""
        own = {"ping": self.ping_s, "status": self.status_s, "check": self.check_s, "start": self.start_s}
        return own.get(action, self.order_s)


TIMINGS = ClusterTimings()
