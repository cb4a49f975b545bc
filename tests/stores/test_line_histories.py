"""Random histories of a line: whatever goes wrong, no run is lost, passed, started twice or left for ever."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from singleflight.stores.memory import MemoryStore
from singleflight.testing import FakeClock
from tests.stores.clocked import ClockedRedisStore, ClockedSqlStore
from tests.stores.line_walks import CONFIGS, walk
from tests.stores.line_world import REMEMBER, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import ValkeyServer

CHAOS = bool(os.environ.get("SINGLEFLIGHT_CHAOS"))


@pytest.fixture(params=["memory", "valkey", "sqlite", "postgresql", "mariadb"])
def clocked(request: pytest.FixtureRequest) -> Iterator[tuple[Any, FakeClock, int]]:
    """A store, its clock, and how many walks in all, shared by the configurations."""
    clock = FakeClock()
    store: Any
    if request.param == "memory":
        store, walks = MemoryStore(clock=clock, remember=REMEMBER), 500
    elif request.param == "valkey":
        server: ValkeyServer = request.getfixturevalue("valkey")
        store, walks = ClockedRedisStore(server.url, clock=clock, remember=REMEMBER, timeout=10), 50
    else:
        url: str = request.getfixturevalue(f"{request.param}_url")
        store, walks = ClockedSqlStore(url, clock=clock, remember=REMEMBER, timeout=10), 20
    yield store, clock, 10_000 if CHAOS else walks
    store.close()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CONFIGS)
def test_no_history_breaks_a_line(clocked: tuple[Any, FakeClock, int], name: str) -> None:
    """Nobody overlaps, is lost, passed, stuck or left, in random walks with every fault there is."""
    store, clock, walks = clocked
    for seed in range(walks // len(CONFIGS) + 1):
        walk(World(store, clock, CONFIGS[name], f"singleflight:{uuid4().hex}"), seed)
