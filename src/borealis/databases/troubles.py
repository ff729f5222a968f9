"""What an error of a database means: a row it will never take, a trouble that may pass, or a mistake in the box."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sqlalchemy import TextClause, text
from sqlalchemy.engine import Connection

from borealis.databases.address import DatabaseAddress

Verdict = Literal["refused", "passing", "wrong"]
SAID_MOST = 300  # characters of what a database says

# SQLSTATE (class, or whole); PostgreSQL's appendix A
# cardinality, data, integrity, check option, too large for an index, nested too deep; of functions: RAISE, no row or
# several for INTO STRICT, ASSERT
_REFUSED = ("21", "22", "23", "44", "54000", "54001", "P0001", "P0002", "P0003", "P0004")
_WRONG_OR_REFUSED = "42"  # syntax, names, rights
_PASSING = ("08", "25006", "25P03", "40", "53", "55P03", "57", "58")  # connection, read-only, deadlock, room, shutdown

# SQLite's primary result codes
_SQLITE_ERROR = 1  # no such table, but also a value that a function does not take
_SQLITE_REFUSED = (18, 19, 20)  # too big, constraint, mismatch
# busy, locked, no memory, read-only, interrupted, I/O, no room, cannot be opened, lost the lock
_SQLITE_PASSING = (5, 6, 7, 8, 9, 10, 13, 14, 15)


class UnfitError(ValueError):
    """A value that no database can be given; it never leaves this process."""


def verdict(error: BaseException) -> Verdict:
    """Whether a row is refused for good, whether to try again, or neither: then the box itself is wrong."""
    original = getattr(error, "orig", None) or error
    code, state = getattr(original, "sqlite_errorcode", None), getattr(original, "sqlstate", None)
    if code is not None:
        primary = code & 0xFF
        return "refused" if primary in _SQLITE_REFUSED else "passing" if primary in _SQLITE_PASSING else "wrong"
    if state is not None:
        return "refused" if state.startswith(_REFUSED) else "passing" if state.startswith(_PASSING) else "wrong"
    kinds = {kind.__name__ for kind in type(original).__mro__}
    if kinds & {"IntegrityError", "DataError", "OverflowError", "UnfitError"}:
        return "refused"
    return "passing" if kinds & {"OperationalError", "InterfaceError", "OSError", "TimeoutError"} else "wrong"


def verdict_on_row(
    error: BaseException, connection: Connection, statement: TextClause, row: Mapping[str, Any]
) -> Verdict:
    """The same where a statement failed with this row, or with rows from this one on.

    SQLite has one code for a wrong statement and for a wrong value, PostgreSQL one class for a forbidden table and for
    a row that a policy forbids or its trigger breaks at: a statement that a database can explain is not wrong.
    """
    judged = verdict(error)
    original = getattr(error, "orig", None) or error
    code, state = getattr(original, "sqlite_errorcode", None), getattr(original, "sqlstate", None)
    either = state.startswith(_WRONG_OR_REFUSED) if state else code is not None and code & 0xFF == _SQLITE_ERROR
    if judged != "wrong" or not either:
        return judged
    try:
        connection.execute(text(f"EXPLAIN {statement.text}"), dict(row)).close()
    except Exception as second:
        if verdict(second) == "passing":
            raise
        return "wrong"
    return "refused"


def reason(error: BaseException) -> str:
    """Why a row was refused: the same words each time, and nothing of how it was sent."""
    original = getattr(error, "orig", None) or error
    diagnosis = getattr(original, "diag", None)
    if diagnosis is not None and diagnosis.message_primary:
        detail = f" ({diagnosis.message_detail})" if diagnosis.message_detail else ""
        return _one_line(f"{diagnosis.message_primary}{detail}")
    return _one_line(str(original).split("\n")[0])


def safe_message(error: BaseException, address: DatabaseAddress) -> str:
    """What the database says, on one line and without what was filled in for user and password."""
    original = getattr(error, "orig", None) or error
    return _one_line(address.without_secrets(str(original))) or type(original).__name__


def _one_line(text: str) -> str:
    return " ".join(text.split())[:SAID_MOST]
