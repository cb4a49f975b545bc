"""Calls that cannot have a key: their publisher or their run gets an error, and no other call is skipped."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import dramatiq
import pytest
from celery import Celery
from dramatiq.brokers.stub import StubBroker

import singleflight.dramatiq
from singleflight import ConfigurationError, Singleton
from singleflight.celery import install
from singleflight.dramatiq import SingletonActor
from singleflight.stores.memory import MemoryStore
from tests.support.stub import work_off

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BY_VALUE = Singleton(by=lambda account=None: account)
BY_NAME = Singleton(by="account")
QUEUE = "keyless"
"""Memory is shared by all tests of a process, so this file has a queue of its own."""

ONCE = {"at_most_one": "waiting_or_running"}


@pytest.fixture
def app() -> Iterator[Celery]:
    """Return an app with leases in memory, in eager runs too."""
    app = Celery("keyless", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_default_queue = QUEUE
    install(app, MemoryStore(), eager=True)
    yield app
    app.close()


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    """Return a stub broker, which keeps its dead letters."""
    broker = StubBroker(middleware=[dramatiq.middleware.Retries(max_retries=3)])
    singleflight.dramatiq.install(broker)
    yield broker
    broker.flush_all()


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Collect what our logger says; a worker in this process takes over the root logger."""
    handler = logging.Handler()
    lines: list[str] = []
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("singleflight").addHandler(handler)
    yield lines
    logging.getLogger("singleflight").removeHandler(handler)


def test_a_celery_run_without_a_key_fails_and_hinders_no_other(app: Celery) -> None:
    """Its result is the error, and calls that have a key run."""
    ran: list[int | None] = []

    @app.task(shared=False, name="by-value", singleton=BY_VALUE)
    def by_value(account: int | None = None) -> None:
        ran.append(account)

    @app.task(shared=False, name="by-name", singleton=BY_NAME)
    def by_name(**given: int) -> None:
        ran.append(given["account"])

    calls = [({}, by_value), ({}, by_value), ({"other": 1}, by_name), ({}, by_name)]
    missing = [task.apply(kwargs=kwargs) for kwargs, task in calls]
    by_value.apply((7,)).get()
    by_name.apply(kwargs={"account": 8}).get()

    assert [result.state for result in missing] == ["FAILURE"] * 4
    assert [str(result.result).partition(";")[0] for result in missing[1:3]] == [
        "by= of task by-value returned None",
        "a call of task by-name has no 'account', which by='account' makes its key of",
    ]
    assert ran == [7, 8]


@pytest.mark.parametrize(
    ("option", "call"), [(Singleton(by=BY_VALUE.by, **ONCE), {}), (Singleton(by="account", **ONCE), {"b": 1})]
)
def test_a_celery_publisher_that_looks_gets_the_error(
    app: Celery, option: Singleton, call: dict[str, int]
) -> None:
    """Nothing is published: whoever calls learns it where the mistake is."""

    @app.task(shared=False, name="looks", singleton=option)
    def looks(account: int | None = None) -> None: ...

    @app.task(shared=False, name="looks-extra", singleton=option)
    def looks_extra(**given: int) -> None: ...

    task = looks_extra if call else looks
    with pytest.raises(ConfigurationError, match=r"returned None|has no 'account'"):
        task.delay(**call)
    with app.connection_for_write() as connection:
        assert connection.default_channel.basic_get(QUEUE) is None


def test_a_dramatiq_run_without_a_key_is_dead_lettered_at_once(broker: StubBroker) -> None:
    """It is kept among the dead letters, not retried, and actors that have a key run."""
    ran: list[int | None] = []

    @dramatiq.actor(broker=broker, singleton=BY_VALUE)
    def by_value(account: int | None = None) -> None:
        ran.append(account)

    @dramatiq.actor(broker=broker, singleton=BY_NAME)
    def by_name(**given: int) -> None:
        ran.append(given["account"])

    lost = [by_value.send(), by_name.send(other=1)]
    by_value.send(7)
    by_name.send(account=8)
    work_off(broker)

    assert {message.message_id for message in broker.dead_letters} == {one.message_id for one in lost}
    assert [message.options.get("retries") or 0 for message in broker.dead_letters] == [0, 0]
    assert sorted(ran, key=str) == [7, 8]


def test_a_dramatiq_sender_that_looks_gets_the_error(broker: StubBroker) -> None:
    """Nothing is sent."""

    @dramatiq.actor(broker=broker, actor_class=SingletonActor, singleton=Singleton(by=BY_VALUE.by, **ONCE))
    def looks(account: int | None = None) -> None: ...

    with pytest.raises(ConfigurationError, match="returned None"):
        looks.send()
    assert broker.queues["default"].qsize() == 0


def test_observing_fails_no_run_that_has_no_key(app: Celery, said: list[str]) -> None:
    """enabled="observe" runs everything: what would have failed is a line in the log."""
    ran: list[str] = []
    install(app, MemoryStore(), enabled="observe", eager=True)
    watching = StubBroker(middleware=[])
    singleflight.dramatiq.install(watching, enabled="observe")

    @app.task(shared=False, name="observed", singleton=BY_VALUE)
    def observed(account: int | None = None) -> None:
        ran.append(f"task {account}")

    @dramatiq.actor(broker=watching, actor_name="observed", singleton=BY_VALUE)
    def actor(account: int | None = None) -> None:
        ran.append(f"actor {account}")

    observed.apply().get()
    actor.send()
    work_off(watching)

    assert ran == ["task None", "actor None"]
    why = "runs without a lease, and would fail: by= of task observed returned None"
    assert [why in line for line in said] == [True, True]


def injecting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function its first argument, but keep the signature that wants it."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function("database", *args, **kwargs)

    return wrapper


def test_arguments_that_do_not_fit_the_signature_are_told(
    app: Celery, broker: StubBroker, said: list[str]
) -> None:
    """A run that takes no lease because of that says so: its body may run all the same."""
    ran: list[tuple[str, int]] = []

    @app.task(shared=False, name="injected", typing=False, singleton=BY_NAME)
    @injecting
    def injected(database: str, account: int) -> None:
        ran.append((database, account))

    @dramatiq.actor(broker=broker, actor_name="injected", singleton=BY_NAME)
    @injecting
    def actor(database: str, account: int) -> None:
        ran.append((database, account))

    injected.apply((7,)).get()
    actor.send(8)
    work_off(broker)

    assert ran == [("database", 7), ("database", 8)]
    why = "runs without a lease: its arguments do not fit (database, account)"
    assert [why in line for line in said] == [True, True]
