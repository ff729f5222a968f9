"""How a stream stands, as its node reports it."""

from __future__ import annotations

from typing import Literal

from borealis.message import Message, MessagePart

# what comes is right; or something is missing for it; or that has come, and what was given without it is corrected,
# and nothing else is given before that is done (suspended)
StreamState = Literal["stable", "failure", "stabilization", "suspended"]


class QueueFacts(MessagePart):
    """Of a stream's output queue, as its node counts and as clients see it."""

    stream: str
    epoch: str = ""
    first_id: int = 0  # the oldest held
    next_id: int = 0
    held_rows: int = 0
    held_bytes: int = 0
    dropped: int = 0  # tuples that slow readers lost
    late: int = 0
    readers: dict[str, int] = {}  # acknowledged (level 1) up to


class QueueStatus(QueueFacts, Message):
    """How one stream stands on its node."""

    boundary: int
    state: StreamState = "stable"
    held: bool = False  # readers get nothing yet, or nothing behind what was released
    incarnation: int = 0  # of the unit that writes it; 0: nothing protects it
