"""Is it running? Asked without asking for the lease: of a name, a task or an actor by its arguments."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from typing import TYPE_CHECKING, Any

import dramatiq
import pytest
from celery import Celery
from dramatiq.brokers.stub import StubBroker

import singleflight.celery
import singleflight.dramatiq
from singleflight import (
    ConfigurationError,
    Lease,
    Outcome,
    Singleton,
    Status,
    StoreUnavailable,
    aio,
    lease,
    peek,
    try_lease,
)
from singleflight.keys import lease_key
from singleflight.stores.base import Claim, Release
from singleflight.stores.memory import MemoryStore
from singleflight.testing import FakeClock
from tests.support.stub import work_off

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def clock() -> FakeClock:
    """A clock that the test turns."""
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    """A store that goes by that clock."""
    return MemoryStore(clock=clock)


KEY = lease_key("singleflight", "nightly")


def claim(store: MemoryStore, run: str, **more: Any) -> Any:
    """Ask as a run of another process."""
    return store.claim(Claim(KEY, run, 0, run, ttl_ms=30_000, holder='["nightly","worker-1",7]', **more))


def test_a_name_that_nobody_has_used_is_free(store: MemoryStore) -> None:
    """Nothing is known, and that is an answer."""
    status = peek(store, "nightly")

    assert status == Status(key=KEY)
    assert not status
    assert (status.running, status.run_id, status.since, status.age) == (False, "", None, None)


def test_a_running_one_is_told_with_who_and_since_when(store: MemoryStore, clock: FakeClock) -> None:
    """All that one needs to say who is at it, by the store's clock."""
    claim(store, "first", window_ms=90_000)
    claim(store, "second", wait_ms=60_000)
    clock.advance(5)
    look = store.peek(KEY)
    assert look is not None

    status = peek(store, "nightly")

    assert status
    assert (status.run_id, status.waiting, status.outcome) == ("first", "second", None)
    assert str(status.holder) == "nightly on worker-1, pid 7"
    assert (status.age, status.expires_in, status.opens_in) == (5.0, 25.0, 85.0)
    assert status.since == look.now_ms / 1000 - 5
    assert status.fence == look.record.fence


def test_one_that_has_ended_is_told_with_its_outcome(store: MemoryStore, clock: FakeClock) -> None:
    """Who ran last and how that ended stays known; an attempt that will be tried again has not ended well."""
    claim(store, "first")
    clock.advance(2)
    store.release(Release(KEY, "first", 0, "first", Outcome.RETRYING))

    status = peek(store, "nightly")

    assert not status.running
    assert (status.run_id, status.outcome, status.age, status.expires_in) == (
        "first",
        Outcome.RETRYING,
        2.0,
        0,
    )


def test_a_holder_that_is_not_heard_of_does_not_run(store: MemoryStore, clock: FakeClock) -> None:
    """Its lease has lapsed, so the next one would get it; who it was is told all the same."""
    claim(store, "first")
    clock.advance(31)

    status = peek(store, "nightly")

    assert not status
    assert (status.run_id, status.outcome, status.expires_in) == ("first", None, 0.0)


def test_a_look_changes_nothing_and_is_a_value(store: MemoryStore) -> None:
    """Peeking is no claim, counts as no refusal, and what it returns does not change."""
    claim(store, "first")
    before = store.peek(KEY)

    status = peek(store, "nightly")

    assert store.peek(KEY) == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        status.running = False  # type: ignore[misc]


def test_plain_code_peeks_by_url_prefix_and_in_asyncio() -> None:
    """The same arguments as `lease`."""
    url = f"memory://{uuid.uuid4().hex}"

    async def look() -> Status:
        return await aio.peek(url, "nightly", prefix="shop")

    with lease(url, "nightly", prefix="shop") as held:
        assert peek(url, "nightly", prefix="shop").run_id == held.run_id
        assert asyncio.run(look()).run_id == held.run_id
        assert not peek(url, "nightly")
    assert not asyncio.run(look())
    with pytest.raises(ConfigurationError, match="names no lease"):
        peek(url, "")


def test_a_store_that_is_away_is_neither_yes_nor_no() -> None:
    """The error says so; nobody is told that nothing runs."""
    with pytest.raises(StoreUnavailable):
        peek("redis://127.0.0.1:1/0", "nightly")


# --- tasks --------------------------------------------------------------------------------------------


@pytest.fixture
def app(store: MemoryStore) -> Iterator[Celery]:
    """An app whose eager runs take leases."""
    app = Celery("peeked", broker="memory://", backend="cache+memory://", set_as_current=False)
    singleflight.celery.install(app, store, eager=True)
    yield app
    app.close()


