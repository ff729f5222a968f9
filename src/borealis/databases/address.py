"""Where a database is: a URL with variables in it, or a name that stands for one; secrets are never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from borealis.diagram.statements import is_name, with_secrets
from borealis.errors import TrainError

PREFIX = "BOREALIS_DATABASE_"
HIDDEN = "***"
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_AN_URL = "such as postgresql+psycopg://user:${PASSWORD}@host/db"


@dataclass(frozen=True)
class DatabaseAddress:
    """A database as it is opened, as it is shown, and what to take out of all that is said about it."""

    url: URL
    shown: str  # as the diagram has it: no variable is filled in
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def without_secrets(self, text: str) -> str:
        """A text in which nothing stands that was filled in for user or password."""
        for secret in sorted({*self.secrets, *(quote(s, safe="") for s in self.secrets)}, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text


def address(database: str, environ: Mapping[str, str] = os.environ) -> DatabaseAddress:
    """The address of a database as a box names it; variables are those of the process that runs the box.

    In the URL of a diagram only user and password are filled in, in that of a name, which is the node's own, all is.

    >>> made = address("postgresql://${ME}:${PW}@host/${PW}", {"ME": "ann", "PW": "s3cret"})
    >>> made.url.username, made.url.password, made.url.database, made.shown
    ('ann', 's3cret', '${PW}', 'postgresql://${ME}:***@host/${PW}')
    """
    secrets: list[str] = []

    def secret(variable: re.Match[str]) -> str:
        secrets.append(_value(database, variable[1], environ))
        return quote(secrets[-1], safe="")

    if is_name(database):
        text = _value(database, PREFIX + database.upper(), environ)
        # what stands before the @ is taken apart at signs that a password may hold itself
        user, at, place = text.rpartition("@")
        text = _VARIABLE.sub(secret, user) + at
        text += _VARIABLE.sub(lambda m: _value(database, m[1], environ), place)
    else:
        text = with_secrets(database, lambda piece: _VARIABLE.sub(secret, piece))
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # these would show the text itself
        raise TrainError(f"what '{_shown(database)}' stands for is no URL of a database", hint=_AN_URL) from None
    secrets += [str(word) for word in (url.password, url.query.get("password"), url.query.get("sslpassword")) if word]
    url = url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url
    return DatabaseAddress(url, _shown(database), tuple(dict.fromkeys(secrets)))


def _value(database: str, variable: str, environ: Mapping[str, str]) -> str:
    if not environ.get(variable):
        such = f", {_AN_URL}" if variable.startswith(PREFIX) else ""
        raise TrainError(
            f"database '{_shown(database)}' is not known here: {variable} is not set",
            hint=f"set it in the environment of every node, and of its executors where they are elsewhere{such}",
        )
    return environ[variable]


def _shown(database: str) -> str:
    hidden = re.sub(r":[^:@/]*@", f":{HIDDEN}@", database)
    return re.sub(r"([?&](?:ssl)?password=)[^&#]*", rf"\1{HIDDEN}", hidden, flags=re.IGNORECASE)
