"""One server of each kind for all tests of stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.databases import MariaServer, PostgresServer
from tests.support.dynamo import CREDENTIALS, Dynalite, Ministack
from tests.support.groups import SentinelGroup, ValkeyCluster
from tests.support.servers import ValkeyServer
from tests.support.tls import Certificates, TlsServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """A running server."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis7() -> Iterator[ValkeyServer]:
    """A running Redis, the distribution's."""
    with ValkeyServer(server="redis") as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[ValkeyCluster]:
    """A running cluster of three nodes, which no test may change."""
    with ValkeyCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def sentinels() -> Iterator[SentinelGroup]:
    """A running primary, its replica and their sentinels, which no test may change; with passwords."""
    with SentinelGroup("of the servers", "of the sentinels") as group:
        yield group


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    """A running Redis by TLS, with certificates for both sides."""
    with TlsServer(Certificates(tmp_path_factory.mktemp("tls"))) as server:
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresServer]:
    """A running PostgreSQL with the tables."""
    from singleflight.stores.sql import SqlStore

    with PostgresServer("timezone=Asia/Kolkata") as server:
        SqlStore(server.url).set_up()
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaServer]:
    """A running MariaDB with the tables."""
    from singleflight.stores.sql import SqlStore

    with MariaServer("--default-time-zone=+05:30") as server:
        SqlStore(server.url).set_up()
        yield server


@pytest.fixture(scope="session")
def postgresql_url(postgresql: PostgresServer) -> str:
    """Where PostgreSQL is."""
    return postgresql.url


@pytest.fixture(scope="session")
def mariadb_url(mariadb: MariaServer) -> str:
    """Where MariaDB is."""
    return mariadb.url


@pytest.fixture(scope="session")
def sqlite_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with the tables."""
    from singleflight.stores.sql import SqlStore

    url = f"sqlite:///{tmp_path_factory.mktemp('sqlite') / 'leases.db'}"
    SqlStore(url).set_up()
    return url


@pytest.fixture(scope="session")
def ministack() -> Iterator[Ministack]:
    """A running DynamoDB emulator with a table."""
    from singleflight.stores.dynamodb import DynamoStore

    with pytest.MonkeyPatch.context() as patch, Ministack() as server:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        DynamoStore.from_url(server.url).set_up()
        yield server


@pytest.fixture(scope="session")
def dynalite() -> Iterator[Dynalite]:
    """Another emulator with a table."""
    from singleflight.stores.dynamodb import DynamoStore

    with pytest.MonkeyPatch.context() as patch, Dynalite() as server:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        DynamoStore.from_url(server.url).set_up()
        yield server
