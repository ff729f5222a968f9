"""Which rows a box has written, kept in the same database and changed in the same transaction as the rows themselves.

A row's position is its (cause, sub) in the flow: the same however the input is cut into trains, and in a replay.

1. Lock the writer's entry: of two copies of a unit that write at the same time the second one waits here.
2. Skip the rows at or before the position in it. Of those that were refused then, the reasons are known.
3. Write the rest; note what is refused, and why.
4. Put the position forward, and commit all of it at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

RowPosition = tuple[int, int]  # cause, sub
NOTHING: RowPosition = (-1, -1)
REFUSED_MOST = 100_000  # reasons that are kept of each writer, the newest

_METADATA = sa.MetaData()
WRITES = sa.Table(
    "borealis_writes",
    _METADATA,
    sa.Column("writer", sa.String(400), primary_key=True),
    sa.Column("cause", sa.BigInteger, nullable=False),
    sa.Column("sub", sa.BigInteger, nullable=False),
)
REFUSED = sa.Table(
    "borealis_refused",
    _METADATA,
    sa.Column("writer", sa.String(400), primary_key=True),
    sa.Column("cause", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("sub", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("reason", sa.Text, nullable=False),
)


def create(connection: Connection) -> None:
    """Make the tables unless they are there; another copy may make them at the same time."""
    try:
        with connection.begin_nested():
            _METADATA.create_all(connection, checkfirst=True)
    except sa.exc.DatabaseError:
        if not all(sa.inspect(connection).has_table(table.name) for table in (WRITES, REFUSED)):
            raise


def lock(connection: Connection, writer: str) -> RowPosition:
    """How far this writer has come; no other copy can change that before the transaction ends."""
    entry = sa.select(WRITES.c.cause, WRITES.c.sub).where(WRITES.c.writer == writer).with_for_update()
    found = connection.execute(entry).first()
    if found is None:
        try:
            with connection.begin_nested():
                connection.execute(sa.insert(WRITES).values(writer=writer, cause=NOTHING[0], sub=NOTHING[1]))
        except sa.exc.IntegrityError:
            pass  # another copy came first
        found = connection.execute(entry).one()
    return int(found[0]), int(found[1])


def refused(connection: Connection, writer: str, first: RowPosition, last: RowPosition) -> dict[RowPosition, str]:
    """Why rows from one position to another, both included, were refused."""
    between = sa.and_(REFUSED.c.writer == writer, REFUSED.c.cause >= first[0], REFUSED.c.cause <= last[0])
    rows = connection.execute(sa.select(REFUSED.c.cause, REFUSED.c.sub, REFUSED.c.reason).where(between))
    return {(cause, sub): reason for cause, sub, reason in rows if first <= (cause, sub) <= last}


def record(connection: Connection, writer: str, upto: RowPosition, news: Mapping[RowPosition, str]) -> None:
    """The writer has come so far, and these were refused."""
    moved = sa.update(WRITES).where(WRITES.c.writer == writer).values(cause=upto[0], sub=upto[1])
    connection.execute(moved)
    if news:
        rows = [{"writer": writer, "cause": c, "sub": s, "reason": why} for (c, s), why in sorted(news.items())]
        connection.execute(sa.insert(REFUSED), rows)
        _forget(connection, writer)


def _forget(connection: Connection, writer: str) -> None:
    cause, sub, mine = REFUSED.c.cause, REFUSED.c.sub, REFUSED.c.writer == writer
    newest_first = sa.select(cause, sub).where(mine).order_by(cause.desc(), sub.desc())
    found = connection.execute(newest_first.offset(REFUSED_MOST).limit(1)).first()
    if found is not None:
        upto = sa.or_(cause < found[0], sa.and_(cause == found[0], sub <= found[1]))
        connection.execute(sa.delete(REFUSED).where(mine, upto))