def test_a_celery_task_is_asked_by_its_arguments(app: Celery) -> None:
    """However they are spelled, and after its serializer; from inside it finds itself."""
    seen: list[Status] = []

    @app.task(shared=False, name="shop.recalculate", singleton=Singleton(by="account"))
    def recalculate(account: object, reason: str = "") -> None:  # noqa: ARG001 - no part of the key
        seen.append(singleflight.celery.peek(recalculate, account, reason="another"))
        seen.append(singleflight.celery.peek(recalculate, account=[8]))
        seen.append(asyncio.run(singleflight.celery.apeek(recalculate, account)))

    assert not singleflight.celery.peek(recalculate, (7,))
    result = recalculate.apply(([7],))
    result.get()

    assert [(status.running, status.run_id) for status in seen] == [
        (True, result.id),
        (False, ""),
        (True, result.id),
    ]
    ended = singleflight.celery.peek(recalculate, (7,))  # a tuple becomes a list in the message
    assert (ended.running, ended.run_id, ended.outcome) == (False, result.id, Outcome.FINISHED)


def test_a_task_whose_key_is_its_name_is_asked_without_arguments(app: Celery, store: MemoryStore) -> None:
    """They would make no difference."""

    @app.task(shared=False, name="whole", singleton=Singleton(by=(), name="nightly"))
    def whole(account: int) -> None: ...

    with lease(store, "nightly") as held:
        assert singleflight.celery.peek(whole).run_id == held.run_id


def test_a_task_that_cannot_be_asked_says_why(app: Celery) -> None:
    """No lease, no install, arguments that no call could have: each has its own sentence."""
    bare = Celery("bare", set_as_current=False)

    @app.task(shared=False, name="unguarded")
    def plain() -> None: ...

    @bare.task(shared=False, name="uninstalled", singleton=True)
    def uninstalled() -> None: ...

    @app.task(shared=False, name="picky", singleton=Singleton(by="account"))
    def picky(account: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"unguarded takes no lease.*singleton="):
        singleflight.celery.peek(plain)
    with pytest.raises(ConfigurationError, match=r"'bare'.*install"):
        singleflight.celery.peek(uninstalled)
    with pytest.raises(TypeError, match="account"):
        singleflight.celery.peek(picky, acount=7)


@pytest.mark.parametrize("settings", [{"enabled": False}, {"eager": False}])
def test_a_task_that_takes_no_lease_here_is_not_running(settings: dict[str, bool]) -> None:
    """Switched off, or in eager tests, no store is needed: nothing is asked."""
    app = Celery("off", broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True
    singleflight.celery.install(app, "redis://127.0.0.1:1/0", **settings)

    @app.task(shared=False, name="off", singleton=True)
    def off() -> None: ...

    assert not singleflight.celery.peek(off)


def test_an_actor_is_asked_by_its_arguments(store: MemoryStore) -> None:
    """As a task is."""
    broker = StubBroker(middleware=[])
    singleflight.dramatiq.install(broker, store)
    seen: list[Status] = []

    @dramatiq.actor(broker=broker, singleton=Singleton(by="account"))
    def recalculate(account: object, reason: str = "") -> None:  # noqa: ARG001 - no part of the key
        seen.append(singleflight.dramatiq.peek(recalculate, account=account))
        seen.append(asyncio.run(singleflight.dramatiq.apeek(recalculate, (7,), reason="another")))
        seen.append(singleflight.dramatiq.peek(recalculate, 8))

    @dramatiq.actor(broker=broker)
    def plain() -> None: ...

    message = recalculate.send((7,))
    work_off(broker)

    assert [(status.running, status.run_id) for status in seen] == [
        (True, message.message_id),
        (True, message.message_id),
        (False, ""),
    ]
    assert singleflight.dramatiq.peek(recalculate, (7,)).outcome is Outcome.FINISHED
    with pytest.raises(ConfigurationError, match=r"plain: it takes no lease.*singleton="):
        singleflight.dramatiq.peek(plain)
    with pytest.raises(TypeError, match="account"):
        singleflight.dramatiq.peek(recalculate)


def test_an_actor_without_the_middleware_says_what_is_missing() -> None:
    """It can have no lease."""
    broker = StubBroker(middleware=[])
    actor = dramatiq.actor(lambda: None, broker=broker, actor_name="bare")

    with pytest.raises(ConfigurationError, match=r"singleflight\.dramatiq\.install"):
        singleflight.dramatiq.peek(actor)


def test_a_lease_that_was_released_is_free_again(store: MemoryStore) -> None:
    """What redis-py's users call `locked()`."""
    held = try_lease(store, "nightly")
    assert isinstance(held, Lease)
    assert peek(store, "nightly").running
    held.release()
    assert not peek(store, "nightly").running
