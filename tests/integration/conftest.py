"""`celery_setup` on real processes: one Valkey, and the workers that the test's `workers` mark describes.

    @pytest.mark.workers(2, concurrency=1, args=["--time-limit", "5"])
    def test_...(celery_setup, body_log): ...

Without the mark there is one prefork worker of two processes. `start_beat` and `start_worker` start more.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from celery.result import AsyncResult
from pytest_celery import (
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryWorkerCluster,
    RedisTestBackend,
    RedisTestBroker,
)

from tests.integration.app import make_app
from tests.support.beats import Beat
from tests.support.bodylog import VARIABLE, BodyLog
from tests.support.nodes import ValkeyContainer, WorkerContainer, WorkerNode
from tests.support.servers import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from celery import Celery

PREFIX = "singleflight"


@pytest.fixture
def celery_broker() -> Iterator[RedisTestBroker]:
    """Run one Valkey server; after the test, none of our keys in it may lack an expiry."""
    with ValkeyServer() as server:
        node = RedisTestBroker(ValkeyContainer(server))
        yield node
        if node.container.status == "running":
            endless = keys_without_expiry(node.container)
            assert not endless, f"keys without expiry: {endless}"


@pytest.fixture
def celery_broker_cluster(celery_broker: RedisTestBroker) -> CeleryBrokerCluster:
    """Return the one broker as pytest-celery's cluster."""
    return CeleryBrokerCluster(celery_broker)


@pytest.fixture
def celery_backend_cluster(celery_broker: RedisTestBroker) -> Iterator[CeleryBackendCluster]:
    """Return the same server as the result backend; afterwards no result object asks it any more."""
    yield CeleryBackendCluster(RedisTestBackend(celery_broker.container))
    # A result that is collected later would look for its server for twenty seconds. pytest-celery's own
    # teardown asks every object for its class, and some, such as Django's lazy settings, do not take that.
    gc.collect()
    for thing in gc.get_objects():
        if issubclass(type(thing), AsyncResult):
            thing.backend = None


@pytest.fixture
def body_log(tmp_path: Path) -> BodyLog:
    """Return the log that all task bodies of this test write to."""
    return BodyLog(tmp_path / "bodies.log")


@pytest.fixture
def environment(celery_broker: RedisTestBroker, body_log: BodyLog) -> dict[str, str]:
    """Return the environment of every worker and beat of this test."""
    url = celery_broker.container.server.url
    return {"CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": url, VARIABLE: str(body_log.path)}


@pytest.fixture
def celery_setup_app(celery_setup_config: dict[str, Any]) -> Iterator[Celery]:
    """Return the publisher's app: the workers' own app, on this test's broker."""
    app = make_app(celery_setup_config["broker_url"], celery_setup_config["result_backend"])
    yield app
    app.close()


@pytest.fixture
def start_worker(
    tmp_path: Path, environment: dict[str, str], celery_setup_app: Celery
) -> Iterator[Callable[..., WorkerNode]]:
    """Return a function that starts a worker; it takes what `WorkerContainer` takes, and `env` is added."""
    nodes: list[WorkerNode] = []

    def start(*, env: dict[str, str] | None = None, **options: Any) -> WorkerNode:
        options.setdefault("name", f"worker{len(nodes) + 1}")
        container = WorkerContainer(tmp_path, {**environment, **(env or {})}, **options)
        nodes.append(WorkerNode(container, celery_setup_app))
        return nodes[-1]

    yield start
    for node in nodes:
        node.teardown()


@pytest.fixture
def celery_worker_cluster(
    request: pytest.FixtureRequest, start_worker: Callable[..., WorkerNode]
) -> CeleryWorkerCluster:
    """Run the workers that the test's `workers` mark describes, and wait until they are up."""
    mark = request.node.get_closest_marker("workers") or pytest.mark.workers().mark
    count = mark.args[0] if mark.args else 1
    cluster = CeleryWorkerCluster(*(start_worker(**mark.kwargs) for _ in range(count)))
    cluster.ready()
    return cluster


@pytest.fixture
def start_beat(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[..., Beat]]:
    """Return a function that starts a `celery beat`; it takes what `Beat` takes, and `env` is added."""
    beats: list[Beat] = []

    def start(*, env: dict[str, str] | None = None, **options: Any) -> Beat:
        options.setdefault("name", f"beat{len(beats) + 1}")
        beats.append(Beat(tmp_path, {**environment, **(env or {})}, **options))
        return beats[-1]

    yield start
    for beat in beats:
        beat.kill()


def keys_without_expiry(server: ValkeyContainer) -> list[str]:
    """Return our keys that would stay for ever: a lock that nobody can lose."""
    with server.client as client:
        return [key for key in client.scan_iter(f"*{PREFIX}*", count=1000) if client.ttl(key) == -1]
