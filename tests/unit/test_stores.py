"""What callers pass as a store: a ready client is taken as `RedisStore.from_client` takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dramatiq
import pytest
import redis
import redis.asyncio
from celery import Celery
from dramatiq.brokers.stub import StubBroker
from redis.sentinel import Sentinel

from singleflight import ConfigurationError, Lease, try_lease
from singleflight.celery import install
from singleflight.dramatiq import install as install_dramatiq
from singleflight.leases.waiting import leases_of
from singleflight.stores import as_store
from singleflight.stores.memory import MemoryStore
from singleflight.stores.redis import RedisStore
from tests.support.servers import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOT_STORES: dict[str, Callable[[], Any]] = {
    "asyncio": redis.asyncio.Redis,
    "asyncio cluster": lambda: redis.asyncio.RedisCluster(host="127.0.0.1", port=1),
    "pool": redis.ConnectionPool,
    "sentinel": lambda: Sentinel([("127.0.0.1", 1)]),
    "replica": lambda: Sentinel([("127.0.0.1", 1)]).slave_for("primary"),
    "class": lambda: RedisStore,
    "number": lambda: 7,
    "mapping": lambda: {"url": "redis://"},
    "app": lambda: Celery("store", set_as_current=False),
}


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """A running server."""
    with ValkeyServer() as running:
        yield running


@pytest.mark.parametrize("decode", [False, True])
def test_a_ready_client_will_do_for_plain_code(server: ValkeyServer, decode: bool) -> None:
    """It is opened once: a loop of `try_lease` has its connections; the client stays as it is."""
    client = redis.Redis.from_url(server.url, decode_responses=decode)
    with client:
        taken = try_lease(client, "nightly")  # type: ignore[arg-type]
        assert isinstance(taken, Lease)
        assert leases_of(client) is leases_of(client)  # type: ignore[arg-type]
        assert taken.release()
        assert client.exists(taken.key)


def test_a_ready_client_will_do_for_both_frameworks(server: ValkeyServer) -> None:
    """`install(app, client)` and `install(broker, client)` keep leases on its server."""
    client = redis.Redis.from_url(server.url)
    app, broker = Celery("client", set_as_current=False), StubBroker()
    install(app, client, eager=True)  # type: ignore[arg-type]
    install_dramatiq(broker, client)  # type: ignore[arg-type]
    app.conf.task_always_eager = True

    @app.task(shared=False, name="client-task", singleton=True)
    def task() -> None: ...

    @dramatiq.actor(broker=broker, actor_name="client-actor", singleton=True)
    def actor() -> None: ...

    assert task.delay().state == "SUCCESS"
    actor.send()
    worker = dramatiq.Worker(broker, worker_threads=1)
    worker.start()
    try:
        broker.join(actor.queue_name, timeout=20_000)
    finally:
        worker.stop()
    keys = [key.decode() for key in client.keys("singleflight:client-*")]
    client.close()

    assert [name for name in ("client-task", "client-actor") if any(name in key for key in keys)] == [
        "client-task",
        "client-actor",
    ]


@pytest.mark.parametrize("kind", NOT_STORES)
def test_what_is_no_store_is_refused_where_it_is_given(kind: str) -> None:
    """Not at the first lease: the error names what was given, and what to pass instead."""
    given = NOT_STORES[kind]()

    for give in (
        lambda: try_lease(given, "nightly"),
        lambda: install(Celery("refused", set_as_current=False), given),
        lambda: install_dramatiq(StubBroker(), given),
    ):
        with pytest.raises(ConfigurationError, match=r"redis://host:6379/0|Sentinel.master_for"):
            give()


def test_a_store_of_the_users_own_is_taken_as_it_is() -> None:
    """Nothing is made of it."""
    store = MemoryStore()

    assert as_store(store) is store
