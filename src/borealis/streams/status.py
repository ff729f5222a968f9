"""How a stream stands, as its node tells others."""

from __future__ import annotations

from borealis.message import Message


class QueueStatus(Message):
    """How one stream stands on its node."""

    stream: str
    epoch: str
    first_id: int  # the oldest held
    next_id: int
    boundary: int
    held_rows: int
    held_bytes: int
    dropped: int
    readers: dict[str, int] = {}  # acknowledged (level 1) up to
    late: int = 0
    held: bool = False  # readers get nothing yet, or nothing behind what was released
    incarnation: int = 0  # of the unit that writes it; 0: nothing protects it
