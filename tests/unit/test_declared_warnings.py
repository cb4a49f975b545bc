"""Warnings about a declaration: they point to the task, in its author's file, and come once."""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any

import dramatiq
import pytest
from celery import Celery
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AsyncIO

from singleflight.celery import install
from singleflight.dramatiq import install as install_dramatiq


def decorated(function: Any) -> Any:
    """Wrap a function as decorators do."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def plain(account_id: int) -> None:
    """Take an argument that no `by` names."""


def bound(self: Any, account_id: int) -> None:
    """Take it beside the task."""


async def awaited(account_id: int) -> None:
    """Take it in a coroutine."""


@decorated
def wrapped(account_id: int) -> None:
    """Take it below a decorator."""


def celery_app() -> Celery:
    """Return an app with leases."""
    install(app := Celery("warned", broker="memory://", set_as_current=False), "memory://warned")
    return app


def declare_celery(function: Any) -> None:
    """Declare a Celery task."""
    app, binds = celery_app(), function is bound
    app.task(shared=False, name="warned", bind=binds, autoretry_for=(OSError,), singleton=True)(function)
    app.finalize()


def declare_dramatiq(function: Any) -> None:
    """Declare a Dramatiq actor."""
    broker = StubBroker(middleware=[AsyncIO()])
    install_dramatiq(broker)
    dramatiq.actor(broker=broker, actor_name="warned", singleton=True)(function)


@pytest.mark.parametrize(
    ("declare", "function"),
    [
        (declare_celery, plain),
        (declare_celery, bound),
        (declare_celery, wrapped),
        (declare_dramatiq, plain),
        (declare_dramatiq, awaited),
        (declare_dramatiq, wrapped),
    ],
)
def test_a_warning_points_to_the_function_and_comes_once(declare: Any, function: Any) -> None:
    """Also through decorators, and although the function is declared once more elsewhere."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        declare(function)
        declare(function)

    (warning,) = caught
    assert "task warned takes account_id, but its key is its name only" in str(warning.message)
    assert warning.filename == __file__
    assert warning.lineno == inspect.unwrap(function).__code__.co_firstlineno


def test_a_warning_about_a_task_class_points_to_its_run() -> None:
    """A task may be a class."""
    app = celery_app()

    class Warned(app.Task):  # type: ignore[name-defined,misc]
        name = "warned"
        singleton = True

        def run(self, account_id: int) -> None:
            """Take an argument that no `by` names."""

    with pytest.warns(UserWarning, match="takes account_id") as caught:
        app.register_task(Warned())

    assert (caught[0].filename, caught[0].lineno) == (__file__, Warned.run.__code__.co_firstlineno)


def test_a_body_without_a_place_is_warned_of_all_the_same() -> None:
    """What a C function or a ready object does not tell cannot be shown."""

    class Body:
        __name__ = "body"

        def __call__(self, account_id: int) -> None:
            """Take an argument that no `by` names."""

    with pytest.warns(UserWarning, match="takes account_id"):
        declare_dramatiq(Body())


def test_a_second_function_of_a_name_is_the_one_that_is_pointed_to() -> None:
    """It is the one that never runs."""
    app = celery_app()
    tasks = [app.task(shared=False, name="twice", singleton=True)(function) for function in (plain, wrapped)]
    with pytest.warns(UserWarning, match="takes account_id"):
        assert tasks[0].name == "twice"
    words = "already registered to a different|only the first one runs"
    with pytest.warns(UserWarning, match=words) as caught:
        assert tasks[1].name == "twice"

    if "only the first one runs" in str(caught[0].message):  # the words are Celery's own from 5.7 on
        where = (__file__, inspect.unwrap(wrapped).__code__.co_firstlineno)
        assert (caught[0].filename, caught[0].lineno) == where
