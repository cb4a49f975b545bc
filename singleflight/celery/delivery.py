"""One arrival of a run's message: what both the pool process and the worker's main process read off it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.app.task import Context

from singleflight.identity import run_of
from singleflight.leases.claiming import new_token
from singleflight.stores.bounds import MAX_ATTEMPT
from singleflight.tasks.delivery import Delivery
from singleflight.tasks.message import Carried, counted, id_of, mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Task

    from singleflight.celery.state import Arrival

HEADER = "singleflight"
"""The message header with all that a run carries of ours; standard JSON, nobody's arguments."""

_CELERYS = {*vars(Context), "lang", "task", "argsrepr", "kwargsrepr", "compression"}
"""What Celery's `Context` takes for its own, and not for headers of the caller."""

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


def may_come_back(task: Task, *, timeout: bool = False) -> bool:
    """Return whether a message whose run has failed is rejected: a dead-letter queue may send it again.

    ``timeout`` is for a run that was killed at its hard time limit.
    """
    acks = getattr(task, "acks_on_timeout" if timeout else "acks_on_failure", None)  # Celery 5.7 and later
    return bool(task.acks_late and not (task.acks_on_failure_or_timeout if acks is None else acks))


def header_of(request: Mapping[str, Any], *, eager: bool) -> object:
    """Return what a request's message carries of ours, by its mapping; see `read`."""
    if eager:  # where headers are not spread over the request
        return mapping(request.get("headers")).get(HEADER)
    return request.get(HEADER)


def own_headers(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of a request's caller, for a ``by`` that asks for them, by the request's mapping."""
    given = request.get("headers")
    if not isinstance(given, dict):  # in the main process they are spread among Celery's own
        given = {name: value for name, value in request.items() if name not in _CELERYS}
    return {name: value for name, value in given.items() if name != HEADER}


def attempt_of(request: Mapping[str, Any]) -> int:
    """Return which try of its run a request is, by its mapping."""
    nesting, retries = counted(request.get("replaced_task_nesting")), counted(request.get("retries"))
    return min(nesting * NESTING + retries, MAX_ATTEMPT)


class Header(dict[str, object]):
    """Our header of a message that is about to be sent, in this process only: whose it is is still open."""

    sent: Callable[[str], None] | None = None
    """Called with the run's id by `singleflight.celery.sending`."""

    def __init__(self, carried: Carried) -> None:
        super().__init__(carried.fields())
        self.carried = carried

    def bind(self, message_id: object, task: str) -> None:
        """Name the message and the task that it is for; elsewhere it counts for nothing."""
        self["for"] = [id_of(message_id), task]


def read(
    request: Mapping[str, Any], task: str, arrival: Arrival | None = None, *, eager: bool = False
) -> Delivery:
    """Read a request's mapping: `Context.__dict__` in the pool, ``Request.request_dict`` outside it.

    All of it is its author's word, apart from ``arrival``; what has no fitting type counts as not there.
    Never raises.
    """
    token = new_token() if arrival is None else arrival.token
    # A request that tests push may have no id.
    message_id = id_of(request.get("id") or token) if arrival is None else arrival.message_id
    carried = Carried.read(header_of(request, eager=eager), message_id, task)
    parent_id = request.get("parent_id")
    return Delivery(
        run_id=run_of(message_id, carried.mark),
        attempt=attempt_of(request),
        token=token,
        args=sequence(request.get("args")),
        kwargs=mapping(request.get("kwargs")),
        carried=carried,
        redelivered=bool(mapping(request.get("delivery_info")).get("redelivered")),
        parent_id=id_of(parent_id) if parent_id else None,
        headers=own_headers(request),
    )
