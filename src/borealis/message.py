"""What every message between processes is: versioned, and checked on arrival."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from borealis.errors import WireError

PROTOCOL = 1  # of all messages; raised when one of them changes its meaning
M = TypeVar("M", bound="Message")


def first_mistake(error: ValidationError, whole: str) -> tuple[str, str, Any]:
    """Of what was read: where (`whole`: in all of it), what is wrong, and what stands there."""
    first = error.errors()[0]
    return ".".join(str(part) for part in first["loc"]) or whole, first["msg"], first.get("input")


class MessagePart(BaseModel):
    """What messages are made of; only a whole message has a version."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Message(MessagePart):
    """The root of all messages."""

    v: Literal[1] = 1

    def encode(self) -> bytes:
        return self.__pydantic_serializer__.to_json(self)

    @classmethod
    def decode(cls: type[M], data: bytes | str | Any) -> M:
        """From bytes of the wire, or JSON that was parsed already; a WireError says what is wrong with them."""
        try:
            if isinstance(data, dict | list):
                return cls.model_validate(data)
            return cls.model_validate_json(data if isinstance(data, bytes | str) else bytes(data))
        except ValidationError as error:
            where, what, given = first_mistake(error, "the message")
            seen = str(given)[:80]
            if where == "v":
                hint = f"this side speaks version {PROTOCOL}: use the same version of Borealis on both sides"
                raise WireError(f"a {cls.__name__} of version {seen}", hint=hint) from None
            raise WireError(f"bad {cls.__name__}: {where}: {what} (got {seen})") from None
