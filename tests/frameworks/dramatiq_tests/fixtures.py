"""The fixtures that Dramatiq's tests ask for: its released sources lack them, so they are written anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dramatiq
import pytest
import redis
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.rate_limits.backends import RedisBackend as RedisLimits
from dramatiq.rate_limits.backends import StubBackend as StubLimits
from dramatiq.results.backends import RedisBackend as RedisResults
from dramatiq.results.backends import StubBackend as StubResults

from .common import RABBITMQ_CREDENTIALS, worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dramatiq import Broker, Worker
    from dramatiq.rate_limits import RateLimiterBackend
    from dramatiq.results import ResultBackend


@contextmanager
def used(broker: Broker) -> Iterator[Any]:
    """Make a broker the one that actors are declared on, and empty it afterwards."""
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    try:
        yield broker
        broker.flush_all()
    finally:
        broker.close()


@pytest.fixture
def stub_broker() -> Iterator[StubBroker]:
    """Return a broker in this process's memory."""
    with used(StubBroker()) as broker:
        yield broker


@pytest.fixture
def stub_worker(stub_broker: StubBroker) -> Iterator[Worker]:
    """Run a worker on it."""
    with worker(stub_broker, worker_timeout=100, worker_threads=32) as started:
        yield started


@pytest.fixture
def redis_broker() -> Iterator[RedisBroker]:
    """Return a broker on an empty Redis."""
    redis.Redis().flushall()
    with used(RedisBroker()) as broker:
        yield broker


@pytest.fixture
def redis_worker(redis_broker: RedisBroker) -> Iterator[Worker]:
    """Run a worker on it."""
    with worker(redis_broker, worker_threads=32) as started:
        yield started


@pytest.fixture
def rabbitmq_broker() -> Iterator[RabbitmqBroker]:
    """Return a broker on RabbitMQ, whose queues know priorities."""
    if "SINGLEFLIGHT_SUITE_RABBITMQ" not in os.environ:
        pytest.skip("no RabbitMQ on this machine")
    with used(RabbitmqBroker(host="127.0.0.1", max_priority=10, credentials=RABBITMQ_CREDENTIALS)) as broker:
        yield broker


@pytest.fixture
def rabbitmq_worker(rabbitmq_broker: RabbitmqBroker) -> Iterator[Worker]:
    """Run a worker on it."""
    with worker(rabbitmq_broker, worker_threads=32) as started:
        yield started


@pytest.fixture
def redis_result_backend() -> RedisResults:
    """Return a result backend on an empty Redis."""
    backend = RedisResults()
    backend.client.flushall()
    return backend


@pytest.fixture(params=["redis", "stub"])
def result_backend(request: pytest.FixtureRequest) -> ResultBackend:
    """Return each kind of result backend; Memcached's is left out."""
    if request.param == "stub":
        return StubResults()
    return request.getfixturevalue("redis_result_backend")


@pytest.fixture(params=["redis", "stub"])
def rate_limiter_backend(request: pytest.FixtureRequest) -> RateLimiterBackend:
    """Return each kind of rate limiter backend; Memcached's is left out."""
    if request.param == "stub":
        return StubLimits()
    backend = RedisLimits()
    backend.client.flushall()
    return backend


def wait_up(process: subprocess.Popen[bytes], patience: float = 30) -> None:
    """Wait until a process has ended or heeds SIGHUP: the tests allow for a second, too little under load."""
    deadline = time.monotonic() + patience
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None and status.exists() and time.monotonic() < deadline:
        caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt"))
        if int(caught.split()[1], 16) & 1 << signal.SIGHUP - 1:
            return
        time.sleep(0.05)


@pytest.fixture
def start_cli() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts ``dramatiq`` with a broker's path; its end comes with the test's."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        broker_path: str, *, extra_args: list[str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dramatiq", broker_path, *(extra_args or [])]
        started.append(subprocess.Popen(command, **options))
        wait_up(started[-1])
        return started[-1]

    yield start
    for process in started:
        process.terminate()
    for process in started:
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
