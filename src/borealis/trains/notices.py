"""What keeps a train waiting: a kernel tells it, its unit looks at it, wherever the kernel runs.

A notice is a small file of the unit's, `troubles/<box>.<bucket>`; behind `.over` it says that the kernel has given up.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pyarrow.flight as flight

from borealis.clock import WALL, Clock
from borealis.disk import write_whole
from borealis.errors import WireError
from borealis.trains.location import ask, is_remote, read

TROUBLES = "troubles"
NAME = re.compile(TROUBLES + r"/\w[\w.]{0,200}")  # under a unit's directory
OVER = ".over"
CHARACTERS_MOST = 1000  # of a notice


class NoticeFile:
    """The place for one kernel's notices. Where they cannot be written, the log still has them."""

    def __init__(self, location: str, attempt: int) -> None:
        self._location, self._attempt = location, attempt

    def tell(self, trouble: str | None) -> None:
        """What keeps the train waiting; None when that has passed."""
        self._put(self._location, trouble)

    def give_up(self, why: str) -> None:
        """This attempt fails; Spark will make others."""
        self.tell(why)
        self._put(self._location + OVER, why)

    def given_up(self) -> str:
        """Why an earlier attempt of the same train gave up; empty if none did. To wait again would be in vain."""
        if self._attempt:
            with suppress(OSError, WireError):  # there is no such file
                return str(read(self._location + OVER).to_pybytes(), errors="replace")
        return ""

    def _put(self, location: str, text: str | None) -> None:
        with suppress(OSError, flight.FlightError):
            if is_remote(location):
                ask("tell", location, text=None if text is None else text[:CHARACTERS_MOST])
            else:
                put(Path(location), text)


def put(file: Path, text: str | None) -> None:
    """Write a notice, whole at every moment, or remove it."""
    if text is None:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(exist_ok=True)
    write_whole(file, text.encode(), durable=False)


class Troubles:
    """What keeps a unit's train waiting that is under way, such as a database that is away."""

    def __init__(self, directory: Path, clock: Clock = WALL) -> None:
        self._directory, self._clock = directory, clock
        self._since: dict[str, float] = {}  # when the node first looked

    def now(self) -> list[tuple[str, float]]:
        """Each that lasts, and for how many seconds."""
        found, now = {}, self._clock.now()
        for path in sorted(self._directory.glob("*[0-9]")):
            with suppress(OSError):  # it has passed meanwhile
                found[path.name] = path.read_text()
        self._since = {name: self._since.get(name, now) for name in found}
        return [(text, now - self._since[name]) for name, text in found.items()]

    @property
    def note(self) -> str:
        """The same on one line, for those who watch the run."""
        return "; ".join(f"{text} (for {seconds:.0f} s)" for text, seconds in self.now())
