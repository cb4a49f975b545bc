"""Real stores that a run starts for itself, and what may be done to them."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singleflight.stores import open_store
from singleflight.stores.optional import SetUp
from tests.support.databases import MariaServer, PostgresServer
from tests.support.dynamo import CREDENTIALS, Dynalite, Ministack
from tests.support.proxy import FaultProxy
from tests.support.servers import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

DURABLE = ("--appendonly", "yes", "--appendfsync", "no")
"""A store that forgets may grant a lease twice; a killed process loses nothing that it wrote."""

PROXIES = 2
"""How many ways there are to a server; each can be cut while the other is not."""


@dataclass
class Target:
    """A store under torture: a context manager."""

    name: str
    server: Any = None
    urls: list[str] = field(default_factory=list)
    """One for each way to it."""
    proxies: list[FaultProxy] = field(default_factory=list)
    lateness: float = 0.0
    """Seconds for which it may take a lease for alive after its end."""
    timeout: float = 0.5
    steps: bool = True
    """Whether clients' clocks may be wrong: the store has one of its own."""
    restarts: bool = True
    """Whether it keeps its promises over a restart."""
    environment: dict[str, str] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        try:
            STARTS[self.name](self)
            os.environ.update(self.environment)
            store = open_store(self.urls[0], timeout=30)
            if isinstance(store, SetUp):
                store.set_up()
            store.close()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def behind(self, url: str) -> None:
        """Lead to a server through proxies."""
        for _ in range(PROXIES):
            proxy = self._stack.enter_context(FaultProxy(self.server.port))
            self.proxies.append(proxy)
            self.urls.append(url.replace(f":{self.server.port}", f":{proxy.port}"))


def _valkey(target: Target) -> None:
    target.server = target._stack.enter_context(ValkeyServer(*DURABLE))
    target.behind(target.server.url)


def _redis(target: Target) -> None:
    target.server = target._stack.enter_context(ValkeyServer(*DURABLE, server="redis"))
    target.behind(target.server.url)


def _postgresql(target: Target) -> None:
    target.server = target._stack.enter_context(PostgresServer())
    target.behind(target.server.url)
    target.timeout = 1.5  # a connection takes long on a busy machine


def _mariadb(target: Target) -> None:
    target.server = target._stack.enter_context(MariaServer())
    target.behind(target.server.url)
    target.timeout = 1.5  # a connection takes long on a busy machine


def _sqlite(target: Target) -> None:
    folder = tempfile.mkdtemp(prefix="singleflight-torture-")
    target._stack.callback(shutil.rmtree, folder, ignore_errors=True)
    target.urls = [f"sqlite:///{Path(folder) / 'leases.db'}"]
    # Its clock is that of whoever asks.
    target.steps = target.restarts = False


def _dynamodb(target: Target, emulator: Callable[[], Any] = Ministack) -> None:
    target.environment = CREDENTIALS
    target.server = target._stack.enter_context(emulator())
    target.behind(target.server.url)
    target.lateness, target.timeout, target.restarts = 4.0, 2.0, False


def _dynalite(target: Target) -> None:
    _dynamodb(target, Dynalite)


STARTS: dict[str, Callable[[Target], None]] = {
    "valkey": _valkey,
    "redis": _redis,
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "mariadb": _mariadb,
    "dynamodb": _dynamodb,
    "dynalite": _dynalite,
}
