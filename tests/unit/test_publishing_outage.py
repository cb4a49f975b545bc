"""How publishers tell that the store is away at their first call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dramatiq
import pytest
from celery import Celery
from dramatiq.brokers.stub import StubBroker

from singleflight import Singleton, StoreUnavailable
from singleflight.celery import install
from singleflight.dramatiq import SingletonActor
from singleflight.dramatiq import install as install_dramatiq
from singleflight.events import Event, Kind
from tests.support.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    Listen = Callable[[Event], None]


def nothing() -> None:
    """Be the body of a task."""


def celery_caller(url: str, listen: Listen, singleton: Singleton) -> Callable[[], Any]:
    """Return what publishes a Celery task."""
    app = Celery("away", broker="memory://", set_as_current=False)
    install(app, url, listeners=[listen])
    task: Any = app.task(shared=False, name="away.task", singleton=singleton)(nothing)
    return task.delay


def dramatiq_caller(url: str, listen: Listen, singleton: Singleton) -> Callable[[], Any]:
    """Return what sends a Dramatiq message."""
    broker = StubBroker(middleware=[])
    install_dramatiq(broker, url, listeners=[listen])
    make = dramatiq.actor(broker=broker, actor_class=SingletonActor, actor_name="away", singleton=singleton)
    return make(nothing).send


CALLERS = pytest.mark.parametrize("caller", [celery_caller, dramatiq_caller])


@CALLERS
def test_an_outage_at_the_first_call_is_told_as_what_it_is(caller: Any) -> None:
    """The one line about it names the address and the error, and says nothing of rests."""
    events: list[Event] = []
    port = free_port()
    call = caller(f"redis://127.0.0.1:{port}/0", events.append, Singleton(at_most_one="waiting_or_running"))
    for _ in range(3):
        call()

    (told,) = [event.reason for event in events if event.kind is Kind.STORE_ERROR]
    assert f"127.0.0.1:{port}" in told
    assert "refused" in told
    assert "not asked" not in told


@CALLERS
def test_a_caller_who_wants_errors_gets_the_cause_first_while_the_store_rests(caller: Any) -> None:
    """The first call raises what happened; the next one repeats it, and says that nobody asked again."""
    options = Singleton(at_most_one="waiting_or_running", on_store_error="raise")
    port = free_port()
    call = caller(f"redis://127.0.0.1:{port}/0", lambda _: None, options)
    raised = []
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        raised.append(str(caught.value))

    first, second = raised
    assert "refused" in first
    assert "not asked" not in first
    assert second.startswith(first)
    assert "not asked again" in second[len(first) :]
