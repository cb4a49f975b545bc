"""How the tables of the SQL store come to be: once, by somebody who may create tables."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

# First: it says what to install if SQLAlchemy is missing.
from singleflight.stores.sql.engine import address, make_engine  # isort: skip
from sqlalchemy import exc, func, insert, inspect, select, text
from sqlalchemy.schema import CreateIndex, CreateTable

from singleflight.stores.sql.errors import other_tables, translated
from singleflight.stores.sql.tables import SCHEMA_VERSION, metadata, schema

if TYPE_CHECKING:
    from sqlalchemy import URL
    from sqlalchemy.engine import Connection

ATTEMPTS = 5
"""CREATE TABLE IF NOT EXISTS is no protection against somebody who does the same at the same moment."""


def make_tables(url: URL) -> None:
    """Make the tables of the SQL store where they are missing; safe to repeat, and several times at once.

    Raises:
        ConfigurationError: if the user may not.
        StoreUnavailable: if the database does not answer.
    """
    engine = make_engine(url, timeout=30)
    try:
        with engine.connect() as connection:
            if url.get_backend_name() == "sqlite":
                # Readers and the writer do not wait for each other; the file remembers it.
                connection.execute(text("PRAGMA journal_mode=WAL"))
            _refuse_others(connection, url)
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    metadata.create_all(connection)
                    break
                except exc.DBAPIError:
                    if attempt == ATTEMPTS:
                        raise
            with suppress(exc.IntegrityError):
                connection.execute(insert(schema).values(version=SCHEMA_VERSION))
    except (exc.SQLAlchemyError, OSError) as error:
        raise translated(error, address(url), "the tables") from error
    finally:
        engine.dispose()


def _refuse_others(connection: Connection, url: URL) -> None:
    """Leave tables of another version as they are."""
    if inspect(connection).has_table(schema.name):
        version = connection.execute(select(func.max(schema.c.version))).scalar_one()
        if version not in (None, SCHEMA_VERSION):
            raise other_tables(address(url), version, SCHEMA_VERSION)


def statements(url: URL) -> list[str]:
    """Return what `make_tables` executes, for those who make their tables by other means."""
    dialect = make_engine(url, timeout=1).dialect
    made = []
    for table in metadata.sorted_tables:
        made.append(CreateTable(table).compile(dialect=dialect))
        made += [CreateIndex(index).compile(dialect=dialect) for index in table.indexes]
    version = insert(schema).values(version=SCHEMA_VERSION)
    made.append(version.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    return [str(each).strip() for each in made]
