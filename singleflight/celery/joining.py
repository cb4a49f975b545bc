"""``on_conflict="join"``: a duplicate takes over how the run it met has ended, as soon as that is known."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from billiard.exceptions import WorkerLostError
from celery import states

from singleflight.errors import ConfigurationError
from singleflight.identity import message_id_of
from singleflight.log import struck
from singleflight.tasks.adapter import Nothing, Raised, Returned

if TYPE_CHECKING:
    from celery import Task

    from singleflight.policy import Policy
    from singleflight.tasks.adapter import Result

UNREADABLE = ("", "disabled", "rpc")
"""Result backends, by scheme, from which no worker can read another run's result."""


def result_of(task: Task, run_id: str) -> Result | Nothing | None:
    """Return how a run has ended, as the result backend knows it; None if it does not.

    Its lease is released just after, so nobody is its duplicate any more: who reads that result and publishes
    again must not be told that the run is still in the way.
    """
    try:
        meta = task.backend.get_task_meta(message_id_of(run_id)) if task.backend.persistent else {}
    except Exception as error:  # no backend, or one that does not answer: nobody has seen the result
        if struck(error):
            raise
        return None
    state, result = meta.get("status"), meta.get("result")
    if state == states.SUCCESS:
        return Returned(result)
    if state == states.FAILURE and isinstance(result, Exception) and not isinstance(result, WorkerLostError):
        return Raised(result)
    return Nothing() if state in states.READY_STATES else None


def check(task: Any, policy: Policy) -> None:
    """Refuse to join where that could never work, or would hand out the wrong result.

    Raises:
        ConfigurationError: naming the remedy.
    """
    if policy.on_conflict != "join":
        return
    if task.ignore_result:
        raise ConfigurationError(
            "on_conflict='join' takes over a result, and ignore_result=True keeps none; leave one of them out"
        )
    if policy.name is not None:
        raise ConfigurationError(
            f"on_conflict='join' with name={policy.name!r} would take over another task's result; "
            "leave one of them out"
        )
    if policy.by == () and not policy.by_given and inspect.signature(task.run).parameters:
        raise ConfigurationError(
            "on_conflict='join' without `by` would hand the result of one call to calls with other "
            "arguments; write by='*', or by=() if that is meant"
        )


def scheme(task: Task) -> str:
    """Return the scheme of the result backend's URL, empty if there is none."""
    return str(task.app.conf.result_backend or "").partition(":")[0]


def check_backend(backend: str) -> None:
    """Refuse a result backend that no worker can read.

    Raises:
        ConfigurationError: naming the remedy.
    """
    if backend in UNREADABLE:
        shown = f"{backend}://" if backend else "an app without a result backend"
        raise ConfigurationError(
            f"on_conflict='join' takes over a result, and {shown} shows none to a worker; set "
            "result_backend to one that all can read, such as redis://"
        )
