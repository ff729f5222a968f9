"""What comes in as bytes: as a message, or refused with what is wrong with it. No HTTP is known here."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from borealis.coordinator.http_errors import BadRequestError, TakenError
from borealis.coordinator.membership import check_version
from borealis.message import PROTOCOL, first_mistake
from borealis.wire.messages import NodeStatus

T = TypeVar("T")


def parsed(kind: type[T], data: bytes, name: str = "request") -> T:
    """A body as JSON of this form; otherwise what is wrong with it."""
    try:
        return TypeAdapter(kind).validate_json(data, strict=True)
    except ValidationError as error:
        where, what, given = first_mistake(error, "the body")
        hint = "/docs shows what is asked"
        raise BadRequestError(f"bad {name}: {where}: {what} (got {str(given)[:80]})", hint=hint) from None


def heartbeat_of(data: bytes) -> NodeStatus:
    """A node's status. One of another version is refused as such, however different its messages are."""
    try:
        raw = json.loads(data)
    except ValueError:
        raise BadRequestError("a heartbeat that is not JSON", hint="is this a node of Borealis?") from None
    if isinstance(raw, dict):
        node = str(raw.get("node"))[:200]
        if "version" in raw:
            check_version(node, str(raw["version"])[:40])
        if raw.get("v", PROTOCOL) != PROTOCOL:
            raise TakenError(
                f"node '{node}' speaks version {str(raw['v'])[:40]} of the messages, the coordinator {PROTOCOL}",
                hint="run the same version everywhere",
            )
    return parsed(NodeStatus, data, "heartbeat")
