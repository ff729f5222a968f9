"""Names of columns and of boxes: which are free, which are taken, and what to say about a wrong one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from borealis.errors import DiagramError, brief, did_you_mean
from borealis.tuples import CAUSE, HEADER, SUB

RESERVED = (*HEADER, CAUSE, SUB)
UNFIT = ("`", "${")  # the one ends a name in SQL, the other stands for a variable of the process

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def require_identifier(what: str, name: str) -> None:
    """Refuse a name for an input, box or output that could not stand in a file name, a URL or an arrow."""
    if not _IDENTIFIER.fullmatch(name):
        raise DiagramError(
            f"{what} {brief(name)} is not a usable name", hint="use letters, digits and _, no digit first"
        )


def require_free(name: str) -> None:
    """Refuse a column name that is empty, that belongs to the engine, or that is no name once it stands in SQL."""
    if not name.strip():
        raise DiagramError("a column has an empty name", hint="give it one")
    for sign in UNFIT:
        if sign in name:
            raise DiagramError(f"column name '{name}' has {sign} in it", hint="Spark reads that as its own: rename it")
    if name.startswith("__") or name.lower() in RESERVED:
        taken = ", ".join(RESERVED)
        raise DiagramError(
            f"column name '{name}' is reserved",
            hint=f"{taken} and names that start with __ are the engine's: rename it",
        )


def require_distinct(names: Iterable[str]) -> None:
    """Refuse two columns of one name; Spark does not tell `a` from `A`."""
    seen: dict[str, str] = {}
    for name in names:
        before = seen.get(name.lower())
        if before == name:
            raise DiagramError(f"column '{name}' appears twice", hint="rename one of the two")
        if before is not None:
            raise DiagramError(f"columns '{before}' and '{name}' differ only in case", hint="rename one of the two")
        seen[name.lower()] = name


def require_columns(names: Sequence[str], known: Sequence[str]) -> None:
    """Refuse columns that are not among the known ones, and one that is named twice."""
    for name in names:
        if name not in known:
            raise no_column(name, known)
    require_distinct(names)


def no_column(name: str, known: Sequence[str]) -> DiagramError:
    near = [k for k in known if k.lower() == name.lower()]
    hint = f"did you mean '{near[0]}'?" if near else did_you_mean(name, known)
    return DiagramError(f"no column '{name}' (has: {', '.join(known)})", hint=hint)
