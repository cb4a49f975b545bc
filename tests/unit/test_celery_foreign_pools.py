"""Pools that are not Celery's own: bodies that are awaited, and those in another thread than their tracer."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.app.task import Context
from celery.concurrency import prefork, solo
from celery.exceptions import Retry
from celery.signals import task_postrun

from singleflight import ConfigurationError, LeaseLost, current_lease
from singleflight.celery import install
from singleflight.celery.checks import pool_findings
from singleflight.lease import Outcome
from singleflight.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Coroutine


@pytest.fixture
def app() -> Celery:
    """Return an app with leases in memory."""
    app = Celery("foreign", broker="memory://", set_as_current=False)
    install(app, MemoryStore())
    return app


def singleton(app: Celery, end: type[Exception] | None = None) -> Any:
    """Declare a task with an async body, which returns its lease or raises."""

    @app.task(name="t", singleton=True, lazy=False, shared=False)
    async def body() -> Any:
        await asyncio.sleep(0)
        lease = current_lease()
        assert lease is not None
        assert lease.held
        if end is not None:
            raise end("told to")
        return lease

    return body


def delivered(task: Any, run: str) -> Coroutine[Any, Any, Any]:
    """Do what a tracer does before it awaits."""
    task.request_stack.push(Context(id=run, called_directly=False, args=(), kwargs={}, delivery_info={}))
    coroutine: Coroutine[Any, Any, Any] = task()
    return coroutine


def ended(app: Celery) -> Any:
    """Return how the last run ended, by the store's word."""
    store = app.singleflight.leases.store
    (key,) = store.scan("singleflight")
    return store.peek(key).record


@pytest.mark.parametrize(
    ("end", "outcome"),
    [(None, Outcome.FINISHED), (ValueError, Outcome.FAILED), (Retry, Outcome.RETRYING)],
)
def test_an_awaited_body_has_its_lease_and_gives_it_back(
    app: Celery, end: type[Exception] | None, outcome: Outcome
) -> None:
    """It holds while it is awaited, and is over when that is, whatever becomes of the tracer."""
    task = singleton(app, end)
    body = delivered(task, "one")
    assert ended(app).held
    if end is None:
        assert not asyncio.run(body).held
    else:
        with pytest.raises(end):
            asyncio.run(body)

    assert not ended(app).held
    assert ended(app).outcome == outcome


def test_the_end_of_another_run_gives_nothing_back(app: Celery) -> None:
    """Where requests of several runs mix, a lease ends with its own run only."""
    task = singleton(app)
    body = delivered(task, "one")
    task_postrun.send(sender=task, task_id="two", task=task, state="SUCCESS")

    assert ended(app).held
    asyncio.run(body)


def test_a_body_that_is_never_awaited_gives_its_lease_back(app: Celery) -> None:
    """Celery's own pools do not await: the lease ends with the run."""
    task = singleton(app)
    body = delivered(task, "one")
    task_postrun.send(sender=task, task_id="one", task=task, state="FAILURE")

    assert not ended(app).held
    with pytest.raises(LeaseLost):
        asyncio.run(body)


def test_a_body_in_another_thread_than_its_tracer_is_refused(app: Celery) -> None:
    """Its lease could not be given back; the run fails with the reason instead."""

    @app.task(name="t", singleton=True, lazy=False, shared=False)
    def body() -> None:
        """Never runs."""

    caught: list[BaseException] = []

    def call() -> None:
        body.request.update({"id": "one", "called_directly": False, "args": (), "kwargs": {}})
        try:
            body()
        except ConfigurationError as error:
            caught.append(error)

    for _ in range(2):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    assert ["another thread" in str(error) for error in caught] == [True, True]
    assert not list(app.singleflight.leases.store.scan("singleflight"))


def test_a_pool_that_is_not_celerys_own_is_named_at_the_start() -> None:
    """One that only derives from Celery's is none of its own."""

    class Loop(solo.TaskPool):  # type: ignore[misc]
        """A third party's pool."""

    assert [text for text in pool_findings(Loop) if "Loop is none of Celery's own" in text]
    assert not list(pool_findings(solo.TaskPool))
    assert not list(pool_findings(prefork.TaskPool))
