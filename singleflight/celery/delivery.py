"""One arrival of a run's message: what both the pool process and the worker's main process read off it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from singleflight.identity import run_of
from singleflight.tasks.message import Carried

if TYPE_CHECKING:
    from celery import Task

HEADER = "singleflight"
"""The message header with all that a run carries of ours; standard JSON, nobody's arguments."""

TOKEN = "singleflight_token"  # noqa: S105 - a property's name
CONTENT_TYPE = "singleflight_content_type"
"""Message properties, set on arrival. Properties, unlike headers, are not published again by a retry."""

NESTING = 1 << 16
"""`Task.replace` keeps the task id and starts the retries anew: each replacement counts for this many."""


def option_of(task: Task) -> object:
    """Return ``singleton`` as a task was declared with it, None if it was not.

    A function among the options must not be bound as a method. `inspect.getattr_static` would do, but takes
    a good part of all that a delivery costs in Python.
    """
    own: Mapping[str, Any] = vars(task)
    if "singleton" in own:
        return own["singleton"]
    return next((vars(cls)["singleton"] for cls in type(task).__mro__ if "singleton" in vars(cls)), None)


def properties_of(found: object) -> Mapping[str, Any]:
    """Return a message's properties; Celery takes a message whose properties are no mapping."""
    return found if isinstance(found, Mapping) else {}


def may_come_back(task: Task, *, timeout: bool = False) -> bool:
    """Return whether a message whose run has failed is rejected: a dead-letter queue may send it again.

    ``timeout`` is for a run that was killed at its hard time limit.
    """
    acks = getattr(task, "acks_on_timeout" if timeout else "acks_on_failure", None)  # Celery 5.7 and later
    return bool(task.acks_late and not (task.acks_on_failure_or_timeout if acks is None else acks))


def header_of(request: Mapping[str, Any]) -> object:
    """Return what a request's message carries of ours, by its mapping; see `Delivery.read`."""
    if request.get("is_eager"):  # where headers are not spread over the request
        return (request.get("headers") or {}).get(HEADER)
    return request.get(HEADER)


def attempt_of(request: Mapping[str, Any]) -> int:
    """Return which try of its run a request is, by its mapping."""
    return (request.get("replaced_task_nesting") or 0) * NESTING + (request.get("retries") or 0)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One arrival of one run's message at one worker."""

    run_id: str
    attempt: int
    token: str
    args: Any
    kwargs: Any
    carried: Carried = field(default_factory=Carried)
    redelivered: bool = False
    parent_id: str | None = None

    @property
    def returning(self) -> bool:
        """True if the run may have started before: a retry, or a message that is delivered again."""
        return self.redelivered or self.attempt > 0

    @classmethod
    def read(cls, request: Mapping[str, Any], token: str) -> Delivery:
        """Read a request's mapping: `Context.__dict__` in the pool, ``Request.request_dict`` outside it."""
        carried = Carried.read(header_of(request))
        return cls(
            # A request that tests push may have no id.
            run_id=run_of(str(request.get("id") or token), carried.mark),
            attempt=attempt_of(request),
            token=token,
            args=request.get("args") or (),
            kwargs=request.get("kwargs") or {},
            carried=carried,
            redelivered=bool((request.get("delivery_info") or {}).get("redelivered")),
            parent_id=request.get("parent_id"),
        )
