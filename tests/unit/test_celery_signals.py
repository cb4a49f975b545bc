"""Celery signals of what happens to leases: who sends them, and that nobody is hurt by a receiver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from singleflight import Event, Kind, Singleton
from singleflight.celery import install, signals
from singleflight.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = {kind: signal.name for kind, signal in signals.SIGNALS.items()}


@pytest.fixture
def heard() -> Iterator[list[tuple[str, Any, Event]]]:
    """Write every signal of ours down, and raise, as a receiver may."""
    told: list[tuple[str, Any, Event]] = []
    receivers = []
    for name in signals.__all__:

        def receive(sender: Any, event: Event, name: str = name, **_: Any) -> None:
            told.append((name, sender, event))
            raise ValueError("a receiver's own trouble")

        receivers.append((getattr(signals, name), receive))
        getattr(signals, name).connect(receive)
    yield told
    for signal, receive in receivers:
        signal.disconnect(receive)


@pytest.fixture
def app() -> Celery:
    """Return an app whose leases are in memory, and that nobody works for."""
    app = Celery("signals", broker="memory://", backend="cache+memory://")
    install(app, MemoryStore())
    return app


@pytest.mark.parametrize("kind", Kind)
def test_each_event_is_one_signal_or_none(
    app: Celery, heard: list[tuple[str, Any, Event]], kind: Kind
) -> None:
    """What a user would act upon has a signal; a sender that is no task is the lease's name."""
    event = Event(kind=kind, task="of-a-script", key="key", run_id="run")
    app.singleflight.leases.notify(event)

    name = NAMES.get(kind)
    assert heard == ([] if name is None else [(name, "of-a-script", event)])


def test_a_publisher_hears_of_its_duplicate(app: Celery, heard: list[tuple[str, Any, Event]]) -> None:
    """A duplicate that is not sent is a signal where it is published; receivers may choose their task."""
    once = app.task(shared=False, name="signals.once", singleton=Singleton(at_most_one="waiting_or_running"))(
        nothing
    )
    other = app.task(shared=False, name="signals.other", singleton=True)(nothing)
    chosen: list[str] = []

    def choose(event: Event, **_: Any) -> None:
        chosen.append(event.reason)

    signals.singleflight_skipped.connect(choose, sender=once)
    signals.singleflight_skipped.connect(choose, sender=other)
    first, second = once.delay(), once.delay()

    assert second.id == first.id
    ((name, sender, event),) = heard
    assert (name, sender.name, event.run_id) == ("singleflight_skipped", "signals.once", first.id)
    assert chosen == ["not sent: queued"]


def nothing() -> None:
    """Be the body of a task."""
