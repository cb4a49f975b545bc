"""The SQL store keeps the contract on PostgreSQL, MariaDB and SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, delete

from singleflight.stores.sql import SqlStore
from singleflight.stores.sql.tables import leases
from singleflight.testing import FakeClock, LineContract, StoreContract
from tests.stores.clocked import ClockedSqlStore

if TYPE_CHECKING:
    from collections.abc import Iterator


class _OnSql(StoreContract, LineContract):
    def lose(self, store: SqlStore, key: str) -> None:
        """Delete the row through a connection of the test's own."""
        engine = create_engine(store._url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(delete(leases).where(leases.c.lease_key == key))
        engine.dispose()


class TestSqlStore(_OnSql):
    """The contract, by the database's clock."""

    tick = 0.2

    @pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
    def store(self, request: pytest.FixtureRequest) -> Iterator[SqlStore]:
        """A store in each kind of database."""
        store = SqlStore(request.getfixturevalue(f"{request.param}_url"), timeout=10)
        yield store
        store.close()


class TestSqlStoreOnATurnedClock(_OnSql):
    """The contract on exact instants and on a clock that steps back; one database stands for all."""

    can_advance = True

    @pytest.fixture
    def clock(self) -> FakeClock:
        """A clock that only moves when a test says so."""
        return FakeClock()

    @pytest.fixture
    def store(self, sqlite_url: str, clock: FakeClock) -> Iterator[SqlStore]:
        """A store that goes by that clock."""
        store = ClockedSqlStore(sqlite_url, clock=clock, timeout=10)
        yield store
        store.close()
