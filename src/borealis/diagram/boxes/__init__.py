"""The boxes, one file each; a new file in this folder is a new box, and nothing else needs to know."""

from __future__ import annotations

import importlib
import pkgutil

from borealis.diagram.boxes.base import Box


def _boxes() -> dict[str, type[Box]]:
    found: dict[str, type[Box]] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        for thing in vars(importlib.import_module(f"{__name__}.{module}")).values():
            if isinstance(thing, type) and issubclass(thing, Box) and thing.kind:
                found[thing.kind] = thing
    return found


BOXES: dict[str, type[Box]] = _boxes()

__all__ = ["BOXES", "Box"]
