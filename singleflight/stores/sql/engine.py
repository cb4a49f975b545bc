"""How to reach a database: which driver, with which limits, and how to ask it for the time."""

from __future__ import annotations

import importlib.util
import math
import os
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from singleflight.errors import ConfigurationError, NotInstalled

try:
    import sqlalchemy
except ImportError as error:
    raise NotInstalled.of("sqlalchemy", "sql") from error

from sqlalchemy import event, exc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import URL, Connection, Dialect, Engine

DRIVERS = {
    "postgresql": {"psycopg": "psycopg", "psycopg2": "psycopg2", "pg8000": "pg8000"},
    "mysql": {"pymysql": "pymysql", "mysqldb": "MySQLdb"},
    "mariadb": {"pymysql": "pymysql", "mysqldb": "MySQLdb"},
    "sqlite": {"pysqlite": "sqlite3"},
}
"""By database: the drivers that keep time limits, and their modules; the first that is installed is taken."""

CLOCKS = {
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
    # In UTC throughout: a local time comes twice in the hour when summer time ends.
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    "mariadb": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    # Days as a floating-point number are exact to a twentieth of a millisecond.
    "sqlite": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000",
}
"""By database: an expression for the epoch microseconds now."""

# Within this a pooled connection is thought to be alive; firewalls forget idle ones later than that.
RECYCLE = 300


def parse(text: str) -> URL:
    """Read a database URL and choose a driver if it names none.

    Raises:
        ConfigurationError: for a URL that cannot be read, a driver that cannot be used or is not installed,
            and a database in memory, which no other process can see.
    """
    try:
        url = sqlalchemy.make_url(text)
    except (exc.ArgumentError, ValueError) as error:
        raise ConfigurationError(
            "the URL of the SQL store cannot be read; write one such as postgresql://user@host/database"
        ) from error
    name, _, driver = url.drivername.partition("+")
    name = {"postgres": "postgresql"}.get(name, name)
    if name == "sqlite" and url.database in (None, "", ":memory:"):
        raise ConfigurationError(
            "a SQLite store needs a file: sqlite:///leases.db (or use memory:// in tests)"
        )
    known = DRIVERS[name]
    if driver and driver not in known:
        raise ConfigurationError(
            f"the SQL store cannot use {url.drivername}; use one of {', '.join(f'{name}+{d}' for d in known)}"
        )
    wanted = [driver] if driver else list(known)
    found = next((each for each in wanted if importlib.util.find_spec(known[each])), None)
    if found is None:
        # The extra brings the first one.
        is_others = wanted[0] != next(iter(known))
        remedy = f" and leave +{driver} out of the URL, or install {known[driver]}" if is_others else ""
        raise NotInstalled.of(known[wanted[0]], "sql", remedy)
    return url.set(drivername=f"{name}+{found}")


def address(url: URL) -> str:
    """Return where the database is, without user, password and options, for messages."""
    place = sqlalchemy.URL.create(url.drivername, host=url.host, port=url.port, database=url.database)
    return place.render_as_string()


def make_engine(url: URL, timeout: float) -> Engine:
    """Return an engine whose statements commit by themselves and wait at most about ``timeout`` seconds."""
    engine = sqlalchemy.create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        connect_args=_limits(url, timeout),
        hide_parameters=True,
        # Nothing is open when a connection comes back; a rollback would only cost a round trip.
        pool_reset_on_return=None,
        pool_use_lifo=True,
        pool_size=5,
        max_overflow=50,
        pool_timeout=timeout,
        pool_recycle=RECYCLE,
    )
    if url.get_driver_name() in ("psycopg", "psycopg2") and "options" not in url.query:
        _limit_statements(engine, timeout)
    return engine


@contextmanager
def bounded(connection: Connection, seconds: float) -> Iterator[None]:
    """Break the connection if the block lasts longer: libpq waits for a server that is silent for ever.

    Drivers whose connections are no sockets (SQLite) or have their own limits (PyMySQL, pg8000) are left be.
    """
    driver: Any = connection.connection.dbapi_connection
    if not hasattr(driver, "fileno"):
        yield
        return
    lock, over = threading.Lock(), False

    def strike() -> None:
        # Under the lock: once the block is over, the descriptor may be somebody else's.
        with lock:
            if not over:
                with socket.socket(fileno=os.dup(driver.fileno())) as silent:
                    silent.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(seconds, 0), strike)
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:  # the interpreter ends (Python 3.12): the statement's own limit has to do
        yield
        return
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            over = True


def _limits(url: URL, timeout: float) -> dict[str, Any]:
    """Return a driver's own time limits, as arguments of its `connect`."""
    whole = math.ceil(timeout)
    # A lock that others keep must not keep a thread of the server when we have long given up.
    lock_wait = f"SET SESSION innodb_lock_wait_timeout = {whole}, lock_wait_timeout = {whole}"
    limits: dict[str, dict[str, Any]] = {
        # libpq waits two seconds at least. A pooler may give each statement to another server, which knows
        # nothing of what was prepared.
        "psycopg": {"connect_timeout": whole, "prepare_threshold": None},
        "psycopg2": {"connect_timeout": whole},
        "pg8000": {"timeout": timeout},
        "pymysql": {
            "connect_timeout": whole,
            "read_timeout": timeout,
            "write_timeout": timeout,
            "init_command": lock_wait,
        },
        "mysqldb": {
            "connect_timeout": whole,
            "read_timeout": whole,
            "write_timeout": whole,
            "init_command": lock_wait,
        },
        "pysqlite": {"timeout": timeout},
    }
    return limits[url.get_driver_name()]


def _limit_statements(engine: Engine, timeout: float) -> None:
    """Have PostgreSQL end what we no longer wait for; a pooler that refuses the option does without."""

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Dialect, _: object, arguments: list[Any], options: dict[str, Any]) -> Any:
        limit = f"-c statement_timeout={max(1, round(timeout * 1000))}"
        try:
            return dialect.connect(*arguments, **options, options=limit)
        except dialect.loaded_dbapi.OperationalError as error:
            if "startup parameter" not in str(error):
                raise
        return dialect.connect(*arguments, **options)
