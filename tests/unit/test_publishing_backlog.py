"""A backlog longer than a minute: how long a published run is known is an option of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dramatiq
import pytest
from celery import Celery
from dramatiq.brokers.stub import StubBroker

import singleflight.dramatiq
from singleflight import Singleton
from singleflight.celery import install
from singleflight.dramatiq import Duplicate, SingletonActor
from singleflight.stores.memory import MemoryStore
from singleflight.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR = 3600.0


def work() -> None:
    """Do nothing."""


def celery_sends(store: MemoryStore, options: Singleton) -> Callable[[], bool]:
    """Return what publishes a task that no worker takes, and says whether it was sent."""
    app = Celery("backlog", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_default_queue = "backlog"
    install(app, store)
    task = app.task(shared=False, name="backlogged", singleton=options)(work)
    return lambda: not task.delay().duplicate


def dramatiq_sends(store: MemoryStore, options: Singleton) -> Callable[[], bool]:
    """Do the same with an actor."""
    broker = StubBroker(middleware=[])
    singleflight.dramatiq.install(broker, store)
    actor = dramatiq.actor(
        work, broker=broker, actor_name="backlogged", actor_class=SingletonActor, singleton=options
    )
    return lambda: not isinstance(actor.send(), Duplicate)


@pytest.mark.parametrize("framework", [celery_sends, dramatiq_sends])
@pytest.mark.parametrize("at_most_one", ["waiting_or_running", "waiting_and_running"])
@pytest.mark.parametrize(("queue_ttl", "life"), [(None, 60.0), (HOUR, HOUR)])
def test_a_run_that_waits_in_the_queue_is_known_for_its_queue_ttl(
    framework: Callable[[MemoryStore, Singleton], Callable[[], bool]],
    at_most_one: str,
    queue_ttl: float | None,
    life: float,
) -> None:
    """Until then a second call is a duplicate, however short the ttl; a lost message mutes nothing longer."""
    clock = FakeClock()
    options = Singleton(at_most_one=at_most_one, queue_ttl=queue_ttl, ttl=5)  # type: ignore[arg-type]
    sends = framework(MemoryStore(clock=clock), options)
    sent = [sends()]
    clock.advance(life - 1)
    sent.append(sends())
    clock.advance(2)
    sent.append(sends())

    assert sent == [True, False, True]
