"""What a worker says when it starts about where its leases are: each danger once, and nothing else."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery
from celery.concurrency.solo import TaskPool
from dramatiq.brokers.stub import StubBroker

from singleflight.celery import install
from singleflight.celery.beat import SingleflightScheduler
from singleflight.celery.checks import SetUp, findings
from singleflight.dramatiq import install as install_dramatiq
from singleflight.stores import risks_of
from singleflight.stores.memory import MemoryStore
from singleflight.stores.redis import RedisStore
from tests.support.servers import ValkeyServer, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def evicting() -> Iterator[ValkeyServer]:
    """A server that may forget leases, and has a user who may not ask it."""
    with ValkeyServer("--maxmemory-policy", "allkeys-lru") as server:
        with redis.Redis.from_url(server.url) as client:
            client.execute_command("ACL", "SETUSER", "blind", "on", ">secret", "~*", "+@all", "-info")
        yield server


def said(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    """Return the warnings with these words."""
    return [one.getMessage() for one in caplog.records if words in one.getMessage()]


def nothing() -> None:
    """Be the body of a task."""


def start(url: str) -> None:
    """Do what a worker does before it takes its first message; tasks that tests share may need results."""
    app = Celery("risks", broker="memory://", backend="cache+memory://", set_as_current=False)
    install(app, url)
    app.task(shared=False, name="risky", singleton=True)(nothing)
    app.finalize()
    SetUp(SimpleNamespace(app=app, pool_cls=TaskPool))


def test_a_worker_says_once_that_its_store_may_forget_leases(
    evicting: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As doctor does, with the policy and the remedy; without the right to ask it says nothing."""
    caplog.set_level(logging.WARNING, "singleflight")
    start(evicting.url)
    (warning,) = said(caplog, "maxmemory-policy")
    assert "allkeys-lru" in warning
    assert "noeviction" in warning

    caplog.clear()
    blind = evicting.url.replace("redis://", "redis://blind:secret@")
    start(blind)
    assert said(caplog, "maxmemory-policy") == []


def test_a_dramatiq_worker_says_it_too(evicting: ValkeyServer, caplog: pytest.LogCaptureFixture) -> None:
    """At its boot, once."""
    caplog.set_level(logging.WARNING, "singleflight")
    broker = StubBroker()
    middleware = install_dramatiq(broker, evicting.url)
    middleware.before_worker_boot(broker, None)  # type: ignore[arg-type]

    assert len(said(caplog, "maxmemory-policy")) == 1


def test_a_beat_says_it_too(evicting: ValkeyServer, caplog: pytest.LogCaptureFixture) -> None:
    """Once, and not for the scheduler that only shows itself in the banner; without the right, nothing."""
    caplog.set_level(logging.WARNING, "singleflight")
    install(app := Celery("beat", broker="memory://", set_as_current=False), evicting.url)
    SingleflightScheduler(app, lazy=True)
    assert said(caplog, "maxmemory-policy") == []

    SingleflightScheduler(app)
    (warning,) = said(caplog, "maxmemory-policy")
    assert "allkeys-lru" in warning

    caplog.clear()
    blind = evicting.url.replace("redis://", "redis://blind:secret@")
    install(app := Celery("blind", broker="memory://", set_as_current=False), blind)
    SingleflightScheduler(app)
    assert said(caplog, "maxmemory-policy") == []


def test_a_sound_store_and_one_that_is_away_have_no_risks(valkey: ValkeyServer) -> None:
    """Nothing is said of what is not known, and no worker waits for it."""
    assert risks_of(RedisStore(valkey.url)) == []
    assert risks_of(RedisStore(f"redis://127.0.0.1:{free_port()}/0")) == []
    assert risks_of(MemoryStore()) == []


@pytest.mark.parametrize(
    "brokers", ["redis://one:1/0;redis://two:2/0", ["redis://one:1/0", "redis://two:2/0"]]
)
def test_brokers_to_fail_over_between_are_no_place_for_leases(
    brokers: Any,
) -> None:
    """Leases stay with the first: the start says so, unless a store is named."""
    install(app := Celery("several", broker=brokers, set_as_current=False))
    (text,) = [text for text in findings(app.singleflight, []) if "fail over" in text]
    install(named := Celery("named", broker=brokers, set_as_current=False), "redis://leases:1/0")

    assert "one:1:" in text
    assert "singleflight_url=" in text
    assert list(findings(named.singleflight, [])) == []
