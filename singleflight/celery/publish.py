"""What a ``waiting_...`` task does when it is published: look, publish, and only then take the waiting slot.

A look is advice. It never holds back what others depend on (members of flows, retries, messages with
links or an id of their own): these are always published, and judged by the worker.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery.result import AsyncResult
from celery.utils import uuid
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.serialization import dumps, loads

from singleflight.api import run_around
from singleflight.celery import endings
from singleflight.celery.delivery import HEADER
from singleflight.celery.runtime import key_rule
from singleflight.tasks.message import Carried
from singleflight.tasks.publishing import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Task

    from singleflight.celery.runtime import Runtime
    from singleflight.lease import Busy
    from singleflight.policy import Policy

FLOW = ("group_id", "chord", "chain", "retries", "link", "link_error")
"""Options of messages that others depend on."""

AGAIN = "_singleflight_again"
"""Where a running request notes in how many seconds the retry comes that it has published."""

_tick: ContextVar[bool] = ContextVar("singleflight_tick", default=False)


class SingletonResult(AsyncResult):
    """The result of the run that was published or, for a duplicate, of the one that waits or runs."""

    busy: Busy | None = None
    """Who is in the way, if nothing was published."""

    @property
    def duplicate(self) -> bool:
        """True if nothing was published, and this is the result of another run."""
        return self.busy is not None


@contextmanager
def ticking() -> Iterator[None]:
    """Let what beat publishes look too, although beat gives it an id."""
    mark = _tick.set(True)
    try:
        yield
    finally:
        _tick.reset(mark)


def publish(
    task: Any, args: Any, kwargs: Any, task_id: str | None, options: dict[str, Any], send: Callable[..., Any]
) -> Any:
    """Publish a call with ``send(task_id)``, or return the result of the one in the way.

    Raises:
        Conflict: under ``on_conflict="raise"``, if another run waits or works.
        StoreUnavailable: under ``on_store_error="raise"``, if the store does not answer.
        ConfigurationError: for options or arguments that cannot be.
    """
    place, carried = _place(task, args, kwargs, task_id, options)
    if place is None:
        return send(task_id)
    busy = place.in_the_way()
    if busy is not None:
        return _result(task, busy.run_id, busy)
    task_id = task_id or uuid()
    header = replace(carried, slot=place.key, kin=bool(place.publisher)).write()
    options["headers"] = {**(options.get("headers") or {}), HEADER: header}
    sent = send(task_id)
    # Only now: a slot that was taken before its message exists would outlive a publisher that dies.
    expires = options.get("expires") or task.expires
    place.take(task_id, _delay(task, options), **({"expires": _seconds_to(task, expires)} if expires else {}))
    result = _result(task, task_id, None)
    result.parent, result.ignored = sent.parent, sent.ignored
    return result


def note_retry(task: Any, task_id: str | None, options: dict[str, Any]) -> None:
    """Note that a run publishes its own retry: it has not ended, however its body does."""
    request = task.request
    if options.get("retries") and task_id == request.id:
        request.__dict__[AGAIN] = _delay(task, options)


def _place(
    task: Any, args: Any, kwargs: Any, task_id: str | None, options: dict[str, Any]
) -> tuple[Place | None, Carried]:
    """Return a call's place in the queue for its key, None if nobody queues for it; and what it carries."""
    runtime: Runtime = task.singleflight
    carried = Carried.read((options.get("headers") or {}).get(HEADER))
    given = task_id is not None and not _tick.get()
    if given or any(options.get(name) for name in FLOW) or runtime.enabled is not True:
        return None, carried
    policy = runtime.policy_of(task, carried)
    if policy is None or not policy.at_publish or task.app.conf.task_always_eager:
        return None, carried
    runtime.check_results(task, policy)
    key = _key(runtime, task, policy, args, kwargs, options)
    if key is None:
        return None, carried
    return Place(
        runtime.slots, key, task.name, policy, run_around(key), lambda run: endings.is_known(task, run)
    ), carried


def _key(
    runtime: Runtime, task: Task, policy: Policy, args: Any, kwargs: Any, options: dict[str, Any]
) -> str | None:
    """Return the key as the worker will work it out: from arguments that its serializer has been through."""
    arguments = tuple(args or ()), dict(kwargs or {})
    if policy.by != ():
        serializer = options.get("serializer") or task.serializer
        dump_models = getattr(task, "_dump_pydantic_arguments", None)  # Celery 5.7 and later
        if dump_models is not None and serializer != "pickle":
            arguments = dump_models(*arguments)
        content_type, encoding, body = dumps(arguments, serializer=serializer)  # type: ignore[no-untyped-call]
        arguments = loads(body, content_type, encoding, accept=[content_type])  # type: ignore[no-untyped-call]
    return key_rule(runtime.prefix, task, policy).key(*arguments)


def _delay(task: Task, options: dict[str, Any]) -> float:
    """Return in how many seconds a message's run may start."""
    moment = options.get("countdown") or options.get("eta")
    return 0.0 if moment is None else _seconds_to(task, moment)


def _seconds_to(task: Task, moment: Any) -> float:
    """Return how many seconds it is to what Celery takes for a moment: seconds, a date, or its text."""
    if isinstance(moment, int | float):
        return max(0.0, moment)
    when = maybe_make_aware(maybe_iso8601(moment), task.app.timezone)
    return max(0.0, float(when.timestamp()) - time.time())


def _result(task: Task, run_id: str, busy: Busy | None) -> SingletonResult:
    result = SingletonResult(run_id, backend=task.backend, task_name=task.name, app=task.app)
    result.busy = busy
    return result
