"""A database as one box uses it: a transaction at a time, tried again while it cannot be had."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from sqlalchemy import TextClause, create_engine, event, text
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

from borealis.clock import WALL, Clock
from borealis.databases.address import address
from borealis.databases.troubles import UnfitError, safe_message, verdict
from borealis.diagram.durations import show
from borealis.diagram.statements import filled
from borealis.errors import GivenUpError, TrainError, times
from borealis.retrying import Backoff, Retries

log = logging.getLogger("borealis.databases")

PAUSE_S_FIRST, PAUSE_S_MOST = 0.05, 5.0  # between tries
CONNECT_S = 5  # for a server to answer at all
LOCK_WAIT_S = 5  # for what another transaction has locked, before that counts as a trouble and is reported
SILENCE_MS = 10_000  # a server that acknowledges nothing for so long is gone
SQLITE_BUSY_S = 1.0  # for another process to let go of the file, before that counts as a trouble

T = TypeVar("T")
AGAIN = "see that it runs and lets this node in; then start again: nothing is lost, none comes twice"
_ENGINES: dict[tuple[int, URL], Engine] = {}  # by process: a forked one must not use its parent's connections


class OutageReport(Protocol):
    """Where a kernel reports an outage while it lasts, so that it can be seen from outside."""

    def tell(self, trouble: str | None) -> None:
        """What it is; None when it has passed."""

    def give_up(self, why: str) -> None:
        """The kernel does not wait for its end any more."""

    def given_up(self) -> str:
        """Why an earlier attempt of the same train gave up; empty if none did."""
        ...


class Database:
    """What one box talks to. A transaction that fails for a passing reason is run again, from its beginning."""

    def __init__(
        self,
        box: str,
        named: str,
        give_up_us: int,
        *,
        environ: Mapping[str, str] = os.environ,
        clock: Clock = WALL,
    ) -> None:
        self.box, self.give_up_us = box, give_up_us
        self.address = address(named, environ)
        self.url = self.address.url
        self._clock = clock
        self._report: OutageReport | None = None
        self._in_trouble = False

    @property
    def kind(self) -> str:
        """sqlite, postgresql, ..."""
        return self.url.get_backend_name()

    def begin(self, report: OutageReport) -> None:
        """A train comes. If an earlier attempt to run it has waited in vain, this one does not wait again."""
        self._report = report
        if why := report.given_up():
            raise GivenUpError(why, hint=AGAIN)

    def transact(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        """Run `work` in one transaction and commit it. It may run several times, so it must find out what is done."""
        backoff = Backoff(Retries(PAUSE_S_FIRST, PAUSE_S_MOST, self.give_up_us / 1e6), self._clock)
        tries = 0
        while True:
            try:
                with self._engine().connect() as connection:
                    connection = connection.execution_options(borealis_writes=writes)
                    with connection.begin():
                        if self.kind == "postgresql":
                            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_WAIT_S}s'")
                            connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")  # each row is judged alone
                        done = work(connection)
                self._tell(None)
                return done
            except (SQLAlchemyError, OSError, _driver_error()) as error:
                what = safe_message(error, self.address)
                if verdict(error) != "passing":
                    refused = self._named(f"refuses the statement: {what}")
                    raise TrainError(refused, hint="mend the statement, or the table") from None
            tries += 1
            pause = self._pause(backoff, tries, what)
            self._tell(f"cannot be used, tried {times(tries)}: {what}")
            if (engine := _ENGINES.pop((os.getpid(), self.url), None)) is not None:
                with suppress(Exception):  # of connections that are broken
                    engine.dispose()
            self._clock.sleep(pause if tries > 1 else 0.0)  # a connection that had died meanwhile needs no pause

    def _pause(self, backoff: Backoff, tries: int, what: str) -> float:
        waited = f"could not be used for {show(self.give_up_us)}, tried {times(tries)}: {what}"
        try:
            return backoff.lost(GivenUpError(self._named(waited), hint=AGAIN))
        except GivenUpError as error:
            if self._report is not None:
                self._report.give_up(error.message)
            raise

    def statement(self, sql: str) -> TextClause:
        return text(filled(sql, lambda name: f":{name} ", lambda other: other.replace(":", "\\:")))

    def values(self, column: pa.ChunkedArray) -> list[Any]:
        """A column as what the driver takes; a value that cannot be given to any is an UnfitError in its place."""
        values, types = _python_values(column), pa.types
        has_no_type = any(is_a(column.type) for is_a in (types.is_decimal, types.is_timestamp, types.is_date))
        if self.kind != "sqlite" or not has_no_type:
            return values
        return [v if v is None or isinstance(v, UnfitError) else str(v) for v in values]  # SQLite has text for them

    # -- connections

    def _engine(self) -> Engine:
        key = (os.getpid(), self.url)
        if key not in _ENGINES:
            try:
                _ENGINES[key] = _make_engine(self.url)
            except (ImportError, NoSuchModuleError) as error:
                raise TrainError(
                    self._named(f"has no driver here: {error}"),
                    hint="install it; for PostgreSQL: pip install 'psycopg[binary]>=3.2,<4'",
                ) from None
        return _ENGINES[key]

    # -- reporting

    def _named(self, what: str) -> str:
        return f"box '{self.box}': database {self.address.shown} {what}"

    def _tell(self, trouble: str | None) -> None:
        if trouble is not None:
            log.warning("%s", self._named(trouble))
        if self._report is not None and (trouble is not None or self._in_trouble):
            self._report.tell(None if trouble is None else self._named(trouble))
            self._in_trouble = trouble is not None


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
