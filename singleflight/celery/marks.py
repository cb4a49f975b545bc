"""Marks on messages whose id was given: a new publish of an id is no copy of the one before.

Callers reuse ids, and so do signatures that are frozen once and applied twice. Celery gives all other
messages an id of their own. Beat's ids stay as they are: two replicas that publish one tick publish copies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from singleflight.celery.delivery import HEADER, Header, attempt_of, header_of
from singleflight.celery.state import state_of
from singleflight.identity import Publisher, new_mark, run_of
from singleflight.switch import Switch
from singleflight.tasks.message import Carried, id_of, mapping

if TYPE_CHECKING:
    from celery import Celery

unmarked = Switch("singleflight_unmarked")
"""Messages are published as they are: they are no new calls."""

_publishers: WeakKeyDictionary[Any, Publisher] = WeakKeyDictionary()
"""By the request of the run that publishes; not on the request, where a message could write."""


def mark(app: Celery, options: dict[str, Any]) -> None:
    """Mark a message that is about to be published, unless nobody else can have its id or it is a retry."""
    task_id = options.get("task_id")
    if task_id is None or options.get("retries") or unmarked:
        return
    headers = mapping(options.get("headers"))
    header = headers.get(HEADER)
    if getattr(header, "sent", None) is not None:
        return  # the id is ours, made by `publish`
    # Any other than this call's own has been forwarded.
    carried = header.carried if isinstance(header, Header) else Carried()
    options["headers"] = {**headers, HEADER: Header(replace(carried, mark=_mark(app, task_id, options)))}


def _mark(app: Celery, task_id: str, options: dict[str, Any]) -> str | None:
    publishing = app.current_worker_task
    if publishing is None:
        return new_mark()
    request = publishing.request
    message_id, eager = id_of(request.id), state_of(request).eager
    own = Carried.read(header_of(request.__dict__, eager=eager), message_id, publishing.name).mark
    if options.get("replaced_task_nesting") and task_id == request.id:
        return own  # `Task.replace`: what replaces a run goes on as that run
    publisher = _publishers.get(request)
    if publisher is None:
        publisher = Publisher(run_of(message_id, own), attempt_of(request.__dict__))
        _publishers[request] = publisher
    return publisher.next_mark(task_id)
