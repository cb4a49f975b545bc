"""What a ``waiting_...`` task does when it is published: look, publish, and only then take the waiting slot.

A look is advice. It never holds back what others depend on (members of flows, retries, messages with
links or an id of their own): these are always published, and judged by the worker.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery.utils import uuid
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.serialization import dumps, loads

from singleflight.api import run_around
from singleflight.celery import joining
from singleflight.celery.delivery import HEADER, Header, own_headers
from singleflight.celery.results import marked
from singleflight.celery.runtime import key_rule
from singleflight.celery.state import state_of
from singleflight.options import Singleton
from singleflight.switch import Switch
from singleflight.tasks.message import Carried, mapping
from singleflight.tasks.publishing import Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task

    from singleflight.celery.runtime import Runtime
    from singleflight.policy import Policy

FLOW = ("group_id", "chord", "chain", "retries", "link", "link_error")
"""Options of messages that others depend on."""

ticking = Switch("singleflight_tick")
"""What beat publishes looks too, although beat gives it an id: replicas give one tick the same."""


def carry(task: Any, options: dict[str, Any]) -> None:
    """Turn the option ``singleton=`` of a single call of a singleton task into a header of its message.

    Raises:
        ConfigurationError: for options that the declaration, or the start of a worker, would refuse.
    """
    if "singleton" not in options:
        return
    call = Singleton.from_call(options.pop("singleton"))
    carried = Carried(options=False if call is None else call)
    task.singleflight.policy_of(task, carried.options)
    options["headers"] = {**(options.get("headers") or {}), HEADER: Header(carried)}


def publish(task: Any, args: Any, kwargs: Any, options: dict[str, Any], send: Callable[..., Any]) -> Any:
    """Publish a call with ``send(args, kwargs, **options)``, or return the result of the one in the way.

    Whatever ``send`` returns comes back: it may be an override that publishes later, or elsewhere.

    Raises:
        Conflict: under ``on_conflict="raise"``, if another run waits or works.
        StoreUnavailable: under ``on_store_error="raise"``, if the store does not answer.
        ConfigurationError: for options or arguments that cannot be.
    """
    place, carried = _place(task, args, kwargs, options)
    if place is None:
        return marked(send(args, kwargs, **options))
    busy = place.in_the_way()
    if busy is not None:
        return marked(task.AsyncResult(busy.run_id), busy, place)
    options["task_id"] = options.get("task_id") or uuid()
    delay, expires = _delay(task, options), options.get("expires") or task.expires
    until = {"expires": _seconds_to(task, expires)} if expires else {}
    header = Header(replace(carried, slot=place.key, must_run=bool(place.publisher)))
    # Only then: a slot that was taken before its message exists would outlive a publisher that dies.
    header.sent = lambda run_id: place.take(run_id, delay, **until)
    options["headers"] = {**(options.get("headers") or {}), HEADER: header}
    return marked(send(args, kwargs, **options), place=place)


def note_retry(task: Any, options: dict[str, Any]) -> None:
    """Note that a run publishes its own retry: it has not ended, however its body does."""
    request = task.request
    if options.get("retries") and options.get("task_id") == request.id:
        state_of(request).again = _delay(task, options)


def _place(task: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> tuple[Place | None, Carried]:
    """Return a call's place in the queue for its key, None if nobody queues for it; and what it carries."""
    runtime: Runtime = task.singleflight
    header = mapping(options.get("headers")).get(HEADER)
    # Any other than this call's own has been forwarded, or is that of a run with an id, which does not look.
    carried = header.carried if isinstance(header, Header) else Carried()
    given = options.get("task_id") is not None and not ticking
    if given or any(options.get(name) for name in FLOW) or runtime.enabled is not True:
        return None, carried
    policy = runtime.policy_of(task, carried.options)
    if policy is None or not policy.at_publish or task.app.conf.task_always_eager:
        return None, carried
    runtime.check_results(task, policy)
    key = _key(runtime, task, policy, args, kwargs, options)
    if key is None:
        return None, carried
    return Place(
        runtime.slots,
        key,
        task.name,
        policy,
        publisher=run_around(key),
        is_over=lambda run: joining.result_of(task, run) is not None,
    ), carried


def _key(
    runtime: Runtime, task: Task, policy: Policy, args: Any, kwargs: Any, options: dict[str, Any]
) -> str | None:
    """Return the key as the worker will work it out."""
    arguments = (args or (), kwargs or {}) if policy.by == () else decoded(task, args, kwargs, options)
    return key_rule(runtime.prefix, task, policy).key(
        *arguments, own_headers({"headers": dict(options.get("headers") or {})})
    )


def decoded(task: Task, args: Any, kwargs: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return arguments as the worker will have them: its serializer may change them."""
    arguments = tuple(args or ()), dict(kwargs or {})
    serializer = options.get("serializer") or task.serializer
    dump_models = getattr(task, "_dump_pydantic_arguments", None)  # Celery 5.7 and later
    if dump_models is not None and serializer != "pickle":
        arguments = dump_models(*arguments)
    content_type, encoding, body = dumps(arguments, serializer=serializer)  # type: ignore[no-untyped-call]
    there: tuple[Any, Any] = loads(body, content_type, encoding, accept=[content_type])  # type: ignore[no-untyped-call]
    return there


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
