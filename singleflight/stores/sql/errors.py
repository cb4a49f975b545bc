"""What the errors of databases and their drivers mean to whoever asked for a lease."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import exc

from singleflight.errors import ConfigurationError, SingleflightError, StoreUnavailable

CLASH = {
    *("40001", "40P01", "55P03"),  # PostgreSQL: serialization failure, deadlock, lock not available
    *("1213", "1205", "1020"),  # MySQL and MariaDB: deadlock, lock wait timeout, record changed
    *("SQLITE_BUSY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_BUSY_RECOVERY", "SQLITE_LOCKED"),
}
"""Codes that say: somebody else was at it, try again."""

NO_TABLE = {"42P01", "1146"}
OTHER_COLUMNS = {"42703", "1054"}
REFUSED = {
    *("28P01", "28000", "3D000", "42501"),  # PostgreSQL: password, user, database, right
    *("1045", "1044", "1049", "1142", "1698"),  # MySQL and MariaDB: the same, and root by socket only
    *("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_NOTADB", "SQLITE_PERM", "SQLITE_AUTH"),
}

NEVER = {
    *("1064", "1193", "1235", "1286", "1305"),  # MySQL: syntax, variable, feature, engine, function unknown
    *("SQLITE_ERROR", "SQLITE_MISMATCH", "SQLITE_CORRUPT", "SQLITE_FORMAT"),
}
"""Codes that say: this database cannot do what leases need."""
NEVER_CLASSES = ("0A", "22", "42")
"""The same as classes of SQLSTATE: a feature, a value, a statement that it does not know."""

# When a connection is refused, libpq gives the server's words and no code.
_REFUSAL = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry"
    r"|(role|database) \".*\" does not exist"
)


def code_of(error: BaseException) -> str:
    """Return the database's code: an SQLSTATE, MySQL's number or SQLite's name; empty if there is none."""
    driver: Any = getattr(error, "orig", None)
    first = driver.args[0] if driver is not None and driver.args else ""
    if isinstance(first, int):  # PyMySQL and mysqlclient
        return str(first)
    if isinstance(first, dict):  # pg8000: the fields of the server's message
        return str(first.get("C", ""))
    codes = (getattr(driver, name, None) for name in ("sqlstate", "pgcode", "sqlite_errorname"))
    return next((code for code in codes if code), "")


def passing(error: BaseException) -> bool:
    """Return whether the same request may work at once: another writer was there, or a connection broke."""
    return code_of(error) in CLASH or bool(getattr(error, "connection_invalidated", False))


def translated(error: BaseException, address: str, key: str) -> SingleflightError:
    """Return the error to raise from a driver's one; the text names the database, never a password."""
    code, text = code_of(error), _words(error)
    if code in NO_TABLE or "no such table" in text:
        return no_tables(address)
    if code in OTHER_COLUMNS or "no such column" in text:
        return ConfigurationError(f"store {address}: its tables are not those of this singleflight ({text})")
    if _refused(code) or _REFUSAL.search(text):
        return ConfigurationError(f"store {address} refuses us ({text}); correct the URL or grant the rights")
    if never := _never(error, code):
        return ConfigurationError(f"store {address} {never} ({key}: {text})")
    return StoreUnavailable(f"store {address} gave no answer about {key}: {text}")


def _never(error: BaseException, code: str) -> str:
    """Return what is wrong for good with a database that is there and lets us in; empty if nothing is."""
    if isinstance(error, ValueError | exc.DataError):
        return "cannot keep what it was given"
    if code in NEVER or (len(code) == 5 and code.startswith(NEVER_CLASSES)):  # noqa: PLR2004 - an SQLSTATE
        return "cannot do what leases need; see docs/stores.md for the versions"
    if isinstance(error, TypeError | exc.ArgumentError | exc.ProgrammingError | exc.NotSupportedError):
        return "cannot be used with this URL"
    return ""


def _refused(code: str) -> bool:
    # SQLite's names go into detail: SQLITE_READONLY_DIRECTORY.
    return code in REFUSED or any(code.startswith(f"{each}_") for each in REFUSED if not each[0].isdigit())


def no_tables(address: str) -> ConfigurationError:
    """Return the error for a database that has never been prepared."""
    return ConfigurationError(
        f"store {address} has no singleflight tables; make them once, as a user who may create tables: "
        f"`singleflight init '{address}'`, or singleflight.stores.sql.SqlStore(url).set_up()"
    )


def other_tables(address: str, version: int, needed: int) -> ConfigurationError:
    """Return the error for tables of another version."""
    remedy = "use one version everywhere"
    if version < needed:
        remedy = (
            "stop all its workers, `DROP TABLE singleflight_leases` and `DROP TABLE singleflight_schema`, "
            f"then `singleflight init '{address}'`; or use another database"
        )
    return ConfigurationError(
        f"store {address} has tables of version {version}, this singleflight needs {needed}: {remedy}"
    )


def _words(error: BaseException) -> str:
    """Return what the driver said, in one line; never the statement or its values."""
    return " ".join(str(getattr(error, "orig", None) or error).split())
