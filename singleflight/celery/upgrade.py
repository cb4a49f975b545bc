"""Reach every task of an app, however and whenever it is declared.

Celery has no public hook that sees all of them: tasks come before and after `install`, from
``shared_task``, with a base class of their own, by autodiscovery, and by ``task_annotations``. What all of
them do is enter the app's task registry, so that is where this looks. The registry object itself must
stay the same (Celery's tracer keeps a reference to it), therefore its class is changed and not the object.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from celery import exceptions
from celery.app.task import Task
from celery.utils.imports import symbol_by_name

from singleflight.api import PREFIX
from singleflight.celery import joining
from singleflight.celery.request import SingletonRequest
from singleflight.celery.runtime import key_rule
from singleflight.celery.task import SingletonTask, declared
from singleflight.errors import ConfigurationError
from singleflight.policy import resolve
from singleflight.tasks.placed import warn_at

if TYPE_CHECKING:
    from celery import Celery


def watch_registry(app: Celery) -> None:
    """Upgrade the singleton tasks that an app has, and those it will get."""
    registry = app._tasks  # noqa: SLF001 - the only place that sees every task
    kind = type(registry)

    class Registry(kind):  # type: ignore[misc,valid-type]
        """The app's own registry, looking at each task that enters."""

        def __setitem__(self, name: str, task: Any) -> None:
            upgrade(task)
            super().__setitem__(name, task)

    Registry.__name__, Registry.__qualname__ = kind.__name__, kind.__qualname__
    registry.__class__ = Registry
    if not hasattr(exceptions, "DuplicateTaskNameWarning"):
        _watch_names(app)
    upgrade_all(app)


def _watch_names(app: Celery) -> None:
    """Warn when a second function takes a task's name: before 5.7, Celery gives it the first one's task."""
    make = app._task_from_fun  # noqa: SLF001 - the only place that sees the second function

    def task_from_fun(fun: Any, *args: Any, **options: Any) -> Any:
        task = make(fun, *args, **options)
        ours = inspect.unwrap(getattr(task, "__wrapped__", fun))
        if options.get("singleton") and _place(ours) != _place(fun):
            warn_at(
                fun,
                f"task {task.name} is declared by {_place(ours)} and by {_place(fun)}: only the first one "
                "runs; give them different names",
            )
        return task

    app._task_from_fun = task_from_fun  # noqa: SLF001


def _place(fun: Any) -> str:
    """Return where a function stands; the same one may be imported twice."""
    code = getattr(inspect.unwrap(fun), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fun)


def upgrade_all(app: Celery) -> None:
    """Look at every registered task again, because annotations come later; safe to repeat."""
    for task in list(app._tasks.values()):  # noqa: SLF001 - `app.tasks` would finalize the app
        upgrade(task)


def upgrade(task: Any) -> None:
    """Give a task that is declared a singleton our task and request classes, and check its options.

    Raises:
        ConfigurationError: for options that cannot be, naming the task.
    """
    cls = type(task)
    # Celery takes any value as a task, and so do its users' tests.
    if not isinstance(task, Task) or issubclass(cls, SingletonTask) or str(task.name).startswith("celery."):
        return
    try:
        options = declared(task)
        if options is None:
            return
        _check(task, options)
    except ConfigurationError as error:
        raise ConfigurationError(f"task {task.name}: {error}") from None
    base = symbol_by_name(cls.Request)
    request = type(f"Singleton{base.__name__}", (SingletonRequest, base), {"__module__": base.__module__})
    task.__class__ = type(
        cls.__name__,
        (SingletonTask, cls),
        {
            "__module__": cls.__module__,
            "__doc__": cls.__doc__,
            # The function's, which Celery puts there: those of our own class would hide them.
            "__annotations__": next(
                (vars(c)["__annotations__"] for c in cls.__mro__ if "__annotations__" in vars(c)), {}
            ),
            "Request": request,
            "singleflight_own": cls,
            "singleflight_own_call": _has_own_call(cls),
        },
    )
    task.__trace__ = None


def _check(task: Any, options: Any) -> None:
    policy = resolve(None, options, None)
    joining.check(task, policy)
    for text in key_rule(PREFIX, task, policy).warnings():
        warn_at(task.run, text)


def _has_own_call(cls: type) -> bool:
    for ancestor in cls.__mro__:
        if ancestor is Task:
            return False
        if "__call__" in ancestor.__dict__:
            return True
    return False
