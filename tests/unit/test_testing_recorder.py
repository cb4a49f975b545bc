"""What the fixture for users' own tests lends an app, and what it says to wrong use."""

from __future__ import annotations

import pytest
from celery import Celery

from singleflight import ConfigurationError
from singleflight.celery import install
from singleflight.stores.memory import MemoryStore
from singleflight.testing.recorder import FlightRecorder


def nothing() -> None:
    """Be the body of a task."""


def test_an_app_gets_its_own_store_back() -> None:
    """What `attach` changes lasts until `detach`; the app's own listeners hear the test's events too."""
    heard, own, recorder = [], MemoryStore(), FlightRecorder()
    app = Celery("shop", broker="memory://", backend="cache+memory://")
    install(app, own, listeners=[heard.append], prefix="mine")
    task = app.task(shared=False, name="tidy", singleton=True)(nothing)
    before = app.singleflight
    recorder.attach(app)
    with recorder.running(task):
        task.apply()
    inside = app.singleflight.leases.store
    recorder.detach()

    assert (inside, app.singleflight) == (recorder.store, before)
    assert app.singleflight.leases.store is own
    assert heard == recorder.events == recorder.skipped
    assert [key.split(":")[0] for key in recorder.store.scan("mine")] == ["mine"]


def test_wrong_use_of_the_recorder_says_what_to_do() -> None:
    """No leases in the app, no singleton, and a run that is under way already are named as such."""
    recorder = FlightRecorder()
    app = Celery("shop", broker="memory://")
    with pytest.raises(ConfigurationError, match=r"call singleflight\.celery\.install"):
        recorder.attach(app)
    install(app)
    recorder.attach(app)
    plain = app.task(shared=False, name="no-singleton")(nothing)
    tidy = app.task(shared=False, name="tidy", singleton=True)(nothing)

    with pytest.raises(ConfigurationError, match="no singleton"), recorder.running(plain):
        pass
    with recorder.running(tidy), pytest.raises(AssertionError, match="running"), recorder.running(tidy):
        pass
    recorder.detach()
