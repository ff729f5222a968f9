"""Errors on their way over the wire: raised on one side, raised again as the same class on the other."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import flight

from borealis import errors
from borealis.errors import BorealisError, ClusterError, StreamError, WireError
from borealis.streams.queue import AwayError, MovedError, StandbyError
from borealis.wire.messages import Problem

MESSAGE_BYTES_MOST = 4000  # gRPC carries errors in trailers, and drops the call when these grow above 8 KB
HINT_BYTES_MOST = 1000

BROKEN = (flight.FlightError, pa.ArrowException, OSError)  # what a network raises when a call goes wrong

FAILURES = (
    (
        flight.FlightUnavailableError,
        "{at} cannot be reached, or broke off ({text})",
        "is it running, and is this it?",
    ),
    (
        (flight.FlightTimedOutError, TimeoutError),
        "{at} did not answer in time ({text})",
        "is it overloaded, or frozen?",
    ),
    (flight.FlightUnauthenticatedError, "{at} does not let us in ({text})", "give the token it was started with"),
    (flight.FlightUnauthorizedError, "{at} does not let us in ({text})", "give the token it was started with"),
    (flight.FlightCancelledError, "the call to {at} was cancelled ({text})", ""),
)

log = logging.getLogger("borealis.wire")


class ReplacedError(StreamError):
    """Another subscription took over this reader's name: do not come back under it."""


KINDS: dict[str, type[BorealisError]] = {
    name: kind for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, BorealisError)
} | {kind.__name__: kind for kind in (AwayError, MovedError, ReplacedError, StandbyError)}


def problem_of(error: BorealisError) -> Problem:
    """An error as a message; a very long one is cut."""
    known = next(k.__name__ for k in type(error).__mro__ if k.__name__ in KINDS)
    moved_to = error.moved_to if isinstance(error, MovedError) else ""
    message, hint = clip(error.message, MESSAGE_BYTES_MOST), clip(error.hint, HINT_BYTES_MOST)
    return Problem(kind=known, message=message, hint=hint, moved_to=clip(moved_to, HINT_BYTES_MOST))


def error_of(problem: Problem) -> BorealisError:
    """The error that the other side had."""
    kind = KINDS.get(problem.kind, BorealisError)
    if kind is MovedError:
        return MovedError(problem.message, hint=problem.hint, moved_to=problem.moved_to)
    return kind(problem.message, hint=problem.hint)


def refusal(error: Exception, doing: str) -> flight.FlightError:
    """What a server raises so that its caller gets this error. What was not foreseen goes to the log as well."""
    match error:
        case flight.FlightError():
            return error
        case BorealisError():
            problem = problem_of(error)
        case _:
            log.exception("%s failed", doing, exc_info=error)
            text = f"{doing} failed inside the node: {type(error).__name__}: {_one_line(str(error))}"
            problem = problem_of(ClusterError(text, hint="its log has the details"))
    return flight.FlightServerError(clip(problem.message, 200), extra_info=problem.encode())


@contextmanager
def arriving(doing: str) -> Iterator[None]:
    """Around everything that takes what came from outside: whatever it raises, the other side is to blame."""
    try:
        yield
    except (StopIteration, BorealisError):
        raise
    except Exception as error:
        raise WireError(f"cannot read what came for {doing}: {_one_line(str(error))}") from None


@contextmanager
def calling(address: str) -> Iterator[None]:
    """Around what a client does with Flight: what that raises becomes an error of ours."""
    try:
        yield
    except BROKEN as error:
        raise error_from(error, address) from None


def error_from(error: Exception, address: str) -> BorealisError:
    """What a client raises for what Flight raised: the server's own error where there is one."""
    extra = getattr(error, "extra_info", b"")
    if extra:
        try:
            return error_of(Problem.decode(extra))
        except WireError:
            log.debug("an error without a Problem from %s: %r", address, extra[:200])
    text = _one_line(_own_words(str(error)))
    for kind, what, hint in FAILURES:
        if isinstance(error, kind):
            return WireError(what.format(at=address, text=text), hint=hint)
    return WireError(f"{address}: {text}")


def clip(text: str, most: int) -> str:
    """The text, or as much of it as fits into so many bytes."""
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= most else raw[: most - 3].decode("utf-8", "ignore") + "..."


def _own_words(text: str) -> str:
    """Without what gRPC and Flight say about themselves."""
    for noise in (". gRPC client debug context:", ". Client context:", ". Detail:"):
        text = text.partition(noise)[0]
    return text.rpartition("with message: ")[2]


def _one_line(text: str) -> str:
    return clip(" ".join(text.split()), 500)
