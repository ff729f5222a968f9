"""A table that is kept by its key, as SQLite and PostgreSQL put it: a row replaces the one with its key, or goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy.engine import URL


def put(url: URL, table: str, columns: Sequence[str], key: Sequence[str]) -> str:
    """The statement that puts a row in place of the one with its key; its parameters are `parameters` of the columns.

    >>> from sqlalchemy.engine import make_url
    >>> put(make_url("sqlite://"), "bills", ["id", "order"], ["id"])
    'INSERT INTO bills (id, "order") VALUES (:c0, :c1) ON CONFLICT (id) DO UPDATE SET "order" = excluded."order"'
    """
    quoted = _quoting(url)
    names, by = ", ".join(map(quoted, columns)), ", ".join(map(quoted, key))
    values = ", ".join(f":{name}" for name in parameters(columns))
    rest = [quoted(name) for name in columns if name not in key]
    then = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in rest)}" if rest else "NOTHING"
    return f"INSERT INTO {table} ({names}) VALUES ({values}) ON CONFLICT ({by}) DO {then}"


def cut(url: URL, table: str, key: Sequence[str]) -> str:
    """The statement that deletes the row with a key, of which `parameters` are its own."""
    quoted = _quoting(url)
    same = (f"{quoted(name)} = :{parameter}" for name, parameter in zip(key, parameters(key), strict=True))
    return f"DELETE FROM {table} WHERE {' AND '.join(same)}"


def parameters(columns: Sequence[str]) -> list[str]:
    """Names for the values of columns, whose own need not be fit for that."""
    return [f"c{i}" for i in range(len(columns))]


def _quoting(url: URL) -> Callable[[str], str]:
    """How a name of a column is written: in quotes where it must be."""
    quote: Callable[[str], str] = url.get_dialect()().identifier_preparer.quote
    return quote
