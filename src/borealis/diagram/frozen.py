"""Frozen data whose mistakes become one line of error: it names the thing, the problem and a suggestion."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from borealis.errors import DiagramError, brief, did_you_mean


class Frozen(BaseModel):
    """A piece of a diagram; making one that is wrong raises DiagramError, never pydantic's own error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    noun: ClassVar[str] = "diagram"

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as e:
            raise self._mistake(fields, e) from None
        except DiagramError as e:
            raise DiagramError(f"{self.noun} '{fields.get('name', '?')}': {e.message}", hint=e.hint) from None

    def wrong(self, message: str, hint: str = "") -> DiagramError:
        return DiagramError(f"{self.noun} '{getattr(self, 'name', '?')}': {message}", hint=hint)

    @classmethod
    def _mistake(cls, fields: dict[str, Any], error: ValidationError) -> DiagramError:
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")  # a misspelt key leaves one missing
        place = ".".join(str(part) for part in first["loc"])
        field = cls.model_fields.get(str(first["loc"][0])) if first["loc"] else None
        hint = (field.description or "") if field else ""
        match first["type"]:
            case "extra_forbidden":
                known = ["from" if name == "sources" else name for name in cls.model_fields if name != "name"]
                problem = f"unknown key '{place}'"
                hint = did_you_mean(place, known) or f"keys are {', '.join(known)}"
            case "missing":
                problem = f"'{place}' is missing"
            case "string_type":
                problem = f"'{place}' must be text, not {brief(first['input'])}"
            case _:
                problem = f"'{place}': {first['msg'][:1].lower()}{first['msg'][1:]}"
        return DiagramError(f"{cls.noun} '{fields.get('name', '?')}': {problem}", hint=hint)
