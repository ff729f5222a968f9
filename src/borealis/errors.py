"""What can go wrong, in one line: what happened, what was seen, what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

SHOWN_MOST = 80  # characters of a value that is wrong


class BorealisError(Exception):
    """The root of all errors a user can mend; `hint` says how.

    >>> print(BorealisError("no file 'a.csv'", hint="check the path"))
    no file 'a.csv'. Hint: check the path
    >>> print(BorealisError("What to do?", hint="this"), BorealisError("use b instead.", hint="that"))
    What to do? Hint: this use b instead. Hint: that
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        stop = "" if self.message.endswith((".", "?", "!")) else "."
        return f"{self.message}{stop} Hint: {self.hint}" if self.hint else self.message


class BorealisWarning(UserWarning):
    """Nothing failed, but the user should know."""


class DiagramError(BorealisError):
    """The diagram itself is wrong; nothing was run."""


class ExpressionError(DiagramError):
    """A Spark SQL expression in a box does not parse or does not type."""


class InputError(BorealisError):
    """A source cannot be read, or a row in it does not fit."""


class OutputError(BorealisError):
    """A sink cannot be written."""


class StateError(BorealisError):
    """A state directory cannot be used: another diagram's, another version's, or damaged beyond its tail."""


class FullError(StateError):
    """A disk has no room. The same succeeds as soon as there is room."""


class TrainError(BorealisError):
    """A train failed while it ran; everything up to the train before it is committed."""


class GivenUpError(TrainError):
    """What a train needs was away for as long as its box waits: to run it again would only wait as long again."""


class WireError(BorealisError):
    """Something came over the wire that cannot be, or the other side cannot be reached."""


class UnreachableError(WireError):
    """The coordinator does not answer."""


class StreamError(BorealisError):
    """There is no such stream, or it does not hold what is asked for any more."""


class GoneError(StreamError):
    """What was asked for will never be there again: trimmed away, or of an earlier life of the stream."""


class ClusterError(BorealisError):
    """Nodes and coordinator cannot do what was asked: no such node, a name taken, another version."""


class MachineError(BorealisError):
    """The machine lacks something: Java, a disk with room, a port."""


def times(count: int) -> str:
    """How often, in words.

    >>> times(1), times(3)
    ('once', '3 times')
    """
    return "once" if count == 1 else f"{count} times"


def brief(value: object) -> str:
    """A value as a message shows it: short, however long it is.

    >>> brief("abc"), len(brief("x" * 1_000_000))
    ("'abc'", 80)
    """
    text = repr(value)
    return text if len(text) <= SHOWN_MOST else text[: SHOWN_MOST - 3] + "..."


def plural(count: int, noun: str, many: str = "") -> str:
    """A count with its noun.

    >>> plural(1, "box", "boxes"), plural(3, "box", "boxes"), plural(0, "unit")
    ('1 box', '3 boxes', '0 units')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {many or noun + 's'}"


def article(noun: str) -> str:
    """A noun with its article.

    >>> article("int"), article("dict")
    ('an int', 'a dict')
    """
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`Did you mean 'bytes'?`, or nothing when no known name is near.

    >>> did_you_mean("byte", ["ts", "bytes"]), did_you_mean("node9", ["node1", "node2"])
    ("did you mean 'bytes'?", '')
    """
    letters = re.sub(r"\d+", "", name)  # another number is another thing, not a misspelling
    candidates = [other for other in known if re.sub(r"\d+", "", other) != letters]
    near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else ""
