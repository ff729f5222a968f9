"""SQL for a database, taken apart just far enough: which `:name` in it is a parameter, and what may be in it at all.

This is not Spark's SQL: quotes, comments and casts are read as SQLite and PostgreSQL read them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from borealis.diagram.names import no_column
from borealis.errors import DiagramError

_PIECE = re.compile(
    r"""(?P<text>[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*`
        | \$(?P<tag>(?:[A-Za-z_]\w*)?)\$.*?\$(?P=tag)\$)
    | (?P<comment>--[^\n]* | /\*.*?\*/)
    | (?P<word>\w+)
    | :: | :=
    | (?<!\w):(?P<name>[A-Za-z_]\w*)
    | (?P<space>\s+)
    | .""",
    re.VERBOSE | re.DOTALL,
)
_TABLE = re.compile(r"""(?:"(?:[^"]|"")+"|[A-Za-z_]\w*)(?:\.(?:"(?:[^"]|"")+"|[A-Za-z_]\w*))?""")
_KEEPS = ("sqlite", "postgresql")  # the databases that can keep a table by its key
_URL = re.compile(r"[a-z][a-z0-9]*(?:\+[a-z0-9_]+)?://")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = re.compile(r"\$\{\w+\}")
_SECRETS = re.compile(r"^[a-z][a-z0-9+_]*://[^/?#@]*@|[?&](?:ssl)?password=[^&#]*")  # what is never shown of a URL
_PASSWORD = re.compile(r"://[^:@/]*:(?P<user>[^@]*)@|[?&](?:password|sslpassword)=(?P<query>[^&]*)", re.IGNORECASE)
_CONTROL = frozenset(["abort", "begin", "commit", "end", "prepare", "release", "rollback", "savepoint", "start"])
_READS = frozenset(("select", "table", "values", "with"))
DATABASE = "sqlite:///borealis.db"  # beside the process, when nothing else is said
GIVE_UP = "10 minutes"  # how long a database that cannot be used is tried again, when nothing else is said
_OFFER = 'give a URL, such as "postgresql+psycopg://user:${PASSWORD}@host/db", or a name'


def parameters(statement: str) -> list[str]:
    """The names of its parameters, each once; `:name` in quotes, comments and casts is none.

    >>> parameters("SELECT a::int, ':no' FROM t -- :no\\nWHERE b = :b AND c > :c AND :b > 0")
    ['b', 'c']
    """
    return list(dict.fromkeys(m["name"] for m in _PIECE.finditer(statement) if m["name"]))


def filled(statement: str, parameter: Callable[[str], str], other: Callable[[str], str] = str) -> str:
    """The statement with each parameter, and all text between them, replaced."""
    return "".join(parameter(m["name"]) if m["name"] else other(m[0]) for m in _PIECE.finditer(statement)).rstrip(
        "; \n\t"
    )


def check_statement(statement: str, columns: Sequence[str], *, reads: bool) -> None:
    """Refuse what is not one statement over these columns: a question (`reads`), or a change."""
    words = [m["word"].lower() for m in _PIECE.finditer(statement) if m["word"]]
    if not words:
        raise DiagramError("the statement is empty", hint="write SQL, such as INSERT INTO t (a) VALUES (:a)")
    solid = [m[0] for m in _PIECE.finditer(statement) if not m["space"] and not m["comment"]]
    if ";" in solid[:-1]:
        raise DiagramError("there are several statements in one box", hint="draw a box for each, one behind the other")
    if words[0] in _CONTROL:
        hint = "write only the change itself: each train is one transaction already"
        raise DiagramError(f"'{words[0].upper()}' is not for a box to say", hint=hint)
    if reads and words[0] not in _READS:
        raise DiagramError(f"'{words[0].upper()}' is no question", hint="a SQL-read asks: begin with SELECT or WITH")
    if not reads and words[0] in _READS - {"with"}:
        raise DiagramError(f"'{words[0].upper()}' changes nothing", hint="ask with sql_read")
    for name in parameters(statement):
        if name not in columns:
            wrong = no_column(name, columns)
            raise DiagramError(f"parameter ':{name}': {wrong.message}", hint=wrong.hint or "a parameter is a column")


def check_table(table: str, database: str) -> None:
    """Refuse what names no table, and a database that is known not to replace rows by a key."""
    if not _TABLE.fullmatch(table):
        raise DiagramError(f"'{table}' is no name of a table", hint="name it as in SQL: bills, or public.bills")
    if not is_name(database) and not keeps_tables(database):
        hint = "SQLite and PostgreSQL are known; write a statement= for any other"
        raise DiagramError(f"no table can be kept by a key in '{database.partition(':')[0]}'", hint=hint)


def keeps_tables(database: str) -> bool:
    """Whether a database, given by its URL or by its kind, has INSERT ... ON CONFLICT."""
    return database.startswith(_KEEPS)


def check_database(database: str) -> None:
    """Refuse what names no database, what no other process could open, and a password that all would see."""
    if _NAME.fullmatch(database):
        return
    if not _URL.match(database):
        raise DiagramError(f"'{database}' is neither a URL nor a name of a database", hint=_OFFER)
    for found in _PASSWORD.finditer(database):
        secret = found["user"] if found["user"] is not None else found["query"]
        if _VARIABLE.sub("", secret):
            hint = "write ${VARIABLE} in its place, and set that in the environment of the nodes"
            raise DiagramError("a password stands in the URL of the database, for all to read", hint=hint)
    if outside := _VARIABLE.search(with_secrets(database, lambda _: "")):
        hint = "variables stand for user and password only; for all else give a name, and the URL in its variable"
        raise DiagramError(f"'{outside[0]}' stands where all could read its value", hint=hint)
    if database.startswith("sqlite") and (":memory:" in database or not database.partition("://")[2].strip("/")):
        hint = "name a file: sqlite:///file.db, or sqlite:////tmp/file.db from the root"
        raise DiagramError("a database in memory is seen by one process alone", hint=hint)


def with_secrets(database: str, filled: Callable[[str], str]) -> str:
    """The URL with the pieces replaced that may hold secrets: user and password, also as an option.

    >>> with_secrets("postgresql://me:${PW}@host/db?sslpassword=${KEY}", lambda piece: f"<{piece}>")
    '<postgresql://me:${PW}@>host/db<?sslpassword=${KEY}>'
    """
    return _SECRETS.sub(lambda m: filled(m[0]), database)


def anchored(database: str, at: Path) -> str:
    """The same database for processes that run elsewhere: a file is named from the root.

    >>> anchored("sqlite:///a.db", Path("/data")), anchored("sqlite:////tmp/a.db", Path("/data"))
    ('sqlite:////data/a.db', 'sqlite:////tmp/a.db')
    """
    head, mark, path = database.partition(":///")
    relative = head.startswith("sqlite") and mark and not path.startswith(("/", "file:"))
    return f"{head}{mark}{at / path}" if relative else database


def is_name(database: str) -> bool:
    """Whether it stands for an environment variable, and is no URL."""
    return _NAME.fullmatch(database) is not None
