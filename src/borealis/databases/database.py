"""A database as one box uses it: a transaction at a time, tried again while it cannot be had."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from sqlalchemy import TextClause, create_engine, event, text
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

from borealis.databases.address import address, shown
from borealis.databases.troubles import UnfitError, said, verdict
from borealis.diagram.durations import show
from borealis.diagram.statements import filled
from borealis.errors import TrainError

log = logging.getLogger("borealis.databases")

PAUSE_S_FIRST = 0.1  # before the second try; each further pause is twice as long
PAUSE_S_MOST = 5.0
CONNECT_S = 5  # for a server to answer at all
LOCK_WAIT_S = 5  # for what another transaction has locked, before that counts as a trouble and is told
SILENCE_MS = 10_000  # a server that acknowledges nothing for so long is gone
SQLITE_BUSY_S = 1.0  # for another process to let go of the file, before that counts as a trouble

T = TypeVar("T")
_ENGINES: dict[tuple[int, URL], Engine] = {}  # by process: a forked one must not use its parent's connections


class Database:
    """What one box talks to. A transaction that fails for a passing reason is run again, from its beginning."""

    def __init__(
        self,
        box: str,
        named: str,
        give_up_us: int,
        *,
        environ: Mapping[str, str] = os.environ,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.box, self.url, self.give_up_us = box, address(named, environ), give_up_us
        self._now, self._sleep = now, sleep
        self._notice: Path | None = None

    @property
    def kind(self) -> str:
        """sqlite, postgresql, ..."""
        return self.url.get_backend_name()

    def notify(self, notice: str | None) -> None:
        """Where to tell a trouble while it lasts: a file that the node looks at."""
        self._notice = None if notice is None else Path(notice)

    def transact(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        """Run `work` in one transaction and commit it. It may run several times, so it must find out what is done."""
        since, tries, pause = self._now(), 0, PAUSE_S_FIRST
        while True:
            try:
                with self._engine().connect() as connection:
                    connection = connection.execution_options(borealis_writes=writes)
                    with connection.begin():
                        self._bound_waiting(connection)
                        done = work(connection)
                self._tell(None)
                return done
            except (SQLAlchemyError, OSError, _driver_error()) as error:
                what = said(error, self.url)
                if verdict(error) != "passing":
                    raise self._told(f"refuses the statement: {what}", "mend the statement, or the table") from error
                tries += 1
                waited = self._now() - since
                if waited + pause > self.give_up_us / 1e6:
                    hint = "see that it runs and lets this node in; then start again: nothing is lost, none comes twice"
                    told = f"could not be used for {show(self.give_up_us)}, tried {tries} times: {what}"
                    raise self._told(told, hint) from None
                self._tell(f"cannot be used, tried {tries} times: {what}")
            self._forget_engine()
            self._sleep(pause if tries > 1 else 0.0)  # a connection that had died meanwhile needs no pause
            pause = min(PAUSE_S_MOST, 2 * pause) if tries > 1 else pause

    def statement(self, sql: str) -> TextClause:
        """A statement with its parameters, as SQLAlchemy takes it."""
        return text(filled(sql, lambda name: f":{name} ", lambda other: other.replace(":", "\\:")))

    def values(self, column: pa.ChunkedArray) -> list[Any]:
        """A column as what the driver takes; a value that cannot be given to any is an UnfitError in its place."""
        values = _python_values(column)
        if self.kind != "sqlite":
            return values
        if pa.types.is_decimal(column.type):  # SQLite has numbers of eight bytes, and text
            return [v if v is None or isinstance(v, UnfitError) else str(v) for v in values]
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            return [v if v is None or isinstance(v, UnfitError) else _iso(v) for v in values]
        return values

    # -- connections

    def _engine(self) -> Engine:
        key = (os.getpid(), self.url)
        if key not in _ENGINES:
            try:
                _ENGINES[key] = _make_engine(self.url)
            except (ImportError, NoSuchModuleError) as error:
                raise self._told(
                    f"has no driver here: {error}", "install it, such as borealis-spark[postgres]"
                ) from None
        return _ENGINES[key]

    def _forget_engine(self) -> None:
        engine = _ENGINES.pop((os.getpid(), self.url), None)
        if engine is not None:
            with suppress(Exception):  # of connections that are broken
                engine.dispose()

    def _bound_waiting(self, connection: Connection) -> None:
        if self.kind == "postgresql":
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_WAIT_S}s'")
            connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")  # each row is judged alone

    # -- telling

    def _told(self, what: str, hint: str) -> TrainError:
        return TrainError(f"box '{self.box}': database {shown(self.url)} {what}", hint=hint)

    def _tell(self, trouble: str | None) -> None:
        if trouble is not None:
            log.warning("box '%s': database %s %s", self.box, shown(self.url), trouble)
        if self._notice is None:
            return
        with suppress(OSError):  # the run is over, or its disk is full: the log has it
            if trouble is None:
                self._notice.unlink(missing_ok=True)
            else:
                self._notice.parent.mkdir(exist_ok=True)
                self._notice.write_text(f"box '{self.box}': database {shown(self.url)} {trouble}")


def _make_engine(url: URL) -> Engine:
    match url.get_backend_name():
        case "sqlite":
            engine = create_engine(url, connect_args={"timeout": SQLITE_BUSY_S})
            event.listen(engine, "connect", _leave_transactions_to_us)
            event.listen(engine, "begin", _begin)
            return engine
        case "postgresql" if url.get_driver_name() == "psycopg":
            logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of each row that is refused in a batch
            quiet = {"keepalives_idle": CONNECT_S, "tcp_user_timeout": SILENCE_MS}
            return create_engine(url, pool_size=1, connect_args={"connect_timeout": CONNECT_S, **quiet})
        case _:
            return create_engine(url, pool_size=1)


def _driver_error() -> type[Exception]:
    """What psycopg raises where SQLAlchemy does not stand in between; where it is not installed, nothing does."""
    driver: Any = sys.modules.get("psycopg")
    return SQLAlchemyError if driver is None else driver.Error


def _leave_transactions_to_us(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # else the driver begins and ends them where it likes


def _begin(connection: Connection) -> None:
    """A transaction that will write takes the lock at once: two that read first and write then would both fail."""
    writes = connection.get_execution_options().get("borealis_writes", True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
        return values
    except (ValueError, OverflowError):
        return [_python_value(value) for value in column]


def _python_value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return UnfitError("a time beyond the years 1 to 9999")


def _iso(value: Any) -> str:
    return str(value.isoformat(" ") if hasattr(value, "hour") else value.isoformat())
