"""Is a task running? Asked by its arguments, without publishing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from singleflight.celery import publish
from singleflight.celery.runtime import key_rule
from singleflight.errors import ConfigurationError
from singleflight.keys import lease_key
from singleflight.status import Status
from singleflight.stores.view import View

if TYPE_CHECKING:
    from celery import Task

    from singleflight.celery.runtime import Runtime
    from singleflight.policy import Policy


def peek(task: Task, /, *args: Any, **kwargs: Any) -> Status:
    """Look whether a run of this task with these arguments is under way; nothing is published or changed.

    Args:
        task: a task that is declared ``singleton=...``. If its key is its name only, it needs no arguments.
        args, kwargs: those that `delay` would get; they go through the task's serializer, as those do.

    Returns:
        A `singleflight.Status`, true if a run holds the key. Where the app takes no leases
        (``enabled=False``, or eager tests without ``eager``), nothing is asked and nothing runs.

    Raises:
        ConfigurationError: if the task takes no lease, or its arguments cannot make a key.
        StoreUnavailable: if the store does not answer in time, or has just failed to.
        TypeError: if the task does not take such arguments.
    """
    runtime: Runtime | None = getattr(task.app, "singleflight", None)
    if runtime is None:
        raise ConfigurationError(
            f"task {task.name}: the app {task.app.main!r} has no leases; call "
            "singleflight.celery.install(app) where it is made"
        )
    real: Any = task.app.tasks[task.name]  # `task` may be Celery's proxy of it
    off = not runtime.enabled or (task.app.conf.task_always_eager and not runtime.eager)
    policy = runtime.policy(real)
    if policy is None and runtime.enabled:
        raise ConfigurationError(f"task {task.name} takes no lease; declare it with singleton=True")
    if policy is None or off:
        return Status(key="")
    key = _key(runtime, real, policy, args, kwargs)
    return View(runtime.slots.ask(lambda store: store.peek(key))).status(key)


async def apeek(task: Task, /, *args: Any, **kwargs: Any) -> Status:
    """Do what `peek` does, without making the event loop wait for the store."""
    from singleflight.leases.awaiting import in_thread  # noqa: PLC0415 - few need it, and it brings asyncio

    return await in_thread(lambda: peek(task, *args, **kwargs), lane=id(task))


def _key(runtime: Runtime, task: Any, policy: Policy, args: Any, kwargs: Any) -> str:
    if policy.by == ():
        return lease_key(runtime.prefix, policy.name or task.name)
    arguments = publish.decoded(task, args, kwargs, {})
    return key_rule(runtime.prefix, task, policy).key_of_call(*arguments)
