"""Waiting for a lease in Redis: each release tells one waiter, in the order in which they came."""

from __future__ import annotations

import asyncio
import threading
import uuid
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import redis

from singleflight import aio, lease
from singleflight.errors import Conflict
from singleflight.keys import lease_key
from singleflight.lease import Busy, Granted, Outcome, Reason
from singleflight.leases import pacing
from singleflight.leases.claiming import new_token
from singleflight.stores import open_store
from singleflight.stores.base import Claim, Release, Waits
from singleflight.stores.redis import RedisStore
from singleflight.stores.redis import store as redis_store
from tests.support.servers import ValkeyServer
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from singleflight.stores.base import Store
    from tests.support.groups import ValkeyCluster

LIMITS = ((pacing, "LONGEST_WAIT"), (pacing, "LISTENER_SLOT"), (redis_store, "LONGEST_WAIT"))
FOR_EVER = 3600.0


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """A server that only these tests use: they count its blocked clients."""
    with closing(ValkeyServer().start()) as running:
        yield running


@pytest.fixture
def name(server: ValkeyServer) -> str:
    """A lease that nobody else waits for."""
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    return uuid.uuid4().hex


def waiter(server: ValkeyServer, name: str, order: list[int], number: int) -> threading.Thread:
    """Start a thread that waits for the lease and notes when it has it."""

    def wait() -> None:
        with lease(RedisStore(server.url, timeout=10), name, ttl=FOR_EVER, wait=60):
            order.append(number)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def blocked(server: ValkeyServer) -> int:
    """Return how many clients wait to be told."""
    with redis.Redis.from_url(server.url) as client:
        return int(client.info("clients")["blocked_clients"])


def test_whoever_waits_is_told_when_its_turn_has_come(
    server: ValkeyServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiters that would not look for an hour get the lease one after the other, in the order they came."""
    for module, constant in LIMITS:
        monkeypatch.setattr(module, constant, FOR_EVER)
    order: list[int] = []
    threads = []
    with lease(server.url, name, ttl=FOR_EVER):
        for number in range(5):
            threads.append(waiter(server, name, order, number))
            until(lambda want=number + 1: blocked(server) == want, 30, "the waiter")
    for thread in threads:
        thread.join(60)

    assert order == [0, 1, 2, 3, 4]


def test_whoever_waits_asynchronously_has_its_turn_too(
    server: ValkeyServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of an event loop that came first goes first; threads that are told do not overtake it."""
    for module, constant in LIMITS:
        monkeypatch.setattr(module, constant, FOR_EVER)
    order: list[int] = []
    store = RedisStore(server.url, timeout=10)
    key = lease_key("singleflight", name)

    async def wait() -> None:
        async with aio.lease(RedisStore(server.url, timeout=10), name, ttl=FOR_EVER, wait=60):
            order.append(0)

    with lease(store, name, ttl=FOR_EVER):
        threads = [threading.Thread(target=lambda: asyncio.run(wait()))]
        threads[0].start()
        until(lambda: (look := store.peek(key)) is not None and look.record.slot != "", 30, "its place")
        threads.append(waiter(server, name, order, 1))
        until(lambda: blocked(server) == 1, 30, "the waiter")
    for thread in threads:
        thread.join(60)

    assert order == [0, 1]


def test_a_waiter_that_died_delays_the_others_only(server: ValkeyServer, name: str) -> None:
    """A run that stands in line and never comes gets its turn, lets it lapse, and the next one has it."""
    order: list[int] = []
    store = RedisStore(server.url, timeout=10)
    dead = Claim(
        lease_key("singleflight", name), "dead", 0, new_token(), 30_000,
        wait_ms=500, waits=Waits.LISTENING,
    )  # fmt: skip
    with lease(store, name):
        store.claim(dead)
        thread = waiter(server, name, order, 1)
        until(lambda: blocked(server) == 1, 30, "the waiter")
    thread.join(60)

    assert order == [1]


def test_whoever_gives_up_leaves_the_line(server: ValkeyServer, name: str) -> None:
    """After a wait that was in vain, the next one to claim is not held up by it."""
    store = RedisStore(server.url, timeout=10)
    key = lease_key("singleflight", name)
    with lease(store, name), pytest.raises(Conflict), lease(store, name, wait=0.2):
        pass
    look = store.peek(key)

    assert look is not None
    assert look.record.slot == ""
    with redis.Redis.from_url(server.url) as client:
        assert client.keys("*") == [key.encode()]


def test_whoever_listens_does_not_pass_one_who_polls(server: ValkeyServer, name: str) -> None:
    """A stream of those who wait in a process would starve a deferred run that has reserved the key."""
    key = lease_key("singleflight", name)
    with closing(RedisStore(server.url)) as store:
        holder = Claim(key, "holder", 0, new_token(), 60_000)
        polling = Claim(key, "polling", 0, new_token(), 60_000, wait_ms=60_000, waits=Waits.FIRST)
        listening = Claim(key, "new", 0, new_token(), 60_000, wait_ms=60_000, waits=Waits.LISTENING)
        store.claim(holder)
        store.claim(polling)
        store.release(Release(key, "holder", 0, holder.token, Outcome.FINISHED))

        busy = store.claim(listening)

        assert isinstance(busy, Busy)
        assert (busy.reason, busy.ahead) == (Reason.RESERVED, "polling")
        assert isinstance(store.claim(polling), Granted)


def test_where_nobody_waits_nobody_is_told(server: ValkeyServer, name: str) -> None:
    """A lease that nobody waits for leaves its record in the server, and nothing else."""
    with lease(server.url, name):
        pass

    with redis.Redis.from_url(server.url) as client:
        assert client.keys("*") == [lease_key("singleflight", name).encode()]


def test_a_cluster_tells_waiters_too(cluster: ValkeyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line and the waiters' lists are on the node that has the record, whichever that is."""
    for module, constant in LIMITS:
        monkeypatch.setattr(module, constant, FOR_EVER)
    told: list[str] = []
    for name in ("some", "names", "on", "several", "nodes"):
        store, other = open_store(cluster.url, timeout=10), open_store(cluster.url, timeout=10)
        key = lease_key("singleflight", name)

        def wait(name: str = name, other: Store = other) -> None:
            with lease(other, name, ttl=FOR_EVER, wait=60):
                told.append(name)

        with lease(store, name, ttl=FOR_EVER):
            thread = threading.Thread(target=wait)
            thread.start()
            until(lambda key=key, store=store: _slot(store, key), 30, "the waiter")
        thread.join(60)
        store.close()
        other.close()

    assert told == ["some", "names", "on", "several", "nodes"]


def _slot(store: Store, key: str) -> str:
    look = store.peek(key)
    return "" if look is None else look.record.slot
