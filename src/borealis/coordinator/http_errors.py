"""Errors that the coordinator answers with, each with its HTTP status. Over the wire they are their parents."""

from __future__ import annotations

from borealis.errors import BorealisError, ClusterError, FullError, StateError, StreamError, TrainError, WireError

FIRST = "deploy one first: borealis deploy DIAGRAM"


class MissingError(ClusterError):
    """There is no such diagram, unit or node."""

    status = 404


class TakenError(ClusterError):
    """It cannot be done as things stand: a name is taken, a version differs, something is under way."""

    status = 409


class CatalogError(ClusterError):
    """The catalog cannot be read or written now: no fault of the client, and no reason to turn a node away."""

    status = 503


class AbsentError(ClusterError):
    """A node that is needed is not there now; later it may be."""

    status = 503


class TooManyError(ClusterError):
    """More at once than the coordinator can serve."""

    status = 503


class AmbiguousError(StreamError):
    """A bare name that several streams have."""

    status = 409


class UnservedError(StreamError):
    """The stream is known, but no node serves it now."""

    status = 503


class NoEntryError(StreamError):
    """A stream that is no input: no client can publish to it."""

    status = 400


class UnauthorizedError(WireError):
    """No token, or a wrong one."""

    status = 401


class ForbiddenError(WireError):
    """Asked from where it may not be asked."""

    status = 403


class TooLargeError(WireError):
    """A body above its bound."""

    status = 413


class BadRequestError(WireError):
    """A body that is not what it should be."""

    status = 400


def there_already(name: str) -> TakenError:
    hint = (
        "deploy it with --replace: what runs ends, and begins from empty with the new diagram "
        f"(or borealis undeploy {name}, or another name)"
    )
    return TakenError(f"there is a diagram '{name}' already", hint=hint)


STATUS: tuple[tuple[type[BorealisError], int], ...] = (
    (StreamError, 404),
    (WireError, 503),  # towards a node; what clients send badly is BadRequestError
    (ClusterError, 409),
    (FullError, 507),  # before what it is one of
    (StateError, 503),
    (TrainError, 503),
)


def status_of(error: BorealisError) -> int:
    """The HTTP status of an error; whatever is wrong with what was sent is 400."""
    own = getattr(error, "status", None)
    if isinstance(own, int):
        return own
    return next((status for kind, status in STATUS if isinstance(error, kind)), 400)
