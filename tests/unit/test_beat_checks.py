"""What beat says when it starts."""

from __future__ import annotations

import logging
from typing import Any
from uuid import uuid4

import pytest
from celery.schedules import BaseSchedule, crontab, schedule

from singleflight import Singleton
from singleflight.celery.beat_checks import shortest_gap
from singleflight.celery.scheduler_mixin import REMEMBER
from singleflight.stores.memory import MemoryStore
from tests.support.replica import FakeTimeApp, Place, Replica


@pytest.mark.parametrize(
    ("when", "gap"),
    [
        (schedule(5.0), 5.0),
        (crontab(), 60.0),
        (crontab("0"), 3600.0),
        (crontab("0,59"), 60.0),
        (crontab("30", "2"), 86400.0),
        (crontab("0", "1,5,23"), 7200.0),
        (BaseSchedule(), None),
    ],
)
def test_the_shortest_time_between_two_ticks_is_known_where_a_schedule_tells_it(when: Any, gap: Any) -> None:
    """Over the end of an hour or a day, too."""
    assert shortest_gap(when) == gap


def started(caplog: pytest.LogCaptureFixture, window: float, every: float, **options: Any) -> str:
    """Start a beat whose app knows the task of its only entry, and return what it warns of."""
    place = Place({})
    app = Replica(place.clock, place.store, {}, []).scheduler.app
    assert isinstance(app, FakeTimeApp)
    caplog.clear()

    name = f"report {uuid4().hex}"  # Celery tells all apps of one process of each other's tasks

    @app.task(name=name, shared=False, singleton=Singleton(window=window))
    def report() -> None:
        """Do nothing."""

    app.conf.beat_schedule = {"nightly": {"task": name, "schedule": every, "options": options}}
    from singleflight.celery.beat import SingleflightScheduler

    with caplog.at_level(logging.WARNING, "singleflight"):
        SingleflightScheduler(app).populate_heap()
    return caplog.text


def test_a_window_that_skips_ticks_is_told_at_start(caplog: pytest.LogCaptureFixture) -> None:
    """A window as long as the period, or longer, skips ticks; a shorter one does not, nor a call without."""
    told = started(caplog, 10, 10.0)

    assert "nightly is sent every 10 s, but report" in told
    assert "window=10: ticks within the window are skipped" in told
    assert "window=" in started(caplog, 60, 10.0)
    assert "window=" not in started(caplog, 9, 10.0)
    assert "window=" not in started(caplog, 10, 10.0, singleton=False)


def test_a_beat_with_nothing_to_send_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """An empty schedule is a mistake more often than not."""
    place = Place({}, wrapped="celery.beat:Scheduler")
    with caplog.at_level(logging.WARNING, "singleflight"):
        Replica(place.clock, place.store, {}, [], **place.settings)

    assert "beat has nothing to send: beat_schedule is empty" in caplog.text


@pytest.mark.parametrize(("remember", "told"), [(7200.0, True), (REMEMBER, False)])
def test_a_store_that_forgets_too_soon_is_told(
    remember: float, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A ready store remembers as long as it was made to, which may be shorter than a period."""
    place = Place({"one": 5.0})
    with caplog.at_level(logging.WARNING, "singleflight"):
        Replica(place.clock, MemoryStore(remember=remember), {"one": 5.0}, [])

    assert ("forgets an entry's last tick after" in caplog.text) is told
