"""Where a database is: a URL with variables in it, or a name that stands for one; a password is never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import quote

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from borealis.diagram.statements import is_name
from borealis.errors import TrainError

PREFIX = "BOREALIS_DATABASE_"
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_AN_URL = "such as postgresql+psycopg://user:${PASSWORD}@host/db"


def address(database: str, environ: Mapping[str, str] = os.environ) -> URL:
    """The URL of a database as a box names it; variables are those of the process that runs the box.

    >>> address("sqlite:///${HOME}/a.db", {"HOME": "/home/me"}).database
    '/home/me/a.db'
    """
    text = database
    if is_name(database):
        variable = PREFIX + database.upper()
        text = _value(database, variable, environ)
    # what stands before the @ is taken apart at signs that a password may hold itself
    user, at, place = text.rpartition("@")
    user = _VARIABLE.sub(lambda m: quote(_value(database, m[1], environ), safe=""), user)
    place = _VARIABLE.sub(lambda m: _value(database, m[1], environ), place)
    try:
        url = make_url(user + at + place)
    except (ArgumentError, ValueError):  # these would show the text itself
        raise TrainError(f"what '{_shown(database)}' stands for is no URL of a database", hint=_AN_URL) from None
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def shown(url: URL) -> str:
    """A URL for people, without its password."""
    return url.difference_update_query(["password", "sslpassword"]).render_as_string(hide_password=True)


def _value(database: str, variable: str, environ: Mapping[str, str]) -> str:
    if not environ.get(variable):
        such = f", {_AN_URL}" if variable.startswith(PREFIX) else ""
        raise TrainError(
            f"database '{_shown(database)}' is not known here: {variable} is not set",
            hint=f"set it in the environment of every node, and of its executors where they are elsewhere{such}",
        )
    return environ[variable]


def _shown(database: str) -> str:
    return re.sub(r":[^:@/]*@", ":***@", database)
